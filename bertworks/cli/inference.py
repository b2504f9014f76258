"""Commands that use a model.

`fill`, `generate`, `score` and `explain`; and `embed`, `index` and `search` for vectors.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

import bertworks as bw
from bertworks.cli import console
from bertworks.errors import BertworksError, expect
from bertworks.io.options import STDIN, ReadOptions

_SHOWN = 200  # characters of a text
_MEASURES = {
    "log_likelihood": "log-likelihood: each token is predicted from the tokens before it",
    "pseudo_log_likelihood": (
        "pseudo-log-likelihood: each token is masked, and predicted from the tokens on both sides"
    ),
}
_ROWS = "Rows or lines of text, in any format; - for standard input."


def fill(
    model: str, texts: console.Inputs, /, *, top_k: console.TopK = 5
) -> Iterator[console.Result]:
    """Predict the most probable tokens for every [MASK].

    Args:
        texts: Texts with [MASK], or - for the lines of standard input.
        top_k: Predictions per [MASK].

    Examples:
        bertworks fill MODEL "The capital of France is [MASK]."
        bertworks fill MODEL - --top-k 3 < lines.txt
    """
    for number, masks in enumerate(bw.fill(model, _lines(texts), k=top_k)):
        tables = (
            [(f"{token['score']:6.1%}  {token['token_str']}", token["text"]) for token in mask]
            for mask in masks
        )
        separator = "\n" if number else ""
        yield masks, separator + "\n\n".join(map(console.table, tables))


@console.option_group
class GenerateOptions:
    """How a text is continued.

    Args:
        max_tokens: Maximum number of tokens of a continuation.
        temperature: 0: the most probable token each time. Above 0, tokens are sampled; 1: with the
            model's probabilities.
        top_k: Sample among the k most probable tokens. Default: all.
        top_p: Sample among the most probable tokens, up to this total probability. Default: all.
        seed: Random seed; each text has its own stream of random numbers.
        stop: A string at which a continuation ends. Repeatable.
        sampling: model: temperature, top-k and top-p are those of the model's
            generation_config.json.
    """

    max_tokens: Annotated[int, console.at_least(1)] = 50
    temperature: Annotated[float, console.at_least(0)] = 0.0
    top_k: Annotated[int | None, console.at_least(1)] = None
    top_p: Annotated[float | None, console.at_least(0, most=1)] = None
    seed: Annotated[int, console.at_least(0)] = 0
    stop: console.Names = ()
    sampling: Literal["options", "model"] = "options"


def generate(
    model: str,
    texts: console.Inputs,
    /,
    *,
    options: GenerateOptions = GenerateOptions(),
    text: console.Repeatable = None,
    device: str = "auto",
    precision: console.InferencePrecision = "auto",
) -> Iterator[console.Result]:
    """Continue texts with a model that reads from left to right (GPT-2).

    Args:
        texts: Texts, a file of rows or lines, or - for the lines of standard input.

    Examples:
        bertworks generate MODEL "The old house" --max-tokens 50
        bertworks generate MODEL "The old house" --temperature 0.8 --seed 1
    """
    from bertworks.checkpoints.generation_config import read_generation_config
    from bertworks.checkpoints.model_folder import ModelFolder
    from bertworks.checkpoints.resolve import resolve_model

    generation = read_generation_config(ModelFolder(resolve_model(model)).within)
    for note in generation.notes(options.sampling):
        console.say(note)
    results = bw.generate(
        model,
        _prompts(texts, text or ()),
        **vars(options),
        device=device,
        precision=precision,
    )
    for number, result in enumerate(results, 1):
        separator = "\n" if number > 1 else ""
        yield result, separator + result["text"] + result["continuation"]
        if result["finish_reason"] == "context":
            console.say(
                f"text {number} ends here: with its continuation it has as many tokens as the "
                "model reads"
            )


@console.option_group
class TranslateOptions:
    """How a translation is looked for.

    Args:
        text: Column of the text. Repeatable; columns are joined by a space.
        max_tokens: Maximum number of tokens of a translation. Default: as in the model's files,
            else 50 more than the text has.
        no_repeat_ngram: No sequence of this many tokens occurs twice in a translation. Default: as
            in the model's files, else no limit.
        cut: Truncate sentences, or texts to summarize, that are longer than the model reads.
            Default: they are errors.
    """

    text: console.Names = ()
    beam: Annotated[int | None, console.at_least(1)] = None
    length_penalty: float | None = None
    max_tokens: Annotated[int | None, console.at_least(1)] = None
    no_repeat_ngram: Annotated[int | None, console.at_least(1)] = None
    target_language: str | None = None
    cut: console.Flag = False
    guard_formulas: console.Flag = False


def translate(
    model: str,
    data: console.RowsOrTexts = None,
    /,
    *,
    text_input: console.Texts = None,
    output: Annotated[str | None, console.stdin_or(["--output", "-o"])] = None,
    options: TranslateOptions = TranslateOptions(),
    overwrite: console.OverwriteFile = False,
    read: console.Read = console.Read(),
    device: str = "auto",
    precision: console.InferencePrecision = "auto",
    bulk: console.InBulk = console.InBulk(),
    as_json: console.Json = False,
) -> None:
    """Translate texts, or a file of rows or lines, with a model that `pretrain --parallel` made, or
    one of Marian.

    Without --output, one translation in each line. Run the same command with --output again to
    resume. The output appears when it is complete.

    Args:
        output: The output file: .txt for one translation in each line; .csv, .jsonl, ... for the
            columns of the input and the translation. Default: standard output.

    Examples:
        bertworks translate MT "A man rides a bike."
        bertworks translate MT captions.csv --text caption -o translated.csv
    """
    from bertworks.io.inputs import file_or_texts

    source = file_or_texts(data or (), text_input or (), console.say)
    settings = dict(vars(options))
    if output is not None:
        from bertworks.io.file_job import refuse_finished  # it imports numpy, which takes long

        refuse_finished(Path(output), overwrite)
        settings |= {"read": read, "bulk": bulk, "device": device, "precision": precision}
        events = bw.translate_file(model, source, output, **settings)
        console.show_events(events, as_json=as_json and output != "-", results=output != "-")
        return
    expect(
        not bulk.is_shared,
        "chunks are stored next to the output, which needs a name",
        hint="-o FILE",
    )
    names = settings.pop("text")
    del settings["guard_formulas"]
    texts = source if isinstance(source, list) else _column_texts(source, names, read)
    answers = bw.translate(model, texts, **settings, device=device, precision=precision)
    limited: list[int] = []
    for number, answer in enumerate(answers, 1):
        console.emit(answer) if as_json else console.out(answer["translation"])
        if answer["finish_reason"] == "max_tokens":
            limited.append(number)
    if limited:
        numbers = ", ".join(map(str, limited[:10])) + (", ..." if len(limited) > 10 else "")
        console.say(
            f"translations that reached the limit of their tokens, and may lack their end: "
            f"{len(limited):,} (texts {numbers}); --max-tokens raises it",
            is_warning=True,
        )


def _column_texts(source: Any, names: Sequence[str], read: ReadOptions) -> Iterator[str]:
    """Yield the text of each row of a file; "" for a row without text."""
    from bertworks.datasets.reader import RowReader  # both import libraries that take long
    from bertworks.inference.embed_file import reading_note, row_text, text_columns
    from bertworks.io.inputs import IssueCounter

    reader = RowReader(source, read)
    columns = text_columns(reader, names)
    console.say(reading_note(reader, columns, "").text)
    empty = IssueCounter()
    for row in reader:
        yield row_text(row, columns, empty)
    for event in reader.events(empty, "have an empty translation"):
        console.say(event.text, is_warning=event.is_warning)


def score(
    model: str, sentences: console.Inputs, /, *, within_word: console.Flag = False
) -> Iterator[console.Result]:
    """Score sentences by log-likelihood (masked LMs: pseudo-log-likelihood).

    A masked LM predicts each token from all others: each is masked in turn. A model that reads from
    left to right predicts each token from those before it, and the first from the end token.

    Columns: the sum of the log-probabilities, their mean over the tokens, the sentence.

    Args:
        sentences: Sentences, or - for the lines of standard input.

    Examples:
        bertworks score MODEL "The dogs bark." "The dogs barks."
        bertworks score MODEL - --within-word < sentences.txt
    """
    for number, result in enumerate(bw.score(model, _lines(sentences), within_word=within_word)):
        head = "" if number else f"{'sum':>9}  {'mean':>7}\n"
        if number == 0:
            console.say(_MEASURES[result["measure"]])
        mean = result["score"] / len(result["tokens"])
        yield result, f"{head}{result['score']:9.2f}  {mean:7.3f}  {result['text']}"


def explain(
    model: str,
    texts: console.Inputs,
    /,
    *,
    output: Annotated[Path | None, console.output_file()] = None,
    target: str | None = None,
    baseline: Literal["mask", "pad"] = "mask",
    overwrite: console.OverwriteFile = False,
) -> Iterator[console.Result]:
    """Explain a prediction: attributions of words, attention, similarity of tokens; for a
    translation, the attention between source and target.

    Args:
        texts: A text, for a pre-trained model with a [MASK]; two for a pair, or a question and its
            context; or - for the lines of standard input.
        output: The HTML file to write. Default: none.
        target: What to explain instead of the prediction: a label, a tagged word, or a token.
            Default: the prediction.
        baseline: The token that stands for "no information".

    Examples:
        bertworks explain MODEL "The plot is thin." -o why.html
        bertworks explain MODEL "A question?" "Its context." --target LABEL
    """
    from bertworks.io.atomic_write import refuse_existing

    refuse_existing(output, overwrite)
    explanation = bw.explain(model, *_lines(texts), target=target, baseline=baseline)
    yield explanation.as_dict(), str(explanation)
    if output is not None:
        explanation.save(output)
        console.say(f"written to {output}")


@console.option_group
class EmbedOptions:
    """How vectors are made and written.

    Args:
        normalize: Scale embeddings to length 1. Default: as in the model's files.
        windows: Read longer texts in up to this many windows, and average their embeddings. 0:
            truncate them, like sentence-transformers.
        whitening: center: subtract the mean of all embeddings. whiten: also make the covariance the
            identity.
    """

    text: console.Names = ()
    pooling: console.Pooling = None
    normalize: bool | None = None
    max_length: console.MaxLength = None
    windows: int = 0
    whitening: Literal["none", "center", "whiten"] = "none"
    learn_from: str | None = None
    guard_formulas: console.Flag = False


def embed(
    model: str,
    data: console.RowsOrTexts = None,
    /,
    *,
    text_input: console.Texts = None,
    output: Annotated[str, console.stdin_or(["--output", "-o"])] = "-",
    options: EmbedOptions = EmbedOptions(),
    overwrite: console.OverwriteFile = False,
    read: console.Read = console.Read(),
    device: str = "auto",
    precision: console.InferencePrecision = "auto",
    bulk: console.InBulk = console.InBulk(),
    as_json: console.Json = False,
) -> None:
    """Compute an embedding for every row or text. .npy: an array; other formats: your columns plus
    `embedding`.

    Run the same command again to resume. The output appears when it is complete. With --json each
    row is a JSON object on a line.

    Args:
        output: The output file: .npy, .parquet, .jsonl, ...; - for standard output.

    Examples:
        bertworks embed minilm documents.csv -o vectors.npy
        bertworks embed minilm "A text." "Another text." -o vectors.jsonl
    """
    from bertworks.io.file_job import refuse_finished  # it imports numpy, which takes long
    from bertworks.io.inputs import file_or_texts

    refuse_finished(Path(output), overwrite)
    events = bw.embed_file(
        model,
        file_or_texts(data or (), text_input or (), console.say),
        output,
        **vars(options),
        read=read,
        kind="jsonl" if as_json and output == "-" else None,
        device=device,
        precision=precision,
        bulk=bulk,
    )
    console.show_events(events, as_json=as_json and output != "-", results=output != "-")


@console.option_group
class IndexOptions:
    """How documents are read, and how a new index compares them.

    Args:
        model: The model of the embeddings. Default: that of the index; minilm for a new index.
        identity: Column of the row ids. Default: detected automatically.
        windows: Read longer texts in up to this many windows, and average their embeddings.
            Default: as in the index; a new index truncates them.
    """

    model: str | None = None
    text: console.Names = ()
    identity: Annotated[str | None, Parameter(name="--id")] = None
    pooling: console.Pooling = None
    max_length: console.MaxLength = None
    windows: int | None = None
    language: str | None = None


def index(
    documents: Annotated[str | None, console.stdin_or(help=_ROWS)] = None,
    /,
    *,
    output: console.Output,
    options: IndexOptions = IndexOptions(),
    delete: console.Repeatable = None,
    compact: console.Flag = False,
    approximate: console.Flag = False,
    verify: console.Flag = False,
    read: console.Read = console.Read(),
    device: str = "auto",
    bulk: console.InBulk = console.InBulk(),
    as_json: console.Json = False,
) -> None:
    """Create an index of documents, add documents, or delete some.

    A new row replaces a document with the same id. Run the same command again to resume.

    Args:
        delete: Id of a document to delete. Repeatable.
        compact: Remove deleted documents from disk.
        approximate: Build the graph for approximate search (needs faiss).
        verify: First compare every file of the index with its sha256.

    Examples:
        bertworks index documents.csv -o INDEX --text body
        bertworks index -o INDEX --delete 17 --compact
    """
    expect(
        documents is not None or delete or compact or approximate or verify,
        "nothing to do",
        hint="name a file of documents, or give --delete, --compact, --approximate or --verify",
    )
    if verify:
        bw.Index(output).verify()
        console.say(f"{output}: the checksums of all files match")
    if documents is not None:
        events = bw.index_file(
            documents, output, **vars(options), device=device, read=read, bulk=bulk
        )
        console.show_events(events, as_json=as_json)
    if delete:
        count = bw.Index(output).delete(delete)
        console.emit({"deleted": count}) if as_json else console.say(
            f"deleted {count:,} of {len(delete):,}"
        )
    if compact:
        bw.Index(output).compact()
    if approximate:
        recall = bw.Index(output).build_graph()
        if as_json:
            console.emit({"recall": recall})
        else:
            console.say(
                f"recall@10 of approximate search: {recall:.1%}, measured with 100 documents"
            )


def search(
    folder: Path,
    query: str,
    /,
    *,
    top_k: console.TopK = 10,
    ranking: Literal["hybrid", "dense", "bm25"] = "hybrid",
    rerank: str | None = None,
    approximate: console.Flag = False,
    verify: console.Flag = False,
    model: str | None = None,
    device: str = "auto",
) -> Iterator[console.Result]:
    """Find the best documents of an index for a query. With --json, one JSON object per line.

    Args:
        folder: The folder of an index.
        query: The query.
        top_k: Number of documents.
        ranking: Rank by embeddings (dense), by words (bm25), or by both (hybrid).
        approximate: Search with the graph from index --approximate.
        verify: First compare every file of the index with its sha256.
        model: Path of the index's model, if it has moved. Default: its stored path.

    Examples:
        bertworks search INDEX "how to train a model"
        bertworks search INDEX "train a model" --top-k 3 --ranking bm25
    """
    opened = bw.Index(folder, model=model, device=device)
    if verify:
        opened.verify()
    hits = opened.search(query, top_k, ranking=ranking, rerank=rerank, approximate=approximate)
    if not hits:  # with bm25, or in an empty index
        console.say("nothing found")
    for hit in hits:
        title = f"{hit['title']}: " if hit["title"] else ""
        text = title + " ".join(hit["text"].removeprefix(hit["title"]).split())
        text = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
        cosine = (
            "" if hit["cosine"] is None or ranking == "dense" else f"cosine {hit['cosine']:.3f}  "
        )
        yield hit, f"{hit['score']:.3f}  {cosine}{hit['id']}  {text}"


def _prompts(words: list[str], names: Sequence[str]) -> Iterator[str]:
    """Yield the texts of a file, if its name is the only word; else those of `_lines`.

    Rows without text are left out and reported. names: of the columns of the text.
    """
    from bertworks.io.inputs import IssueCounter, names_file

    if len(words) != 1 or words[0] == "-" or not names_file(words[0]):
        expect(
            not names,
            "--text names a column of a file, but the input is texts",
            hint="leave --text out",
        )
        yield from _lines(words)
        return
    from bertworks.datasets.reader import RowReader  # both import libraries that take long
    from bertworks.inference.embed_file import reading_note, row_text, text_columns

    reader = RowReader(words[0])
    columns = text_columns(reader, names)
    empty = IssueCounter()
    console.say(reading_note(reader, columns, "").text)
    yield from filter(None, (row_text(row, columns, empty) for row in reader))
    if empty.count:
        console.say(f"rows without text, left out: {empty}", is_warning=True)


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts, with the lines of standard input instead of "-".

    Blank lines are left out and reported. Bytes that are not UTF-8 are replaced, so that they can
    be printed.

    Raises:
        UsageError: a text is the name of a file.
    """
    from bertworks.io.inputs import CONVERT_LINE_ENDS, NO_LINE_FEED, IssueCounter, names_file

    blank = IssueCounter()
    for text in texts:
        if text == "-":
            if isinstance(sys.stdin, TextIOWrapper):
                sys.stdin.reconfigure(encoding="utf-8", errors="replace", newline="\n")
            for number, line in enumerate(sys.stdin, 1):
                if number == 1 and "\n" not in line and "\r" in line:
                    raise BertworksError(NO_LINE_FEED, where=STDIN, hint=CONVERT_LINE_ENDS)
                if line.strip():
                    yield line.rstrip("\r\n")
                else:
                    blank.add(f"line {number}")
        else:
            expect(
                not names_file(text),
                "expected a text, not the name of a file",
                where=text,
                hint="give a text in quotes; or - for the lines of standard input",
            )
            yield text.encode("utf-8", "replace").decode()
    if blank.count:
        console.say(f"blank lines, left out: {blank}", is_warning=True)
