"""Estimators of scikit-learn: they agree with `bw.finetune` and `bw.Embedder`, and with what
scikit-learn expects."""

import gc
import inspect
import pickle
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted, validate_data

import bertworks as bw
from bertworks.datasets.reader import RowReader
from bertworks.errors import BertworksError
from bertworks.sklearn import BertClassifier, BertEmbedder, BertRegressor, InputError
from tests.support import ROOT
from tests.support.fine import FILLER, GOOD, PEOPLE, PLACES, write_pairs, write_reviews

GUIDE = ROOT / "docs" / "guides" / "scikit-learn.md"
# a linear head, in 0.3 seconds
FAST: dict[str, Any] = {"device": "cpu", "method": "frozen", "validation": "split"}
TRAINED: dict[str, Any] = {
    "device": "cpu",
    "method": "full",
    "validation": "split",
    "epochs": 1,
    "learning_rate": 2e-3,
}
NEW = ["a good film", "the sad story of a town", "lovely music", "men and dogs"]

Sample = tuple[list[str], list[str]]


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """Texts, and their classes "neg" and "pos"."""
    rows = [
        row.values
        for row in RowReader(write_reviews(tmp_path_factory.mktemp("reviews") / "d.csv", 60))
    ]
    return [row["text"] for row in rows], [row["label"] for row in rows]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of texts [rows, 2], and a number for each."""
    rows = [
        row.values for row in RowReader(write_pairs(tmp_path_factory.mktemp("pairs") / "d.tsv", 40))
    ]
    texts = np.array([[row["sentence1"], row["sentence2"]] for row in rows])
    return texts, np.array([float(row["score"]) for row in rows])


@pytest.fixture(scope="module")
def fitted(model: Path, reviews: Sample) -> BertClassifier:
    return BertClassifier(model, **FAST).fit(*reviews)


@pytest.fixture
def temporary_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of all temporary files. At the end nothing of bertworks is in it."""
    root = tmp_path / "temporary"
    root.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    yield root
    gc.collect()
    assert list(root.glob("bertworks-*")) == []


def folder_of(estimator: Any) -> Path:
    return Path(estimator.predictor_.folder)


# The same as without scikit-learn


def test_a_classifier_is_a_fine_tuned_model(model: Path, reviews: Sample) -> None:
    texts, labels = reviews
    rows = {"text": texts, "label": labels}
    expected = bw.finetune(
        rows, text="text", label="label", task="classification", model=model, seed=3, **TRAINED
    )
    classifier = BertClassifier(model, **TRAINED, seed=3).fit(texts, labels)
    weights = [
        Path(predictor.folder) / "model.safetensors"
        for predictor in (expected, classifier.predictor_)
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    np.testing.assert_array_equal(classifier.predict_proba(NEW), expected.predict_proba(NEW))
    assert classifier.predict(NEW).tolist() == [answer["label"] for answer in expected.predict(NEW)]
    assert classifier.score(texts, labels) == expected.score(texts, labels)
    other = BertClassifier(model, **TRAINED, random_state=4).fit(texts, labels)
    assert np.abs(other.predict_proba(NEW) - classifier.predict_proba(NEW)).max() > 1e-4


def test_seeds(model: Path, reviews: Sample) -> None:
    drawn = BertClassifier(random_state=np.random.RandomState(0))
    seeds = [drawn._seed(), drawn._seed()]
    assert seeds[0] != seeds[1]
    assert seeds == [
        BertClassifier(random_state=seeds[0])._seed(),
        BertClassifier(seed=seeds[1])._seed(),
    ]
    assert BertClassifier()._seed() is None
    assert BertClassifier(random_state=np.int64(3))._seed() == BertClassifier(seed=3)._seed() == 3
    with pytest.raises(InputError, match="seed is 1 and random_state is 2"):
        BertClassifier(model, seed=1, random_state=2).fit(*reviews)
    BertClassifier(model, **FAST, random_state=2).fit(*reviews)  # the method uses no random numbers


def test_a_regressor_of_pairs_is_a_fine_tuned_model(
    model: Path, pairs: tuple[np.ndarray, np.ndarray]
) -> None:
    texts, numbers = pairs
    rows = {"a": texts[:, 0], "b": texts[:, 1], "score": numbers}
    expected = bw.finetune(
        rows, text=["a", "b"], label="score", task="regression", model=model, seed=3, **TRAINED
    )
    regressor = BertRegressor(model, **TRAINED, seed=3).fit(texts, numbers)
    values = regressor.predict(texts)
    assert (values.dtype, values.shape, regressor.n_features_in_) == (np.float64, (40,), 2)
    assert values.tolist() == [
        answer["value"] for answer in expected.predict(list(map(tuple, texts.tolist())))
    ]
    assert np.abs(values - regressor.predict(texts[:, ::-1])).max() > 1e-4
    residues = ((numbers - values) ** 2).sum() / ((numbers - numbers.mean()) ** 2).sum()
    assert regressor.score(texts, numbers) == pytest.approx(1 - residues)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pooling": "cls", "normalize": True},
        {"max_length": 4, "precision": "fp32"},
        {"prompt": "the film was "},
    ],
)
def test_an_embedder_gives_the_vectors_of_embed(model: Path, options: dict[str, Any]) -> None:
    prompt = options.get("prompt")
    others = {name: value for name, value in options.items() if name != "prompt"}
    expected = bw.Embedder(model, device="cpu", **others).embed(NEW, prompt=prompt)
    embedder = BertEmbedder(model, device="cpu", **options)
    vectors = embedder.fit_transform(NEW)
    np.testing.assert_array_equal(vectors, expected)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(embedder)).transform(NEW), expected)
    assert embedder.get_feature_names_out().tolist() == [
        f"bertembedder{number}" for number in range(32)
    ]
    plain = bw.Embedder(model, device="cpu").embed(NEW)
    assert (np.abs(plain - vectors).max() > 1e-3) == bool(options)


