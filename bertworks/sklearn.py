"""Estimators of scikit-learn, for its pipelines, searches and cross-validations.

- `BertClassifier`, `BertRegressor`: models that are fine-tuned as `bertworks.finetune` does it
- `BertEmbedder`: the vectors of texts, as `bertworks.Embedder` computes them

`import bertworks` does not import this module, and neither scikit-learn: write `import
bertworks.sklearn`.
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from fnmatch import fnmatchcase
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils import assert_all_finite, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from bertworks.checkpoints.resolve import NETWORK_FILES, split_files
from bertworks.checkpoints.task_config import TASK_FILE
from bertworks.datasets.values import canonical_label, label_text
from bertworks.errors import BertworksError, UsageError, column_names_of, first_names, listed
from bertworks.inference.embedder import Embedder, Vectors
from bertworks.inference.predictor import Predictor
from bertworks.io.atomic_write import temporary_folder
from bertworks.io.tables import is_missing, missing_hint, plain_value, rows_of
from bertworks.models.settings import Pooling
from bertworks.runs.finetune import finetune_events, make_finetune_request, open_trained
from bertworks.runs.finetune_job import FITTED_METHODS
from bertworks.runs.options import Method, Validation
from bertworks.tasks.settings import TaskType
from bertworks.training.device import InferencePrecision, PrecisionOption

__all__ = ["BertClassifier", "BertEmbedder", "BertRegressor", "InputError"]

TextRow = tuple[str, ...]  # one text, or the two texts of a pair
_TEXT_COLUMNS = ("text", "text_pair")  # names of the columns of the training data
_LABEL_COLUMN = "label"
_LISTED_ROWS = 5  # in a warning
# patterns of the files of a model in a pickle of an estimator
_CARRIED_FILES = (*NETWORK_FILES, TASK_FILE)
_LARGEST_SEED = np.iinfo(np.int32).max


class InputError(UsageError, ValueError):
    """A sample, or its targets, cannot be used.

    It is a ValueError, too, which scikit-learn's tools expect.
    """


class _ModelFiles(NamedTuple):
    """A fine-tuned model in a pickle of an estimator.

    It outlives the temporary folder of the model.

    contents: of the files of the model folder, by their names.
    precision: of the predictions.
    """

    contents: dict[str, bytes]
    precision: InferencePrecision


def _unpack_model(files: _ModelFiles, device: str) -> Predictor:
    """Write the files into a temporary folder, which is deleted together with the returned model.

    Raises:
        BertworksError: a name that is not one of a file of a model folder; files that are damaged.
    """
    with temporary_folder() as (folder, owner):
        for name, content in files.contents.items():
            is_known = any(fnmatchcase(name, pattern) for pattern in _CARRIED_FILES)
            if not is_known or "/" in name or "\\" in name:
                raise BertworksError(
                    f"the pickle of an estimator holds a file {name!r:.80}, which is none of a "
                    "model folder",
                    hint="fit the estimator again",
                )
            (folder / name).write_bytes(content)
        predictor = Predictor(folder, device=device, precision=files.precision)
    predictor.keep_alive(owner)
    return predictor


class _TextEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """An estimator whose sample consists of texts.

    A sample is a list, an array or a column of texts; or a table or an array with one column, or
    with two for pairs.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        return tags

    def _read_sample(self, X: Any, *, fits: bool) -> list[TextRow]:
        """Return the texts of a sample.

        Set, or check, the names and the number of its columns.

        Args:
            fits: whether the sample is that of `fit`.

        Raises:
            InputError: the sample has no rows, or not one or two columns of strings; or other
                columns than in `fit`.
            ValueError: the columns have other names than in `fit`.
        """
        rows = _text_rows(X)
        # It checks the names of columns only: texts are no numbers, and a list of texts has no
        # number of columns.
        validate_data(self, X, reset=fits, skip_check_array=True, ensure_2d=False)
        num_columns = len(rows[0])
        if fits:
            self.n_features_in_ = num_columns
        elif num_columns != self.n_features_in_:
            name = type(self).__name__
            raise InputError(
                f"X has {num_columns} features, but {name} is expecting {self.n_features_in_} "
                "features as input",
                hint="give the columns that the estimator was fitted with",
            )
        return rows


