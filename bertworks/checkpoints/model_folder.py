"""A model folder: config.json, model.safetensors, tokenizer files and README.md, as Hugging Face's tools expect them.

- `ModelFolder`: a folder, each of its files read once
- `load_model`, `save_model`: a `Model` in memory
- `load_state`, `read_weights`: the weights, under our names and under those in the file

Folders may be hostile: nothing in them is executed, and pickles are never opened.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from bertworks.checkpoints import hf_mapping
from bertworks.checkpoints.families.family import FAMILIES
from bertworks.checkpoints.model_card import with_tokenizer_note
from bertworks.checkpoints.resolve import INDEX, WEIGHTS as WEIGHTS
from bertworks.checkpoints.sentence_transformers import SentenceTransformer, read_sentence_transformer
from bertworks.checkpoints.storage import read_json, read_tensors, refuse_non_finite, write_sharded, write_weights
from bertworks.checkpoints.task_config import TASK_FILE, TaskConfig, read_task_json, task_from_settings, tasks_of
from bertworks.errors import BertworksError, UsageError, expect, quoted, require
from bertworks.io.atomic_write import local_path, sha256, write_text
from bertworks.io.remote import as_path
from bertworks.models.config import EncoderConfig
from bertworks.text.tokenizer import Tokenizer

EXPORTED = "model.onnx"  # instead of the weights, in a folder of `export`


class Model(NamedTuple):
    """The content of a model folder."""

    config: EncoderConfig
    state: dict[str, Tensor]  # float32, under our names; `hf_mapping.component_names(state)` lists the components
    tokenizer: Tokenizer


class ModelFolder:
    """A model folder. Each of its files is read once, when it is first needed.

    Args:
        language: of all texts, of a model with several; "": none is chosen.

    Attributes:
        folder: the model folder.
        within: the folder of config.json, weights and tokenizer: with sentence-transformers it may be a subfolder.

    Raises:
        UsageError: the model does not have the language.
        BertworksError: no such folder, or damaged files.
    """

    def __init__(self, folder: str | Path, language: str = ""):
        self.folder = as_path(folder)
        require(self.folder.is_dir(), "no such model folder", folder, "make one with `bertworks pretrain`")
        if language:
            hint = f"it has {', '.join(self.config.languages) or 'none'}"
            expect(language in self.config.languages, f"the model has no language {language!r}", hint=hint)
            self.config = replace(self.config, language=language)

    @cached_property
    def sentence_transformer(self) -> SentenceTransformer:
        """How texts become vectors.

        Raises:
            BertworksError: in a way that bertworks does not compute.
        """
        return read_sentence_transformer(self.folder)

    @cached_property
    def within(self) -> Path:
        try:
            return self.sentence_transformer.weights_folder
        except BertworksError:  # other uses of the model do not need these settings
            if not (self.folder / "config.json").exists():
                raise
            return self.folder

    @property
    def exported(self) -> bool:
        """Whether the model is an ONNX file, and nothing else."""
        has_weights = (self.within / WEIGHTS).exists() or (self.within / INDEX).exists()
        return (self.within / EXPORTED).is_file() and not has_weights

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The content of config.json."""
        return dict(read_json(self.within / "config.json"))

    @cached_property
    def config(self) -> EncoderConfig:
        return hf_mapping.config_from_huggingface(self.settings, where=str(self.within / "config.json"))

    @property
    def weights(self) -> dict[str, Tensor]:
        """See `read_weights`."""
        return read_weights(self.within)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.load(self.within)
        check_vocabulary(tokenizer, self.config, self.within)
        return tokenizer

    @property
    def has_task(self) -> bool:
        """Whether the model was fine-tuned for a task of bertworks."""
        return (self.within / TASK_FILE).exists() or bool(tasks_of(self.settings))

    @cached_property
    def task_config(self) -> TaskConfig:
        """The task of a fine-tuned model.

        Raises:
            BertworksError: the model has no head of a task, or the description is damaged.
        """
        if (self.within / TASK_FILE).exists():
            return read_task_json(self.within / TASK_FILE)
        return task_from_settings(self.settings, self.within / "config.json")

    def require_language(self) -> None:
        """Raises UsageError for a model of several languages, none of which is chosen."""
        if self.config.languages and not self.config.language:
            some, folder, one = self.config.languages, str(self.folder), self.config.languages[0]
            what, new = f"the model has the languages {', '.join(some)}: which one are the texts in?", f"{folder}-{one}"
            hint = f"bertworks convert {quoted(folder)} -o {quoted(new)} --language {one}, and name that one"
            raise UsageError(what, where=folder, hint=hint)

    def load(self, *, needs: Collection[str] = ()) -> Model:
        """The whole model in memory. See `load_model`."""
        state = load_state(self.within, self.config)
        check_components(hf_mapping.component_names(state), needs, self.within)
        return Model(self.config, state, self.tokenizer)

    def refuse_nested(self) -> None:
        """Raises UsageError if the weights are in a subfolder."""
        hint = f"bertworks convert {quoted(self.folder)} -o ANOTHER-FOLDER, and name that one"
        what = "the weights are in a subfolder, as in old models of sentence-transformers"
        expect(self.within == self.folder, what, where=self.folder, hint=hint)


