"""Any BERT that can be read -> the clean model folder that bertworks writes, and a word about all that was left out.

A folder of Hugging Face's, old or new, with any head; one of ours; a checkpoint of Google's. The numbers stay what they
are; names, files and tokenizer become those of today. Nothing here knows a format: that is `files`' part.
"""

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from bertworks.checkpoints import hf_mapping
from bertworks.checkpoints.model_folder import Model, load_model, read_weights, save_model
from bertworks.checkpoints.resolve import MODEL_DOCUMENTS, is_model_name, resolve_model
from bertworks.checkpoints.sentence_transformers import (
    MODEL_FILE,
    SentenceTransformerSettings,
    module_files,
    read_sentence_transformer,
    unwritten_settings,
    write_sentence_transformer,
)
from bertworks.checkpoints.storage import read_json
from bertworks.checkpoints.task_config import FILE, TaskConfig, read_task_config, task_settings
from bertworks.checkpoints.tensorflow import Gelu, find_checkpoint, load_checkpoint
from bertworks.errors import BertworksError, UsageError
from bertworks.events import Event
from bertworks.io.atomic_write import replacing_folder

_READ = {  # files that are read, or that say again what those that are read say
    "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
    "vocab.txt", "special_tokens_map.json", "added_tokens.json", FILE,
}  # fmt: skip
_HEADS = {"classifier", "span", "recurrent"}


@dataclass(frozen=True)
class _Opened:
    """A model from anywhere. head: what config.json is to say beside the encoder's settings. files: what is copied, by
    its name in the new folder. task: as in task.json. sentence: how its vectors are made, where files say it."""

    model: Model
    head: dict[str, Any]
    notes: tuple[str, ...]
    files: Mapping[str, Path] = field(default_factory=dict)
    task: TaskConfig | None = None
    sentence: SentenceTransformerSettings | None = None


def convert(source: str | Path, output: str | Path) -> Iterator[Event]:
    """Write a model as a clean folder: config.json, model.safetensors (float32), tokenizer files, README.md.

    The same source gives the same bytes (but for the name in a card that is made here), and a converted folder converts
    to itself. It is done when the generator ends.

    Args:
        source: a model folder, a name as `fill` takes it, or a TensorFlow checkpoint: bert_model.ckpt, or its folder.
        output: a folder that does not exist, or is empty.

    Raises:
        BertworksError: the source cannot be read, is no BERT, or holds what is not understood.
        UsageError: the output holds something.
    """
    # A folder with a config.json is Hugging Face's or ours, whatever else it holds.
    elsewhere = is_model_name(source) or (Path(source) / "config.json").exists()
    if not elsewhere and find_checkpoint(Path(source)) is not None:
        yield from import_checkpoint(source, output)
        return
    name = str(source) if is_model_name(source) else Path(source).resolve().name
    yield from _written(name, Path(output), lambda: _of_folder(resolve_model(source)))


def import_checkpoint(
    checkpoint: str | Path,
    output: str | Path,
    *,
    config: Path | None = None,
    vocabulary: Path | None = None,
    lowercase: bool | None = None,
    gelu: Gelu = "tanh",
    leave_out: Collection[str] = (),
) -> Iterator[Event]:
    """`convert` for a TensorFlow checkpoint of Google's, without TensorFlow.

    Args:
        checkpoint: bert_model.ckpt, one of its files, or the folder that holds it.
        config, vocabulary: None: bert_config.json and vocab.txt beside it.
        lowercase: None: as the names of checkpoint and folder say, else as the vocabulary looks.
        gelu: what "gelu" means: the approximation by tanh, which Google's code computes, or the exact function.
        leave_out: names or patterns (`*`) of variables that are not wanted.

    Raises:
        BertworksError, UsageError: as `convert`.
    """
    prefix = find_checkpoint(Path(checkpoint))
    if prefix is None:
        raise BertworksError(
            "no TensorFlow checkpoint: there is no such .index file",
            where=str(checkpoint),
            hint="give bert_model.ckpt where there is a bert_model.ckpt.index; other models: bertworks convert",
        )

    def read() -> _Opened:
        return _of_google(
            *load_checkpoint(
                prefix, config=config, vocabulary=vocabulary, lowercase=lowercase, gelu=gelu, leave_out=leave_out
            )
        )

    yield from _written(prefix.name, Path(output), read)