def _text_rows(sample: Any) -> list[TextRow]:
    """Return the texts of each row of a sample: see `_TextEstimator`.

    Raises:
        InputError: the sample has no rows, or not one or two columns of strings.
    """
    if issparse(sample):
        raise InputError(
            "sparse input is not supported: expected texts",
            hint="give the texts themselves, not the matrix of a TfidfVectorizer",
        )
    try:
        is_table = column_names_of(sample) is not None
        values = rows_of(sample) if is_table else listed(sample, "give one text as [text]")
    except UsageError as error:
        raise InputError(error.what, where=error.where, hint=error.hint) from error
    if not values:
        raise InputError("the sample has 0 rows: at least 1 is needed", hint="give a list of texts")
    rows: list[TextRow] = []
    for number, value in enumerate(values, 1):
        cells: Sequence[Any] = (value,)
        if is_table:
            cells = tuple(value.values())
        elif isinstance(value, list | tuple | np.ndarray):
            cells = tuple(value)
        if rows and len(cells) != len(rows[0]):
            raise InputError(
                f"row {number} has {len(cells)} texts, and the rows before it have {len(rows[0])}",
                hint="give all rows the same number of texts",
            )
        if not cells:  # in the words of scikit-learn
            what = f"0 feature(s) (shape={(len(values), 0)}) while a minimum of 1 is required"
            raise InputError(
                f"{what}: a column of texts", hint="give one column of texts, or two of pairs"
            )
        if len(cells) > 2:
            what = f"the sample has {len(cells)} columns: expected one of texts, or two of pairs"
            raise InputError(
                f"{what} of texts",
                hint="choose the columns, as TABLE[['text']], or with a ColumnTransformer",
            )
        rows.append(tuple(_checked_text(plain_value(cell), number) for cell in cells))
    return rows


def _checked_text(value: Any, number: int) -> str:
    if isinstance(value, str):
        return str(value)  # a string of numpy becomes one of Python
    raise InputError(
        f"text {number} is {value!r:.60}: expected a string",
        hint=missing_hint("text")
        if is_missing(value)
        else "an estimator of bertworks reads texts: give strings",
    )


@dataclass(eq=False, repr=False)
class _FineTunedEstimator(_TextEstimator):
    """An estimator that fine-tunes a model in `fit`.

    Its pickle holds the files of the model.

    Subclasses name the task, and translate between targets and labels.
    """

    model: str | Path = "minilm"
    _: KW_ONLY
    method: Method = "auto"
    validation: Validation = "auto"
    epochs: int | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    max_length: int | None = None
    windows: int | None = None
    recipe: str | Path = "stable"
    overrides: str | Iterable[str] = ()
    precision: str | None = None
    new_head: bool = False
    device: str = "auto"
    seed: int | None = None
    random_state: int | np.random.RandomState | None = None
    progress: bool | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "predictor_" in state:
            predictor: Predictor = state["predictor_"]
            folder = Path(predictor.folder)
            names, _ = split_files(folder, _CARRIED_FILES)
            contents = {name: (folder / name).read_bytes() for name in names}
            state["predictor_"] = _ModelFiles(contents, predictor.precision)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        files = state.get("predictor_")
        if isinstance(files, _ModelFiles):
            self.predictor_ = _unpack_model(files, self.device)

    def _read_targets(self, y: Any, dtype: Any = None) -> NDArray[Any]:
        """Return the targets as an array [rows].

        Raises ValueError if there are none, or several for each row.
        """
        if y is None:  # in the words of scikit-learn
            raise InputError(
                f"{type(self).__name__} requires y to be passed, but the target y is None",
                hint="give a target for each text: fit(texts, targets)",
            )
        targets: NDArray[Any] = column_or_1d(y, dtype=dtype, warn=True)
        return targets

    def _labelled_rows(self, X: Any, targets: NDArray[Any]) -> tuple[list[TextRow], NDArray[Any]]:
        """Return the rows that have texts, and their targets.

        A warning lists the others, which a training leaves out.

        Raises:
            InputError: see `_read_sample`; no row has texts.
            ValueError: there are not as many targets as rows.
        """
        rows = self._read_sample(X, fits=True)
        check_consistent_length(rows, targets)
        numbers = [
            number for number, row in enumerate(rows) if all(label_text(text) for text in row)
        ]
        if not numbers:
            raise InputError("all texts are empty", hint="give rows with texts")
        if len(numbers) < len(rows):
            empty = [str(number + 1) for number in sorted(set(range(len(rows))) - set(numbers))]
            places = first_names(empty, _LISTED_ROWS)
            warnings.warn(
                f"rows without text are left out of the training: {len(empty):,} of "
                f"{len(rows):,} (rows {places})",
                stacklevel=3,
            )
        return [rows[number] for number in numbers], targets[numbers]

    def _train(self, rows: Sequence[TextRow], labels: Sequence[Any], task: TaskType) -> None:
        """Fine-tune the model as `bertworks.finetune` does it, in a temporary folder."""
        columns = _TEXT_COLUMNS[: len(rows[0])]
        data: dict[str, Sequence[Any]] = dict(zip(columns, zip(*rows, strict=True), strict=True))
        data[_LABEL_COLUMN] = labels
        options = {field.name: getattr(self, field.name) for field in fields(_FineTunedEstimator)}
        for name in ("device", "random_state", "progress"):
            del options[name]
        options["seed"] = self._seed()
        request = make_finetune_request(
            data, task=task, text=columns, label=_LABEL_COLUMN, **options
        )
        # The comparison with baselines does not change the model, and an estimator has no
        # report that shows it.
        run = partial(
            finetune_events,
            request=request,
            device=self.device,
            compares=False,
            extrapolates=False,
        )
        (self.predictor_,) = open_trained(run, None, [""], self.device, self.progress)

    def _seed(self) -> int | None:
        """Return the seed of the fine-tuning; None: that of the recipe."""
        if self.random_state is None:
            return self.seed
        if self.seed is not None:
            raise InputError(
                f"seed is {self.seed} and random_state is {self.random_state}: they are two "
                "names of one setting",
                hint="leave out seed",
            )
        # it uses no random numbers, and scikit-learn sets random_state wherever it exists
        if self.method in FITTED_METHODS:
            return None
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(_LARGEST_SEED))

    def _items(self, X: Any) -> list[str | TextRow]:
        """Return a sample to be predicted, as `Predictor.predict` reads texts and pairs."""
        check_is_fitted(self)
        return [row[0] if len(row) == 1 else row for row in self._read_sample(X, fits=False)]