def save_model(
    folder: str | Path,
    state: Mapping[str, Tensor],
    config: EncoderConfig,
    tokenizer: Tokenizer,
    *,
    card: str,
    head: Mapping[str, Any] | None = None,
    shared: Path | None = None,
) -> None:
    """Write the files of a model folder. Each is replaced atomically; other files in the folder stay.

    The weights are written after the files that they need: a folder with weights is complete.

    Args:
        state: parameters of an encoder and of heads, under our names.
        card: the text of README.md, to which a note about the tokenizer is added where other programs need it.
        head: settings of the head of a fine-tuned model in config.json (`task_settings`): its class and its labels;
            None: a pre-trained model.
        shared: the folder of several with the same body that has its file; None: the weights are one file.

    Raises:
        BertworksError: weights that are not finite, or do not fit the configuration or the tokenizer; a full disk.
    """
    folder = local_path(folder)
    theirs = hf_mapping.to_huggingface(state, config, head["architectures"][0] if head else None)
    refuse_non_finite(state, str(folder))
    check_vocabulary(tokenizer, config, folder)
    head = head or {"architectures": [hf_mapping.architecture_of(state, config)]}
    save_settings(folder, config, tokenizer, head)
    theirs = {name: value.float() for name, value in theirs.items()}
    if shared is None:
        write_weights(folder / WEIGHTS, theirs)
    else:
        family = FAMILIES[config.family]
        write_sharded(folder / INDEX, theirs, tuple(family.prefix + part for part in family.body), shared / INDEX)
    write_text(folder / "README.md", with_tokenizer_note(card, tokenizer))


def save_settings(folder: Path, config: EncoderConfig, tokenizer: Tokenizer, head: Mapping[str, Any]) -> None:
    """Write config.json and the tokenizer files. head: its settings in config.json."""
    numbers = {token: number for number, token in enumerate(tokenizer.tokens)}
    roles = {role: numbers[token] for role, token in tokenizer.special_tokens.items() if token in numbers}
    settings = hf_mapping.config_to_huggingface(
        config, architectures=head["architectures"], pad_token_id=tokenizer.pad_id, token_ids=numbers | roles
    )
    write_text(folder / "config.json", json.dumps(settings | dict(head), indent=2) + "\n")
    tokenizer.save(folder, has_types=config.type_vocab_size > 1 and not config.languages)


def load_model(folder: str | Path, *, needs: Collection[str] = ()) -> Model:
    """Read a model folder of bertworks, of transformers with any head, or of sentence-transformers.

    Args:
        needs: components that the caller needs, such as `lm_head`.

    Raises:
        BertworksError: files missing, damaged or hostile; an unsupported network; a component of `needs` is missing.
    """
    return ModelFolder(folder).load(needs=needs)


