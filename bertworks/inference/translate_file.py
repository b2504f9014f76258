"""A file of texts -> a file of translations, in the order of the rows; a job resumes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from bertworks.datasets.reader import RowReader
from bertworks.events import Event, JsonObject
from bertworks.inference.embed_file import TextRow, reading_note, text_columns, text_rows
from bertworks.inference.translation import DecodingRules, Translator
from bertworks.io.atomic_write import local_path
from bertworks.io.file_job import (
    FileJob,
    Portion,
    RowFormat,
    compute_file,
    format_of,
    join_portions,
    kind_of,
    line_portion,
    row_portion,
)
from bertworks.io.inputs import IssueCounter
from bertworks.io.options import Bulk, ReadOptions
from bertworks.io.tables import Data, rows_of_texts
from bertworks.training.device import PrecisionOption, fixed_machine, shared_machine

_COLUMNS = ("translation", "finish_reason")


def translate_file(
    model: str | Path,
    data: Data,
    output: str | Path,
    *,
    text: str | Sequence[str] = (),
    beam: int | None = None,
    length_penalty: float | None = None,
    max_tokens: int | None = None,
    no_repeat_ngram: int | None = None,
    target_language: str | None = None,
    cut: bool = False,
    device: str = "auto",
    precision: PrecisionOption = "auto",
    read: ReadOptions = ReadOptions(),
    guard_formulas: bool = False,
    bulk: Bulk = Bulk(),
) -> Iterator[Event]:
    """Write the translation of every row of a file, in order.

    A file whose name ends in .txt has one translation in each line. Any other has the columns of
    the input, `translation`, and `finish_reason`: "end_token", or "max_tokens" where a translation
    reached the limit. Call it again to resume after an interruption. The output appears when it is
    complete.

    Args:
        data: any file of rows, or of lines; "-" is standard input; rows in memory, see `finetune`;
            or a list of texts. A row without text has an empty translation.
        text: columns, joined by a space; (): inferred.
        beam, length_penalty, max_tokens, no_repeat_ngram, target_language, cut: see `translate`.
        precision: see `Embedder`. guard_formulas, bulk: see `predict_file`.

    Raises:
        BertworksError, UsageError: no such model or column, an unreadable row, a sentence with more
            tokens than the network reads, an unknown kind of output.
    """
    output = local_path(output)
    translator = Translator(model, device, precision)
    options: JsonObject = {
        "rules": asdict(translator.rules(beam, length_penalty, no_repeat_ngram)),
        "max_tokens": max_tokens,
        "target_language": target_language,
        "cuts": cut,
    }
    reader = RowReader(rows_of_texts(data, ["text"]), read)
    columns = text_columns(reader, text)
    yield reading_note(reader, columns, f"beam {options['rules']['beam']}")
    new_columns = list(_COLUMNS)
    if str(output).endswith(".txt"):
        row_format = RowFormat(name=str(output), kind="conll", columns=())
    else:
        new_columns = [_free_name(name, reader.written_columns) for name in _COLUMNS]
        row_format = format_of(
            output,
            [*reader.written_columns, *new_columns],
            kind=kind_of(output),
            guard_formulas=guard_formulas,
        )
    reader.refuse_output(output)
    identity = {
        "command": "translate",
        "columns": columns,
        "data": reader.content_identity() if bulk.is_shared else reader.fingerprint(),
        "model": translator.fingerprint,
        "precision": translator.precision,
        "options": options,
        "format": row_format.identity,
    }
    # "auto" is measured: other processes may choose another one
    chosen = translator.precision
    settings = [str(model), device, chosen, options, asdict(row_format), new_columns]
    job = FileJob(
        output,
        bulk,
        identity,
        "bertworks.inference.translate_file:translation_maker",
        settings,
        **shared_machine(device, bulk.is_shared),
    )
    empty = IssueCounter()
    yield from compute_file(
        "translate",
        job,
        text_rows(reader, columns, empty, row_format, new_columns),
        partial(_portion, translator, options, row_format, new_columns),
        partial(join_portions, row_format, output),
        notes=lambda: reader.events(empty, "have an empty translation"),
        size=lambda row: len(row.text),
        results="translations",
        describe=lambda counts: (
            f"{counts[0]:,} translations reached the limit of their tokens, and may lack their end"
        ),
    )


def translation_maker(
    model: str,
    device: str,
    precision: PrecisionOption,
    options: JsonObject,
    row_format: JsonObject,
    new_columns: list[str],
    threads: int,
) -> tuple[JsonObject, Callable[[Sequence[TextRow]], Portion]]:
    """Return the `maker` of translations, see `FileJob`."""
    machine = fixed_machine(device, threads)
    translator = Translator(model, device, precision)
    identity = {"model": translator.fingerprint, "precision": translator.precision, **machine}
    output_format = RowFormat(**row_format)
    return identity, partial(_portion, translator, options, output_format, new_columns)


def _portion(
    translator: Translator,
    options: JsonObject,
    row_format: RowFormat,
    new_columns: Sequence[str],
    rows: Sequence[TextRow],
) -> Portion:
    """Return the number of translations that reached the limit, and a portion of finished rows."""
    settings: dict[str, Any] = options | {"rules": DecodingRules(**options["rules"])}
    texts = [row.text for row in rows]
    answers = list(translator(texts, **settings))
    num_limited = sum(answer["finish_reason"] == "max_tokens" for answer in answers)
    if row_format.kind == "conll":
        return num_limited, line_portion(answer["translation"] for answer in answers)
    finished = (
        {**row.row, **dict(zip(new_columns, (answer["translation"], answer["finish_reason"])))}
        for row, answer in zip(rows, answers, strict=True)
    )
    return num_limited, row_portion(row_format, finished, rows[0].number)


def _free_name(name: str, columns: Sequence[str]) -> str:
    while name in columns:
        name += "_"
    return name
