"""Describe a fine-tuning.

- `FinetuneRequest`: what a user wants
- `prepare_finetuning`: reads what the request names, once: the recipe, the initial model, the rows
- `FinetuneJob`: what is trained, and how it is evaluated during the training
- `forecast`: how long that takes
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertworks.batching.batch import (
    Batch,
    ContrastiveBatches,
    LabelledBatches,
    StepBatches,
    collate,
)
from bertworks.batching.examples import ExampleGroup, Target, num_tokens
from bertworks.checkpoints.hf_config import FAMILIES
from bertworks.checkpoints.model_files import named_weights_sha256
from bertworks.checkpoints.model_folder import (
    Model,
    ModelFolder,
    initial_model,
    save_model,
    save_output_layer,
)
from bertworks.checkpoints.storage import read_tensors, write_weights
from bertworks.checkpoints.task_config import (
    check_same_task,
    output_layer,
    save_task,
    task_settings,
)
from bertworks.config import parse_overrides
from bertworks.errors import UsageError, expect, first_names, require
from bertworks.events import JsonObject, result_of
from bertworks.inference.engine import LazyModel, compute_each, compute_logits_and_loss
from bertworks.inference.predictor import task_network
from bertworks.io.atomic_write import sha256
from bertworks.io.inputs import as_path
from bertworks.io.tables import StoredRows
from bertworks.models.config import EncoderConfig
from bertworks.models.layers import count_parameters, meta_device_init
from bertworks.models.recurrent import BiLSTM
from bertworks.runs.data_splits import (
    EVALUATED,
    MANY_OF_CLASS,
    DataRequest,
    LabelledData,
    describe_task,
    has_classes_of_texts,
    methods_of,
    read_data,
    read_rows,
    rows_per_class,
)
from bertworks.runs.dataset_report import DatasetReport, make_dataset_report
from bertworks.runs.label_rows import FEW_OF_LABEL, label_rows
from bertworks.runs.options import FinetuneOptions, Method
from bertworks.runs.report import task_card, write_task_report
from bertworks.runs.static_distillation import distil
from bertworks.runs.training_run import Job, Progress, RunSettings
from bertworks.tasks.heads import (
    TEACHER,
    ContrastiveModel,
    TaskModel,
    feature_numbers,
    lstm_input_size,
    without_head,
)
from bertworks.tasks.linear_head import LinearHead, fit_linear_head, held_out_logits
from bertworks.tasks.registry import TASKS, task_of
from bertworks.tasks.scores import compute_metrics, format_metrics
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import Logits
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.tokenizer_folder import END_OF_TEXT, begin_with
from bertworks.training import recipe as recipes
from bertworks.training.device import (
    Precision,
    best_precision,
    micro_tokens,
    require_memory,
    time_when_done,
)
from bertworks.training.loop import TrainableModel, time_step
from bertworks.training.recipe import LEARNED_SHARE, LEARNED_STEPS, FinetuneRecipe

TOKEN_EMBEDDING_KEY = "encoder.embeddings.token.weight"  # in a state dict
# In a run folder between its final evaluation and its end: the output layer without the temperature
# that the model has.
TRAINED_LAYER = "checkpoints/output_layer.safetensors"
# Methods that fit the output layer to the vectors of the initial model
FITTED_METHODS: tuple[Method, ...] = ("frozen", "untrained")
# Methods that are compared for FEW_OF_LABEL to MANY_OF_CLASS rows of a class
FEW_METHODS: tuple[Method, ...] = ("contrastive", "frozen")
# Methods that a table of static vectors has: it has no pooler and no blocks to train
STATIC_METHODS: tuple[Method, ...] = ("auto", "full", "static", "frozen", "untrained", "cosine")
# Numbers of a vector of the table that the method "static" makes of an encoder
STATIC_DIMENSIONS = 256
# Methods that do not use names or descriptions of labels as rows
NO_LABEL_ROWS: tuple[Method, ...] = ("full", "untrained", "cosine", "static")
# Tokens of a text of a network that reads distances; 12 heads need 200 MB for its pairs.
LONGEST_OF_DISTANCES = 2048
# Evaluations of a fold, for a curve: each takes about a hundredth of the time of twenty epochs
FOLD_EVALUATIONS = 5
# Those that are None have no rate of their own.
DROPOUTS = (
    "hidden_dropout",
    "attention_dropout",
    "embedding_dropout",
    "sequence_dropout",
    "choice_dropout",
    "span_dropout",
)


@dataclass(frozen=True)
class FinetuneRequest(FinetuneOptions, DataRequest):
    """The request of a user: the same one in the same folder resumes, another one is refused.

    data: a file, a folder with a train and a dev file, or `io.tables.StoredRows`.
    dev: the dev file; None: that of the folder, or else see `validation`.
    recipe: a name of a packaged recipe, or a TOML file.
    urls: those of which `model`, `teacher` and `recipe` are local copies, by these names.
    """

    data: str | StoredRows
    _: KW_ONLY
    dev: str | StoredRows | None = None
    recipe: str = "stable"
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
        sources = (self.data, self.dev, self.model, self.teacher, self.label_descriptions)
        return tuple(source for source in sources if isinstance(source, str))

    @property
    def task_name(self) -> str:
        """See `task_name`."""
        return task_name(self.data)

    @property
    def rows(self) -> DataRequest:
        """The rows of the request, and how they are divided."""
        return DataRequest(**{each.name: getattr(self, each.name) for each in fields(DataRequest)})

    def content(self) -> JsonObject:
        """Return the request as JSON, with hashes of the files that it names."""
        content: JsonObject = json.loads(json.dumps(asdict(self), default=str))
        content |= content.pop("urls") | self.rows.checksums()
        if self.recipe.endswith(".toml") and Path(self.recipe).is_file():
            content["recipe_sha256"] = sha256(self.recipe)
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
    data: the rows, divided.
    folder, model: the initial model.
    joint: the folders of all tasks, by name, if the initial model is a joint fine-tuning.
    """

    request: FinetuneRequest
    device: torch.device
    recipe: FinetuneRecipe
    data: LabelledData
    folder: ModelFolder
    model: Model
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
    initial: tuple[ModelFolder, Model, Mapping[str, Path]] | None = None,
) -> Preparation:
    """Read everything that a request names, before a folder is created.

    Args:
        recipe: the resolved recipe of a run that is resumed; None: that of the request.
        data: its data, if they are read already.
        initial: the folder, the model and the tasks of another preparation with the same model.

    Raises:
        UsageError: the request is contradictory, or names no recipe or file.
        BertworksError: the model or the data cannot be used.
    """
    expect(
        request.method != "static" or request.layers is None,
        "the method 'static' keeps no layers of the model",
        hint="leave --layers out",
    )
    if initial is None:
        folder, model, joint = initial_model(request.model, request.task_name, request.layers)
        initial = folder, _mark_texts(model), joint
    has_table = initial[1].config.kind == "static"
    expect(
        not has_table or request.method in STATIC_METHODS,
        f"{request.model_name} is a table of static vectors, and has no network for the method "
        f"{request.method!r}",
        hint="--method static",
    )
    is_static = has_table or request.method == "static"
    recipe = recipe or requested_recipe(request, device, is_static=is_static)
    if initial[1].config.kind == "elmo":  # its LSTMs are computed in fp32
        named = request.precision, parse_overrides(request.overrides).get("precision")
        expect(
            "bf16" not in named,
            f"precision bf16: {request.model_name} is a network of kind 'elmo', which is computed "
            "in fp32",
            hint="leave --precision out",
        )
        recipe = replace(recipe, precision="fp32")
    initial = initial[0], _with_room(initial[1], recipe.max_length), initial[2]
    rows = request.rows
    if data is None:
        data = read_data(rows, whole_documents=recipe.document_context)
    if request.method not in NO_LABEL_ROWS:
        further_rows, notes = label_rows(data, rows.label_descriptions)
        data = replace(data, label_rows=further_rows, label_notes=notes)
    if is_static and not has_table:
        describe_task(data, recipe, request.method)  # refuses other tasks before the table is made
        initial = initial[0], _static_model(initial[0].folder), initial[2]
    return Preparation(request, device, recipe, data, *initial)


