"""Model cards: the README.md of a model folder, with the lines that the Hugging Face hub reads.

- `render_card`, `render_table`: Markdown for any card
- `pretraining_card`: the card of a pre-trained model
"""

from collections.abc import Mapping, Sequence

from bertworks.models.config import PRETRAINING_HEADS, EncoderConfig


def render_card(title: str, text: str, sections: Mapping[str, str], *, hub: Mapping[str, str]) -> str:
    """The text of a model card.

    Args:
        text: the paragraphs before the first section.
        sections: the text of each section, by its heading.
        hub: fields for the Hugging Face hub, written as YAML; none: no such lines.
    """
    fields = "".join(f"{name}: {value}\n" for name, value in hub.items())
    parts = [f"---\n{fields}---"] * bool(hub) + [f"# {' '.join(title.split())}", text.strip()]
    parts += [f"## {heading}\n\n{content.strip()}" for heading, content in sections.items()]
    return "\n\n".join(parts) + "\n"


def render_table(heads: Sequence[str], rows: Mapping[str, object]) -> str:
    """A Markdown table. rows: the first cell, and the others: a value, or a tuple of values."""
    lines = [heads, ["---"] * len(heads)]
    lines += [(name, *(value if isinstance(value, tuple) else (value,))) for name, value in rows.items()]
    return "\n".join(f"| {' | '.join(map(render_cell, line))} |" for line in lines) + "\n"


def render_cell(value: object) -> str:
    """A value as one line of Markdown."""
    text = f"{value:,}" if type(value) is int else f"{value:.4f}" if isinstance(value, float) else str(value)
    return " ".join(text.replace("|", "\\|").split())


def render_code(language: str, text: str) -> str:
    """A block of code."""
    content = text.strip().replace("```", "'''")
    return f"```{language}\n{content}\n```\n"


def pretraining_card(
    config: EncoderConfig,
    *,
    name: str,
    recipe: str,
    steps: int,
    tokens: int,
    corpus: Mapping[str, object],
    held_out: Mapping[str, float],
    versions: Mapping[str, str],
) -> str:
    """The card of a pre-trained model.

    Args:
        name: the title; usually the name of the folder.
        recipe: the resolved recipe, as TOML.
        steps, tokens: of the training.
        corpus: names and counts, such as {"documents": 8000, "sha256": "..."}.
        held_out: metrics on held-out text; may be empty.
        versions: of the software.
    """
    size = f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, {config.num_attention_heads} heads"
    text = f"""
A BERT encoder pre-trained from raw text with bertworks: {size},
vocabulary of {config.vocab_size:,}, {config.num_parameters(*PRETRAINING_HEADS) / 1e6:.1f} million parameters,
sequences of at most {config.max_position_embeddings} tokens. {steps:,} updates on {tokens:,} tokens."""
    quoted = '"The capital of France is [MASK]."'
    python = f"""
from transformers import pipeline

fill = pipeline("fill-mask", model=".")  # the path of this folder
fill({quoted})"""
    figures = render_table(("Held-out figure", ""), held_out) if held_out else "No held-out text was evaluated.\n"
    sections = {
        "Use": f"{render_code('', f'bertworks fill . {quoted}')}\n{render_code('python', python)}",
        "Quality": f"{figures}\nThe model repeats what its text says, with the errors and prejudices of that text.",
        "Text": render_table(("Corpus", ""), corpus),
        "Recipe": render_code("toml", recipe),
        "Software": render_table(("Package", ""), versions),
    }
    hub = {"library_name": "transformers", "pipeline_tag": "fill-mask", "tags": "[bert, bertworks, pretraining]"}
    return render_card(name, text, sections, hub=hub)
