"""Read and write a model folder, as Hugging Face's tools expect it.

It holds config.json, model.safetensors, tokenizer files and README.md.

- `ModelFolder`: a folder, each of its files read once
- `load_model`, `save_model`: a `Model` in memory
- `read_weights`: the weights under the names in their files; `weight_files`: these files

Folders may be hostile: nothing in them is executed, and pickles are never opened here
(`pickled_weights` has a child process that reads them, for `convert --trust-pickle`).
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from bertworks.checkpoints import hf_mapping
from bertworks.checkpoints.hf_mapping import FAMILIES
from bertworks.checkpoints.model_card import with_tokenizer_note, without_division
from bertworks.checkpoints.pickled_weights import find_pickle
from bertworks.checkpoints.resolve import INDEX, WEIGHTS as WEIGHTS, joint_tasks, locate_model
from bertworks.checkpoints.sentence_transformers import (
    MODULES_FILE,
    TABLE,
    SentenceTransformer,
    read_sentence_transformer,
    static_table,
)
from bertworks.checkpoints.storage import (
    EVALUATION_FILE,
    WeightsRecord,
    combined_sha256,
    file_sha256,
    read_index,
    read_json,
    read_record,
    read_tensors,
    record_files,
    refuse_non_finite,
    write_record,
    write_sharded,
    write_weights,
)
from bertworks.checkpoints.task_config import (
    TASK_FILE,
    output_layer,
    put_temperature_into_weights,
    read_task_json,
    save_task,
    task_from_settings,
    tasks_of,
)
from bertworks.errors import BertworksError, UsageError, expect, quoted, require
from bertworks.io.atomic_write import local_path, write_json, write_text
from bertworks.io.inputs import as_path
from bertworks.models.config import EncoderConfig
from bertworks.models.transformer import select_layers, student_layers
from bertworks.tasks.settings import TaskConfig
from bertworks.text.tokenizer import Tokenizer

_ADAPTER = "adapter_config.json"  # of the PEFT library
# Files of `export` instead of the weights, under the names that other programs look for.
EXPORTED = ("model.onnx",)
EXPORTED_TRANSLATOR = ("encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx")
EXPORTED_BELOW = "onnx"  # where transformers.js and other programs look for them
_OTHER_WEIGHTS = {  # files of other programs, and what is in them
    "adapter_model.safetensors": "the changes of an adapter, not a whole model",
    "adapter_model.bin": "the changes of an adapter, not a whole model",
    "tf_model.h5": "weights of TensorFlow in a format that is not read",
    "flax_model.msgpack": "weights of Flax, which are not read",
    "rust_model.ot": "weights of a Rust library, which are not read",
}


class Model(NamedTuple):
    """The content of a model folder."""

    config: EncoderConfig
    # float32, under our names; `hf_mapping.component_names(state)` lists the components
    state: dict[str, Tensor]
    tokenizer: Tokenizer


class ModelFolder:
    """A model folder, each file of which is read once, when it is first needed.

    Args:
        folder: its path.
        language: of all texts, for a model with several; "": none is chosen.
        accepts_changes: whether the folder may differ from what bertworks wrote (see
            `storage.read_record`).
        weights: the tensors under the names in their files, if they were read already; None: those
            of the folder.

    Attributes:
        folder: the model folder.
        within: the folder of config.json, weights and tokenizer: with sentence-transformers it may
            be a subfolder.

    Raises:
        UsageError: the model does not have the language.
        BertworksError: no such folder, or damaged files.
    """

    def __init__(
        self,
        folder: str | Path,
        language: str = "",
        *,
        accepts_changes: bool = False,
        weights: dict[str, Tensor] | None = None,
    ):
        self.folder = Path(folder)
        self._accepts_changes = accepts_changes
        self._weights = weights
        require(
            self.folder.is_dir(),
            "no such model folder",
            folder,
            "make one with `bertworks pretrain`",
        )
        if language:
            expect(
                language in self.config.languages,
                f"the model has no language {language!r}",
                hint=f"it has {', '.join(self.config.languages) or 'none'}",
            )
            self.config = replace(self.config, language=language)

    @cached_property
    def sentence_transformer(self) -> SentenceTransformer:
        """The settings by which texts become vectors.

        Raises:
            BertworksError: bertworks does not compute such vectors.
        """
        return read_sentence_transformer(self.folder)

    @cached_property
    def within(self) -> Path:
        """The folder of config.json, weights and tokenizer."""
        if not (self.folder / MODULES_FILE).exists():
            return self.folder
        try:
            return self.sentence_transformer.weights_folder
        except BertworksError:  # other uses of the model do not need these settings
            if not (self.folder / "config.json").exists():
                raise
            return self.folder

    @property
    def exported(self) -> bool:
        """Whether the model is an ONNX file, or those of a translator, and nothing else."""
        return bool(onnx_files(self.within)) and not has_weights(self.within)

    @cached_property
    def has_static_vectors(self) -> bool:
        """Whether the folder has a table of static vectors instead of a network."""
        try:
            return self.sentence_transformer.is_static
        except BertworksError:  # other uses of the model do not need these settings
            return False

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The content of config.json.

        Of static vectors, it is what the table says: sentence-transformers writes no config.json
        then, and that of Model2Vec describes how the table was made.
        """
        if self.has_static_vectors:
            num_tokens, width = self._static_table.shape
            return hf_mapping.static_settings(num_tokens, width)
        refuse_adapter(self.within)
        return dict(read_json(self.within / "config.json"))

    @property
    def _static_table(self) -> Tensor:
        """The vectors of all tokens, [tokens, width]."""
        file = self.within / WEIGHTS
        require(
            self._weights is not None or has_weights(self.within),
            f"there is no {WEIGHTS} with the static vectors",
            self.within,
            "open the model with sentence-transformers and save it again: "
            "MODEL.save_pretrained(FOLDER)",
        )
        weights = read_weights(self.within) if self._weights is None else self._weights
        return static_table(weights, file)

    @cached_property
    def config(self) -> EncoderConfig:
        """The configuration of the network."""
        return hf_mapping.config_from_huggingface(self.settings, where=self.within / "config.json")

    @property
    def weights(self) -> dict[str, Tensor]:
        """All tensors, under the names in their files: see `read_weights`.

        Raises:
            BertworksError: they are not those that bertworks wrote into this folder.
        """
        if self._weights is not None:
            return self._weights
        weights = read_weights(self.within, self.folder)
        self.check_unchanged()
        return weights

    @cached_property
    def _record(self) -> WeightsRecord | None:
        """The record of the weights that bertworks wrote, if there is one."""
        return read_record(self.within)

    def check_unchanged(self) -> None:
        """Compare the weights with their record, if the folder has one.

        Raises:
            BertworksError: the weights are damaged, or another program has written them.
        """
        if self._accepts_changes or self._record is None:
            return
        files = weight_files(self.within)
        weights_hash = combined_sha256(files)
        if weights_hash == self._record.weights_sha256:
            return
        record = read_record(self.within)  # a training may have written both since
        if record is None or weights_hash == record.weights_sha256:
            return
        accept = f"bertworks convert {quoted(self.folder)} -o ANOTHER-FOLDER --accept-changes"
        where = files[0] if len(files) == 1 else self.within
        difference = f"its sha256 is not that in {record.file}"
        if self.exported:
            damaged = "the ONNX file" if len(files) == 1 else "an ONNX file"
            raise BertworksError(
                f"{damaged} is damaged, or another program has written it: {difference}",
                where=where,
                hint=f"export the model again; or, if this is meant, delete {record.file}",
            )
        # A program that saves a model writes config.json with the weights.
        config_sha256 = file_sha256(self.within / "config.json") if record.config_sha256 else ""
        if "transformers_version" in self.settings or record.config_sha256 != config_sha256:
            raise BertworksError(
                "another program has saved this folder, and its weights are not those that "
                f"bertworks wrote ({difference})",
                where=where,
                hint=f"if this is meant: {accept}",
            )
        raise BertworksError(
            f"the weights are damaged, or another program has written them: {difference}",
            where=where,
            hint=f"get the folder again; if the change is meant: {accept}",
        )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, which fits the network."""
        if self.config.kind == "static":
            tokenizer = Tokenizer.load_plain(
                self.within / "tokenizer.json",
                model_max_length=self.config.max_position_embeddings,
            )
        else:
            tokenizer = Tokenizer.load(self.within)
        check_vocabulary(tokenizer, self.config, self.within)
        return tokenizer

    @property
    def has_task(self) -> bool:
        """Whether the model was fine-tuned for a task of bertworks.

        It raises BertworksError as `has_task_file` does.
        """
        return self.has_task_file or bool(tasks_of(self.settings))

    @property
    def has_task_file(self) -> bool:
        """Whether there is a task.json.

        Raises:
            BertworksError: there was one when bertworks wrote the folder, and it is missing.
        """
        if (self.within / TASK_FILE).exists():
            return True
        if self._record is not None and self._record.has_task and not self._accepts_changes:
            raise BertworksError(
                f"{TASK_FILE} is missing: it says how the model reads texts and what its "
                "answers mean",
                where=self.within,
                hint=f"put it back; {self._record.file} says that it belongs to this folder",
            )
        return False

    @cached_property
    def task_config(self) -> TaskConfig:
        """The task of a fine-tuned model.

        Raises:
            BertworksError: the model has no head of a task, or the description is damaged.
        """
        if self.has_task_file:
            return read_task_json(self.within / TASK_FILE)
        return task_from_settings(self.settings, self.within / "config.json")

    def require_language(self) -> None:
        """Raise UsageError for a model of several languages, none of which is chosen."""
        languages = self.config.languages
        if not languages or self.config.language:
            return
        folder = str(self.folder)
        new_folder = f"{folder}-{languages[0]}"
        raise UsageError(
            f"the model has the languages {', '.join(languages)}: which one are the texts in?",
            where=folder,
            hint=f"bertworks convert {quoted(folder)} -o {quoted(new_folder)} --language "
            f"{languages[0]}, and name that one",
        )

    def load(self, *, needs: Collection[str] = ()) -> Model:
        """Return the whole model in memory: see `load_model`."""
        state = self.load_state()
        check_components(hf_mapping.component_names(state), needs, self.within)
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

    def refuse_nested(self) -> None:
        """Raise UsageError if the weights are in a subfolder."""
        expect(
            self.within == self.folder,
            "the weights are in a subfolder, as in old models of sentence-transformers",
            where=self.folder,
            hint=f"bertworks convert {quoted(self.folder)} -o ANOTHER-FOLDER, and name that one",
        )


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
    head = head or {"architectures": [hf_mapping.architecture_of(state, config)]}
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
    settings = hf_mapping.config_to_huggingface(
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
        if "lm_head" in missing and (folder / "generator").is_dir():  # of a discriminator
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


def weights_sha256(folder: str | Path) -> str:
    """Return the sha256 of the weights in a folder, or of its ONNX files.

    Folders with equal hashes have the same network.
    """
    return combined_sha256(weight_files(as_path(folder)))


def named_weights_sha256(model: str) -> str:
    """Return the sha256 of the weights of a model.

    model: a name or a folder, see `locate_model`.
    """
    return weights_sha256(ModelFolder(locate_model(model)).within)


def weight_files(folder: Path) -> list[Path]:
    """Return the files of the weights in a folder, in the order of their names.

    Without weights they are the ONNX files.
    """
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        names = sorted({*read_index(folder / INDEX, ".safetensors").values()})
        return [folder / name for name in names]
    return onnx_files(folder) or [folder / name for name in EXPORTED]


def onnx_files(folder: Path) -> list[Path]:
    """Return the ONNX file of a folder, or those of a translator; [] if it has none."""
    for place in (folder, folder / EXPORTED_BELOW):
        for names in (EXPORTED, EXPORTED_TRANSLATOR):
            if (place / names[0]).is_file():
                return [place / name for name in names]
    return []


def check_vocabulary(tokenizer: Tokenizer, config: EncoderConfig, where: Path) -> None:
    """Raise BertworksError if the tokenizer has more tokens, or types of tokens, than the model.

    Also if only one of both spells words, instead of reading a vocabulary.
    """
    require(
        tokenizer.spells_words == (config.characters is not None),
        "the model reads spellings of words, and its tokenizer has a vocabulary"
        if config.characters
        else "the model has a vocabulary, and its tokenizer only spells words",
        where,
        "use the tokenizer that was saved with the model",
    )
    types = max(tokenizer.encode("a").type_ids + tokenizer.encode("a", "a").type_ids, default=0)
    hint = "use the tokenizer that the model was trained with"
    # A model of one type, or of none, ignores the types.
    fits = types < config.type_vocab_size or config.type_vocab_size < 2
    require(
        fits,
        f"the tokenizer gives tokens the type {types}, the model has {config.type_vocab_size} "
        "types",
        where,
        hint,
    )
    require(
        tokenizer.vocab_size <= config.vocab_size,
        f"the tokenizer has {tokenizer.vocab_size:,} tokens, the model only "
        f"{config.vocab_size:,}: they do not belong together",
        where,
        hint,
    )


def has_weights(folder: Path) -> bool:
    """Return whether a folder has weights that `read_weights` reads."""
    return (folder / WEIGHTS).exists() or (folder / INDEX).exists()


def read_weights(folder: Path, model: Path | None = None) -> dict[str, Tensor]:
    """Return all tensors, under the names in the file, or in the files of an index.

    Args:
        model: the model folder, which the message names, if the files are in a subfolder of it.

    Raises:
        BertworksError: no such file, or a damaged or hostile one; only a pickle.
    """
    if (folder / WEIGHTS).exists():
        return read_tensors(folder / WEIGHTS)
    if (folder / INDEX).exists():
        index = folder / INDEX
        files = read_index(index, ".safetensors")
        tensors: dict[str, Tensor] = {}
        for file in sorted(set(files.values())):
            tensors |= read_tensors(folder / file)
        strays = set(files) ^ set(tensors)
        if strays:
            raise BertworksError(
                f"the index and its files disagree about {sorted(strays)[0]}", where=index
            )
        return tensors
    # What the folder has instead, and what can be done.
    refuse_adapter(folder)
    pickle = find_pickle(folder)
    exported_files = onnx_files(folder)
    other_file = next((name for name in _OTHER_WEIGHTS if (folder / name).exists()), None)
    if pickle is not None:
        what = (
            f"only {pickle.name}: a pickle, which can run any program when it is opened, and "
            "is not read"
        )
        hint = (
            f"if you trust where it comes from: bertworks convert {quoted(model or folder)} -o "
            "ANOTHER-FOLDER --trust-pickle"
        )
        hint += ", and name that one"
    elif exported_files:
        what = (
            f"only {exported_files[0].relative_to(folder)}: an exported model has no weights that "
            "can be read"
        )
        hint = "use the folder that it was exported from"
    elif other_file is not None:
        what = f"only {other_file}: {_OTHER_WEIGHTS[other_file]}"
        hint = f"choose a model that has {WEIGHTS}"
        if other_file.startswith("adapter"):
            hint = (
                "merge it into its model with the library PEFT (merge_and_unload), save that "
                "and name its folder"
            )
    else:
        what = f"there is no {WEIGHTS}"
        hint = "choose a folder that holds a model"
    raise BertworksError(what, where=folder, hint=hint)


def refuse_adapter(folder: Path) -> None:
    """Raise BertworksError for a folder of the PEFT library.

    Its weights are changes to those of another model.
    """
    is_model = has_weights(folder) or find_pickle(folder) or onnx_files(folder)
    if is_model or not (folder / _ADAPTER).exists():
        return
    base = read_json(folder / _ADAPTER).get("base_model_name_or_path")
    of_base = f" of {base[:100]!r}" if isinstance(base, str) and base else ""
    raise BertworksError(
        f"this is an adapter of PEFT: it holds changes to the weights{of_base}, and no model",
        where=folder,
        hint="merge both with peft: MODEL.merge_and_unload().save_pretrained(FOLDER); save the "
        "tokenizer there, too",
    )
