"""How good a model is on what it has not seen: raw text, labelled rows, likeness of texts."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertworks.data.sampling import Store
from bertworks.errors import BertworksError, UsageError
from bertworks.files.model import load_model
from bertworks.files.names import locate
from bertworks.files.opened import opened
from bertworks.files.task import TaskDescription
from bertworks.learn.machine import Choice, Precision, choose_device
from bertworks.learn.objectives import PretrainingModel
from bertworks.learn.scores import Scores, regression
from bertworks.learn.train import evaluate
from bertworks.learn.whitening import Moments, Whitening, normalized
from bertworks.nn.pooling import Pooling
from bertworks.rows.guessing import guess_schema
from bertworks.rows.reader import Quoting, RowReader
from bertworks.rows.schema import Schema, items
from bertworks.runs.examination import table, write_errors
from bertworks.runs.examples import held_out_batches, in_sections
from bertworks.runs.judging import judge
from bertworks.runs.metrics import evaluation_figures
from bertworks.runs.mistakes import frequent, mistakes
from bertworks.runs.prepare import Documents, read_text
from bertworks.text.atomic import refuse_unwritable
from bertworks.text.shards import write_shards
from bertworks.text.streams import Tally
from bertworks.use.embedder import Embedder, vectors_of_file
from bertworks.use.predict import schema_for
from bertworks.use.predictor import Predictor


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
    config, state, tokenizer = load_model(locate(model), needs={"encoder", "masked_lm"})
    longest = config.max_position_embeddings
    length = min(128, longest) if sequence_length is None else sequence_length
    if not 5 <= length <= longest:
        raise UsageError(f"a sequence length of {length}: the model reads from 5 to {longest} tokens")
    parts = {name.split(".")[0] for name in state}
    reader = read_text(inputs, text_column, documents)
    with tempfile.TemporaryDirectory() as folder:
        store: Store = in_sections(write_shards(reader, tokenizer, Path(folder) / "shards"))
        every = np.arange(len(store.documents) - 1)
        follows = bool((np.diff(store.documents) > 1).any())  # else all pairs are of sentences drawn at random
        pairs = {"pooler", "next_sentence"} <= parts and len(every) >= 2 and follows
        network = PretrainingModel(config, next_sentence=pairs)
        network.load_state_dict({name: state[name] for name, _ in network.named_parameters()})
        batches = held_out_batches(
            store, every, tokenizer, pairs=pairs, sequence_length=length, sequences=sequences or 1 << 40
        )
        means = evaluate(network.to(choose_device(device)), batches, precision)
    counts = {
        "sequences": float(sum(b.layout.num_sequences for b in batches)),
        "masked_tokens": float(means["masked_lm"].count),
    }
    return evaluation_figures(means) | counts


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
    schema, _ = guess_schema(reader, task="regression")
    if len(schema.text) != 2:
        raise BertworksError("these rows have no two texts to be compared", where=reader.name, fix="name another file")
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
    return found | ({"whiten": scores("whiten")} if moments.suffices else {})


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
    precision: Choice = "auto",
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
    source = opened(model, device)
    predictor = Predictor(source, precision=precision, threshold=threshold)
    d, reader = predictor.description, RowReader(data, quoting=quoting)
    empty = Tally()
    found = list(predictor.answers(items(reader, _labelled(reader, d, text, label), left_out=empty)))
    if not found:
        raise BertworksError("no row has a text", where=reader.name, fix="name another file, or --text COLUMN")
    encoded, answers = [one for one, _ in found], [answer for _, answer in found]
    judged = [one.item for one in encoded]
    wrong = mistakes(d, judged, answers)
    if errors is not None:
        write_errors(Path(errors), d, wrong)
    exact = {}
    if predictor.precision == "int8":
        unrounded = Predictor(source, precision="fp32", threshold=threshold)
        exact = {"figures_fp32": judge(d, judged, [answer for _, answer in unrounded.answers(judged)])}
    return {
        "task": d.task,
        "rows": len(judged),
        "rows_without_text": empty.count,
        "figures": judge(d, judged, answers),
        **exact,
        "table": table(d, encoded, answers),
        "mistakes": len(wrong),
        "frequent": frequent(wrong),
    }


def _labelled(reader: RowReader, d: TaskDescription, text: Sequence[str], label: str | None) -> Schema:
    """What to read of a file: the texts as for a prediction, and labels by the names that the model has."""
    schema = replace(schema_for(reader, d, text)[0], raw=False)
    label = label or d.label
    first_choice = d.first_choice or 0
    if label is None or (d.task == "choice" and d.first_choice is None):
        guess = guess_schema(reader, task=d.task, text=schema.text, label=label)[0]
        label, first_choice = guess.label, guess.first_choice if d.first_choice is None else d.first_choice
    names = d.labels
    if d.task == "spans":  # the model has a tag for the first token of each type, and one for the others
        names = tuple(name[2:] for name in d.labels if name.startswith("B-"))
    return replace(schema, label=label, labels=names, separator=d.separator, first_choice=first_choice)
