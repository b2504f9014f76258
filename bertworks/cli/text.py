"""`bertworks vocab` and `bertworks prepare`: raw text to a vocabulary, and to token ids on disk."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from bertworks.cli.console import show_events
from bertworks.cli.options import Documents, Inputs, Json, Output, Overwrite, TextColumn, Workers, parse_size


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
