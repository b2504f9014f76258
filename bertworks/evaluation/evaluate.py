"""Evaluation on data that the model was not trained on.

- `evaluate_squad`: predictions for SQuAD
- `evaluate_sts`: similarity of texts; `evaluate_similarity`: of words
- `evaluate_task`: a fine-tuned model; `training_copies`: rows that it was trained on
- `evaluate_blimp`: minimal pairs
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from bertworks.batching.examples import sample_rows
from bertworks.checkpoints.resolve import TASKS as TASKS_FOLDER
from bertworks.checkpoints.storage import read_json
from bertworks.datasets.reader import RowReader, parse_json, utf8_lines
from bertworks.datasets.schema import Item, Schema, infer_schema, items, label_names
from bertworks.datasets.values import as_number, misspelt_labels
from bertworks.errors import (
    BertworksError,
    UsageError,
    expect,
    first_names,
    names_of,
    printable,
    quoted,
    require,
)
from bertworks.events import Event, JsonObject, no_notes
from bertworks.inference.embed_file import vectors_of_file
from bertworks.inference.embedder import Embedder, Moments, Whitening, normalized
from bertworks.inference.engine import open_model
from bertworks.inference.masked_lm import is_better, score
from bertworks.inference.predictor import Predictor, schema_for
from bertworks.io.atomic_write import refuse_unwritable, url_of, write_json
from bertworks.io.inputs import IssueCounter, as_path, nothing_there
from bertworks.io.options import ReadOptions
from bertworks.io.tables import Data
from bertworks.metrics import squad
from bertworks.metrics.intervals import (
    RowSums,
    correlations,
    groups_or_rows,
    mean_sums,
    middle,
    resampled,
)
from bertworks.models.settings import Pooling
from bertworks.runs.data_splits import DataRequest, choose_positive, read_data
from bertworks.runs.report import write_errors
from bertworks.runs.run_folder import stored_request
from bertworks.tasks.registry import TASKS, task_of
from bertworks.tasks.scores import bounded, compute_metrics, task_results
from bertworks.tasks.sequences import (
    Features,
    Truncation,
    format_truncation,
    format_windows,
)
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import SHOWN, Answer, Featurizer, shortened
from bertworks.text.near_copies import near_copies_of_rows
from bertworks.training.device import Precision, PrecisionOption

_DATA_FIELDS = ("data", "dev", "group", "validation", "fold", "folds", "task")
_PAIR_COLUMNS = ("sentence_good", "sentence_bad", "UID")
_BLIMP = "give BLiMP's files: sentence_good, sentence_bad, UID"
_NAMED_LABELS = 5  # in a message
_REPORT_INTERVAL = 200  # pairs between two lines of progress
_WORD_PAIR = "write two words and a number in each line, as in: tiger<TAB>cat<TAB>7.35"
_FEWEST_PAIRS = 3  # of a rank correlation
Pair = Mapping[str, Any]  # a row of BLiMP


class WordPair(NamedTuple):
    """Two words, and how similar people find them."""

    first: str
    second: str
    similarity: float


def evaluate_squad(
    data: str | Path,
    predictions: str | Path | Mapping[str, str],
    *,
    na_probs: str | Path | Mapping[str, float] | None = None,
    unit: Literal["auto", "word", "character"] = "auto",
    on_note: Callable[[str], object] = no_notes,
) -> JsonObject:
    """Return the figures of the official script in percent, and how they were computed.

    See `metrics.squad.evaluate_answers`. They are followed by `version` (2.0 if a question has no
    answer, or with `na_probs`), `unit`, `missing_ids` (questions without a prediction, which count
    as wrong), `unknown_ids` (predictions for no question, which do not count), `intervals` of
    `exact` and `f1`: 95 %, by the bootstrap over contexts.

    Args:
        data: a file in the format of SQuAD, with gold answers.
        predictions: question id -> answer, "" for none; or a JSON file of that.
        na_probs: question id -> confidence that it has no answer, on any scale; or a JSON file of
            that.
        unit: of F1; "auto": characters if most letters of the contexts are Japanese or Chinese,
            else words.
        on_note: is called with notes before the work: two examples.

    Raises:
        BertworksError: the data is not SQuAD or has no gold answers; a file is not such JSON; no
            prediction belongs to a question.
    """
    reader = RowReader(data)
    require(
        reader.kind == "squad",
        "this is not in the format of SQuAD",
        reader.name,
        "name a file like dev-v1.1.json or dev-v2.0.json",
    )
    rows = list[JsonObject]()
    for values, where, _ in reader:
        require(
            values["answers"] is not None,
            f"the question {values['id']!r} has no gold answers, not even an empty list",
            where,
            "name a dev file: test files have no answers",
        )
        rows.append(values)
    questions = [
        squad.SquadQuestion(row["id"], tuple(answer["text"] for answer in row["answers"]))
        for row in rows
    ]
    contexts = [row["context"] for row in rows]
    answers = _by_question(
        predictions, str, "answer to", '{"question id": "answer", ...}, with "" for no answer'
    )
    known = {question.id for question in questions}
    require(
        known & answers.keys(),
        f"none of the {len(answers):,} answers belongs to any of the {len(questions):,} "
        f"questions of {data}",
        predictions if isinstance(predictions, str | Path) else None,
        "name the predictions for this file: an object of question ids and answers",
    )
    for row, question in zip(rows[:2], questions):
        predicted = answers.get(question.id, "no prediction")
        on_note(
            printable(
                f"example  question {question.id}  {shortened(row['question'])!r} -> "
                f"gold {[*question.answers]}, predicted {predicted!r:.{SHOWN}}"
            )
        )
    probabilities = None
    if na_probs is not None:
        probabilities = _by_question(
            na_probs, int | float, "no-answer probability of", '{"question id": 0.25, ...}'
        )
    answerable = all(question.answers for question in questions)
    version: squad.SquadVersion = "1.1" if answerable and probabilities is None else "2.0"
    f1_unit = squad.f1_unit_of(dict.fromkeys(contexts)) if unit == "auto" else unit
    scores, each = squad.evaluate_answers(
        questions, answers, version=version, no_answer_probabilities=probabilities, unit=f1_unit
    )
    missing = [question.id for question in questions if question.id not in answers]
    unknown = [question for question in answers if question not in known]
    intervals = {}
    groups = groups_or_rows(contexts)
    for name in ("exact", "f1"):
        metric = mean_sums([getattr(score, name) for score in each])
        interval = bounded(middle(resampled(metric, groups)), metric.value, len(set(groups)), name)
        intervals[name] = [100 * end for end in interval]
    result = {**scores, "version": version, "unit": f1_unit, "intervals": intervals}
    return result | {"missing_ids": missing, "unknown_ids": unknown}


def _by_question(
    source: str | Path | Mapping[str, Any], kind: Any, what: str, example: str
) -> Mapping[str, Any]:
    """Return question id -> value, from a mapping or a JSON file.

    BertworksError for a value of another kind.
    """
    values: Any = source
    where = None if isinstance(source, Mapping) else str(source)
    hint = f"write one object, {example}"
    if not isinstance(source, Mapping):
        if not (path := as_path(source)).exists():
            raise nothing_there(path)
        values = parse_json(
            "\n".join(line for _, line in utf8_lines(path, str(source))), str(source)
        )
    if not isinstance(values, Mapping):
        raise BertworksError(
            f"expected one JSON object, not {values!r:.60}", where=where, hint=hint
        )
    for question, value in values.items():
        fits = (
            isinstance(value, kind)
            and not isinstance(value, bool)
            and (kind is str or math.isfinite(value))
        )
        require(
            fits,
            f"the {what} {question!r} is {value!r:.60}, not "
            f"{'a string' if kind is str else 'a number'}",
            where,
            hint,
        )
    return values


def evaluate_sts(
    model: str | Path,
    data: Data,
    *,
    pooling: Pooling | None = None,
    learn_from: str | Path | None = None,
    device: str = "auto",
    on_note: Callable[[str], object] = no_notes,
) -> JsonObject:
    """Return the correlation of the cosine of two texts with human scores of their similarity.

    The result has `rows`, `notes` (what was read, and two examples), `truncated`,
    `truncated_tokens` and `truncated_share` (how many texts were longer than the model reads, and
    how much of them was left out), and `pearson` and `spearman` for vectors as they are (`none`),
    centered (`center`) and, with more texts than dimensions, whitened (`whiten`).

    Args:
        data: labelled pairs, in any form that `finetune` takes.
        learn_from: a file of texts from which the center and the whitening are computed; None: the
            texts of `data`.
        on_note: is called with each of the notes before the work.

    Raises:
        BertworksError, UsageError: no such model; rows that are not pairs with numbers.
    """
    reader = RowReader(data)
    schema, notes = infer_schema(reader, TASKS, task="regression")
    require(
        len(schema.text) == 2,
        "these rows have no two texts to compare",
        reader.name,
        "name another file",
    )
    pairs = list(items(reader, schema, TASKS))
    embedder = Embedder(model, pooling=pooling, device=device)
    examples = embedder.examples((pair.where, *pair.texts) for pair in pairs)
    notes += [
        *reader.notes,
        *(f"{note.text} -> {pair.label:g}" for note, pair in zip(examples, pairs)),
    ]
    for note in notes:
        on_note(note)
    truncation = Truncation()
    first, second = (
        embedder.embed_and_count([pair.texts[place] for pair in pairs], counts=truncation)[0]
        for place in (0, 1)
    )
    if truncation.truncated:
        notes.append(format_truncation({"rows": truncation.rows, **truncation.as_dict()}, "texts"))
        on_note(notes[-1])
    blocks = (first, second) if learn_from is None else vectors_of_file(embedder, learn_from)
    moments = Moments(embedder.dimension, blocks)

    def scores(kind: Whitening) -> dict[str, float]:
        ends = (first, second) if kind == "none" else map(moments.whitener(kind), (first, second))
        a, b = map(normalized, ends)
        sums = correlations([float(pair.label) for pair in pairs], (a * b).sum(-1).tolist())
        return {name: sums[name].value for name in ("pearson", "spearman")}

    kinds: list[Whitening] = ["none", "center"]
    if moments.can_whiten:
        kinds.append("whiten")
    figures: JsonObject = {kind: scores(kind) for kind in kinds}
    return {"rows": len(pairs), "notes": notes, **truncation.as_dict(), **figures}


def evaluate_similarity(
    model: str | Path,
    files: Sequence[str | Path],
    *,
    pooling: Pooling | None = None,
    device: str = "auto",
    on_note: Callable[[str], object] = no_notes,
) -> JsonObject:
    """Return the rank correlation of the cosine of two words with human scores of their similarity.

    Words are read one by one, without a context. A pair is left out if the model does not know one
    of its words: the word has no token but the unknown one, or its vector is 0.

    Args:
        files: pairs of words, such as those of WordSim-353, MEN or SimLex-999: in each line two
            words and a number, separated by tabs, by commas or by spaces.
        pooling: see `Embedder`.
        on_note: is called with what a person should know of a file.

    Raises:
        UsageError: no file.
        BertworksError: no such model; a line that is no pair; a file with fewer than three pairs
            of known words.

    Returns:
        `files`: for each file its `pairs`, how many of them are `known`, their share (`coverage`),
        `spearman` of these, and `interval`: 95 %, by the bootstrap over pairs.
    """
    expect(len(files) > 0, "no file of word pairs", hint="name one or more files")
    embedder = Embedder(model, pooling=pooling, device=device)
    return {"files": {str(file): _word_similarity(embedder, file, on_note) for file in files}}


def _word_similarity(
    embedder: Embedder, file: str | Path, on_note: Callable[[str], object]
) -> JsonObject:
    """Return the figures of a file, as `evaluate_similarity` does."""
    metric, pairs = similarity_metric(embedder, file, on_note)
    known = len(metric.rows)
    return {
        "pairs": pairs,
        "known": known,
        "coverage": known / pairs,
        "spearman": metric.value,
        "interval": middle(resampled(metric)),
    }


def similarity_metric(
    embedder: Embedder, file: str | Path, on_note: Callable[[str], object] = no_notes
) -> tuple[RowSums, int]:
    """Return the rank correlation of known pairs of words, and the number of all pairs.

    Args:
        file: see `evaluate_similarity`.

    Raises:
        BertworksError: as `evaluate_similarity`.
    """
    pairs = _read_word_pairs(file)
    repeated = len(pairs) - len({frozenset((pair.first, pair.second)) for pair in pairs})
    if repeated:
        on_note(f"{file}: pairs that stand there more than once: {repeated:,}; each line counts")
    words = sorted({word for pair in pairs for word in (pair.first, pair.second)})
    vectors = normalized(embedder.embed(words))
    numbers = {}
    unknown = embedder.tokenizer.unk_id
    for number, (word, ids) in enumerate(zip(words, embedder.tokenizer.ids(words), strict=True)):
        if vectors[number].any() and {*ids} - {unknown}:
            numbers[word] = number
    known = [pair for pair in pairs if {pair.first, pair.second} <= numbers.keys()]
    require(
        len(known) >= _FEWEST_PAIRS,
        f"the model knows both words of {len(known):,} of {len(pairs):,} pairs: too few for a "
        "correlation",
        file,
        "use words in the language of the model",
    )
    first = vectors[[numbers[pair.first] for pair in known]]
    second = vectors[[numbers[pair.second] for pair in known]]
    cosines = (first * second).sum(1).tolist()
    similarities = [pair.similarity for pair in known]
    return correlations(similarities, cosines)["spearman"], len(pairs)


def _read_word_pairs(file: str | Path) -> list[WordPair]:
    """Return the pairs of words in a file.

    Raises:
        BertworksError: a line is no pair.
    """
    reader = RowReader(file)
    pairs = []
    for row in reader:
        cells = [str(row.values.get(name) or "").strip() for name in reader.columns]
        if len(cells) == 1:
            cells = cells[0].split()
        is_pair = len(cells) >= 3 and bool(cells[0]) and bool(cells[1])
        similarity = as_number(cells[2]) if is_pair else math.nan
        require(
            math.isfinite(similarity),
            f"{' '.join(cells)!r:.60} is not a pair of words with a number",
            row.where,
            _WORD_PAIR,
        )
        pairs.append(WordPair(cells[0], cells[1], similarity))
    return pairs


def evaluate_task(
    model: str | Path,
    data: Data,
    *,
    errors: str | Path | None = None,
    text: str | Sequence[str] = (),
    label: str | Sequence[str] | None = None,
    threshold: float | None = None,
    positive: str | None = None,
    read: ReadOptions = ReadOptions(),
    device: str = "auto",
    precision: PrecisionOption = "auto",
    on_note: Callable[[str], object] = no_notes,
) -> JsonObject:
    """Evaluate a fine-tuned model on labelled rows that it was not trained on.

    The result has `task`, `rows`, `rows_without_text` (which are left out), `figures` (in int8 also
    `figures_fp32`, of single precision), `table` (figures of each label, type of entity or kind of
    question), `mistakes` (their number) and `frequent` (their most frequent kinds, in words),
    `intervals` of the figures, `positive` (of two classes the one whose F1 is among the figures),
    `never_found` (the labels of which no row is found, with the number of their rows),
    `unknown_labels` (how many rows have each label that was never trained; these rows are
    mistakes), `truncated`, `truncated_tokens` and `truncated_share` (how many rows were longer than
    the model reads, and how much of them was left out), `in_windows` (how many were read in several
    windows, if there are any), `training_copies` (how many rows are copies
    or near-copies of rows of the training data; None where that is not known), and `notes` (what
    was read, and two examples as the network reads them).

    Args:
        data: a file, or rows in memory as in `finetune`.
        errors: a file for all mistakes, those with the highest confidence first.
        text, label: columns; (): those of the training, else inferred.
        threshold, precision: see `Predictor`.
        positive: of two classes the one whose F1 is reported; None: that of the training, and in a
            folder that does not name it the second one.
        on_note: is called with each of the notes before the work.

    Raises:
        UsageError: no such column; `positive` is not one of two classes.
        BertworksError: no such model; a row that cannot be evaluated, with its line, as one without
            a label.
    """
    refuse_unwritable(errors)
    predictor = Predictor(model, device=device, precision=precision, threshold=threshold)
    d = predictor.description
    empty_rows = IssueCounter()
    reader = RowReader(data, read, known=(*d.text, *d.label))
    schema, notes = _labelled(reader, d, text, label)
    if positive is not None:
        d = replace(d, positive=choose_positive((), schema, positive, notes))
    d = replace(d, text=d.text or schema.text)  # models of transformers do not name their columns
    rows = list(items(reader, replace(schema, any_label=True), TASKS, left_out=empty_rows))
    require(
        rows, "no row has a text and a label", reader.name, "name another file, or --text COLUMN"
    )
    d, unknown = _with_labels_of(d, rows, schema.labels, reader.name)
    if unknown:
        descriptions = []
        for name in list(unknown)[:_NAMED_LABELS]:
            similar = misspelt_labels(name, schema.labels)
            suggestion = "".join(f", did you mean {label!r}?" for label in similar)
            descriptions.append(f"{name!r} ({unknown[name]:,}{suggestion})")
        if len(unknown) > _NAMED_LABELS:
            descriptions.append("...")
        labels = "1 label" if len(unknown) == 1 else f"{len(unknown):,} labels"
        notes.append(
            f"{labels} never trained, rows that count as mistakes: {', '.join(descriptions)}"
        )
    # Rows of a regression have no label names; `unknown` is empty then.
    inputs = [
        item
        if not unknown or unknown.keys().isdisjoint(label_names(item))
        else item._replace(label=None)
        for item in rows
    ]
    examples = predictor.reading.preview([item for item in inputs if item.label is not None])
    num_copies, copies_note = training_copies(predictor.folder, rows, d)
    notes += reader.notes
    if copies_note:
        notes.append(copies_note)
    notes += [note.text for note in examples]
    for note in notes:
        on_note(note)
    answers = predictor.answers(inputs)
    results: list[tuple[Features, Answer]] = []
    truncation = Truncation()
    for item, (features, answer) in zip(rows, answers, strict=True):
        results.append((features._replace(item=item), answer))
        truncation.add(features.num_read, features.num_truncated, in_windows=features.has_mean)
    windows_note = format_windows(
        {"rows": truncation.rows, **truncation.as_dict()}, predictor.task.rows_are
    )
    if windows_note:
        notes.append(windows_note)
        on_note(windows_note)
    result, mistakes = task_results(d, *zip(*results, strict=True))
    if errors is not None:
        write_errors(Path(errors), d, mistakes)
    if predictor.precision == "int8":
        fp32_answers = predictor.in_fp32().answers(item._replace(label=None) for item in rows)
        result["figures_fp32"] = compute_metrics(d, rows, [answer for _, answer in fp32_answers])
    return {
        **result,
        **truncation.as_dict(),
        "rows_without_text": empty_rows.count,
        "unknown_labels": unknown,
        "training_copies": num_copies,
        "notes": notes,
    }


def training_copies(folder: Path, rows: Sequence[Item], d: TaskConfig) -> tuple[int | None, str]:
    """Look for copies and near-copies of rows in the training data of a model.

    The run folder of a fine-tuning names its data. Where that is a file of this machine and has not
    changed since, it is read again. Nothing is fetched from elsewhere: a folder may come from a
    stranger.

    Args:
        folder: a model folder; one that is no run folder has no known training data.
        rows: the rows that the model is evaluated on.
    """
    unknown = "not compared with the training data"
    try:
        stored = stored_request(folder)
        if stored is None and folder.parent.name == TASKS_FOLDER:  # a task of a joint fine-tuning
            joint_request = stored_request(folder.parent.parent) or {}
            stored = joint_request.get("joint", {}).get(folder.name)
        if not stored or not isinstance(stored.get("data"), str) or "data_sha256" not in stored:
            return None, ""
        name = Path(stored["data"]).name
        request = _data_request(stored)
        if request is None:
            what = f"{unknown} {name}: it is not on this machine, or has changed since the training"
            return None, what
        trials_file = folder / "trials.json"
        trials = read_json(trials_file)["trials"] if trials_file.exists() else []
        if any(trial.get("fold") is not None for trial in trials):
            # The model learned from all rows.
            request = replace(request, validation="folds", fold=None)
        train = read_data(request, whole_documents=d.document is not None).train
    except BertworksError as error:
        return None, f"{unknown}: {error}"
    # a field is missing, unknown, or of another type
    except (TypeError, ValueError, KeyError, AttributeError):
        return None, f"{unknown}: run.json holds no request that this version reads"
    keys = near_copies_of_rows(TASKS[d.task].compared_texts([*train, *rows]))
    first_rows: dict[Hashable, Item] = {}
    for key, item in zip(keys, train):
        first_rows.setdefault(key, item)
    copies = IssueCounter()
    for key, item in zip(keys[len(train) :], rows, strict=True):
        if key in first_rows:
            place = item.where.rpartition("/")[2]
            training_place = first_rows[key].where.rpartition("/")[2]
            copies.add(f"{place} = {training_place}")
    if not copies.count:
        return 0, f"no row is a duplicate or near-duplicate of a row in the training data {name}"
    share = f"{copies.count:,} of the {len(rows):,} rows ({copies.count / len(rows):.1%})"
    examples = ", ".join(copies.places[:2])
    what = f"are duplicates or near-duplicates of rows in the training data ({examples})"
    return copies.count, f"WARNING: {share} {what}: the scores are too high"


def _data_request(stored: Mapping[str, Any]) -> DataRequest | None:
    """Return the request for the data alone, or None if the data has changed or is not here."""
    paths = [path for path in (stored["data"], stored.get("dev")) if path]
    if any(url_of(path) for path in paths) or not Path(stored["data"]).exists():
        return None
    fields = {name: stored[name] for name in _DATA_FIELDS if name in stored}
    fields["text"] = tuple(stored.get("text") or ())
    fields["label"] = tuple(stored.get("label") or ())
    request = DataRequest(**fields, read=ReadOptions(**stored.get("read", {})))
    if request.dev is not None:  # then all rows of the data are training rows
        request = replace(request, dev=None, validation="folds", fold=None)
    if request.checksums().get("data_sha256") != stored["data_sha256"]:
        return None
    return request


def _with_labels_of(
    d: TaskConfig, rows: Sequence[Item], known: Sequence[str], name: str
) -> tuple[TaskConfig, dict[str, int]]:
    """Return the task with the labels that only the rows have, too.

    Also how many rows have each of these labels.
    """
    task = task_of(d)
    unknown: Counter[str] = Counter()
    for item in rows if task.has_labels else ():
        unknown.update(set(label_names(item)) - set(known))
    if task.has_classes and unknown.total() == len(rows):
        raise BertworksError(
            f"the model knows none of these labels: {first_names(sorted(unknown), 5)}",
            where=name,
            hint=f"its labels are: {first_names(known, 5)}",
        )
    wider = task.with_labels(sorted(unknown))
    if wider == d:
        return d, dict(unknown)
    require(
        not d.tag_scheme or wider.tag_scheme,
        "some of these tags mark no entities as those of the model do: "
        f"{first_names(sorted(unknown), 5)}",
        name,
        f"the tags of the model are: {first_names(d.labels, 5)}",
    )
    return wider, dict(unknown.most_common())


def _labelled(
    reader: RowReader, d: TaskConfig, text: str | Sequence[str], label: str | Sequence[str] | None
) -> tuple[Schema, list[str]]:
    """Return the schema of a prediction, with labels by the names that the model has.

    Also notes on what was inferred.
    """
    schema, notes = schema_for(reader, task_of(d), text)
    columns = names_of(label) or d.label
    first_choice = d.first_choice
    if not columns or (TASKS[d.task].counts_choices and first_choice is None):
        inferred, _ = infer_schema(reader, TASKS, task=d.task, text=schema.text, label=columns)
        columns = inferred.label
        first_choice = inferred.first_choice if first_choice is None else first_choice
    names = TASKS[d.task].row_labels(d.labels)
    if len(columns) > 1 and sorted(columns) != sorted(names):
        raise UsageError(
            f"the columns of the labels are {', '.join(columns)}, and those of the model: "
            f"{', '.join(names)}",
            where=reader.name,
            hint=" ".join(f"--label {quoted(name)}" for name in names),
        )
    schema = replace(schema, raw=False, label=columns, labels=names, first_choice=first_choice or 0)
    notes = [note for note in notes if not note.startswith(("label: ", "not used: "))]
    notes.append(f"label: {', '.join(map(repr, columns))}")
    return replace(schema, separator=reader.options.label_separator or d.separator), notes


def evaluate_blimp(
    model: str | Path,
    data: str | Path,
    *,
    output: str | Path | None = None,
    sample: int = 0,
    within_word: bool = False,
    device: str = "auto",
    precision: Precision = "fp32",
) -> Iterator[Event]:
    """Evaluate a model on BLiMP (Warstadt et al. 2020).

    It is the fraction of minimal pairs in which the good sentence scores strictly higher than the
    bad one: by paradigm (UID), by phenomenon, and the mean over paradigms. Equal scores are errors.
    The fields of the last event are the result.

    Args:
        data: a file with the fields sentence_good, sentence_bad and UID, in any format, or a folder
            of .jsonl files.
        output: a JSON file for the result.
        sample: pairs of each paradigm, the same every time. A sample is part of every larger one.
            0: all.
        within_word: see `score`.

    Raises:
        UsageError: a negative sample.
        BertworksError: no such model or data.
    """
    expect(sample >= 0, f"a sample of {sample} pairs: expected 1 or more, or 0 for all")
    refuse_unwritable(output)
    path = as_path(data)
    pairs_of_paradigms = defaultdict[str, list[Pair]](list)
    for file in sorted(path.glob("*.jsonl*")) if path.is_dir() else [path]:
        for row in RowReader(file):
            for column in _PAIR_COLUMNS:
                is_text = isinstance(row.values.get(column), str)
                require(is_text, f"no text in the field {column!r}", row.where, _BLIMP)
            pairs_of_paradigms[row.values["UID"]].append(row.values)
    require(pairs_of_paradigms, "no pairs of sentences", data, "name a .jsonl file of BLiMP")
    pairs = list[Pair]()
    for of_paradigm in pairs_of_paradigms.values():
        pairs += sample_rows(of_paradigm, sample)
    source = open_model(model, device)
    yield Event(
        "note", f"sentences: {' and '.join(map(repr, _PAIR_COLUMNS[:2]))}; {len(pairs):,} pairs"
    )
    task = task_of(TaskConfig(task="classification", vectors="pair"))
    reading = Featurizer(source.tokenizer, task)
    first_pairs = [
        Item(tuple(map(pair.__getitem__, _PAIR_COLUMNS[:2])), None, pair["UID"])
        for pair in pairs[:2]
    ]
    yield from reading.preview(first_pairs)
    sentences = (pair[column] for pair in pairs for column in _PAIR_COLUMNS[:2])
    scores = score(source, sentences, within_word=within_word, device=device, precision=precision)
    outcomes = []
    for number, (good, bad) in enumerate(zip(scores, scores, strict=True), 1):
        outcomes.append(is_better(good, bad))
        if number % _REPORT_INTERVAL == 0:
            yield Event(
                "stage",
                f"blimp: {number:,} of {len(pairs):,} pairs, {sum(outcomes) / number:.1%} "
                "right so far",
                {"stage": "blimp", "what": "pairs", "amount": number, "of": len(pairs)},
            )
    result = {
        "model": str(model),
        "sample": sample,
        "within_word": within_word,
        **_pair_figures(pairs, outcomes),
    }
    if output is not None:
        write_json(output, result)
    # A table for readers: paradigms below their phenomena.
    width = max(len(name) for name in (*result["paradigms"], *result["phenomena"])) + 2
    lines: list[str] = []
    for name, accuracy in result["phenomena"].items():
        lines.append(f"{name or 'paradigms':<{width}}  {accuracy:6.1%}")
        lines += [
            f"  {uid:<{width - 2}}  {row['accuracy']:6.1%}"
            for uid, row in result["paradigms"].items()
            if row["phenomenon"] == name
        ]
    lines.append(
        f"{'mean':<{width}}  {result['mean']:6.1%}, of {len(result['paradigms'])} paradigms, "
        f"{result['pairs']:,} pairs"
    )
    yield Event("done", "\n".join(lines), result)


def _pair_figures(pairs: Sequence[Pair], outcomes: Sequence[bool]) -> JsonObject:
    terms = {pair["UID"]: str(pair.get("linguistics_term") or "") for pair in pairs}
    counts = Counter(pair["UID"] for pair in pairs)
    right = Counter(pair["UID"] for pair, outcome in zip(pairs, outcomes, strict=True) if outcome)
    paradigms = dict[str, JsonObject]()
    accuracies = defaultdict[str, list[float]](list)
    for term, uid in sorted((term, uid) for uid, term in terms.items()):
        accuracy = right[uid] / counts[uid]
        paradigms[uid] = {"accuracy": accuracy, "pairs": counts[uid], "phenomenon": term}
        accuracies[term].append(accuracy)
    mean = float(np.mean([paradigm["accuracy"] for paradigm in paradigms.values()]))
    phenomena = {name: float(np.mean(values)) for name, values in accuracies.items()}
    return {"pairs": len(pairs), "mean": mean, "phenomena": phenomena, "paradigms": paradigms}