def _static_model(encoder: Path) -> Model:
    """Return the vocabulary of an encoder, the folder of a model, as a table of static vectors."""
    source = LazyModel(encoder)
    dimensions = min(STATIC_DIMENSIONS, source.config.hidden_size)
    return result_of(distil(source, dimensions)).model


def requested_recipe(
    request: FinetuneRequest, device: torch.device, *, is_static: bool = False
) -> FinetuneRecipe:
    """Return the recipe of a request, with its seed and a precision.

    is_static: whether the initial model is a table of static vectors.
    """
    overrides = [*request.overrides]
    if request.precision is not None:
        overrides.append(f"precision={request.precision}")
    if request.seed is not None:
        overrides.append(f"seed={request.seed}")
    name = request.recipe
    if name == FinetuneRequest.recipe:
        if request.method == "contrastive":
            name = request.method
        elif is_static:
            name = "static"
    recipe = recipes.load_finetune_recipe(name, overrides)
    if recipe.precision == "auto":
        recipe = replace(recipe, precision=best_precision(device))
    return recipe


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


def _with_room(model: Model, length: int) -> Model:
    """Return a model that reads texts of this length, where it has no table of places.

    length: in tokens; 0: as many as it was trained with.

    Raises:
        UsageError: attention to this number of tokens would not fit into memory.
    """
    c = model.config
    if c.position_embedding_type != "disentangled" or length <= c.max_position_embeddings:
        return model
    expect(
        length <= LONGEST_OF_DISTANCES,
        f"max_length is {length}: attention by distances needs memory for all pairs of tokens, and "
        f"reads at most {LONGEST_OF_DISTANCES} tokens",
        hint=f"--set max_length={LONGEST_OF_DISTANCES}",
    )
    return model._replace(config=replace(c, max_position_embeddings=length))


def _check_pairs(model: str, c: EncoderConfig) -> None:
    """Raise UsageError for a model that cannot read two texts in a sequence."""
    expect(
        c.characters is None,
        f"{model} has no token that could separate the two texts of a pair",
        hint="--method frozen compares their vectors; or --model minilm",
    )


def _check_network(model: str, c: EncoderConfig, task: str, recipe: FinetuneRecipe) -> None:
    """Raise UsageError for a model without a place for the head of a task.

    Also without a layer or a loss of a recipe.
    """
    feature_numbers(c, recipe.feature_layers)
    if not FAMILIES[c.family].can_finetune(task, c):
        reads = (
            ""
            if c.direction == "bidirectional"
            else f", which reads {c.direction.replace('_', ' ')},"
        )
        if c.kind == "static":
            reads = ", in which a token has the same vector in all texts,"
        raise UsageError(
            f"{model}, a model of the family {c.family}{reads} cannot be fine-tuned for {task}",
            hint="--model minilm, or another model that reads in both directions",
        )
    if recipe.lm_weight and (c.direction != "left_to_right" or c.lm_head != "plain"):
        raise UsageError(
            f"lm_weight is {recipe.lm_weight}: only GPT and GPT-2 have this loss, and {model} "
            "is another model",
            hint="--set lm_weight=0",
        )


