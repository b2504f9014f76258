"""Read what the request of a fine-tuning names, once.

It is the recipe, the initial model and the rows.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bertworks.checkpoints.model_folder import (
    Model,
    ModelFolder,
    initial_folder,
    named_weights_sha256,
)
from bertworks.errors import UsageError
from bertworks.io.atomic_write import sha256
from bertworks.io.inputs import as_path
from bertworks.io.options import ReadOptions
from bertworks.io.tables import StoredRows
from bertworks.models.transformer import select_layers
from bertworks.runs.data_splits import (
    DataRequest,
    LabelledData,
    find_files,
    read_data,
)
from bertworks.runs.options import FinetuneOptions
from bertworks.text.tokenizer_folder import END_OF_TEXT, begin_with
from bertworks.training import recipe as recipes
from bertworks.training.device import best_precision
from bertworks.training.recipe import FinetuneRecipe

TOKEN_EMBEDDING_KEY = "encoder.embeddings.token.weight"  # in a state dict


@dataclass(frozen=True)
class FinetuneRequest(FinetuneOptions):
    """The request of a user: the same one in the same folder resumes, another one is refused.

    data: a file, a folder with a train and a dev file, or `io.tables.StoredRows`.
    dev: the dev file; None: that of the folder, or else see `validation`.
    recipe: a name of a packaged recipe, or a TOML file.
    read: how the files are read.
    fold: the part of the data, of `folds`, that is the dev data.
    urls: those of which `model`, `teacher` and `recipe` are local copies, by these names.
    """

    data: str | StoredRows
    _: KW_ONLY
    dev: str | StoredRows | None = None
    recipe: str = "stable"
    read: ReadOptions = ReadOptions()
    fold: int | None = None
    folds: int = 0
    urls: Mapping[str, str] = field(default_factory=dict)

    @property
    def model_name(self) -> str:
        """The initial model as the user has named it."""
        return self.urls.get("model", self.model)

    @property
    def paths(self) -> tuple[str, ...]:
        """The inputs: the output must not be inside them.

        Names of models are among them.
        """
        sources = (self.data, self.dev, self.model, self.teacher)
        return tuple(source for source in sources if isinstance(source, str))

    @property
    def task_name(self) -> str:
        """See `task_name`."""
        return task_name(self.data)

    @property
    def rows(self) -> DataRequest:
        """The rows of the request, and how they are divided."""
        return DataRequest(
            self.data,
            dev=self.dev,
            task=self.task,
            text=self.text,
            label=self.label,
            group=self.group,
            read=self.read,
            fold=None if self.fold is None else (self.fold, self.folds),
            validation=self.validation,
            positive=self.positive,
        )

    def content(self) -> dict[str, Any]:
        """Return the request as JSON, with hashes of the files that it names."""
        content: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if isinstance(value, tuple):
                value = list(value)
            content[name] = str(value) if isinstance(value, StoredRows) else value
        content |= content.pop("urls")
        sources = {"data": self.data, "dev": self.dev}
        if self.recipe.endswith(".toml"):
            sources["recipe"] = self.recipe
        for name, source in sources.items():
            files = [] if source is None else [file for file in find_files(source, None) if file]
            checksums = [sha256(path) for path in map(as_path, files) if path.is_file()]
            if checksums:
                content[f"{name}_sha256"] = hashlib.sha256("".join(checksums).encode()).hexdigest()
        if self.teacher:
            content["teacher_sha256"] = named_weights_sha256(self.teacher)
        return content


def task_name(data: str | StoredRows) -> str:
    """Return the name of a data set in a joint fine-tuning.

    It is its folder, or its file without suffixes; "" for rows in memory.
    """
    if isinstance(data, StoredRows):
        return ""
    name = Path(data).name
    return name if as_path(data).is_dir() else name.partition(".")[0] or name


@dataclass(frozen=True)
class Preparation:
    """What a fine-tuning needs of the files that its request names.

    A job of another method, or of a fold, is one of a `replace` of it.

    recipe: that of the request with a precision; or the resolved recipe of a run that is resumed.
    folder, model: the initial model.
    data: the rows, divided.
    joint: the folders of all tasks, by name, if the initial model is a joint fine-tuning.
    """

    request: FinetuneRequest
    device: torch.device
    recipe: FinetuneRecipe
    folder: ModelFolder
    model: Model
    data: LabelledData
    joint: Mapping[str, Path]

    @property
    def may_keep_head(self) -> bool:
        """Whether the head of the initial model may be for the task of the data."""
        return not self.joint or self.request.task_name in self.joint


def prepare_finetuning(
    request: FinetuneRequest,
    device: torch.device,
    recipe: FinetuneRecipe | None = None,
    *,
    data: LabelledData | None = None,
    source: tuple[ModelFolder, Model] | None = None,
) -> Preparation:
    """Read everything that a request names, before a folder is created.

    Args:
        recipe: the resolved recipe of a run that is resumed; None: that of the request.
        data, source: its data and its model, if they are read already.

    Raises:
        UsageError: the request is contradictory, or names no recipe or file.
        BertworksError: the model or the data cannot be used.
    """
    recipe = recipe or requested_recipe(request, device)
    folder, joint = initial_folder(request.model, request.task_name)
    folder, model = source or (folder, _initial_model(folder, request.layers))
    if data is None:
        data = read_data(replace(request.rows, whole_documents=recipe.document_context))
    return Preparation(request, device, recipe, folder, model, data, joint)


def requested_recipe(request: FinetuneRequest, device: torch.device) -> FinetuneRecipe:
    """Return the recipe of a request, with its seed and a precision."""
    overrides = [*request.overrides]
    if request.precision is not None:
        overrides.append(f"precision={request.precision}")
    if request.seed is not None:
        overrides.append(f"seed={request.seed}")
    recipe = recipes.load_finetune_recipe(request.recipe, overrides)
    if recipe.precision == "auto":
        recipe = replace(recipe, precision=best_precision(device))
    return recipe


def _initial_model(folder: ModelFolder, layers: int | None) -> Model:
    """Return the model of a folder with some of its layers; with all of them if `layers` is None.

    Raises:
        UsageError: it has fewer layers.
        BertworksError: see `ModelFolder.load`.
    """
    folder.require_language()
    model = folder.load(needs={"encoder"})
    most = model.config.num_hidden_layers
    layers = layers or most
    if not 1 <= layers <= most:
        what = f"--layers {layers}: expected a number from 1 to {most}, the layers of the model"
        raise UsageError(what)
    config, state = select_layers(model.config, model.state, layers)
    return _mark_texts(Model(config, state, model.tokenizer))


def _mark_texts(model: Model) -> Model:
    """Return a causal model with <|endoftext|> in front of each text.

    It is added where the tokenizer has nothing between two texts. The mark is also the padding,
    unless there is another one. An embedding is added for a mark that the vocabulary lacks.
    """
    c = model.config
    t = model.tokenizer
    if c.direction != "left_to_right" or t.template.between:
        return model
    make, (serialized,) = t.__reduce__()
    tokenizer = make(
        begin_with(serialized, END_OF_TEXT),
        special_tokens={"pad_token": END_OF_TEXT} | t.special_tokens,
    )
    embeddings = model.state[TOKEN_EMBEDDING_KEY]
    shape = max(0, tokenizer.vocab_size - c.vocab_size), embeddings.shape[1]
    new = torch.normal(0.0, c.initializer_range, shape, generator=torch.Generator().manual_seed(0))
    state = {**model.state, TOKEN_EMBEDDING_KEY: torch.cat([embeddings, new])}
    return Model(replace(c, vocab_size=c.vocab_size + len(new)), state, tokenizer)
