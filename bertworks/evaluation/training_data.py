"""Find the rows that a fine-tuned model was trained on.

They show whether evaluated rows are among them.

The run folder of a fine-tuning names its data. Where that is a file of this machine and has not
changed since, it is read again. Nothing is fetched from elsewhere: a folder may come from a
stranger.

- `training_copies`: evaluated rows that are copies or near-copies of rows of the training data
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bertworks.checkpoints.resolve import TASKS as TASKS_FOLDER
from bertworks.checkpoints.storage import read_json
from bertworks.datasets.schema import Item
from bertworks.errors import BertworksError
from bertworks.io.atomic_write import url_of
from bertworks.io.inputs import IssueCounter
from bertworks.io.options import ReadOptions
from bertworks.runs.data_splits import read_data
from bertworks.runs.preparation import FinetuneRequest
from bertworks.runs.run_folder import stored_request
from bertworks.tasks.registry import TASKS
from bertworks.tasks.settings import TaskConfig
from bertworks.text.near_copies import near_copies_of_rows

_DATA_FIELDS = ("data", "dev", "group", "validation", "fold", "folds", "near_copies", "task")


class TrainingCopies(NamedTuple):
    """The rows that are copies or near-copies of training rows.

    num_rows: the number of these rows; None if the training data is not known.
    note: a sentence about them for people, or "" if the model was not trained by bertworks.
    """

    num_rows: int | None
    note: str


def training_copies(folder: Path, rows: Sequence[Item], d: TaskConfig) -> TrainingCopies:
    """Look for copies and near-copies of rows in the training data of a model.

    Args:
        folder: a model folder; one that is no run folder has no known training data.
        rows: the rows that the model is evaluated on.
    """
    unknown = "not compared with the training data"
    try:
        stored = _request_of(folder)
        if stored is None:
            return TrainingCopies(None, "")
        name = Path(stored["data"]).name
        request = _data_request(stored)
        if request is None:
            what = f"{unknown} {name}: it is not on this machine, or has changed since the training"
            return TrainingCopies(None, what)
        train = _training_rows(folder, request, d)
    except BertworksError as error:
        return TrainingCopies(None, f"{unknown}: {error}")
    # a field is missing, unknown, or of another type
    except (TypeError, ValueError, KeyError, AttributeError):
        return TrainingCopies(None, f"{unknown}: run.json holds no request that this version reads")
    copies = _copies_among(train, rows, d)
    if not copies.count:
        return TrainingCopies(
            0, f"no row is a copy or a near-copy of one in the training data {name}"
        )
    share = f"{copies.count:,} of the {len(rows):,} rows ({copies.count / len(rows):.1%})"
    what = (
        f"are copies or near-copies of rows in the training data ({', '.join(copies.places[:2])})"
    )
    return TrainingCopies(copies.count, f"WARNING: {share} {what}: the figures are too good")


def _request_of(folder: Path) -> dict[str, Any] | None:
    """Return the stored request of the fine-tuning that made a model folder, or None."""
    stored = stored_request(folder)
    # the folder of a task of a joint fine-tuning
    if stored is None and folder.parent.name == TASKS_FOLDER:
        joint_request = stored_request(folder.parent.parent) or {}
        stored = joint_request.get("joint", {}).get(folder.name)
    if not stored or not isinstance(stored.get("data"), str) or "data_sha256" not in stored:
        return None
    return stored


def _data_request(stored: Mapping[str, Any]) -> FinetuneRequest | None:
    """Return the request for the data alone, or None if the data has changed or is not here."""
    paths = [path for path in (stored["data"], stored.get("dev")) if path]
    if any(url_of(path) for path in paths) or not Path(stored["data"]).exists():
        return None
    fields = {name: stored[name] for name in _DATA_FIELDS if name in stored}
    fields["text"] = tuple(stored.get("text") or ())
    fields["label"] = tuple(stored.get("label") or ())
    fields["near_copies"] = bool(stored.get("near_copies"))
    request = FinetuneRequest(**fields, read=ReadOptions(**stored.get("read", {})))
    if request.dev is not None:  # then all rows of the data are training rows
        request = replace(request, dev=None, validation="folds", fold=None)
    if request.content().get("data_sha256") != stored["data_sha256"]:
        return None
    return request


def _training_rows(folder: Path, request: FinetuneRequest, d: TaskConfig) -> list[Item]:
    """Return the rows from which the model learned; of several folds, all rows.

    Raises:
        BertworksError: the data cannot be read.
    """
    trials_file = folder / "trials.json"
    trials = read_json(trials_file)["trials"] if trials_file.exists() else []
    if any(trial.get("fold") is not None for trial in trials):
        request = replace(request, validation="folds", fold=None)
    return read_data(replace(request.rows, whole_documents=d.document is not None)).train


def _copies_among(train: Sequence[Item], rows: Sequence[Item], d: TaskConfig) -> IssueCounter:
    """Count the rows that are copies or near-copies of training rows; the places name both rows."""
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
    return copies