def test_the_options_are_those_of_the_functions() -> None:
    finetune = inspect.signature(bw.finetune).parameters
    for estimator in (BertClassifier(), BertRegressor()):
        options = estimator.get_params()
        assert options.pop("random_state") is None
        assert options == {name: finetune[name].default for name in options}
    embedder = inspect.signature(bw.Embedder).parameters
    options = BertEmbedder().get_params()
    assert (options.pop("model"), options.pop("prompt")) == ("minilm", None)
    assert options == {name: embedder[name].default for name in options}
    assert options.keys() == embedder.keys() - {"model"}


def test_parameters_are_set_and_cloned(fitted: BertClassifier, model: Path) -> None:
    other = clone(fitted)
    assert other.get_params() == fitted.get_params()
    assert other.get_params()["model"] == model
    with pytest.raises(NotFittedError):
        other.predict(NEW)
    other.set_params(epochs=2, overrides=["class_weights=balanced"])
    assert (other.epochs, other.overrides, fitted.epochs) == (2, ["class_weights=balanced"], None)
    assert repr(BertClassifier(epochs=2)) == "BertClassifier(epochs=2)"
    with pytest.raises(ValueError, match="Invalid parameter 'epoch'"):
        other.set_params(epoch=2)


# Samples and targets


def series(texts: list[str]) -> Any:
    return pytest.importorskip("pandas").Series(texts, index=range(5, 5 + len(texts)))


def frame(texts: list[str]) -> Any:
    return pytest.importorskip("pandas").DataFrame({"text": texts})


