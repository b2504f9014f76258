"""The files of a model folder: settings, tokenizer, task, weights under the names in their files.

No network and no torch is needed for the settings, the tokenizer and the task.

- `ModelFiles`: a folder, each of its files read once
- `read_weights`: the weights under the names in their files; `weight_files`: these files;
  `weights_sha256`: a hash of them
- `check_vocabulary`: whether a tokenizer fits a network

Folders may be hostile: nothing in them is executed, and pickles are never opened here
(`pickled_weights` has a child process that reads them, for `convert --trust-pickle`).
"""

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertworks.checkpoints.hf_config import config_from_huggingface, static_settings
from bertworks.checkpoints.pickled_weights import find_pickle
from bertworks.checkpoints.resolve import INDEX, WEIGHTS, locate_model
from bertworks.checkpoints.sentence_transformers import (
    MODULES_FILE,
    SentenceTransformer,
    read_sentence_transformer,
    static_shape,
)
from bertworks.checkpoints.storage import (
    WeightsRecord,
    combined_sha256,
    file_sha256,
    read_index,
    read_json,
    read_record,
    read_shapes,
    read_tensors,
)
from bertworks.checkpoints.task_config import (
    TASK_FILE,
    read_task_json,
    task_from_settings,
    tasks_of,
)
from bertworks.errors import BertworksError, UsageError, expect, quoted, require
from bertworks.io.inputs import as_path
from bertworks.models.config import EncoderConfig
from bertworks.tasks.settings import TaskConfig
from bertworks.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

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


class ModelFiles:
    """The files of a model folder, each of which is read once, when it is first needed.

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
        weights: dict[str, "Tensor"] | None = None,
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
            return static_settings(*self._static_shape)
        refuse_adapter(self.within)
        return dict(read_json(self.within / "config.json"))

    @property
    def _static_shape(self) -> tuple[int, int]:
        """The number of tokens and the width of the table of static vectors."""
        file = self.within / WEIGHTS
        require(
            self._weights is not None or has_weights(self.within),
            f"there is no {WEIGHTS} with the static vectors",
            self.within,
            "open the model with sentence-transformers and save it again: "
            "MODEL.save_pretrained(FOLDER)",
        )
        if self._weights is None and file.exists():
            return static_shape(read_shapes(file), file)
        weights = read_weights(self.within) if self._weights is None else self._weights
        return static_shape({name: tuple(x.shape) for name, x in weights.items()}, file)

    @cached_property
    def config(self) -> EncoderConfig:
        """The configuration of the network."""
        return config_from_huggingface(self.settings, where=self.within / "config.json")

    @property
    def weights(self) -> dict[str, "Tensor"]:
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
                f"{damaged} is damaged, or was written by another program: {difference}",
                where=where,
                hint=f"export the model again; or, if this is meant, delete {record.file}",
            )
        # A program that saves a model writes config.json with the weights.
        config_sha256 = file_sha256(self.within / "config.json") if record.config_sha256 else ""
        if "transformers_version" in self.settings or record.config_sha256 != config_sha256:
            raise BertworksError(
                "this folder was saved by another program: its weights are not those that "
                f"bertworks wrote ({difference})",
                where=where,
                hint=f"if this is meant: {accept}",
            )
        raise BertworksError(
            f"the weights are damaged, or were written by another program: {difference}",
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

    def refuse_nested(self) -> None:
        """Raise UsageError if the weights are in a subfolder."""
        expect(
            self.within == self.folder,
            "the weights are in a subfolder, as in old models of sentence-transformers",
            where=self.folder,
            hint=f"bertworks convert {quoted(self.folder)} -o ANOTHER-FOLDER, and name that one",
        )


def weights_sha256(folder: str | Path) -> str:
    """Return the sha256 of the weights in a folder, or of its ONNX files.

    Folders with equal hashes have the same network.
    """
    return combined_sha256(weight_files(as_path(folder)))


def named_weights_sha256(model: str) -> str:
    """Return the sha256 of the weights of a model.

    model: a name or a folder, see `locate_model`.
    """
    return weights_sha256(ModelFiles(locate_model(model)).within)


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


def read_weights(folder: Path, model: Path | None = None) -> dict[str, "Tensor"]:
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
        f"this is an adapter of PEFT: it holds only changes to the weights{of_base}, and no model",
        where=folder,
        hint="merge both with peft: MODEL.merge_and_unload().save_pretrained(FOLDER); save the "
        "tokenizer there, too",
    )