def _written(source: str, output: Path, read: Callable[[], _Opened]) -> Iterator[Event]:
    """source: what a card calls it."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError("there is something already", where=str(output), hint="choose a folder that does not exist")
    opened = read()
    model, notes = _fitted(opened.model, list(opened.notes))
    with replacing_folder(output) as temporary:
        card = _card(output.resolve().name, source, model, opened.head, notes)
        save_model(temporary, model.state, model.config, model.tokenizer, card=card, head=opened.head)
        if opened.task is not None:
            opened.task.save(temporary)
        if opened.sentence is not None:
            write_sentence_transformer(temporary, opened.sentence, model.config.hidden_size)
        for name, file in opened.files.items():
            (temporary / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(file, temporary / name)
    for note in notes:
        yield Event("note", note)
    parts = sorted(hf_mapping.component_names(model.state))
    count = sum(value.numel() for value in model.state.values())
    text = f"{output}: {opened.head['architectures'][0]}, {count:,} parameters ({', '.join(parts)})"
    yield Event("done", text, {"folder": str(output), "parts": parts, "parameters": count, "notes": notes})


def _fitted(model: Model, notes: list[str]) -> tuple[Model, list[str]]:
    """The tokenizer may promise no more tokens than the network has positions: readers cut their texts by it."""
    longest = model.config.max_position_embeddings
    if model.tokenizer.model_max_length > longest:
        notes.append(f"the tokenizer's model_max_length is {longest:,} now, as many as the model has positions")
        model.tokenizer.model_max_length = longest
    return model, notes


def _of_google(model: Model, notes: tuple[str, ...]) -> _Opened:
    parts = hf_mapping.component_names(model.state)
    if "span" in parts:
        return _Opened(model, task_settings(TaskConfig(task="qa")), notes)
    if "classifier" not in parts:
        return _Opened(model, {"architectures": [hf_mapping.architecture_of(model.state)]}, notes)
    labels = tuple(f"LABEL_{number}" for number in range(len(model.state["classifier.bias"])))
    note = (
        f"output_weights is taken for a classifier of whole texts with {len(labels)} labels, whose names are not in a "
        "checkpoint: write them into id2label and label2id of config.json"
    )
    return _Opened(model, task_settings(TaskConfig(task="classification", labels=labels)), (*notes, note))


def _of_folder(folder: Path) -> _Opened:
    inner, sentence, kept_files, notes = _sentence(folder)
    model = load_model(inner)
    settings = read_json(inner / "config.json")
    head, task = _head(inner, settings, model.state)
    kept, dropped = hf_mapping.settings_to_keep(settings, head=bool(hf_mapping.component_names(model.state) & _HEADS))
    was = settings.get("architectures")
    if was and was != head["architectures"]:
        notes.append(f"architectures was {was}; it is {head['architectures']} now, which these weights are")
    weights = read_weights(inner)
    others = {str(v.dtype).removeprefix("torch.") for v in weights.values() if v.is_floating_point()} - {"float32"}
    notes += [f"the numbers are float32 now; they were {', '.join(sorted(others))}"] * bool(others)
    twice = hf_mapping.redundant_tensors(weights)
    notes += [f"left out of the weights, as counters or copies: {', '.join(twice)}"] * bool(twice)
    notes += [f"left out of config.json: {', '.join(dropped)}"] * bool(dropped)
    root = folder.resolve()
    root = root.parents[1] if root.parent.name == "snapshots" else root  # the hub's cache links to files beside it
    copied = {name: folder / name for name in (*MODEL_DOCUMENTS, *kept_files) if (folder / name).is_file()}
    copied = {name: file for name, file in copied.items() if root in file.resolve().parents}
    known = {*copied, *(["2_Normalize", *module_files(folder)] if sentence else [])}  # the first may be empty
    if inner != folder:
        known |= {f"{inner.name}/{entry.name}" for entry in inner.iterdir() if entry.name in _READ or _is_shard(entry)}
        known.add(f"{inner.name}/sentence_bert_config.json")
    names = _left_out(folder, known)
    more = [f"and {len(names) - 20} more"] if len(names) > 20 else []
    notes += [f"left out of the folder: {', '.join([*names[:20], *more])}"] * bool(names)
    return _Opened(model, kept | head, (*notes, *model.tokenizer.notes), copied, task, sentence)


def _sentence(folder: Path) -> tuple[Path, SentenceTransformerSettings | None, list[str], list[str]]:
    """Where the model lies; how its vectors are made, if files say so and we know it too; which of these files are
    copied; what a person should know of it."""
    try:
        files = module_files(folder)
    except BertworksError as error:
        return folder, None, [], [f"how its vectors are made is left out: {error.what}"]
    if not files:
        return folder, None, [], []
    try:
        inner, settings = read_sentence_transformer(folder)
        lost = [f"left out of {one}" for one in unwritten_settings(folder)]
    except BertworksError as error:
        return folder, None, files, [f"kept as they are, though bertworks does not make such vectors ({error.what}): "
                                     f"{', '.join(files)}"]  # fmt: skip
    return inner, settings, [MODEL_FILE], lost


def _left_out(folder: Path, known: Collection[str]) -> list[str]:
    """Names of files and folders of which nothing is read and nothing copied."""
    found = []
    for entry in sorted(folder.iterdir()):
        inside = [name.partition("/")[2] for name in known if name.startswith(f"{entry.name}/")]
        if entry.is_dir() and inside:
            found += [f"{entry.name}/{other.name}" for other in sorted(entry.iterdir()) if other.name not in inside]
        elif entry.name not in {*_READ, *known} and not _is_shard(entry):
            found.append(f"{entry.name}/" if entry.is_dir() else entry.name)
    return found


def _is_shard(entry: Path) -> bool:
    return entry.match("model-*.safetensors")


def _head(
    folder: Path, settings: Mapping[str, Any], state: Mapping[str, Tensor]
) -> tuple[dict[str, Any], TaskConfig | None]:
    """What config.json is to say of the head; the description of a task of ours.

    Raises:
        BertworksError: whose head it is, config.json does not say, or it says what cannot be.
    """
    parts = hf_mapping.component_names(state)
    if not parts & _HEADS:
        return {"architectures": [hf_mapping.architecture_of(state)]}, None
    if not (folder / FILE).exists() and not settings.get("architectures"):
        raise BertworksError(
            f"these weights have a head ({', '.join(sorted(parts & _HEADS))}), but config.json does not say for what",
            where=str(folder),
            hint='add its class, such as "architectures": ["BertForSequenceClassification"]',
        )
    task = read_task_config(folder)
    last = "span" if task.task == "qa" else "classifier"
    outputs = len(state[f"{last}.bias"]) if last in parts else 0
    expected = 2 if task.task == "qa" else len(task.labels) or 1
    if outputs != expected or bool(task.recurrent_units) != ("recurrent" in parts):
        raise BertworksError(
            f"the head of these weights ({', '.join(sorted(parts & _HEADS))}, {outputs} outputs) is none for "
            f"{task.task} with {expected}, which config.json describes",
            where=str(folder),
            hint="use the config.json that was saved with these weights",
        )
    head = task_settings(task)
    if (folder / FILE).exists():
        return head, task
    if settings.get("id2label"):  # also where the task has no use for labels: others may show them
        named = {str(number): str(label) for number, label in settings["id2label"].items()}
        head |= {"id2label": named, "label2id": {label: int(number) for number, label in named.items()}}
    elif not task.labels:
        del head["id2label"], head["label2id"]
    head.pop("problem_type", None)  # what is not said is not the same for all readers, where there is one label
    problem = settings.get("problem_type")
    return head | ({"problem_type": problem} if problem else {}), None


def _card(name: str, source: str, model: Model, head: Mapping[str, Any], notes: Collection[str]) -> str:
    """The text of README.md where the source has none."""
    c, kind = model.config, head["architectures"][0]
    remarks = "".join(f"- {note}\n" for note in notes) or "- nothing was left out\n"
    return f"""---
library_name: {"bertworks" if head.get("model_type") == hf_mapping.OWN_TYPE else "transformers"}
tags: [bert, bertworks]
---

# {" ".join(name.split())}

{kind}, converted with bertworks from `{" ".join(source.split())}`. The numbers are those of the source; what it was
trained on, how good it is, and under which licence it stands, the source says.

It has {c.num_hidden_layers} layers, hidden size {c.hidden_size}, {c.num_attention_heads} heads, a vocabulary of
{c.vocab_size:,}, and reads at most {c.max_position_embeddings} tokens at once.

## Use

```python
from transformers import AutoTokenizer, {kind}

tokenizer = AutoTokenizer.from_pretrained(".")  # the path of this folder
model = {kind}.from_pretrained(".")
```

## What was decided in converting

{remarks}"""