FORMS: list[Callable[[list[str]], Any]] = [
    list,
    tuple,
    iter,
    np.array,
    series,
    frame,
    lambda texts: np.array(texts, dtype=object),
    lambda texts: np.array(texts)[:, None],
    lambda texts: [[text] for text in texts],
    pyarrow.array,
    lambda texts: pyarrow.table({"text": texts}),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:X has feature names, but BertClassifier was fitted without")
def test_every_form_of_a_sample_is_read_alike(
    form: Callable[[list[str]], Any], fitted: BertClassifier
) -> None:
    np.testing.assert_array_equal(fitted.predict_proba(form(NEW)), fitted.predict_proba(NEW))


def test_every_form_of_pairs_is_read_alike(
    model: Path, pairs: tuple[np.ndarray, np.ndarray]
) -> None:
    pandas = pytest.importorskip("pandas")
    texts, numbers = pairs
    table = pandas.DataFrame(texts, columns=["first", "second"])
    classifier = BertClassifier(model, **FAST).fit(table, numbers > 2)
    assert classifier.feature_names_in_.tolist() == ["first", "second"]
    expected = classifier.predict_proba(table)
    forms = [texts, texts.astype(object), texts.tolist(), list(map(tuple, texts))]
    for form in forms:
        with pytest.warns(UserWarning, match="X does not have valid feature names"):
            np.testing.assert_array_equal(classifier.predict_proba(form), expected)
    for other in (table[["second", "first"]], table.rename(columns={"first": "text"})):
        with pytest.raises(ValueError, match="feature names should match"):
            classifier.predict(other)
    with (
        pytest.warns(UserWarning, match="X does not have valid feature names"),
        pytest.raises(
            InputError, match="X has 1 features, but BertClassifier is expecting 2 features"
        ),
    ):
        classifier.predict(texts[:, 0])


@pytest.mark.parametrize(
    ("classes", "expected", "label"),
    [
        (np.array([10, 9]), [9, 10], "10"),
        (np.array([True, False]), [False, True], "true"),
        (np.array([1.0, -1.0]), [-1.0, 1.0], "1"),
        (np.array(["9", "10"]), ["10", "9"], "9"),  # the labels of bertworks are sorted by value
        (np.array(["pos", "neg"], dtype=object), ["neg", "pos"], "pos"),
    ],
)
def test_classes_are_those_of_the_targets(
    classes: np.ndarray, expected: list[Any], label: str, model: Path, reviews: Sample
) -> None:
    texts, labels = reviews
    targets = classes[[int(name == "neg") for name in labels]]  # the first class has the good words
    classifier = BertClassifier(model, **FAST).fit(texts, targets)
    assert classifier.classes_.tolist() == expected
    assert classifier.classes_.dtype == classes.dtype
    predicted = classifier.predict(texts)
    assert predicted.dtype == classes.dtype
    assert (predicted == targets).mean() > 0.7
    probabilities = classifier.predict_proba(texts)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    np.testing.assert_array_equal(classifier.classes_[probabilities.argmax(1)], predicted)
    column = expected.index(classes.tolist()[0])
    place = classifier.predictor_.classes_.tolist().index(label)
    np.testing.assert_array_equal(
        probabilities[:, column], classifier.predictor_.predict_proba(texts)[:, place]
    )


def test_rows_without_text_are_left_out(
    model: Path, fitted: BertClassifier, reviews: Sample
) -> None:
    texts, labels = reviews
    sample = ["", texts[0], " \n", *texts[1:]]
    targets = ["a class of this row alone", labels[0], "pos", *labels[1:]]
    with pytest.warns(UserWarning, match=r"left out of the training: 2 of 62 \(rows 1, 3\)"):
        classifier = BertClassifier(model, **FAST).fit(sample, targets)
    assert classifier.classes_.tolist() == ["neg", "pos"]
    np.testing.assert_array_equal(classifier.predict_proba(NEW), fitted.predict_proba(NEW))
    assert classifier.predict([""]).shape == (1,)


@pytest.mark.parametrize(
    ("sample", "what"),
    [
        ("a text", "expected a list of texts, not one text"),
        ({"a", "b"}, "not a set"),
        (None, "expected a list of texts, not None"),
        ([], "the sample has 0 rows"),
        (np.empty((0, 1), dtype=object), "the sample has 0 rows"),
        ([["a", "b", "c"]], "the sample has 3 columns"),
        (
            np.empty((2, 0), dtype=object),
            r"0 feature\(s\) \(shape=\(2, 0\)\) while a minimum of 1 is required",
        ),
        (["a", ["b", "c"]], "row 2 has 2 texts, and the rows before it have 1"),
        (["a", None], r"(?s)text 2 is None: expected a string.*leave missing texts out"),
        (
            np.array(["a", np.nan], dtype=object),
            r"(?s)text 2 is nan: expected a string.*leave missing texts out",
        ),
        (np.array([[0.5]]), r"(?s)text 1 is .*0\.5.*: expected a string.*reads texts"),
        (csr_array([[1.0]]), r"(?s)sparse input is not supported.*TfidfVectorizer"),
    ],
)
def test_what_is_no_sample_of_texts_is_refused(
    sample: Any, what: str, fitted: BertClassifier
) -> None:
    for call in (
        lambda: clone(fitted).fit(sample, ["a", "b"]),
        lambda: fitted.predict(sample),
        lambda: BertEmbedder(fitted.model).fit(sample),
    ):
        with pytest.raises(InputError, match=what):
            call()


@pytest.mark.parametrize(
    ("targets", "what"),
    [
        (None, "BertClassifier requires y to be passed, but the target y is None"),
        (["a"] * 3, "inconsistent numbers of samples"),
        ([0.5, 1.5, 2.5, 3.5], "Unknown label type: continuous"),
        ([["a", "b"]] * 4, "y should be a 1d array"),
        (np.array(["a", None, "b", "a"], dtype=object), "the class of row 2 is missing: None"),
        (np.array(["a", np.nan, "b", "a"], dtype=object), "the class of row 2 is missing: nan"),
        ([0.0, np.nan, 1.0, 1.0], "the class of row 2 is missing: nan"),
        ([0.0, np.inf, 1.0, 1.0], "infinity"),
        (["a"] * 4, "there is only one class, 'a'"),
        (["a", " ", "a", "b"], "the class ' ' stands for a missing label"),
        (["nan", "a", "a", "b"], "the class 'nan' stands for a missing label"),
        (["1", "1.0", "2", "2"], "the classes '1' and '1.0' are two spellings of one label"),
        (["a", "a ", "b", "b"], "the classes 'a' and 'a ' are two spellings of one label"),
    ],
)
def test_what_are_no_classes_is_refused(targets: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        BertClassifier().fit(NEW, targets)


@pytest.mark.parametrize(
    ("targets", "what"),
    [
        (None, "BertRegressor requires y to be passed"),
        ([1.0, np.nan, 2.0, 3.0], "Input y contains NaN"),
        ([1.0, np.inf, 2.0, 3.0], "Input y contains infinity"),
        (["low", "high", "low", "high"], "could not convert string to float"),
        ([[1.0, 2.0]] * 4, "y should be a 1d array"),
    ],
)
def test_what_are_no_numbers_is_refused(targets: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        BertRegressor().fit(NEW, targets)


def test_other_samples_that_cannot_be_used(fitted: BertClassifier) -> None:
    with pytest.raises(InputError, match="only one sample"):
        BertRegressor().fit(["a"], [1.0])
    with pytest.raises(InputError, match="all texts are empty"):
        BertClassifier().fit(["", " "], ["a", "b"])
    with pytest.raises(
        InputError, match=r"(?s)2 columns: a vector is made of one text.*ColumnTransformer"
    ):
        BertEmbedder(fitted.model).fit([("a", "b")])
    for estimator in (BertClassifier(), BertRegressor(), BertEmbedder()):
        with pytest.raises(NotFittedError):
            (estimator.transform if isinstance(estimator, BertEmbedder) else estimator.predict)(NEW)
    with pytest.raises(bw.UsageError, match="epochs"):
        clone(fitted).set_params(method="full", epochs="three").fit(NEW, ["a", "b", "a", "b"])


def test_a_column_vector_of_targets_is_read_with_a_warning(
    fitted: BertClassifier, reviews: Sample
) -> None:
    texts, labels = reviews
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        classifier = clone(fitted).fit(texts, np.array(labels)[:, None])
    np.testing.assert_array_equal(classifier.predict_proba(NEW), fitted.predict_proba(NEW))


# Folders and pickles


@pytest.mark.slow
def test_a_pickle_outlives_the_folder_of_its_model(
    model: Path, reviews: Sample, temporary_root: Path
) -> None:
    classifier = BertClassifier(model, **FAST).fit(*reviews)
    expected = classifier.predict_proba(NEW)
    content = pickle.dumps(classifier)
    first_folder = folder_of(classifier)
    assert first_folder.parent == temporary_root
    del classifier
    gc.collect()
    assert not first_folder.exists()
    other = pickle.loads(content)
    np.testing.assert_array_equal(other.predict_proba(NEW), expected)
    assert pickle.loads(pickle.dumps(other)).classes_.tolist() == ["neg", "pos"]
    assert folder_of(other).parent == temporary_root
    names = {path.name for path in folder_of(other).iterdir()}
    assert {"model.safetensors", "config.json", "task.json", "tokenizer.json"} <= names
    assert not names & {"README.md", "errors.csv", "report.html"}, (
        "files that no prediction depends on"
    )
    assert b"errors.csv" not in content


def test_a_pickle_that_names_other_files_is_refused(
    fitted: BertClassifier, temporary_root: Path
) -> None:
    state = fitted.__getstate__()
    files = state["predictor_"]
    paths = [
        "../config.json",
        "/etc/passwd",
        "model-a/../../b.safetensors",
        "model-a\\b.safetensors",
    ]
    for name in (*paths, "pytorch_model.bin", "README.md"):
        changed = files._replace(contents={**files.contents, name: b""})
        with pytest.raises(
            BertworksError, match=r"holds a file '.*', which is none of a model folder"
        ):
            BertClassifier().__setstate__({**state, "predictor_": changed})
    changed = files._replace(contents={**files.contents, "model.safetensors": b"\0" * 100})
    with pytest.raises(BertworksError, match=r"model\.safetensors"):
        BertClassifier().__setstate__({**state, "predictor_": changed})


def test_a_pickle_keeps_the_precision(fitted: BertClassifier) -> None:
    files = fitted.__getstate__()["predictor_"]
    assert files.precision == fitted.predictor_.precision == "fp32"
    other = BertClassifier(device="cpu")
    other.__setstate__({**fitted.__getstate__(), "predictor_": files._replace(precision="bf16")})
    assert other.predictor_.precision == "bf16"


def test_no_folder_is_left(model: Path, reviews: Sample, temporary_root: Path) -> None:
    texts, labels = reviews
    classifier = BertClassifier(model, **FAST)
    classifier.fit(texts, labels)
    first = folder_of(classifier)
    classifier.fit(texts, labels)  # the second model replaces the first one
    gc.collect()
    assert not first.exists()
    assert folder_of(classifier).is_dir()
    failing = clone(classifier).set_params(method="full", learning_rate=-1.0)
    with pytest.raises(bw.UsageError, match="learning_rate"):
        failing.fit(texts, labels)


def test_a_model_is_kept_by_save(fitted: BertClassifier, tmp_path: Path) -> None:
    fitted.predictor_.save(tmp_path / "kept")
    predictor = bw.Predictor(tmp_path / "kept", device="cpu")
    np.testing.assert_array_equal(predictor.predict_proba(NEW), fitted.predict_proba(NEW))
    assert predictor.classes_.tolist() == ["neg", "pos"]


# Tools of scikit-learn


def test_a_search_over_a_pipeline(model: Path, reviews: Sample) -> None:
    texts, labels = reviews
    pipeline = Pipeline(
        [("vectors", BertEmbedder(model, device="cpu")), ("classes", LogisticRegression())]
    )
    grid = {"vectors__pooling": ["mean", "cls"], "classes__C": [0.1, 10.0]}
    search = GridSearchCV(pipeline, grid, cv=3, error_score="raise").fit(texts, labels)
    assert len(search.cv_results_["params"]) == 4
    vectors = bw.Embedder(
        model, device="cpu", pooling=search.best_params_["vectors__pooling"]
    ).embed(texts)
    by_hand = LogisticRegression(C=search.best_params_["classes__C"])
    np.testing.assert_allclose(
        search.best_score_, cross_val_score(by_hand, vectors, labels, cv=3).mean()
    )
    assert search.predict(texts).tolist() == by_hand.fit(vectors, labels).predict(vectors).tolist()


def test_a_search_over_a_classifier(model: Path, reviews: Sample) -> None:
    texts, labels = map(np.array, reviews)
    options = {"cv": 2, "error_score": "raise", "scoring": "roc_auc"}
    search = GridSearchCV(
        BertClassifier(model, **FAST), {"max_length": [8, 16]}, **options, refit=False
    )
    search.fit(texts, labels)
    best = BertClassifier(model, **FAST, **search.best_params_)
    assert search.best_score_ == cross_val_score(best, texts, labels, **options).mean()
    first, second = search.cv_results_["mean_test_score"]
    assert first != second


def test_columns_of_a_table(model: Path, reviews: Sample) -> None:
    pandas = pytest.importorskip("pandas")
    texts, labels = reviews
    table = pandas.DataFrame(
        {"text": texts, "title": texts[::-1], "genre": ["drama", "comedy"] * 30}
    )
    embedder = BertEmbedder(model, device="cpu")
    columns = ColumnTransformer(
        [
            ("text", embedder, "text"),
            ("title", embedder, ["title"]),
            ("genre", OneHotEncoder(), ["genre"]),
        ],
        sparse_threshold=0,
    )
    vectors = columns.fit_transform(table)
    expected = bw.Embedder(model, device="cpu").embed(texts)
    np.testing.assert_array_equal(vectors[:, :32], expected)
    np.testing.assert_array_equal(vectors[:, 32:64], expected[::-1])
    assert columns.get_feature_names_out()[[0, 63, 64]].tolist() == [
        "text__bertembedder0",
        "title__bertembedder31",
        "genre__genre_comedy",
    ]
    assert columns.named_transformers_["title"].feature_names_in_.tolist() == ["title"]
    assert not hasattr(columns.named_transformers_["text"], "feature_names_in_")
    embedder.set_output(transform="pandas")
    result = embedder.fit_transform(table[["text"]])
    assert result.columns[1] == "bertembedder1"
    np.testing.assert_array_equal(result.to_numpy(), expected)
    classifier = make_pipeline(columns, LogisticRegression()).fit(table, labels)
    assert classifier.score(table, labels) > 0.8


def test_several_labels_of_a_text(model: Path, reviews: Sample) -> None:
    texts, labels = reviews
    targets = np.array(
        [[label == "pos", "dogs" in text] for text, label in zip(texts, labels)]
    ).astype(int)
    classifier = MultiOutputClassifier(BertClassifier(model, **FAST)).fit(texts, targets)
    assert classifier.predict(texts).shape == (60, 2)
    assert (classifier.predict(texts) == targets).mean() > 0.7


@pytest.mark.slow
def test_two_processes(model: Path, reviews: Sample, temporary_root: Path) -> None:
    """The folder of a model that a worker has trained is deleted with it: its pickle brings the
    files."""
    texts, labels = reviews
    classifier = BertClassifier(model, **TRAINED)
    alone = cross_validate(
        classifier, texts, labels, cv=2, return_estimator=True, error_score="raise"
    )
    shared = cross_validate(
        classifier, texts, labels, cv=2, n_jobs=2, return_estimator=True, error_score="raise"
    )
    np.testing.assert_allclose(shared["test_score"], alone["test_score"])
    for first, second in zip(alone["estimator"], shared["estimator"], strict=True):
        check_is_fitted(second)
        # The worker has chosen the precision of its machine, which the pickle keeps.
        expected = first.predictor_.in_fp32().predict_proba(NEW)
        np.testing.assert_allclose(
            second.predictor_.in_fp32().predict_proba(NEW), expected, atol=1e-5
        )
        assert second.predict(NEW).tolist() == first.predict(NEW).tolist()
    pipeline = make_pipeline(BertEmbedder(model, device="cpu"), LogisticRegression())
    scores = cross_val_score(pipeline, texts, labels, cv=3, n_jobs=2, error_score="raise")
    np.testing.assert_allclose(scores, cross_val_score(pipeline, texts, labels, cv=3))
    search = GridSearchCV(
        classifier, {"learning_rate": [1e-3, 3e-3]}, cv=2, n_jobs=2, error_score="raise"
    )
    assert search.fit(texts, labels).predict(NEW).shape == (4,)


# The checks of scikit-learn

# Checks whose samples are numbers: an estimator of bertworks reads texts.
WITH_NUMBERS = """
check_dict_unchanged check_dont_overwrite_parameters check_dtype_object check_estimators_dtypes
check_estimators_fit_returns_self check_estimators_nan_inf check_estimators_overwrite_params
check_estimators_pickle check_f_contiguous_array_estimator check_fit2d_1feature check_fit2d_1sample
check_fit2d_predict1d check_fit_check_is_fitted check_fit_idempotent check_fit_score_takes_y
check_methods_sample_order_invariance check_methods_subset_invariance check_n_features_in
check_n_features_in_after_fitting check_pipeline_consistency check_positive_only_tag_during_fit
check_readonly_memmap_input
""".split()
WITH_NUMBERS_OF: dict[type, list[str]] = {
    BertClassifier: """
        check_classifier_data_not_an_array check_classifiers_classes check_classifiers_one_label
        check_classifiers_train check_supervised_y_2d
        """.split(),
    BertRegressor: """
        check_regressor_data_not_an_array check_regressors_int check_regressors_no_decision_function
        check_regressors_train check_supervised_y_2d
        """.split(),
    BertEmbedder: [
        "check_complex_data",
        "check_transformer_data_not_an_array",
        "check_transformer_general",
    ],
}
REASON = "the sample of the check consists of numbers, and the estimator reads texts"


@pytest.mark.parametrize("kind", WITH_NUMBERS_OF)
def test_scikit_learns_checks_without_numbers(kind: type) -> None:
    expected = dict.fromkeys([*WITH_NUMBERS, *WITH_NUMBERS_OF[kind]], REASON)
    results = check_estimator(kind(), expected_failed_checks=expected, on_skip=None)
    assert {
        result["check_name"] for result in results if result["status"] == "xfail"
    } == expected.keys()
    passed = {result["check_name"] for result in results if result["status"] == "passed"}
    assert {
        "check_get_params_invariance",
        "check_estimator_sparse_array",
        "check_estimators_unfitted",
    } <= passed
    assert not passed & expected.keys()


FLOAT32 = {
    "check_methods_subset_invariance": (
        "it allows a difference of 1e-7; predictions are computed in float32, in batches"
    )
}


class OfNumbers:
    """An estimator that reads numbers: it writes each as a word, so that all checks of scikit-learn
    can run."""

    def _read_sample(self, X: Any, *, fits: bool) -> list[tuple[str, ...]]:
        words = list(dict.fromkeys([*GOOD, *FILLER, *PEOPLE, *PLACES]))
        levels = np.clip(np.floor(validate_data(self, X, reset=fits)), -2, 1).astype(int) + 2
        rows = [
            [words[(4 * column + level) % len(words)] for column, level in enumerate(row)]
            for row in levels
        ]
        return [(" ".join(row),) for row in rows]


class ClassifierOfNumbers(OfNumbers, BertClassifier):
    pass


class RegressorOfNumbers(OfNumbers, BertRegressor):
    pass


class EmbedderOfNumbers(OfNumbers, BertEmbedder):
    pass


@pytest.mark.parametrize(
    "kind",
    [
        EmbedderOfNumbers,
        pytest.param(ClassifierOfNumbers, marks=pytest.mark.slow),
        pytest.param(RegressorOfNumbers, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore")  # which the checks provoke
def test_all_checks_of_scikit_learn_on_numbers_as_words(kind: type, model: Path) -> None:
    options = {"device": "cpu", "precision": "fp32"} if kind is EmbedderOfNumbers else FAST
    results = check_estimator(kind(model, **options), expected_failed_checks=FLOAT32, on_skip=None)
    # The check of arrays of other libraries needs an environment variable.
    others = {result["check_name"] for result in results if result["status"] != "passed"} - {
        "check_array_api_input"
    }
    assert others <= ({*FLOAT32} if kind is not EmbedderOfNumbers else set())
    assert len(results) > 35


# The guide


def test_the_code_of_the_guide_runs(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert len(blocks) > 3
    names: dict[str, Any] = {}
    for block in blocks:
        for words, faster in (
            ("n_jobs=2", "n_jobs=1"),
            ("cv=3", "cv=2"),
            ("[32, 64]", "[32]"),
            ('"full"', '"frozen"'),
        ):
            block = block.replace(words, faster)
        exec(block.replace('"minilm"', repr(str(model))), names)


def test_the_guide_names_every_check_that_fails() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    named = set(re.findall(r"\bcheck_\w+", text)) - {"check_estimator", "check_array_api_input"}
    assert named == {name for names in (WITH_NUMBERS, *WITH_NUMBERS_OF.values()) for name in names}
