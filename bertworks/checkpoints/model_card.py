"""Model cards: the README.md of a model folder, with the lines that the Hugging Face hub reads.

- `fill_template`: a text file with places for values -> the text of a card
- `render_table`, `render_cell`, `render_code`: Markdown for any card
- `pretraining_card`: the card of a pre-trained model
- `with_tokenizer_note`: a card that says how other programs read the tokenizer
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bertworks.models.config import EncoderConfig
from bertworks.text.tokenizer import Tokenizer

_COMPOSING_TOKENIZER = """
## Tokenizer

`tokenizer.json` composes the text (Unicode NFC) before it is split into tokens. `AutoTokenizer.from_pretrained` and
sentence-transformers do so too. `BertTokenizer.from_pretrained`, and programs that read `vocab.txt` alone, do not:
compose the text yourself for them, with `unicodedata.normalize("NFC", text)`. In transformers.js, call the tokenizer
with `return_token_type_ids: true` for pairs of texts.
"""


def fill_template(template: Path, **values: object) -> str:
    """The text of a file in which values replace their names in braces, as in `str.format`."""
    return template.read_text(encoding="utf-8").format(**values)


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
    corpus: Mapping[str, object],
    held_out: Mapping[str, float],
    versions: Mapping[str, str],
    mask_token: str | None = "[MASK]",
    detects: bool = False,
    **counts: int,
) -> str:
    """The card of a pre-trained model.

    Args:
        name: the title; usually the name of the folder.
        recipe: the resolved recipe, as TOML.
        corpus: names and counts, such as {"documents": 8000, "sha256": "..."}.
        held_out: metrics on held-out text; may be empty.
        versions: of the software.
        mask_token: None: the model has none, and continues texts.
        detects: whether it predicts which tokens were replaced.
        counts: `parameters` of the network and its heads; `steps` and `tokens` of the training.
    """
    start = "The capital of France is"
    prompt = f"{start} {mask_token}." if mask_token else start
    values: dict[str, object] = {
        "verb": "fill" if mask_token else "generate",
        "pipeline": "fill-mask" if mask_token else "text-generation",
        "command": f'bertworks fill . "{prompt}"' if mask_token else f'bertworks generate . "{prompt}"',
        "prompt": prompt,
        "name": " ".join(name.split()),
        "c": config,
        "figures": render_table(("Held-out figure", ""), held_out) if held_out else "No held-out text was evaluated.\n",
        "corpus": render_table(("Corpus", ""), corpus),
        "recipe": render_code("toml", recipe),
        "software": render_table(("Package", ""), versions),
    }
    template = "discriminator.md" if detects else "pretrained.md"
    return fill_template(Path(__file__).with_name(template), **values, **counts)


def with_tokenizer_note(card: str, tokenizer: Tokenizer) -> str:
    """A card that says what programs must do which do not read tokenizer.json, if the tokenizer composes its text."""
    if not tokenizer.composes_text or _COMPOSING_TOKENIZER in card:
        return card
    return card.rstrip("\n") + "\n" + _COMPOSING_TOKENIZER