class BertClassifier(ClassifierMixin, _FineTunedEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier of texts or pairs of texts, fine-tuned by `fit` as by `bertworks.finetune`.

    A sample is a list, an array or a column of texts; or a table or an array with one column of
    texts, or with two for pairs. The targets are one class for each row, of any type that can be
    sorted. Rows without text are left out of the training, with a warning.

    The arguments are those of `bertworks.finetune`, and have the same defaults. Each `fit` trains
    in a temporary folder, which is deleted together with the estimator: `predictor_.save(folder)`
    keeps the model. A pickle of a fitted estimator holds the files of its model.

    Args:
        model: the initial model: `minilm`, a model folder, or the name of a BERT on the Hugging
            Face hub.
        method: "full", "frozen", "untrained", "cosine", "contrastive", "static", or "auto", which
            compares methods by a cross-validation of few rows.
        validation: the rows on which probabilities are calibrated: "folds" (all rows, by models of
            the other rows), "split" (a tenth, which is not trained on), or "auto" (folds for less
            than 2000 rows). With "split", and a method that is not "auto", `fit` trains one model;
            else up to five.
        epochs, learning_rate, batch_size, max_length, windows, precision: None: as in the recipe.
        recipe: "stable", "paper", "feature_based", or a TOML file; overrides: `field=value`
            settings of it.
        new_head: whether the head of a fine-tuned model is replaced by a new one.
        device: "auto", "cpu" or "cuda".
        seed: of the training; None: that of the recipe, so that two fits are equal.
        random_state: the name of `seed` in scikit-learn, which its ensembles set: a number, or a
            RandomState, which gives another seed in each `fit`. Give one of both. The method
            "frozen" uses neither: it refuses `seed`, as `bertworks.finetune` does, and ignores
            `random_state`.
        progress: whether one line shows the progress; None: in notebooks.

    Attributes:
        classes_: the classes, sorted, in the type of the targets.
        n_features_in_: the number of columns of the sample: 1, or 2 for pairs.
        feature_names_in_: their names, if the sample was a table.
        predictor_: the fine-tuned model, a `bertworks.Predictor`, whose labels are the classes as
            strings.
    """

    classes_: NDArray[Any]

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune a model on texts and their classes.

        Raises:
            InputError: rows without a string; less than two classes; a class that cannot be written
                as a label.
            ValueError: the targets are missing, no classes, or not as many as rows.
            BertworksError, UsageError: see `bertworks.finetune`.
        """
        targets = self._read_targets(y)
        for number, target in enumerate(targets.tolist(), 1):
            if is_missing(target):
                raise InputError(
                    f"the class of row {number} is missing: {target!r}", hint="leave the row out"
                )
        if targets.dtype.kind == "f":
            assert_all_finite(targets, input_name="y")
        check_classification_targets(targets)
        rows, targets = self._labelled_rows(X, targets)
        classes, numbers = np.unique(targets, return_inverse=True)
        if len(classes) < 2:
            raise InputError(
                f"there is only one class, {classes.tolist()[0]!r}: a classifier needs two",
                hint="add rows of another class",
            )
        names = _label_names(classes)
        self._train(rows, [names[number] for number in numbers], "classification")
        self.classes_ = classes
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class, float64 [rows, classes].

        The classes are in the order of `classes_`.

        Raises:
            NotFittedError: `fit` was not called.
            InputError, ValueError: the sample is not like that of `fit`.
        """
        items = self._items(X)
        labels = self.predictor_.classes_.tolist()
        order = [labels.index(name) for name in _label_names(self.classes_)]
        return self.predictor_.predict_proba(items)[:, order]

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row, in the type of the targets.

        Raises as `predict_proba`.
        """
        numbers = self.predict_proba(X).argmax(axis=1)
        predicted: NDArray[Any] = self.classes_[numbers]
        return predicted


class BertRegressor(RegressorMixin, _FineTunedEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A regressor of texts or pairs of texts, fine-tuned by `fit` as by `bertworks.finetune`.

    The sample, the arguments and the attributes are those of `BertClassifier`, but for `classes_`.
    The targets are one number for each row.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune a model on texts and numbers.

        Raises:
            InputError: rows without a string; less than two rows.
            ValueError: the targets are missing, no finite numbers, or not as many as rows.
            BertworksError, UsageError: see `bertworks.finetune`.
        """
        targets = self._read_targets(y, np.float64)
        assert_all_finite(targets, input_name="y")
        rows, targets = self._labelled_rows(X, targets)
        if len(rows) < 2:
            raise InputError("there is only one sample: a regressor needs two", hint="add rows")
        self._train(rows, targets.tolist(), "regression")
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the number of each row, float64 [rows].

        Raises:
            NotFittedError: `fit` was not called.
            InputError, ValueError: the sample is not like that of `fit`.
        """
        items = self._items(X)
        return np.array([answer["value"] for answer in self.predictor_.predict(items)], np.float64)


@dataclass(eq=False, repr=False)
class BertEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _TextEstimator):  # type: ignore[misc]
    """A transformer of texts into their vectors, as `bertworks.Embedder` computes them.

    A sample is a list, an array or a column of texts, or a table or an array with one column of
    texts. `fit` opens the model, and learns nothing. A pickle of the fitted transformer holds the
    path of the model folder and a hash of its files.

    Args:
        model: a folder of ours, of transformers or of sentence-transformers, an exported encoder,
            `minilm`, or a hub id.
        pooling, normalize, max_length: None: as in the model's files, see `bertworks.Embedder`.
        windows: the largest number of windows of a text; 0: it is truncated.
        prompt: prefix of each text; None: the model's default.
        precision: "auto", "fp32", "bf16" or "int8", see `bertworks.Embedder`.
        device: "auto", "cpu" or "cuda".

    Attributes:
        n_features_in_: the number of columns of the sample: 1.
        feature_names_in_: the name of its column, if it was a table.
        embedder_: the `bertworks.Embedder`.
    """

    model: str | Path = "minilm"
    _: KW_ONLY
    pooling: Pooling | None = None
    normalize: bool | None = None
    max_length: int | None = None
    windows: int = 0
    prompt: str | None = None
    precision: PrecisionOption = "auto"
    device: str = "auto"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # vectors are float32
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Open the model.

        Args:
            y: is not read.

        Raises:
            InputError: rows without a string; more than one column.
            BertworksError, UsageError: see `bertworks.Embedder`.
        """
        self._texts(X, fits=True)
        self.embedder_ = Embedder(
            self.model,
            pooling=self.pooling,
            normalize=self.normalize,
            max_length=self.max_length,
            windows=self.windows,
            precision=self.precision,
            device=self.device,
        )
        return self

    def transform(self, X: Any) -> Vectors:
        """Return the vector of each text, float32 [rows, dimension].

        Raises:
            NotFittedError: `fit` was not called.
            InputError, ValueError: the sample is not like that of `fit`.
        """
        check_is_fitted(self)
        return self.embedder_.embed(self._texts(X, fits=False), prompt=self.prompt)

    def _texts(self, X: Any, *, fits: bool) -> list[str]:
        rows = self._read_sample(X, fits=fits)
        if len(rows[0]) > 1:
            raise InputError(
                "the sample has 2 columns: a vector is made of one text",
                hint="use a ColumnTransformer with a BertEmbedder for each column",
            )
        return [text for (text,) in rows]

    @property
    def _n_features_out(self) -> int:
        """The number of columns of the result, which scikit-learn's mixin names."""
        return self.embedder_.dimension


def _label_names(classes: NDArray[Any]) -> list[str]:
    """Return the label in the training data for each class: its text, without spaces around it.

    Raises:
        InputError: it stands for a missing label, or for another class, too.
    """
    labels: list[str] = []
    classes_by_label: dict[str, Any] = {}
    for value in classes.tolist():
        name = label_text(value)
        if name is None:
            raise InputError(
                f"the class {value!r} stands for a missing label", hint="give it another name"
            )
        other = classes_by_label.setdefault(canonical_label(name), value)
        if other is not value:
            raise InputError(
                f"the classes {other!r} and {value!r} are two spellings of one label",
                hint="give one of them another name",
            )
        labels.append(name)
    return labels
