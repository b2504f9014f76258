"""Figures on data that the model was not trained on: masked LM, similarity of texts, tasks, files of SQuAD
predictions."""

import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertworks.batching.sampling import Format, TokenStore
from bertworks.checkpoints.model_folder import load_model
from bertworks.checkpoints.resolve import resolve_model
from bertworks.checkpoints.task_config import TaskConfig
from bertworks.datasets.infer_schema import infer_schema
from bertworks.datasets.reader import Quoting, RowReader
from bertworks.datasets.schema import Schema, items
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.embed import Embedder, vectors_of_file
from bertworks.inference.lazy_model import open_model
from bertworks.inference.predict import schema_for
from bertworks.inference.predictor import Predictor
from bertworks.inference.whitening import Moments, Whitening, normalized
from bertworks.io.atomic_write import refuse_unwritable
from bertworks.io.text_files import IssueCounter, Repairs, nothing_there, open_lines
from bertworks.metrics.classification import Scores, regression
from bertworks.metrics.squad import (
    F1Unit,
    SquadQuestion,
    SquadVersion,
    evaluate_answers,
    f1_unit_of,
    missing_predictions,
)
from bertworks.models.heads import Pooling
from bertworks.runs.finetune_job import table, write_errors
from bertworks.runs.prepare import Documents, read_text
from bertworks.runs.pretrain_job import held_out_batches, split_long_documents
from bertworks.runs.task_metrics import compute_metrics, frequent, mistakes
from bertworks.text.shards import write_shards
from bertworks.training.device import Precision, PrecisionOption, choose_device
from bertworks.training.loop import evaluate
from bertworks.training.objectives import BERT, PretrainingModel, figures

_JUDGED_CHARACTERS = 1 << 20  # of contexts, by which the unit is told


def evaluate_squad(
    data: str | Path,
    predictions: str | Path | Mapping[str, str],
    *,
    na_probs: str | Path | Mapping[str, float] | None = None,
    unit: Literal["auto", "word", "character"] = "auto",
) -> dict[str, Any]:
    """The figures of the official script (`learn.squad_scores.evaluate`), in per cent, and how they were counted:
    `version` (2.0 where a question has no answer, or `na_probs` are given), `unit`, `missing_ids` (questions that
    nobody answered: they count as wrong), `unknown_ids` (answers to no question: they count for nothing).

    Args:
        data: a file in the format of SQuAD, with gold answers.
        predictions: question id -> answer, "" for none; or a JSON file of that.
        na_probs: question id -> how surely it has no answer, on any scale; or a JSON file of that.
        unit: of F1; "auto": characters where most letters of the contexts are Japanese or Chinese, else words.

    Raises:
        BertworksError: the data is not SQuAD or has no gold answers; a file is not such JSON; not a single answer
            belongs to a question.
    """
    reader = RowReader(data)
    if reader.kind != "squad":
        raise BertworksError(
            "this is not in the format of SQuAD",
            where=reader.name,
            hint="name a file like dev-v1.1.json or dev-v2.0.json",
        )
    questions, contexts = _questions(reader)
    answers = _answers(predictions)
    identities = {question.id for question in questions}
    if not identities & answers.keys():
        raise BertworksError(
            f"none of the {len(answers):,} answers belongs to any of the {len(questions):,} questions of {reader.name}",
            where=_place(predictions),
            hint="name the predictions for this very file: an object of question ids and answers",
        )
    probabilities = None if na_probs is None else _probabilities(na_probs)
    answerable = all(question.answers for question in questions)
    version: SquadVersion = "1.1" if answerable and probabilities is None else "2.0"
    counted_in: F1Unit = f1_unit_of(contexts) if unit == "auto" else unit
    figures = evaluate_answers(
        questions, answers, version=version, no_answer_probabilities=probabilities, unit=counted_in
    )
    return figures | {
        "version": version,
        "unit": counted_in,
        "missing_ids": missing_predictions(questions, answers),
        "unknown_ids": [identity for identity in answers if identity not in identities],
    }


def _questions(reader: RowReader) -> tuple[list[SquadQuestion], Iterable[str]]:
    """The questions, and enough of the contexts to see how they are written."""
    questions, contexts, size = [], dict[str, None](), 0
    for values, where, _ in reader:
        if values["answers"] is None:
            raise BertworksError(
                f"the question {values['id']!r} has no gold answers, not even an empty list of them",
                where=where,
                hint="name a dev file: test files come without answers",
            )
        questions.append(SquadQuestion(values["id"], tuple(answer["text"] for answer in values["answers"])))
        if size < _JUDGED_CHARACTERS and values["context"] not in contexts:
            contexts[values["context"]] = None
            size += len(values["context"])
    return questions, contexts


