"""What is in a labelled file, and what will go wrong in learning from it: the survey of a fine-tuning without the
fine-tuning. Nothing is written.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bertworks.checkpoints.hf_mapping import config_from_huggingface
from bertworks.checkpoints.resolve import resolve_model
from bertworks.checkpoints.sentence_transformers import weights_folder
from bertworks.checkpoints.storage import read_json
from bertworks.datasets.infer_schema import infer_schema
from bertworks.datasets.reader import Quoting, RowReader
from bertworks.datasets.schema import Schema, TaskType, read_item
from bertworks.datasets.values import EmptyTextError
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.decoding import make_featurizer
from bertworks.runs.data_splits import read_data
from bertworks.runs.dataset_report import DatasetReport, make_dataset_report
from bertworks.runs.finetune import describe_task
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.finetune_recipe import default_max_length, load_finetune_recipe

LISTED = 20  # rows that cannot be learned from


def check_file(
    data: str | Path,
    *,
    dev: str | Path | None = None,
    model: str | Path = "minilm",
    task: TaskType | None = None,
    text: Sequence[str] = (),
    label: str | None = None,
    group: str | None = None,
    quoting: Quoting = "auto",
) -> DatasetReport:
    """Reads the data as `finetune` does and says what a person should know of it.

    Args:
        data, dev, task, text, label, group, quoting: see `datasets.read_data`.
        model: whose tokenizer counts tokens, and how many it reads.

    Raises:
        UsageError: no such file or column.
        BertworksError: there is no such model, or rows that cannot be learned from: all of them, with their lines.
    """
    folder = weights_folder(resolve_model(model))
    tokenizer = Tokenizer.load(folder)
    settings = folder / "config.json"
    longest = config_from_huggingface(read_json(settings), where=str(settings)).max_position_embeddings
    try:
        found = read_data(data, dev=dev, task=task, text=text, label=label, group=group, quoting=quoting)
    except UsageError:
        raise
    except BertworksError as error:
        reader = RowReader(data, quoting=quoting) if Path(data).is_file() else None
        raise _with_others(error, reader, task, text, label) from error
    recipe = load_finetune_recipe("stable")
    recipe = replace(recipe, max_length=default_max_length(recipe, longest))
    description = describe_task(found, recipe)
    reading = make_featurizer(description, tokenizer)
    train, judged = list(reading(found.train)), list(reading(found.dev))
    return make_dataset_report(found, train, judged, tokenizer, description.max_length)


def _with_others(
    first: BertworksError, reader: RowReader | None, task: TaskType | None, text: Sequence[str], label: str | None
) -> BertworksError:
    """The error with all others of its kind that a person would meet one after the other."""
    troubles: list[BertworksError] = []
    if reader is not None:
        try:
            schema, _ = infer_schema(reader, task=task, text=text, label=label)
            troubles = _bad_rows(reader, schema)
        except BertworksError:
            return first  # it is about the file, not about its rows
    if len(troubles) < 2:
        return first
    lines = [f"  {one.where}: {one.what}" for one in troubles[:LISTED]]
    lines += [f"  and {len(troubles) - LISTED:,} others"] if len(troubles) > LISTED else []
    fixes = list(dict.fromkeys(one.hint for one in troubles if one.hint))
    what = "\n".join([f"{len(troubles):,} rows cannot be learned from", *lines])
    return BertworksError(what, where=str(reader and reader.name), hint="; ".join(fixes[:3]))


def _bad_rows(reader: RowReader, schema: Schema) -> list[BertworksError]:
    """What is wrong with each row; those without text are left out of the training, and no trouble."""
    found = []
    for row in reader:
        try:
            read_item(row, schema)
        except EmptyTextError:
            continue
        except BertworksError as error:
            found.append(error)
    return found