def load_state(folder: Path, config: EncoderConfig) -> dict[str, Tensor]:
    """The weights as in `Model.state`. folder: that of config.json.

    Raises:
        BertworksError: files missing, damaged or hostile; weights that do not fit the configuration.
    """
    weights, where = read_weights(folder), str(folder / WEIGHTS)
    hf_mapping.check_output_layer(read_json(folder / "config.json"), weights, config, str(folder / "config.json"))
    state = {name: value.float() for name, value in hf_mapping.from_huggingface(weights, config, where=where).items()}
    refuse_non_finite(state, where)
    return state


def check_components(components: Collection[str], needs: Collection[str], folder: Path) -> None:
    """Raises BertworksError if a model lacks a component in `needs`."""
    if missing := sorted(set(needs) - set(components)):
        what = f"this model has no {' and no '.join(missing)} (it has {', '.join(sorted(components))})"
        hint = "use a folder that `bertworks pretrain` made, or one saved as BertForPreTraining"
        if "lm_head" in missing and (folder / "generator").is_dir():  # of a discriminator
            hint = f"its generator has one: use {quoted(folder / 'generator')}"
        raise BertworksError(what, where=str(folder), hint=hint)


def weights_sha256(folder: str | Path) -> str:
    """The sha256 of the weights in a folder, or of its ONNX file. Equal hashes: the same network."""
    folder = as_path(folder)
    hashes = [sha256(path) for path in sorted(folder.glob("model*.safetensors")) or [folder / EXPORTED]]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def check_vocabulary(tokenizer: Tokenizer, config: EncoderConfig, where: Path) -> None:
    """Raises BertworksError if the tokenizer has more tokens, or more types of tokens, than the model."""
    types = max(tokenizer.encode("a").type_ids + tokenizer.encode("a", "a").type_ids, default=0)
    hint = "use the tokenizer that the model was trained with"
    what = f"the tokenizer gives tokens the type {types}, the model has {config.type_vocab_size} types"
    fits = types < config.type_vocab_size or config.type_vocab_size < 2  # a model of one type, or of none, ignores them
    require(fits, what, where, hint)
    what = f"the tokenizer has {tokenizer.vocab_size:,} tokens, the model only {config.vocab_size:,}"
    require(tokenizer.vocab_size <= config.vocab_size, f"{what}: they do not belong together", where, hint)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors, under the names in the file, or in the files of an index.

    Raises:
        BertworksError: no such file, or a damaged or hostile one; only a pickle.
    """
    if (folder / WEIGHTS).exists():
        return read_tensors(folder / WEIGHTS)
    if (index := folder / INDEX).exists():
        return _read_sharded(folder, index)
    what, hint = f"there is no {WEIGHTS}", "choose a folder that holds a model"
    pickles = [name for name in ("pytorch_model.bin", "pytorch_model.bin.index.json") if (folder / name).exists()]
    if pickles:
        what = f"only {pickles[0]}: a pickle, which can run any program when it is opened, and is not read"
        program = f"from transformers import AutoTokenizer as T, {_class_of(folder)} as M; f = {str(folder)!r}; "
        program += "[x.from_pretrained(f).save_pretrained(f + '-safe') for x in (M, T)]"
        hint = f"if you trust where it comes from, convert it with transformers: python -c {quoted(program)}"
    elif (folder / EXPORTED).is_file():
        what = f"only {EXPORTED}: an exported model has no weights that can be read"
        hint = "use the folder that it was exported from"
    raise BertworksError(what, where=str(folder), hint=hint)


def _class_of(folder: Path) -> str:
    """The class of the network in transformers. Another class would drop the head."""
    names = read_json(folder / "config.json").get("architectures") if (folder / "config.json").exists() else None
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    return name if isinstance(name, str) and re.fullmatch(r"[A-Z]\w+For\w+|[A-Z]\w+Model", name) else "AutoModel"


def _read_sharded(folder: Path, index: Path) -> dict[str, Tensor]:
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise BertworksError("weight_map is missing or not a table of file names", where=str(index))
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(files.values())):
        is_name = Path(file).name == file and file.endswith(".safetensors")
        require(is_name, f"{file[:100]!r} is not the name of a safetensors file in this folder", index)
        tensors |= read_tensors(folder / file)
    if strays := set(files) ^ set(tensors):
        raise BertworksError(f"the index and its files disagree about {sorted(strays)[0]}", where=str(index))
    return tensors
