"""`bertworks vocab` and `bertworks prepare`: raw text to a vocabulary, and to token ids on disk.

`bertworks pretrain`: raw text, or a folder of shards, to a pre-trained model.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from bertworks.cli.console import (
    Documents,
    Inputs,
    Json,
    Output,
    Overwrite,
    TextColumn,
    Workers,
    emit,
    parse_size,
    show_events,
)


def vocab(
    inputs: Inputs,
    /,
    *,
    output: Output,
    size: Annotated[int, Parameter(validator=Number(gte=10), help="Tokens, with the special ones.")] = 30000,
    algorithm: Annotated[
        Literal["wordpiece", "bpe", "unigram"], Parameter(help="bpe is byte-level; unigram needs sentencepiece.")
    ] = "wordpiece",
    lowercase: Annotated[
        bool, Parameter(name="--uncased", negative="--cased", help="Whether case is forgotten, as in BERT uncased.")
    ] = True,
    max_memory: Annotated[str, Parameter(help="Memory for counting words: 512m, 1g.")] = "1g",
    workers: Workers = None,
    text_column: TextColumn = None,
    documents: Documents = "auto",
    as_json: Json = False,
) -> None:
    """Make a vocabulary of raw text, and write it as a Hugging Face tokenizer folder."""
    from bertworks.runs.prepare import make_vocabulary, read_text
    from bertworks.text.vocabulary import VocabularyConfig

    config = VocabularyConfig(size=size, algorithm=algorithm, lowercase=lowercase)
    memory = parse_size(max_memory, "--max-memory")
    reader = read_text(inputs, text_column, documents)
    events = make_vocabulary(reader, output, config, max_memory=memory, workers=workers)
    show_events(events, as_json=as_json)


def prepare(
    inputs: Inputs,
    /,
    *,
    tokenizer: Annotated[Path, Parameter(help="A tokenizer folder, as `vocab` writes it.")],
    output: Output,
    workers: Workers = None,
    text_column: TextColumn = None,
    documents: Documents = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Turn raw text into token ids on disk, once and in parallel; `pretrain` reads them."""
    from bertworks.runs.prepare import make_shards, read_text
    from bertworks.text.tokenizer import Tokenizer

    vocabulary = Tokenizer.load(tokenizer)
    reader = read_text(inputs, text_column, documents)
    events = make_shards(reader, output, vocabulary, workers=workers, overwrite=overwrite)
    show_events(events, as_json=as_json)


Recipe = Annotated[str | None, Parameter(help="A recipe by name (bert-base) or a .toml file of your own.")]
Settings = Annotated[
    list[str] | None,
    Parameter(name="--set", negative="", help="Change one field of the recipe: --set seed=1. Repeatable."),
]
Budget = Annotated[
    str | None, Parameter(help="Time to spend (30m, 2h): size, batch and steps are chosen so that it is used.")
]
OnlyEstimate = Annotated[
    bool,
    Parameter(
        negative="", show_default=False, help="Print parameters, memory, tokens, time and disk, and do not start."
    ),
]
Vocabulary = Annotated[str | None, Parameter(help="A tokenizer folder. Unset: a vocabulary is made of the text.")]
Init = Annotated[
    str | None,
    Parameter(help="A model to go on from, instead of random weights: a folder, minilm, or a name on the hub."),
]
Device = Annotated[Literal["auto", "cpu", "cuda"], Parameter(help="Where to compute.")]
Precision = Annotated[
    Literal["auto", "fp32", "bf16"],
    Parameter(help="auto: as the recipe says, or else bf16 where this hardware gains by it."),
]
Seed = Annotated[int | None, Parameter(help="Of the weights, the order of the text and the masks.")]


def pretrain(
    inputs: Inputs,
    /,
    *,
    output: Output,
    recipe: Recipe = None,
    settings: Settings = None,
    budget: Budget = None,
    estimate: OnlyEstimate = False,
    tokenizer: Vocabulary = None,
    init: Init = None,
    device: Device = "auto",
    precision: Precision = "auto",
    seed: Seed = None,
    workers: Workers = None,
    text_column: TextColumn = None,
    documents: Documents = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Pre-train a BERT on raw text, or on a folder that `prepare` wrote.

    From its first step on the output folder is a model folder that Hugging Face transformers opens. The same command
    again goes on where the run stopped; Ctrl-C saves first.
    """
    from bertworks.runs import pretrain as room

    request: dict[str, Any] = {
        "recipe": recipe,
        "overrides": settings or [],
        "budget": budget,
        "tokenizer": tokenizer,
        "init": init,
        "device": device,
        "precision": None if precision == "auto" else precision,
        "seed": seed,
        "text_column": text_column,
        "documents": documents,
    }
    if estimate:
        result = room.estimate(inputs, **request)
        emit(result.as_dict()) if as_json else print(result)
    else:
        show_events(room.pretrain(inputs, output, overwrite=overwrite, workers=workers, **request), as_json=as_json)
