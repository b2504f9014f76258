"""Read and write a model folder, as Hugging Face's tools expect it.

It holds config.json, model.safetensors, tokenizer files and README.md.

- `ModelFolder`: a folder, each of its files read once
- `load_model`, `save_model`: a `Model` in memory
- `initial_model`: the model from which a fine-tuning starts
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from bertworks.checkpoints import hf_config, hf_mapping
from bertworks.checkpoints.hf_config import FAMILIES
from bertworks.checkpoints.model_card import with_tokenizer_note, without_division
from bertworks.checkpoints.model_files import (
    ModelFiles,
    check_vocabulary,
    weights_sha256,
)
from bertworks.checkpoints.resolve import INDEX, WEIGHTS as WEIGHTS, joint_tasks, locate_model
from bertworks.checkpoints.sentence_transformers import (
    TABLE,
    static_table,
)
from bertworks.checkpoints.storage import (
    EVALUATION_FILE,
    combined_sha256,
    read_index,
    read_json,
    record_files,
    refuse_non_finite,
    write_record,
    write_sharded,
    write_weights,
)
from bertworks.checkpoints.task_config import (
    output_layer,
    put_temperature_into_weights,
    save_task,
)
from bertworks.errors import BertworksError, expect, quoted, require
from bertworks.io.atomic_write import local_path, write_json, write_text
from bertworks.io.inputs import as_path
from bertworks.models.config import EncoderConfig
from bertworks.models.transformer import select_layers, student_layers
from bertworks.tasks.settings import TaskConfig
from bertworks.text.tokenizer import Tokenizer


class Model(NamedTuple):
    """The content of a model folder."""

    config: EncoderConfig
    # float32, under our names; `hf_config.component_names(state)` lists the components
    state: dict[str, Tensor]
    tokenizer: Tokenizer


class ModelFolder(ModelFiles):
    """A model folder, each file of which is read once, when it is first needed.

    See `ModelFiles`, to which it adds the weights as the network has them.
    """

    def load(self, *, needs: Collection[str] = ()) -> Model:
        """Return the whole model in memory: see `load_model`."""
        state = self.load_state()
        check_components(hf_config.component_names(state), needs, self.within)
        return Model(self.config, state, self.tokenizer)

    def load_state(self) -> dict[str, Tensor]:
        """Return the weights as in `Model.state`.

        Raises:
            BertworksError: files missing, damaged, changed or hostile; weights that do not fit the
                configuration.
        """
        where = self.within / WEIGHTS
        weights = self.weights
        if self.has_static_vectors:
            weights = {TABLE: static_table(weights, where)}
        settings_file = self.within / "config.json"
        hf_mapping.check_output_layer(self.settings, weights, self.config, settings_file)
        state = hf_mapping.from_huggingface(
            weights, self.config, where=where, settings=self.settings
        )
        state = {name: value.float() for name, value in state.items()}
        refuse_non_finite(state, where)
        return state


def save_model(
    folder: str | Path,
    state: Mapping[str, Tensor],
    config: EncoderConfig,
    tokenizer: Tokenizer,
    *,
    card: str,
    head: Mapping[str, Any] | None = None,
    task: TaskConfig | None = None,
    shared: Path | None = None,
) -> None:
    """Write the files of a model folder.

    Each is replaced atomically; other files in the folder stay.

    The weights are written after the files that they need: a folder with weights is complete. Last
    comes the record of the weights, which is compared when the folder is opened.

    Args:
        state: parameters of an encoder and of heads, under our names.
        card: the text of README.md, to which a note about the tokenizer is added where other
            programs need it.
        head: settings of the head of a fine-tuned model in config.json (`task_settings`): its class
            and its labels; None: a pre-trained model.
        task: the content of task.json; None: no such file is written. A temperature other than 1
            goes into the weights of the output layer.
        shared: the folder of several with the same body that has its file; None: the weights are
            one file.

    Raises:
        BertworksError: weights that are not finite, or do not fit the configuration or the
            tokenizer; a full disk.
    """
    folder = local_path(folder)
    if task is not None:
        state, task = put_temperature_into_weights(state, task)
    tensors = hf_mapping.to_huggingface(state, config, head["architectures"][0] if head else None)
    refuse_non_finite(state, folder)
    check_vocabulary(tokenizer, config, folder)
    head = head or {"architectures": [hf_config.architecture_of(state, config)]}
    save_settings(folder, config, tokenizer, head, max_length=task.max_length if task else None)
    if task is not None:
        save_task(task, folder)
    tensors = {name: value.float() for name, value in tensors.items()}
    if shared is None:
        weights_hash = write_weights(folder / WEIGHTS, tensors, outdated=record_files(folder))
    else:
        for file in record_files(folder):
            file.unlink(missing_ok=True)
        weights_hash = combined_sha256(
            write_sharded(folder / INDEX, tensors, _body_prefixes(config), shared / INDEX)
        )
    write_text(folder / "README.md", with_tokenizer_note(card, tokenizer))
    write_record(folder, weights_hash, has_task=task is not None)


def _body_prefixes(config: EncoderConfig) -> tuple[str, ...]:
    """Return the beginnings of the names of all tensors that belong to the body, not to a head."""
    family = FAMILIES[config.family]
    return tuple(family.prefix + part for part in family.body)


def save_output_layer(folder: Path, layer: Mapping[str, Tensor], task: TaskConfig) -> None:
    """Replace the output layer and the task of a complete model folder.

    A temperature goes into the weights, as in `save_model`; all other weights stay.

    Only the file that holds the output layer is written, and it is replaced atomically. The records
    of the weights are deleted before, and weights.json is written again after everything else.

    Args:
        layer: the parameters of `task_config.output_layer`, float32.

    Raises:
        BertworksError: weights that are not finite, or that do not fit the folder; a full disk.
    """
    source = ModelFolder(folder)
    layer, task = put_temperature_into_weights(layer, task)
    state = source.load_state() | layer
    tensors = hf_mapping.to_huggingface(state, source.config, source.settings["architectures"][0])
    refuse_non_finite(layer, folder)
    path = folder / WEIGHTS
    # The weights may be two files, of which the one with the body belongs to several folders.
    if not path.exists():
        file_of_tensor = read_index(folder / INDEX, ".safetensors")
        prefixes = _body_prefixes(source.config)
        tensors = {name: value for name, value in tensors.items() if not name.startswith(prefixes)}
        (head_file,) = {file_of_tensor[name] for name in tensors}
        path = folder / head_file
    tensors = {name: value.float() for name, value in tensors.items()}
    write_weights(path, tensors, outdated=record_files(folder))
    save_task(task, folder)
    write_record(folder, weights_sha256(folder), has_task=True)


def put_temperature_into_folder(folder: Path) -> None:
    """Divide the output layer of a model folder by the temperature in its task.json.

    Only earlier versions wrote one there.

    Raises:
        BertworksError: see `save_output_layer`.
    """
    source = ModelFolder(folder)
    if source.exported or not source.has_task_file or not source.task_config.divides_logits:
        return
    result_file = folder / EVALUATION_FILE
    result = read_json(result_file) if result_file.exists() else None
    save_output_layer(folder, output_layer(source.load_state()), source.task_config)
    if result is not None:
        write_json(result_file, result | {"weights_sha256": weights_sha256(folder)})
    card_file = folder / "README.md"
    if card_file.exists():
        write_text(card_file, without_division(card_file.read_text(encoding="utf-8")))


def save_settings(
    folder: Path,
    config: EncoderConfig,
    tokenizer: Tokenizer,
    head: Mapping[str, Any],
    *,
    max_length: int | None = None,
) -> None:
    """Write config.json and the tokenizer files.

    Args:
        head: the settings of the head in config.json.
        max_length: tokens to which other programs cut a text: as many as a fine-tuned model was
            trained with; None: the number of the tokenizer.
    """
    numbers = {token: number for number, token in enumerate(tokenizer.tokens)}
    roles = {
        role: numbers[token] for role, token in tokenizer.special_tokens.items() if token in numbers
    }
    if config.decoder is not None:
        ends = {"end_of_translation": tokenizer.template.suffix[-1]}
        roles |= ends | {"start_of_translation": tokenizer.start_id}
    settings = hf_config.config_to_huggingface(
        config,
        architectures=head["architectures"],
        pad_token_id=tokenizer.pad_id,
        token_ids=numbers | roles,
    )
    write_text(folder / "config.json", json.dumps(settings | dict(head), indent=2) + "\n")
    has_types = config.relative_segments or (config.type_vocab_size > 1 and not config.languages)
    tokenizer.save(folder, has_types=has_types, max_length=max_length)


def load_model(folder: str | Path, *, needs: Collection[str] = ()) -> Model:
    """Read a model folder of bertworks, of transformers with any head, or of sentence-transformers.

    Args:
        needs: components that the caller needs, such as `lm_head`.

    Raises:
        BertworksError: files missing, damaged or hostile; an unsupported network; a component of
            `needs` is missing.
    """
    return ModelFolder(as_path(folder)).load(needs=needs)


def check_components(components: Collection[str], needs: Collection[str], folder: Path) -> None:
    """Raise BertworksError if a model lacks a component in `needs`."""
    missing = sorted(set(needs) - set(components))
    if missing:
        what = (
            f"this model has no {' and no '.join(missing)} (it has {', '.join(sorted(components))})"
        )
        hint = "use a folder that `bertworks pretrain` made, or one saved as BertForPreTraining"
        if "lm_head" in missing:
            what += ": it cannot predict masked tokens"
            hint = "use a model that has one, such as bert-base-uncased, or train one: pretrain"
            if (folder / "generator").is_dir():  # of a discriminator
                hint = f"its generator has one: use {quoted(folder / 'generator')}"
        raise BertworksError(what, where=folder, hint=hint)


def initial_model(
    name: str, task: str, layers: int | None
) -> tuple[ModelFolder, Model, dict[str, Path]]:
    """Return the folder and the model from which a fine-tuning starts, and the folders of tasks.

    There are tasks only if the model is a joint fine-tuning.

    Args:
        name: a name or a folder, see `locate_model`.
        task: the name of the data. Of a joint fine-tuning the folder is that of the task of this
            name, or else that of the first task, for its encoder alone.
        layers: the number of layers that the model keeps; None: all.

    Raises:
        UsageError: `layers` is below 1, or the model has fewer layers, or none.
        BertworksError: see `locate_model` and `ModelFolder.load`.
    """
    tasks = joint_tasks(name)
    if tasks:
        path = tasks.get(task) or next(iter(tasks.values()))
    else:
        path = locate_model(name)
    folder = ModelFolder(path)
    folder.require_language()
    require(
        folder.config.decoder is None,
        "a translator cannot be fine-tuned for labels",
        folder.folder,
        "choose an encoder, such as minilm; or train it further on translations: bertworks "
        f"pretrain --parallel SOURCE TARGET --init {quoted(folder.folder)} -o ANOTHER-FOLDER",
    )
    require(
        layers is None or folder.config.kind != "static",
        "static vectors have no layers",
        folder.folder,
        "leave --layers out",
    )
    model = folder.load(needs={"encoder"})
    most = model.config.num_hidden_layers
    expect(
        layers is None or 1 <= layers <= most,
        f"--layers {layers}: expected a number from 1 to {most}, the layers of the model",
    )
    numbers = student_layers(most, layers or most)
    config, state = select_layers(model.config, model.state, numbers)
    return folder, model._replace(config=config, state=state), tasks
