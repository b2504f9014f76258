"""The commands `vocab`, `prepare` and `pretrain`: raw text to a pre-trained model."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from bertworks.cli.console import (
    Device,
    Documents,
    Inputs,
    Json,
    Output,
    Overwrite,
    Settings,
    TextColumn,
    TrainingPrecision,
    Workers,
    at_least,
    emit,
    flag,
    parse_size,
    show_events,
)


def vocab(
    inputs: Inputs,
    /,
    *,
    output: Output,
    size: Annotated[int, at_least(10, "Number of tokens, special tokens included.")] = 30000,
    algorithm: Annotated[
        Literal["wordpiece", "bpe", "unigram"], Parameter(help="bpe is byte-level; unigram needs sentencepiece.")
    ] = "wordpiece",
    lowercase: Annotated[bool, Parameter(name="--uncased", negative="--cased", help="Lowercase the text.")] = True,
    max_memory: Annotated[str, Parameter(help="Memory for counting words: 512m, 1g.")] = "1g",
    workers: Workers = None,
    text_column: TextColumn = None,
    documents: Documents = "auto",
    as_json: Json = False,
) -> None:
    """Build a vocabulary from raw text, and write it as a Hugging Face tokenizer folder."""
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
    tokenizer: Annotated[Path, Parameter(help="A tokenizer folder, such as `vocab` writes.")],
    output: Output,
    workers: Workers = None,
    text_column: TextColumn = None,
    documents: Documents = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Tokenize raw text in parallel, and write shards of token ids for `pretrain`."""
    from bertworks.runs.prepare import make_shards, read_text
    from bertworks.text.tokenizer import Tokenizer

    vocabulary = Tokenizer.load(tokenizer)
    reader = read_text(inputs, text_column, documents)
    events = make_shards(reader, output, vocabulary, workers=workers, overwrite=overwrite)
    show_events(events, as_json=as_json)


def pretrain(
    inputs: Inputs,
    /,
    *,
    output: Output,
    recipe: Annotated[str | None, Parameter(help="The name of a recipe (bert-base), or a .toml file.")] = None,
    settings: Settings = None,
    budget: Annotated[
        str | None, Parameter(help="Training time (30m, 2h). Model size, batch size and steps are chosen to fit.")
    ] = None,
    estimate: Annotated[bool, flag("Print parameters, memory, tokens, time and disk space, and do not start.")] = False,
    tokenizer: Annotated[str | None, Parameter(help="A tokenizer folder. Unset: built from the text.")] = None,
    init: Annotated[
        str | None, Parameter(help="Initialize from this model: a folder, minilm, or a name on the hub.")
    ] = None,
    device: Device = "auto",
    precision: TrainingPrecision = "auto",
    seed: Annotated[int | None, Parameter(help="Seed of the weights, the order of the text and the masks.")] = None,
    workers: Workers = None,
    text_column: TextColumn = None,
    documents: Documents = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Pre-train a BERT on raw text, or on shards from `prepare`.

    The output folder is a model folder from the first step on; Hugging Face transformers opens it. Run the same command
    again to resume. Ctrl-C saves first.
    """
    from bertworks.runs import pretrain as module

    request: dict[str, Any] = {
        "recipe": recipe, "overrides": settings or [], "budget": budget, "tokenizer": tokenizer, "init": init,
        "device": device, "precision": None if precision == "auto" else precision, "seed": seed,
        "text_column": text_column, "documents": documents,
    }  # fmt: skip
    if estimate:
        result = module.estimate(inputs, **request)
        emit(result.as_dict()) if as_json else print(result)
    else:
        show_events(module.pretrain(inputs, output, overwrite=overwrite, workers=workers, **request), as_json=as_json)