def _answers(given: str | Path | Mapping[str, str]) -> Mapping[str, str]:
    answers = given if isinstance(given, Mapping) else _read_object(given)
    for identity, answer in answers.items():
        if not isinstance(answer, str):
            raise BertworksError(
                f"the answer to {identity!r} is {answer!r:.60}, not a string",
                where=_place(given),
                hint='write one object, {"question id": "answer", ...}, with "" for no answer',
            )
    return answers


def _probabilities(given: str | Path | Mapping[str, float]) -> Mapping[str, float]:
    numbers = given if isinstance(given, Mapping) else _read_object(given)
    for identity, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise BertworksError(
                f"the no-answer probability of {identity!r} is {number!r:.60}, not a number",
                where=_place(given),
                hint='write one object, {"question id": 0.25, ...}',
            )
    return numbers


def _read_object(path: str | Path) -> dict[str, Any]:
    if not Path(path).exists():
        raise nothing_there(Path(path))
    repairs = Repairs()
    with open_lines(Path(path), str(path), repairs) as reader:
        text = "\n".join(line for _, line in reader.lines())
    if repairs.bad_bytes.count:
        raise BertworksError(
            "bytes that are not UTF-8", where=repairs.bad_bytes.places[0], hint="save the file as UTF-8"
        )
    try:
        value = json.loads(text, object_pairs_hook=_without_repetition)
    except json.JSONDecodeError as error:
        raise BertworksError(
            f"this is not JSON: {error.msg}", where=f"{path}:{error.lineno}", hint="repair the file"
        ) from error
    except (ValueError, RecursionError) as error:
        raise BertworksError(str(error), where=str(path), hint="repair the file") from error
    if not isinstance(value, dict):
        raise BertworksError(
            f"expected one JSON object, found {value!r:.60}",
            where=str(path),
            hint='write {"question id": "answer", ...}',
        )
    return value


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for name, content in pairs:
        if name in value:
            raise ValueError(f"{name!r} stands there twice")
        value[name] = content
    return value


def _place(given: object) -> str | None:
    return str(given) if isinstance(given, str | Path) else None


def evaluate_mlm(
    model: str | Path,
    inputs: Sequence[str | Path],
    *,
    sequence_length: int | None = None,
    sequences: int = 0,
    device: str = "auto",
    precision: Precision = "fp32",
    text_column: str | None = None,
    documents: Documents = "auto",
) -> dict[str, float]:
    """Loss, accuracy and perplexity on masked words of raw text, and accuracy of next sentence prediction if the model
    has that head and the text two documents, one of them of two sentences. 15 % of the tokens are masked, 80/10/10,
    always the same ones.

    Args:
        model: a folder, or the name of a model on the Hugging Face hub.
        sequence_length: of the examples, in tokens; None: 128, or as many as the model reads if that is less.
        sequences: at most so many; 0: all that the text gives.

    Raises:
        UsageError: sequences longer than the model can read.
        BertworksError: no such model, no text.
    """
    config, state, tokenizer = load_model(resolve_model(model), needs={"encoder", "lm_head"})
    longest = config.max_position_embeddings
    length = min(128, longest) if sequence_length is None else sequence_length
    if not 5 <= length <= longest:
        raise UsageError(f"a sequence length of {length}: the model reads from 5 to {longest} tokens")
    parts = {name.split(".")[0] for name in state}
    reader = read_text(inputs, text_column, documents)
    with tempfile.TemporaryDirectory() as folder:
        store: TokenStore = split_long_documents(write_shards(reader, tokenizer, Path(folder) / "shards"))
        every = np.arange(len(store.documents) - 1)
        follows = bool((np.diff(store.documents) > 1).any())  # else all pairs are of sentences drawn at random
        pairs = {"pooler", "next_sentence"} <= parts and len(every) >= 2 and follows
        network = PretrainingModel(config, BERT if pairs else {"masked_lm": 1.0})
        network.load_state_dict({name: state[name] for name, _ in network.named_parameters()})
        format: Format = "next_sentence" if pairs else "full_sentences"
        batches = held_out_batches(
            store, every, tokenizer, format=format, sequence_length=length, sequences=sequences or 1 << 40
        )
        means = evaluate(network.to(choose_device(device)), batches, precision)
    counts = {
        "sequences": float(sum(b.layout.num_sequences for b in batches)),
        "masked_tokens": float(means["masked_lm"].count),
    }
    return figures(means) | counts


