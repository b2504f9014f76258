"""Model cards: the README.md of a model folder, with the lines that the Hugging Face hub reads.

- `fill_template`: a text file with places for values -> the text of a card
- `render_table`, `render_cell`, `render_code`: Markdown for any card
- `pretraining_card`: the card of a pre-trained model; `encoder_card`: of an encoder alone
- `without_division`: a card of an earlier version without a sentence that is no longer true
- `with_tokenizer_note`: a card that says how other programs read the tokenizer
- `encoder_use`: how other programs compute the answers of a model that transformers opens without
  its last layer
- `with_encoder_use`: a card of an earlier version that says this
- `loading_code`: Python code that loads a model, for the card of a converted one
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertworks.checkpoints.hf_config import FAMILIES
from bertworks.checkpoints.hf_mapping import layer_of_means
from bertworks.config import packaged_table
from bertworks.errors import quoted
from bertworks.models.config import EncoderConfig
from bertworks.tasks.settings import TaskConfig
from bertworks.text.tokenizer import Tokenizer

_COMPOSING_TOKENIZER = """
## Tokenizer

`tokenizer.json` composes the text (Unicode NFC) before it is split into tokens.
`AutoTokenizer.from_pretrained` and sentence-transformers do so too.
`BertTokenizer.from_pretrained`, and programs that read `vocab.txt` alone, do not: compose the text
yourself for them, with `unicodedata.normalize("NFC", text)`. In transformers.js, call the tokenizer
with `return_token_type_ids: true` for pairs of texts.
"""

# In cards of earlier versions, which left the division by the temperature to other programs.
_DIVISION = re.compile(
    r"\nIn transformers, divide the logits by \S+ to get the same probabilities\."
)
_SNIPPETS: dict[str, Any] = packaged_table(__file__, "snippets.toml")
REFUSED = "transformers has no such network, and refuses this folder.\n"


def fill_template(template: Path, **values: object) -> str:
    """Return the text of a file with values in the place of their names.

    The names stand in braces, as in `str.format`.
    """
    return template.read_text(encoding="utf-8").format(**values)


def render_table(heads: Sequence[str], rows: Mapping[str, object]) -> str:
    """Return a Markdown table.

    Args:
        rows: the first cell of each row -> the other cells: a value, or a tuple of values.
    """
    lines = [heads, ["---"] * len(heads)]
    lines += [
        (name, *(value if isinstance(value, tuple) else (value,))) for name, value in rows.items()
    ]
    return "\n".join(f"| {' | '.join(map(render_cell, line))} |" for line in lines) + "\n"


def render_cell(value: object) -> str:
    """Return a value as one line of Markdown."""
    text = str(value)
    if type(value) is int:
        text = f"{value:,}"
    elif isinstance(value, float):
        text = f"{value:.4f}"
    return " ".join(text.replace("|", "\\|").split())


def render_code(language: str, text: str) -> str:
    """Return a block of code."""
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
    num_end_tokens: int = 0,
    detects: bool = False,
    **counts: int,
) -> str:
    """Return the card of a pre-trained model.

    Args:
        name: the title; usually the name of the folder.
        config: of the network.
        recipe: the resolved recipe, as TOML.
        corpus: names and counts, such as {"documents": 8000, "sha256": "..."}.
        held_out: metrics on held-out text; may be empty.
        versions: of the software.
        mask_token: None: the model has none, and continues or translates texts.
        num_end_tokens: number of special tokens that the tokenizer puts after a text, such as 1 for
            [SEP].
        detects: whether it predicts which tokens were replaced.
        counts: `parameters` of the network and its heads; `steps` and `tokens` of the training.
    """
    name = " ".join(name.split())
    prompt = "The capital of France is"
    pipeline = "fill-mask" if mask_token else "text-generation"
    if config.decoder is not None:
        pipeline = "translation"
        prompt = "A text."
        use = _commands(config, name, f'bertworks translate {{}} "{prompt}"')
        code = _SNIPPETS["translate"]
    elif mask_token:
        prompt = f"{prompt} {mask_token}."
        use = _commands(config, name, f'bertworks fill {{}} "{prompt}"')
        code = _SNIPPETS["fill"]
        if config.languages:
            code = in_language(_SNIPPETS["fill_in_a_language"], config)
        elif config.has_query:
            code = _SNIPPETS["fill_in_an_order"]
    else:
        use = _commands(config, name, f'bertworks generate {{}} "{prompt}"')
        ending = f"[:, :-{num_end_tokens}]  # without what ends a text" if num_end_tokens else ""
        end = "tokenizer.sep_token_id" if num_end_tokens else "tokenizer.eos_token_id"
        code = _SNIPPETS["generate"].replace("ENDING", ending).replace("EOS", end)
    family = FAMILIES[config.family]
    instructions = family.generation_remark
    if mask_token or not instructions:
        instructions = render_code(
            "python", code.replace("PROMPT", json.dumps(prompt, ensure_ascii=False))
        ).rstrip("\n")
    values: dict[str, object] = {
        "library": "bertworks" if family.has_own_names else "transformers",
        "pipeline": pipeline,
        "shape": shape_of(config),
        "use": f"{use}\n{instructions}\n",
        "name": name,
        "c": config,
        "figures": render_table(("Held-out figure", ""), held_out)
        if held_out
        else "No held-out text was evaluated.\n",
        "corpus": render_table(("Corpus", ""), corpus),
        "recipe": render_code("toml", recipe),
        "software": render_table(("Package", ""), versions),
    }
    template = "discriminator.md" if detects else "pretrained.md"
    return fill_template(Path(__file__).with_name(template), **values, **counts)


# The text of the card of an encoder that was trained with more than is in its folder, by its kind.
_CARDS_OF_ENCODERS = {"static": "word_vectors.md", "elmo": "word_states.md"}


def encoder_card(
    config: EncoderConfig,
    *,
    name: str,
    recipe: str,
    corpus: Mapping[str, object],
    held_out: Mapping[str, float],
    versions: Mapping[str, str],
    **counts: int,
) -> str:
    """Return the card of static vectors, or of an ELMo, that were trained on a text.

    Args:
        counts: `steps` and `tokens` of the training, and `words` of its vocabulary, or those that
            an ELMo can predict.
        config, name, recipe, corpus, held_out, versions: see `pretraining_card`.
    """
    values: dict[str, object] = {
        "name": " ".join(name.split()),
        "c": config,
        "shape": shape_of(config),
        "figures": render_table(("Held-out figure", ""), held_out),
        "corpus": render_table(("Corpus", ""), corpus),
        "recipe": render_code("toml", recipe),
        "software": render_table(("Package", ""), versions),
    }
    template = Path(__file__).with_name(_CARDS_OF_ENCODERS[config.kind])
    return fill_template(template, **values, **counts)


def shape_of(config: EncoderConfig) -> str:
    """Return the layers of an encoder, its width and its attention heads in words."""
    if config.kind == "static":
        return f"a vector of {config.hidden_size} numbers for each token"
    words = f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}"
    if config.kind == "elmo":
        return f"{words}, half of it for each direction, {config.ffn_size} cells in each LSTM"
    return words if config.kind == "lstm" else f"{words}, {config.num_attention_heads} heads"


def with_tokenizer_note(card: str, tokenizer: Tokenizer) -> str:
    """Return a card with a note on the tokenizer, if it composes its text.

    The note says what programs must do that do not read tokenizer.json.
    """
    if not tokenizer.composes_text or _COMPOSING_TOKENIZER in card:
        return card
    return card.rstrip("\n") + "\n" + _COMPOSING_TOKENIZER


def without_division(card: str) -> str:
    """Return the card of a model whose temperature has been put into its weights.

    It lacks the sentence of earlier versions that other programs must divide the logits by the
    temperature.
    """
    return _DIVISION.sub("", card)


def encoder_use(task: TaskConfig, config: EncoderConfig) -> str:
    """Return the section "Use" of a model with a last layer that reads means of hidden states.

    It is Python code without bertworks.

    Args:
        task: of vectors that are means.
        config: of the network.
    """
    texts = ["A text"] if task.vectors == "mean" else ["A text", "and another"]
    is_static = config.kind == "static"
    parts = [_SNIPPETS["means_of_table"]]
    if not is_static:
        parts = [_SNIPPETS["means"], _SNIPPETS["means_of_states"]]
        if config.languages:
            parts.insert(1, in_language(_SNIPPETS["means_in_a_language"], config))
    parts += [_SNIPPETS["means_features"][task.vectors], _SNIPPETS["means_answer"][task.task]]
    code = "\n" + "".join(part.lstrip("\n") for part in parts)
    words = {
        "TEXTS": json.dumps(texts),
        "LABELS": 'config["id2label"].values()'
        if is_static
        else "encoder.config.id2label.values()",
        "LAYER": layer_of_means(config),
    }
    for word, value in words.items():
        code = code.replace(word, value)
    text = fill_template(
        Path(__file__).with_name("table_use.md" if is_static else "encoder_use.md")
    )
    return f"{text}\n{render_code('python', code)}"


def with_encoder_use(card: str, task: TaskConfig, config: EncoderConfig) -> str:
    """Return the card of a model that an earlier version wrote, with a section on its encoder.

    By now transformers opens that encoder.
    """
    return card.replace(REFUSED, encoder_use(task, config))


def loading_code(config: EncoderConfig, class_name: str, *, in_transformers: bool) -> str:
    """Return a block of Python code that loads a model folder.

    For a model of several languages it also runs the model on a text.

    Args:
        class_name: the class of the network in transformers.
        in_transformers: whether transformers has such a network; else bertworks loads it.
    """
    if not in_transformers:
        return render_code("python", _SNIPPETS["load_own"])
    if config.languages:
        return render_code(
            "python",
            in_language(_SNIPPETS["load_in_a_language"], config).replace("CLASS", class_name),
        )
    return render_code("python", _SNIPPETS["load"].replace("CLASS", class_name))


def in_language(code: str, config: EncoderConfig) -> str:
    """Return Python code with the number and the name of a language of a model.

    It is the chosen language, or else the first.
    """
    language = config.language or config.languages[0]
    return code.replace("LANGUAGE", str(config.languages.index(language))).replace("NAME", language)


def _commands(config: EncoderConfig, name: str, command: str) -> str:
    """Return a block of commands to type in the folder.

    A model of several languages becomes a folder for one of them first.

    Args:
        name: of the folder.
        command: with {} in the place of the folder.
    """
    if not config.languages or config.language:
        return render_code("", command.format("."))
    language = config.languages[0]
    folder = quoted(f"../{name}-{language}")
    convert = f"bertworks convert . -o {folder} --language {language}"
    return render_code("", f"{convert}\n{command.format(folder)}")