def _check_numbers(d: TaskConfig, c: EncoderConfig, groups: Sequence[ExampleGroup]) -> None:
    """Raise UsageError for numbers that an output layer without a bias cannot reach."""
    if not TASKS[d.task].predicts_numbers or d.vectors != "pooler" or c.pooler != "last":
        return
    labels = np.concatenate([group[0].target.labels for group in groups])
    # deviations, in which losses are
    mean = labels.mean()
    deviation = labels.std()
    if abs(mean) > 10 * max(deviation, 1e-9):
        raise UsageError(
            f"the numbers are {mean:g} on average, and differ from that by {deviation:.3g}: a "
            "GPT has no bias for it",
            hint=f"subtract {mean:.0f} from all of them, or use --model minilm",
        )


def run_settings(
    recipe: FinetuneRecipe, steps_per_epoch: int, *, evaluates: bool = True
) -> RunSettings:
    """Return the settings of a `TrainingRun`.

    evaluates: whether there are dev data. A network with a new head may be good by chance, so its
        initial state is never the best one.
    """
    evaluate_every = max(1, steps_per_epoch // recipe.evaluations)
    num_steps = recipe.cloze_steps + recipe.epochs * steps_per_epoch
    return RunSettings(
        recipe.optimizer,
        recipe.seed,
        cast(Precision, recipe.precision),
        num_steps,
        evaluate_every=evaluate_every,
        save_every=recipe.save_every,
        keeps=recipe.select,
        evaluates=evaluates,
        patience=recipe.patience * evaluate_every if recipe.select == "best" else 0,
        patience_start=recipe.cloze_steps,
        learned_loss=recipe.learned_loss,
        learned_steps=max(LEARNED_STEPS, steps_per_epoch, round(LEARNED_SHARE * num_steps)),
    )


class TaskTeacher:
    """A fine-tuned model that teaches its task to a model with the same tokenizer.

    Args:
        d: the task of the data.

    Raises:
        UsageError: the task has no loss with a teacher.
        BertworksError: no such model; one for another task, other labels or shorter texts, or with
            another tokenizer.
    """

    def __init__(self, name: str, d: TaskConfig, tokenizer: Tokenizer, device: torch.device):
        known = [task.name for task in TASKS.values() if task.has_linear_head]
        expect(
            d.task in known,
            f"--teacher is not available for {d.task}: expected {', '.join(known)}",
            hint="leave out --teacher",
        )
        self.source = LazyModel(name, str(device))
        self.description = d
        self.task = self.source.task_config
        teacher = self.task
        teacher_labels, data_labels = (
            f" ({first_names(config.labels, 20)})" if config.labels else ""
            for config in (teacher, d)
        )
        is_same_task = (
            teacher.task == d.task
            and {*teacher.labels} == {*d.labels}
            and teacher.vectors == d.vectors
        )
        length = self.source.config.max_position_embeddings
        hint = (
            "fine-tune a teacher from the same model: bertworks finetune DATA --method full -o "
            "TEACHER"
        )
        require(
            is_same_task,
            f"the teacher was fine-tuned for {teacher.task}{teacher_labels}, the data is for "
            f"{d.task}{data_labels}",
            name,
            hint,
        )
        has_same_tokenizer = self.source.tokenizer.sha256 == tokenizer.sha256
        require(has_same_tokenizer, "the teacher has another tokenizer than the model", name, hint)
        require(
            length >= d.max_length,
            f"the teacher reads at most {length} tokens, the model {d.max_length}",
            name,
            f"set max_length to {length}",
        )

    def label(
        self, groups: Sequence[ExampleGroup], note: Callable[[str], None]
    ) -> list[ExampleGroup]:
        """Return the examples with the logits of the teacher as further targets.

        They are in the order of the labels of the data. It reads each once, without dropout.
        """
        network = task_network(self.source, self.task)
        order = torch.tensor(
            [self.task.labels.index(label) for label in self.description.labels] or [0]
        )
        # the logits that the student learns are those of its training
        temperature = self.task.weights_temperature

        def compute(batch: Batch) -> Tensor:
            return network.logits(batch)[:, order] * temperature

        logits = compute_each(network, compute, groups, (len(order),))
        result: list[ExampleGroup] = []
        for windows, rows in zip(groups, logits, strict=True):
            group = []
            for window in windows:  # the first one has the target of the text
                target = Target(window.target.positions, rows[: len(window.target.positions)])
                group.append(window._replace(targets={**window.targets, TEACHER: target}))
            result.append(group)
        note(f"the teacher has predicted {len(groups):,} training examples")
        return result


class VocabSubset:
    """The rows of the token embedding matrix that a dataset uses.

    A fine-tuning computes only with these. The matrix is most of a multilingual network, and a
    small dataset uses few of its rows.

    The tokens of all `units` in ascending order, and one unused token if there is any: its row
    shows what weight decay does to a row that no text uses. whole: all rows, because the network
    predicts tokens.
    """

    def __init__(self, units: Iterable[ExampleGroup], vocab_size: int, whole: bool = False):
        used = np.full(vocab_size, whole, np.bool_)
        for unit in units:
            for example in unit:
                used[example.input_ids] = True
        ids = np.flatnonzero(used)
        # int64 [S], the unused one last
        self.ids = torch.from_numpy(np.append(ids, np.flatnonzero(~used)[:1]))
        self.has_unused = len(ids) < vocab_size
        self._row_of_token = torch.full((vocab_size,), -1)  # int64 [V]
        self._row_of_token[ids] = torch.arange(len(ids))

    def attach(self, embedding: nn.Embedding) -> None:
        """Make an embedding of these rows, [S, hidden], accept ids of the whole vocabulary.

        They are int64 [T].
        """
        row_of_token = cache(self._row_of_token.to)  # on each device
        embedding.register_forward_pre_hook(
            lambda _, inputs: row_of_token(inputs[0].device)[inputs[0]]
        )

    def rows(self, embeddings: Tensor) -> Tensor:
        """[V, hidden] -> [S, hidden]."""
        return embeddings[self.ids]

    def merge(self, before: Tensor, trained: Tensor) -> Tensor:
        """Return the matrix after a training: [V, hidden].

        before [V, hidden]: the matrix before training; trained [S, hidden]: these rows after it.
        """
        trained = trained.detach().to(before.device, before.dtype)
        # the factor by which weight decay has made an unused row smaller
        decay = 1.0
        if self.has_unused:
            old = before[self.ids[-1]].double()
            size = old.square().sum().item()
            decay = (old * trained[-1].double()).sum().item() / size if size else 1.0
        whole = before * decay
        whole[self.ids] = trained
        return whole


class HeadInputs(NamedTuple):
    """A frozen encoder, and what its output layer reads of labelled items.

    network: with an output layer of random weights. x: of each item, float32 [M, width]. labels: of
    each item, as in a batch of the task.
    """

    network: TaskModel
    x: list[NDArray[np.float32]]
    labels: list[NDArray[Any]]


class Validated(NamedTuple):
    """Logits of a cross-validation, of rows that the models did not see.

    numbers: of the training rows that are evaluated, the dev rows of the job.
    logits: of these, by the method of the job. chosen: by the methods that other rows chose.
    of_parts: of the rows of the first EVALUATED parts, part after part, by models of two thirds of
        the rows.
    has_curve: whether `logits` are `FinetuneJob.logits_of_tenths`.
    """

    numbers: Sequence[int]
    logits: list[Logits]
    chosen: list[Logits]
    of_parts: list[Logits]
    has_curve: bool


class FinetuneJob(Job):
    """A task trained on labelled items and evaluated on others, for a `TrainingRun`.

    metric: the metric that selects the best checkpoint.
    choice: the method and why it is used, in words; "" until it is chosen.
    model, head: the initial model, and the task of its own head; None: it has none, or it is not
        used.
    train, dev: the items and their examples. groups: the training examples. clozes: those of the
        first steps.
    config: of the network, which has embeddings only of the tokens in the data; the model folder
        has all of them.
    """

    def __init__(self, prepared: Preparation):
        """Raises UsageError for a request whose parts do not fit together."""
        self.prepared = prepared
        self.request = prepared.request
        self.device = prepared.device
        self.model = prepared.model
        self.is_static = self.model.config.kind == "static"
        # the method that trains all of the model
        self.whole: Method = "static" if self.is_static else "full"
        self.method = self.whole if self.request.method == "full" else self.request.method
        self.data = prepared.data
        if self.method == "frozen" and not TASKS[self.data.schema.task].labels_tokens:
            self.data = self.data.wholly_evaluated()
        c = self.model.config
        requested = prepared.recipe
        max_length = recipes.default_max_length(requested, c.max_position_embeddings)
        recipe = replace(requested, max_length=max_length)
        _check_network(self.request.model_name, c, self.data.schema.task, recipe)
        described_method = self.whole if self.method == "auto" else self.method
        self.description = d = describe_task(self.data, recipe, described_method)
        task = task_of(d)
        self.metric = task.metric(self.request.metric)
        if len(d.text) > 1 and task.predicts_texts and not task.reads_apart:
            _check_pairs(self.request.model_name, c)
        self.teacher: TaskTeacher | None = None
        if self.request.teacher:
            self.teacher = TaskTeacher(self.request.teacher, d, self.model.tokenizer, self.device)
        self.featurize, self.train, self.dev = read_rows(self.data, d, recipe, self.model.tokenizer)
        task = self.featurize.task
        self.description = d = task.d
        if "windows" in task.recipe_fields:
            recipe = replace(recipe, windows=d.windows)
        self.label_rows = list(self.featurize(self.data.label_rows))
        self.dev_units = [features.unit for features in self.dev]
        self.groups = [group for features in self.train for group in task.training_groups(features)]
        if self.method == "contrastive":
            # A step cannot be divided: of each text the first window is learned. The head is fitted
            # to the vectors of all windows.
            self.groups = [group[:1] for group in self.groups]
        _check_numbers(d, c, self.groups)
        # The task of the head with which the training continues.
        self.head: TaskConfig | None = None
        has_head = not {"classifier.weight", "span.weight"}.isdisjoint(self.model.state)
        if has_head and prepared.may_keep_head and not self.request.new_head:
            self.head = prepared.folder.task_config
            check_same_task(self.head, d, self.request.model_name)
        if not task.has_context or self.head is not None:
            recipe = replace(recipe, cloze_steps=0)
        num_labels = len(d.labels) if task.has_text_labels else 0
        recipe = recipes.resolve_recipe(recipe, len(self.groups), c, num_labels)
        row_settings = (self.groups, recipe.batch_size, recipe.micro_batch_tokens, recipe.seed)
        if self.method == "contrastive":
            recipe = recipes.resolve_contrastive(recipe, requested, len(self.groups))
            self.train_batches: LabelledBatches = ContrastiveBatches(
                *row_settings, rows_per_label=recipe.rows_per_label
            )
        else:
            if d.vectors == "cosine":
                recipe = recipes.resolve_fitted(recipe, requested)
            self.train_batches = LabelledBatches(*row_settings)
        self.steps_per_epoch = self.train_batches.steps_per_epoch
        self.follow(recipe)
        self.forecast: Forecast | None = None  # if a budget has needed it
        # Logits of all dev items: of the last evaluation; of the state in the folder, if known.
        self._last: list[Logits] = []
        self._saved: list[Logits] | None = None
        self.validated: Validated | None = None
        self.choice = ""
        used = not {*self.compared_methods} <= {*NO_LABEL_ROWS}
        expect(
            used or not self.request.label_descriptions,
            f"the method {self.compared_methods[0]!r}, which is used here, does not use "
            "--label-descriptions",
            hint="leave out --label-descriptions; or --method frozen",
        )
        if not used:  # the notes would speak of rows that no method reads
            self.data = replace(self.data, label_rows=[], label_notes=[])
            self.prepared = replace(prepared, data=self.data)

    def follow(self, recipe: FinetuneRecipe) -> None:
        """Train with a recipe that has other epochs and steps on clozes."""
        self.recipe = recipe
        self._variants: dict[Method, FinetuneJob] = {}
        num_clozes = recipe.cloze_steps * recipe.batch_size
        self.clozes = list(self.featurize.clozes(self.data.train, num_clozes, recipe.seed))
        self.settings = run_settings(
            recipe, self.steps_per_epoch, evaluates=not self.data.is_validated
        )
        self.precision = self.settings.precision
        c = self.model.config
        if self.method == "full":
            self._refuse_too_long_rows()
        units = [*self.groups, *self.clozes, *self.dev_units, *(x.unit for x in self.label_rows)]
        if self.method == "contrastive":  # the head is fitted to all windows
            units += [features.unit for features in self.train]
        if c.characters is not None:  # there is no embedding matrix
            units = []
        self.vocab_subset = VocabSubset(units, c.vocab_size, whole=recipe.lm_weight > 0)
        names = [name for name in DROPOUTS if recipe.dropout >= 0 and getattr(c, name) is not None]
        rates: dict[str, Any] = dict.fromkeys(names, recipe.dropout)
        if c.pooler_input_dropout and recipe.dropout >= 0:
            rates["pooler_input_dropout"] = recipe.dropout
        if self.method == "contrastive":  # they are not trained: the same input in each step
            rates["embedding_dropout"] = 0.0
        self.config = replace(c, vocab_size=len(self.vocab_subset.ids), **rates)

    def _refuse_too_long_rows(self) -> None:
        """Check that the longest row fits into the memory of a training of all weights.

        The sequences of a row are computed together: the windows of a text, or the choices.
        """
        if not self.groups:
            return
        longest = max(self.groups, key=lambda group: num_tokens([group]))
        shorter = "--max-length 512 reads shorter texts"
        if "windows" in task_of(self.description).recipe_fields:
            shorter = "--max-length 512 --windows 4 reads texts in windows"
        require_memory(
            num_tokens([longest]),
            max(len(example.input_ids) for example in longest),
            self.model.config,
            self.precision,
            self.device,
            hint=f"{shorter}; --method frozen trains the output layer alone",
        )

    @property
    def min_batch_size(self) -> int:
        """The number of rows in a step, if all of them are not fewer."""
        return min(self.recipe.batch_size, len(self.groups))

    @property
    def compared_methods(self) -> tuple[Method, ...]:
        """The methods that are compared; one: there is no choice."""
        if self.method != "auto":
            return (self.method,)
        if self.recipe.lstm_units:
            return ("full",)
        data = self.data
        methods = methods_of(data.schema)
        if self.is_static:
            methods = tuple(
                self.whole if method == "full" else method
                for method in methods
                if method in STATIC_METHODS
            )
        if has_classes_of_texts(data.schema):
            rows = rows_per_class(data)
            # A head that the initial model has knows more than a few rows.
            if self.head is None and rows < FEW_OF_LABEL:
                return ("frozen",)
            methods = (self.whole, "frozen")
            if self.head is None and rows <= MANY_OF_CLASS and not self.is_static:
                methods = FEW_METHODS
        if data.parts:
            return methods
        return ("contrastive",) if methods == FEW_METHODS else (self.whole,)

    @cached_property
    def data_report(self) -> DatasetReport:
        """The report on the data."""
        d = self.description
        return make_dataset_report(
            self.data, self.train, self.dev, self.model.tokenizer, d.max_length, d.windows
        )

    @property
    def window_cost(self) -> float:
        """How many times as many tokens a step has as without the windows behind the first one."""
        if self.description.windows <= 1:
            return 1.0
        return num_tokens(self.groups) / num_tokens([group[:1] for group in self.groups])

    def make_network(self) -> TaskModel:
        """Return a network with random weights.

        It does not cache the features of its encoder.
        """
        r = self.recipe
        task = task_of(self.description).training_head(self.groups, self.recipe)
        network: TaskModel
        if self.method == "contrastive":
            network = ContrastiveModel(
                self.config, task, self.description, r.contrastive_temperature
            )
            longest = sorted(num_tokens([group]) for group in self.groups)[-r.batch_size :]
            tokens = micro_tokens(r.micro_batch_tokens, self.config, self.precision, self.device)
            # A step cannot be divided: the loss compares all of its sequences.
            network.encoder.gradient_checkpointing = sum(longest) > tokens
        else:
            network = TaskModel(
                self.config,
                task,
                self.description,
                head_deviation=r.head_deviation,
                lm_weight=r.lm_weight,
                teacher=(r.teacher_weight if self.teacher else 0.0, r.temperature),
            )
        if self.config.characters is None:
            self.vocab_subset.attach(network.encoder.embeddings.token)
        return network

    def network(self) -> TaskModel:
        """Return a network with random weights."""
        network = self.make_network()
        if features := network.features:
            everything = [*self.groups, *self.dev_units]
            self.caches_features = features.remember(everything) or features.remember(self.groups)
        return network

    def initial_network(self) -> tuple[TaskModel, list[str]]:
        """Return the network with which the training starts, and notes."""
        torch.manual_seed(self.recipe.seed)
        network = self.network()
        notes = []
        head = self.head
        if head is not None and head.vectors != self.description.vectors:
            head = None  # the output layer of another method reads other numbers
        state = self._with_rows(self.model.state)
        if head is None:
            state = without_head(state)
        # the training continues with the logits that the last one ended with, which had no
        # temperature
        else:
            state |= {
                name: value * head.weights_temperature
                for name, value in output_layer(state).items()
            }
        # its outputs in the order of the labels of the data
        if head is not None and self.description.labels:
            order = torch.tensor([head.labels.index(label) for label in self.description.labels])
            state |= {
                name: value[order]
                for name, value in state.items()
                if name.startswith("classifier.")
            }
        missing, _ = network.load_state_dict(state, strict=False)
        if self.prepared.joint:
            parts = "the encoder and the head" if head else "the encoder"
            notes.append(f"starts from {parts} in {self.prepared.folder.folder}")
        for part in ("pooler", "transform"):
            if any(name.startswith(f"{part}.") for name in missing):
                notes.append(f"{self.request.model_name} has no {part}: it starts at random")
        if self.model.config.vocab_size > self.prepared.folder.config.vocab_size:
            notes.append(
                f"{END_OF_TEXT} is added to the vocabulary: it begins each text, and starts at "
                "random"
            )
        trained = self.prepared.folder.config
        if self.model.config.max_position_embeddings > trained.max_position_embeddings:
            notes.append(
                f"max_length is {self.recipe.max_length}, and {self.request.model_name} was "
                f"trained on texts of up to {trained.max_position_embeddings} tokens: longer "
                "distances are all the same to it"
            )
        if network.features is not None and not self.caches_features:
            notes.append(
                "the features of the frozen encoder do not fit in memory: they are computed in "
                "every epoch"
            )
        # the training starts from the scale, or the head, that fits the vectors as they are
        is_fitted_first = self.description.vectors == "cosine" or self.is_static
        if is_fitted_first and self.method not in FITTED_METHODS:
            self._fit_head(network.to(self.device))
        return network, notes

    def _with_rows(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a state with those rows of the embedding matrix that the data use.

        A network that reads spellings has no such matrix.
        """
        if TOKEN_EMBEDDING_KEY not in state:
            return dict(state)
        rows = self.vocab_subset.rows(state[TOKEN_EMBEDDING_KEY])
        return {**state, TOKEN_EMBEDDING_KEY: rows}

    def variant(self, method: Method) -> "FinetuneJob":
        """Return the job of another method on the same data, always the same one."""
        if method not in self._variants:
            if method == self.method or {method, self.method} <= {"auto", self.whole}:
                job = copy(self)
                job.method = method
            else:
                recipe = self.recipe
                request = replace(self.request, method=method)
                requested = requested_recipe(request, self.device, is_static=self.is_static)
                if method == "contrastive":  # its recipe is another one
                    recipe = replace(requested, precision=recipe.precision, windows=recipe.windows)
                elif method == "cosine":
                    recipe = recipes.resolve_fitted(recipe, requested)
                job = FinetuneJob(replace(self.prepared, request=request, recipe=recipe))
                job._variants = self._variants
            self._variants[method] = job
        return self._variants[method]

    def fold(self, number: int) -> "FinetuneJob":
        """Return the job of a fold: without the rows of a part, which are its dev data."""
        data = self.data.fold(number)
        recipe = self.recipe_of_fold(len(data.train))
        job = FinetuneJob(replace(self.prepared, recipe=recipe, data=data))
        num_steps = job.settings.num_steps
        job.settings = replace(
            job.settings,
            evaluate_every=-(-num_steps // self.evaluations_of_fold(recipe)),
            keeps="last",  # the best state would be chosen by the rows that are scored
            saves_best=False,
            patience=0,
        )
        return job

    def evaluations_of_fold(self, recipe: FinetuneRecipe) -> int:
        """Return how often a fold is evaluated: at its end, and before that for a curve.

        A contrastive training is evaluated at its end: each evaluation fits a head to all rows.
        """
        return 1 if self.method == "contrastive" else min(FOLD_EVALUATIONS, recipe.epochs)

    def passes(self, recipe: FinetuneRecipe, count: int) -> float:
        """Return the number of passes over `count` rows, with the steps on clozes."""
        return recipe.epochs + recipe.cloze_steps / -(-count // recipe.batch_size)

    def recipe_of_fold(self, count: int) -> FinetuneRecipe:
        """Return the recipe of a fold that trains with this number of rows.

        A contrastive training takes as many steps as with all rows: it needs them to move vectors.
        """
        if self.method != "contrastive":
            return self.recipe
        steps_per_epoch = -(-count // self.recipe.batch_size)
        return replace(self.recipe, epochs=-(-self.settings.num_steps // steps_per_epoch))

    def fit(self) -> TaskModel:
        """Return the network with a linear head on the features of the frozen encoder."""
        network, x, labels = self.head_inputs
        if not self.data.parts:  # of many rows they are large
            del self.head_inputs
        head = fit_linear_head(network.task, np.concatenate(x), np.concatenate(labels))
        _set_head(network, head)
        return network

    @cached_property
    def head_inputs(self) -> HeadInputs:
        """The frozen encoder and its features, which are computed once for all linear heads."""
        network = self.initial_network()[0].to(self.device).eval()
        return HeadInputs(network, *self._features(network))

    @cached_property
    def logits_of_parts(self) -> list[Logits]:
        """The logits of the training items by linear heads of the other parts, of PARTS."""
        network, x, labels = self.head_inputs
        return held_out_logits(network.task, x, labels, self.data.parts)

    @property
    def logits_of_evaluated_parts(self) -> list[list[Logits]]:
        """The logits of the rows of each of the first EVALUATED parts, by such heads."""
        return [[self.logits_of_parts[n] for n in part] for part in self.data.parts[:EVALUATED]]

    @cached_property
    def logits_of_tenths(self) -> list[Logits]:
        """The logits of the training items by linear heads of the other parts, of FOLDS."""
        network, x, labels = self.head_inputs
        if len(self.data.tenths) == len(self.data.parts):
            return self.logits_of_parts
        return held_out_logits(network.task, x, labels, self.data.tenths)

    def _fit_head(self, network: TaskModel) -> None:
        """Fit the head of a network to its vectors.

        After a contrastive training the vectors are scaled to equal lengths for the fit. That
        training changes directions only: with the lengths as they are, accuracy is about a point
        lower with few rows (docs/experiments, 2026-11-30).
        """
        x, y = map(np.concatenate, self._features(network))
        if isinstance(network, ContrastiveModel):
            lengths = np.linalg.norm(x, axis=1, keepdims=True).clip(min=1e-12)
            x *= lengths.mean() / lengths
        _set_head(network, fit_linear_head(network.task, x, y))

    def _features(self, network: TaskModel) -> tuple[list[NDArray[np.float32]], list[NDArray[Any]]]:
        """What the output layer reads of each training item and label row, and the labels."""
        width = cast(nn.Linear, network.get_submodule(network.task.head)).in_features
        units = [features.unit for features in (*self.train, *self.label_rows)]
        x = compute_each(network, network.head_inputs, units, (width,), "fp32")
        return x, [np.concatenate([example.target.labels for example in unit]) for unit in units]

    def batches(
        self, plans: Path, rank: int, size: int, note: Callable[[str], None]
    ) -> StepBatches:
        """Return the batches of each step."""
        if self.method == "contrastive":
            return self.train_batches
        groups = self.groups
        first = self.recipe.cloze_steps
        if self.teacher:
            groups = self.teacher.label(groups, note)
        tokens = micro_tokens(
            self.recipe.micro_batch_tokens, self.config, self.precision, self.device
        )
        labelled = replace(
            self.train_batches, groups=groups, rank=rank, world_size=size, micro_batch_tokens=tokens
        )
        clozes = replace(labelled, groups=self.clozes)
        return lambda step: clozes(step) if step < first else labelled(step - first)

    def describe(self, figures: Mapping[str, float]) -> str:
        """Return the figures of an evaluation in words."""
        return format_metrics(figures, positive=self.description.positive_label)

    def evaluate(self, network: TrainableModel) -> dict[str, float]:
        """Return the figures of the network on dev."""
        assert isinstance(network, TaskModel)
        if self.method == "contrastive":
            self._fit_head(network)
        self._last, mean = compute_logits_and_loss(network, self.dev_units, self.precision)
        answers = list(map(task_of(self.description).decode, self.dev, self._last))
        items = [features.item for features in self.dev]
        return {"loss": mean.loss, **compute_metrics(self.description, items, answers)}

    def is_better(self, figures: Mapping[str, float], best: Mapping[str, float]) -> bool:
        """Return whether figures are better than the best ones so far."""
        metric = self.metric
        return (figures[metric], -figures["loss"]) > (best[metric], -best["loss"])

    @cached_property
    def flops_per_token(self) -> float:
        """The matrix-product operations of a step per token."""
        c = self.config
        r = self.recipe
        sample = self.groups[:1000]
        lstm = 0.0
        if r.lstm_units:
            size = lstm_input_size(c, r.feature_layers)
            lstm = 6.0 * count_parameters(BiLSTM, size, r.lstm_units)
            # of the LSTM alone: the features are computed once
            if r.lstm_encoder == "frozen":
                return lstm
        length = num_tokens(sample) // sum(map(len, sample))
        lm = r.lm_weight > 0
        # of the last layer is needed
        everything = lm or TASKS[self.description.task].has_context or r.lstm_units
        finished = 1.0 if everything else 1 / max(1, length)
        return (
            replace(c, vocab_size=lm * c.vocab_size).flops_per_token(
                length, float(lm), finished=finished
            )
            + lstm
        )

    def progress(self, step: int) -> Progress:
        """Return how far the training is at a step."""
        labelled_steps = max(0, step - self.recipe.cloze_steps)
        fields = {"epoch": labelled_steps / self.steps_per_epoch, "epochs": self.recipe.epochs}
        return Progress(float(step), self.flops_per_token, fields)

    def card(
        self, folder: Path, figures: Mapping[str, float], result: Mapping[str, Any] | None = None
    ) -> str:
        """The model card. figures: on dev; result: of the final evaluation, as in result.json."""
        d = self.description
        c = self.model.config
        return task_card(
            folder, d, self.recipe, self.request.model_name, self.data_report, figures, result, c
        )

    def save(self, folder: Path, network: nn.Module | None, facts: Mapping[str, Any]) -> None:
        """Write the model folder."""
        if network is not None:
            if self.method == "contrastive" and facts["evaluated"] != facts["step"]:
                self._fit_head(cast(TaskModel, network))
            self.save_model(folder, network, facts)
        write_task_report(folder, self.metric, self.data_report, None)

    def save_model(
        self, folder: Path, network: nn.Module, facts: Mapping[str, Any], shared: Path | None = None
    ) -> None:
        """Write the model folder.

        Args:
            facts: see `Job.save`.
            shared: the model folder that has the file of the encoder, see
                `checkpoints.model_folder.save_model`.
        """
        state = {name: p.detach() for name, p in network.named_parameters()}
        m = self.model
        if TOKEN_EMBEDDING_KEY in state:
            state[TOKEN_EMBEDDING_KEY] = self.vocab_subset.merge(
                m.state[TOKEN_EMBEDDING_KEY], state[TOKEN_EMBEDDING_KEY]
            )
        head = task_settings(self.description, m.config)
        card = self.card(folder, facts["evaluation"])
        # Its dropout is not that of the recipe.
        save_model(
            folder,
            state,
            m.config,
            m.tokenizer,
            card=card,
            head=head,
            task=self.description,
            shared=shared,
        )
        (folder / TRAINED_LAYER).unlink(missing_ok=True)
        self._saved = self._last if facts["evaluated"] == facts["step"] else None

    def save_calibrated(self, folder: Path, calibrated: TaskConfig) -> None:
        """Write the task after the final evaluation, with its temperature in the weights.

        The output layer of the training stays as training state until the run is finished: a run
        that is killed after this evaluates the same network again.
        """
        if not calibrated.divides_logits:
            save_task(calibrated, folder)
            return
        layer = output_layer(self._trained_state(folder))
        trained_file = folder / TRAINED_LAYER
        if not trained_file.exists():
            trained_file.parent.mkdir(exist_ok=True)
            write_weights(trained_file, layer)
        save_output_layer(folder, layer, calibrated)

    def _trained_state(self, folder: Path) -> dict[str, Tensor]:
        """Return the weights of the model in the folder as the training left them.

        They have no temperature.
        """
        state = ModelFolder(folder).load(needs={"encoder"}).state
        if (folder / TRAINED_LAYER).exists():
            state |= read_tensors(folder / TRAINED_LAYER)
        return state

    def layer_weights(self, folder: Path) -> list[float]:
        """Return the weight of each layer in a mix, which sum up to 1; [] without a mix.

        The first one is that of the embeddings (Peters et al. 2018, equation 1).
        """
        if self.recipe.feature_layers != "mix":
            return []
        weights: list[float] = self._trained_state(folder)["mix.weights"].softmax(0).tolist()
        return weights

    def dev_logits(self, folder: Path) -> list[Logits]:
        """Return the logits of all dev items, by the model in the folder."""
        if self._saved is None:
            network = self.make_network()
            state = self._with_rows(self._trained_state(folder))
            network.load_state_dict({name: state[name] for name in network.state_dict()})
            del state  # before the batches: it is as large as they are
            self._saved, _ = compute_logits_and_loss(
                network.to(self.device), self.dev_units, self.precision
            )
        return self._saved


def _set_head(network: TaskModel, head: LinearHead) -> None:
    layer = network.get_submodule(network.task.head)
    layer.load_state_dict(
        {name: torch.from_numpy(value).float() for name, value in head._asdict().items()}
    )


CPU_TOKENS = 512  # of the timed steps: enough to be efficient, few enough to be fast
# random weights take the same time; the initialization of a training takes a second
TIMING_DEVIATION = 0.02
TIMING_SECONDS = 0.5  # of measurement, or three steps


class Forecast(NamedTuple):
    """The forecast of a training.

    Seconds of the whole training with all evaluations, if it does not end early; and of encoding a
    token once.
    """

    training: float
    token: float


def forecast(job: FinetuneJob, processes: int) -> Forecast:
    """Return how long a training takes.

    It is timed on a random network of the same size, on examples of all lengths. A backward pass
    costs as much as two forward passes.
    """
    recipe = job.recipe
    device = job.device
    with meta_device_init():
        network = job.make_network().to_empty(device=device)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=TIMING_DEVIATION)
    max_tokens = micro_tokens(recipe.micro_batch_tokens, job.config, job.precision, device)
    max_tokens = max_tokens if device.type == "cuda" else CPU_TOKENS
    # at most a batch of groups of all lengths, with at most `max_tokens` tokens together
    ordered = sorted(job.groups, key=lambda group: num_tokens([group]))
    fitting = max(1, max_tokens * len(ordered) // num_tokens(ordered))
    count = min(recipe.batch_size, len(ordered), fitting)
    sample = [ordered[(2 * i + 1) * len(ordered) // (2 * count)] for i in range(count)]
    batch = collate([example for group in sample for example in group]).to(device)
    if {*job.compared_methods} <= {*FITTED_METHODS}:  # no optimizer: to import them takes seconds
        with torch.inference_mode():
            network.logits(batch)  # prepares kernels and memory
            begin = time_when_done(device)
            network.logits(batch)
            seconds = time_when_done(device) - begin
        return Forecast(0.0, seconds / len(batch.input_ids))
    train_tokens = num_tokens(job.groups)
    dev_tokens = num_tokens(job.dev_units)
    per_batch, update = time_step(network, recipe.optimizer, job.precision, batch, TIMING_SECONDS)
    per_token = per_batch / 3 / len(batch.input_ids)  # of a forward pass
    encoding = 0.0  # seconds of a batch, for what is computed once per example
    if network.features is not None and network.features.remember(job.groups):
        network.features.remember(sample)  # the encoder runs once per example, in the training too
        head_only, update = time_step(
            network, recipe.optimizer, job.precision, batch, TIMING_SECONDS
        )
        encoding = per_batch - head_only
        per_batch = head_only
    num_steps = job.settings.num_steps
    evaluations = -(-num_steps // job.settings.evaluate_every)
    evaluated_tokens = dev_tokens
    if "contrastive" in job.compared_methods and job.settings.evaluates:
        evaluated_tokens += train_tokens  # a new head is fitted each time
    tokens = (
        num_tokens(job.clozes) + recipe.epochs * train_tokens
    ) / processes + evaluations * evaluated_tokens / 3
    batches = (encoding * (train_tokens + dev_tokens) + per_batch * tokens) / len(batch.input_ids)
    return Forecast(batches + update * num_steps, per_token)