def evaluate_sts(
    model: str | Path,
    data: str | Path,
    *,
    pooling: Pooling | None = None,
    learn_from: str | Path | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """How well the cosine of two texts agrees with a person's score of their likeness: `rows`, and `pearson` and
    `spearman` for vectors as they are (`none`), centred (`center`) and, where there are more texts than dimensions,
    whitened (`whiten`).

    Args:
        data: labelled pairs, in any format that fine-tuning reads.
        learn_from: a file of texts from which centre and whitening are learned; None: from the texts of `data`.

    Raises:
        BertworksError, UsageError: no such model; rows that are no pairs with numbers.
    """
    reader = RowReader(data)
    schema, _ = infer_schema(reader, task="regression")
    if len(schema.text) != 2:
        raise BertworksError("these rows have no two texts to be compared", where=reader.name, hint="name another file")
    pairs = list(items(reader, schema))
    embedder = Embedder(model, pooling=pooling, device=device)
    first, second = (embedder.embed([pair.texts[place] for pair in pairs]) for place in (0, 1))
    moments = Moments(embedder.dimension)
    for vectors in (first, second) if learn_from is None else vectors_of_file(embedder, learn_from):
        moments.add(vectors)

    def scores(kind: Whitening) -> Scores:
        ends = (first, second) if kind == "none" else map(moments.whitener(kind), (first, second))
        a, b = map(normalized, ends)
        found = regression([float(pair.label) for pair in pairs], (a * b).sum(-1).tolist())
        return {name: found[name] for name in ("pearson", "spearman")}

    found = {"rows": len(pairs), "none": scores("none"), "center": scores("center")}
    return found | ({"whiten": scores("whiten")} if moments.can_whiten else {})


def evaluate_task(
    model: str | Path,
    data: str | Path,
    *,
    errors: str | Path | None = None,
    text: Sequence[str] = (),
    label: str | None = None,
    threshold: float | None = None,
    quoting: Quoting = "auto",
    device: str = "auto",
    precision: PrecisionOption = "auto",
) -> dict[str, Any]:
    """What a fine-tuned model makes of labelled rows, best of all of rows that had no part in the training: `task`,
    `rows`, `rows_without_text` (which are left out), `figures` (in int8 also `figures_fp32`, of single precision),
    `table` (figures of each label, type of entity or kind of question), `mistakes` (how many) and `frequent` (their
    commonest kinds, in words).

    Args:
        errors: a file to write every mistake to, the surest first.
        text, label: columns; () and None: those that the model learned from, or else a guess.
        threshold, precision: see `Predictor`.

    Raises:
        UsageError: no such column.
        BertworksError: no such model, or a row that cannot be judged, with its line; a label that the model does not
            know is one of these.
    """
    if errors is not None:
        refuse_unwritable(errors)
    source = open_model(model, device)
    predictor = Predictor(source, precision=precision, threshold=threshold)
    d, reader = predictor.description, RowReader(data, quoting=quoting)
    empty = IssueCounter()
    found = list(predictor.answers(items(reader, _labelled(reader, d, text, label), left_out=empty)))
    if not found:
        raise BertworksError("no row has a text", where=reader.name, hint="name another file, or --text COLUMN")
    encoded, answers = [one for one, _ in found], [answer for _, answer in found]
    judged = [one.item for one in encoded]
    wrong = mistakes(d, judged, answers)
    if errors is not None:
        write_errors(Path(errors), d, wrong)
    exact = {}
    if predictor.precision == "int8":
        unrounded = Predictor(source, precision="fp32", threshold=threshold)
        exact = {"figures_fp32": compute_metrics(d, judged, [answer for _, answer in unrounded.answers(judged)])}
    return {
        "task": d.task,
        "rows": len(judged),
        "rows_without_text": empty.count,
        "figures": compute_metrics(d, judged, answers),
        **exact,
        "table": table(d, encoded, answers),
        "mistakes": len(wrong),
        "frequent": frequent(wrong),
    }


def _labelled(reader: RowReader, d: TaskConfig, text: Sequence[str], label: str | None) -> Schema:
    """What to read of a file: the texts as for a prediction, and labels by the names that the model has."""
    schema = replace(schema_for(reader, d, text)[0], raw=False)
    label = label or d.label
    first_choice = d.first_choice or 0
    if label is None or (d.task == "choice" and d.first_choice is None):
        guess = infer_schema(reader, task=d.task, text=schema.text, label=label)[0]
        label, first_choice = guess.label, guess.first_choice if d.first_choice is None else d.first_choice
    names = d.labels
    if d.task == "spans":  # the model has a tag for the first token of each type, and one for the others
        names = tuple(name[2:] for name in d.labels if name.startswith("B-"))
    return replace(schema, label=label, labels=names, separator=d.separator, first_choice=first_choice)
