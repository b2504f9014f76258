"""Networks over the weights of a folder: precisions, threads, and files that change."""

import copy
import multiprocessing
import pickle
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import bertworks as bw
from bertworks.checkpoints.model_folder import load_model, save_model
from bertworks.checkpoints.resolve import packaged_minilm
from bertworks.errors import BertworksError
from bertworks.inference import engine
from bertworks.inference.causal_lm import TextGenerator
from bertworks.inference.engine import LazyModel, OnnxModel
from bertworks.inference.masked_lm import Filler
from bertworks.models.layout import Layout
from bertworks.retrieval.ranking import Reranker
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.registry import task_of
from bertworks.training.objectives import PretrainingModel
from bertworks.training.recipe import load_recipe
from tests.interop.test_export import classifier as classifier, exported as exported
from tests.interop.test_load import folders as folders
from tests.support.fine import BAD, GOOD, write_model, write_reviews
from tests.support.gpt import write_gpt2
from tests.support.refusals import refusal
from tests.support.served import VOCABULARY, write_head

TEXTS = ["good men and dogs", "a story of music", "bad town", "the film was lovely"]
MAX_BYTES = 10_000


@pytest.fixture(autouse=True)
def new_process() -> None:
    """Forget the objects that this process has opened out of pickles: a worker begins without
    them."""
    engine._opened_object.cache_clear()
    engine.reopened_model.cache_clear()


def copied(value: Any) -> Any:
    """The object as another process gets it."""
    content = pickle.dumps(value)
    assert len(content) < MAX_BYTES
    return pickle.loads(content)


def index_of(folder: Path, model: Path) -> bw.Index:
    index = bw.Index.create(folder, model)
    index.add(TEXTS * 50, ids=[str(number) for number in range(4 * 50)])
    return index


def vectors(model: Path, **options: Any) -> bw.Embedder:
    return bw.Embedder(model, device="cpu", **options)


@pytest.mark.parametrize(
    ("options", "differs"),
    [
        ({}, False),
        ({"pooling": "cls"}, True),
        ({"normalize": True}, True),
        ({"max_length": 4}, True),
        ({"precision": "fp32", "pooling": "last-four"}, True),
    ],
)
def test_an_embedder_with_its_settings(model: Path, options: dict[str, Any], differs: bool) -> None:
    embedder = vectors(model, **options)
    other = copied(embedder)
    assert other.settings == embedder.settings
    assert other.fingerprint == embedder.fingerprint
    assert other.precision == embedder.precision
    np.testing.assert_array_equal(other.embed(TEXTS), embedder.embed(TEXTS))
    assert (np.abs(other.embed(TEXTS) - vectors(model).embed(TEXTS)).max() > 1e-3) == differs


def test_a_predictor_with_its_settings(tmp_path: Path) -> None:
    labels = tuple(f"a label with a long name, number {number}" for number in range(400))
    folder = write_head(tmp_path / "m", task="multilabel", text=("text",), labels=labels)
    predictor = bw.Predictor(folder, device="cpu", threshold=0.7, max_length=8)
    other = copied(predictor)
    assert (other.description.threshold, other.description.max_length) == (0.7, 8)
    assert other.predict(TEXTS) == predictor.predict(TEXTS)
    assert other.predict(TEXTS) != bw.Predictor(folder, device="cpu", max_length=8).predict(TEXTS)
    np.testing.assert_array_equal(other.predict_proba(TEXTS), predictor.predict_proba(TEXTS))
    assert other.network is not predictor.network
    assert len(pickle.dumps(other)) < MAX_BYTES, (
        "the network that was looked at is part of the pickle"
    )


def test_every_object_that_holds_a_model(model: Path, tmp_path: Path) -> None:
    pairs = write_head(
        tmp_path / "pairs", task="classification", text=("query", "text"), labels=("no", "yes")
    )
    write_gpt2(tmp_path / "gpt")
    uses: list[tuple[Any, Callable[[Any], Any]]] = [
        (bw.load(model, device="cpu"), lambda loaded: loaded.embed(TEXTS).tolist()),
        (bw.load(model, device="cpu"), lambda loaded: loaded.fill(["a [MASK] film"])),
        (
            bw.load(pairs, device="cpu"),
            lambda loaded: loaded.predictor().predict([("a", "b")], probabilities=True),
        ),
        (bw.load(pairs, device="cpu"), lambda loaded: loaded.predict([("a", "b")])),
        (bw.load(model, device="cpu").encode, lambda encode: encode(TEXTS).tolist()),
        (Filler(model), lambda filler: filler("a [MASK] film")),
        (
            TextGenerator(tmp_path / "gpt", device="cpu"),
            lambda generator: list(generator(["a film"])),
        ),
        (Reranker(pairs, device="cpu"), lambda reranker: reranker("a film", TEXTS).tolist()),
        (index_of(tmp_path / "index", model), lambda index: index.search("good music", 3)),
        (index_of(tmp_path / "other", model), len),
        (
            bw.Predictor(pairs, device="cpu").in_fp32(),
            lambda predictor: predictor.predict([("a", "b")]),
        ),
        (vectors(model).embed, lambda embed: embed(TEXTS).tolist()),
    ]
    for value, use in uses:
        expected = use(value)
        assert use(copied(value)) == expected
        assert use(copied(copied(value))) == expected, "a pickle of an object that was not used"
        assert use(copy.copy(value)) == expected
        assert use(copy.deepcopy(value)) == expected


def test_every_public_class_is_considered() -> None:
    """A new public class that holds a model needs a test above."""
    classes = {name for name in bw.__all__ if isinstance(getattr(bw, name), type)}
    hold_a_model = {"Embedder", "FinetunedModel", "Index", "LoadedModel", "Predictor"}
    assert hold_a_model <= classes
    assert {
        name for name in classes if issubclass(getattr(bw, name), engine.Reopened)
    } == hold_a_model


def changed_weights(folder: Path) -> None:
    write_model(folder, hidden_size=64)


def changed_vocabulary(folder: Path) -> None:
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"good"', '"goof"'))


def changed_config(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(file.read_text().replace('"gelu"', '"relu"'))


def changed_pooling(folder: Path) -> None:
    file = folder / "1_Pooling" / "config.json"
    text = file.read_text()
    file.write_text(
        text.replace("true", "TRUE").replace("false", "true", 1).replace("TRUE", "false")
    )


@pytest.mark.parametrize(
    "change", [changed_weights, changed_vocabulary, changed_config, changed_pooling]
)
def test_a_changed_folder_is_an_error(
    model: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    folder = tmp_path / "m"
    vectors(model, pooling="mean").save(folder)
    embedder = vectors(folder)
    expected = embedder.embed(TEXTS)
    content = pickle.dumps(embedder)
    change(folder)
    other = pickle.loads(content)  # the error is raised where the object is used
    for _ in range(2):
        with pytest.raises(
            BertworksError, match="has changed since the object was pickled"
        ) as error:
            other.embed(TEXTS)
        assert str(folder) in str(error.value)
    np.testing.assert_array_equal(embedder.embed(TEXTS), expected)
    with pytest.raises(BertworksError, match="changed since it was opened"):
        pickle.dumps(embedder)


def test_a_card_may_change(model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "m"))
    embedder = vectors(folder)
    content = pickle.dumps(embedder)
    (folder / "README.md").write_text("another text\n")
    np.testing.assert_array_equal(pickle.loads(content).embed(TEXTS), embedder.embed(TEXTS))
    assert pickle.dumps(embedder) == content


def test_a_missing_folder_is_an_error(model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "m"))
    content = pickle.dumps(vectors(folder))
    shutil.rmtree(folder)
    with pytest.raises(BertworksError, match="is missing: the pickle holds its path") as error:
        pickle.loads(content).embed(TEXTS)
    assert (
        error.value.hint
        == "keep the folder as long as the pickle; a fine-tuned model is kept with output=FOLDER"
    )


def test_a_changed_index_is_an_error(model: Path, tmp_path: Path) -> None:
    index = index_of(tmp_path / "index", model)
    content = pickle.dumps(index)
    bw.Index(tmp_path / "index").add(["one more"])
    with pytest.raises(BertworksError, match="the index of an object in a pickle has changed"):
        pickle.loads(content).search("good")


def test_a_relative_path_means_the_same_folder_elsewhere(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(model, tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    bw.Index.create("index", "m").add(TEXTS)
    objects = [bw.Embedder("m", device="cpu"), bw.Index("index", model="m")]
    contents = [pickle.dumps(value) for value in objects]
    monkeypatch.chdir("/")
    embedder, index = map(pickle.loads, contents)
    assert embedder.embed(TEXTS).shape == (4, 32)
    assert len(index.search("good", 2)) == 2


def test_a_name_is_looked_up_on_a_machine_without_the_folder() -> None:
    folder = packaged_minilm()
    assert folder is not None
    reference = engine.LazyModel("minilm").reference
    assert (reference.folder, reference.name) == (str(folder), "minilm")
    assert engine.reopened_model(reference._replace(folder="/no/such/folder")).folder == folder


def test_a_language_is_kept(tmp_path: Path) -> None:
    """Of a model with several languages, the one that was chosen."""
    recipe = load_recipe("xlm-small", ("encoder.hidden_size=32", "encoder.num_attention_heads=2"))
    config = replace(
        recipe.encoder,
        vocab_size=VOCABULARY().vocab_size,
        type_vocab_size=2,
        languages=("en", "fr"),
        language="en",
    )
    save_model(
        tmp_path / "m",
        PretrainingModel(config, {"masked_lm": 1.0}).state_dict(),
        config,
        VOCABULARY(),
        card="tiny",
    )
    loaded = bw.load(tmp_path / "m", language="fr", device="cpu")
    assert copied(loaded).config.language == "fr"


def test_a_task_opens_the_model_once_per_process(model: Path) -> None:
    content = pickle.dumps(vectors(model))
    first, second = pickle.loads(content), pickle.loads(content)
    np.testing.assert_array_equal(first.embed(TEXTS), second.embed(TEXTS))
    assert first is not second
    assert first._network is second._network


def test_attributes_of_a_user_are_kept(model: Path) -> None:
    class Titled(bw.Embedder):
        def __init__(self, title: str):
            super().__init__(model, device="cpu")
            self.title = title

        def __reduce_ex__(self, protocol: int) -> Any:  # a local class has no name to be pickled by
            return copy._reconstruct, (
                object.__new__(Titled),
                None,
                object.__new__,
                (Titled,),
                self.__getstate__(),
            )

    embedder = Titled("a title")
    state = embedder.__getstate__()
    assert state.keys() == {"_closed", "title"}
    other = object.__new__(Titled)
    other.__setstate__(state)
    np.testing.assert_array_equal(other.embed(TEXTS), embedder.embed(TEXTS))
    assert other.title == "a title"
    assert other.__getstate__() == state


def test_unknown_attributes_are_errors(model: Path) -> None:
    other = copied(vectors(model))
    for value in (other, vectors(model)):
        with pytest.raises(
            AttributeError, match="'Embedder' object has no attribute 'no_such_name'"
        ):
            _ = value.no_such_name


def test_several_threads_open_an_object_once(model: Path) -> None:
    other = copied(vectors(model))
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(other.embed(TEXTS))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(np.array_equal(result, results[0]) for result in results)


def test_a_temporary_folder_lives_as_long_as_a_copy(model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "data.csv", 60)
    trained = bw.finetune(
        data, model=model, epochs=1, device="cpu", method="full", validation="split", text="text"
    )
    folder = Path(trained.folder)
    expected = trained.predict(TEXTS)
    assert copied(trained).predict(TEXTS) == expected
    other = copy.copy(trained)
    del trained
    assert folder.is_dir()
    assert other.predict(TEXTS) == expected


def test_a_spawned_process(model: Path) -> None:
    embedder = vectors(model)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (result,) = pool.map(embedder.embed, [TEXTS])
    np.testing.assert_allclose(result, embedder.embed(TEXTS), atol=1e-6)


@pytest.mark.slow
def test_a_changed_folder_does_not_stop_a_pool(model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "m"))
    embedder = vectors(folder)
    embed = pickle.loads(pickle.dumps(embedder.embed))
    shutil.rmtree(folder)
    with (
        multiprocessing.get_context("spawn").Pool(1) as pool,
        pytest.raises(BertworksError, match="is missing"),
    ):
        pool.map(embed, [TEXTS])


@pytest.mark.slow
def test_cross_validation_in_two_processes(model: Path) -> None:
    texts = [f"{word} {number}" for number in range(6) for word in (*GOOD, *BAD)]
    labels = [word in GOOD for _ in range(6) for word in (*GOOD, *BAD)]
    embedder = vectors(model)
    classifier = make_pipeline(FunctionTransformer(embedder.embed), LogisticRegression())
    scores = cross_val_score(classifier, texts, labels, cv=3, n_jobs=2, error_score="raise")
    np.testing.assert_allclose(scores, cross_val_score(classifier, texts, labels, cv=3))
    parts = joblib.Parallel(n_jobs=2)(joblib.delayed(embedder.embed)([text]) for text in TEXTS)
    np.testing.assert_allclose(np.concatenate(parts), embedder.embed(TEXTS), atol=1e-6)


def test_weights_are_read_from_disk_and_not_from_the_pickle(model: Path) -> None:
    content = pickle.dumps(bw.Embedder(model, device="cpu"))
    matrix = torch.from_numpy(vectors(model).embed(["good"]))
    assert matrix.numpy().tobytes()[:64] not in content
    assert b"bertworks" in content


def test_processes_do_not_measure_another_precision(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "best_precision", lambda _: "bf16")
    embedder = vectors(model)
    content = pickle.dumps(embedder)
    monkeypatch.setattr(engine, "best_precision", lambda _: "fp32")
    other = pickle.loads(content)
    assert (embedder.precision, other.precision) == ("bf16", "bf16")
    np.testing.assert_array_equal(other.embed(TEXTS), embedder.embed(TEXTS))


def test_matrices_lie_in_columns_and_are_the_files(folders: dict[str, Path]):
    state = LazyModel(folders["classifier"], "cpu").state
    for name, tensor in load_model(folders["classifier"]).state.items():
        assert torch.equal(state[name], tensor)
        rows = ".embeddings." in name or tensor.ndim == 1
        assert state[name].is_contiguous() is rows, name
        assert (state[name] if rows else state[name].t()).is_contiguous(), name


def test_an_open_model_does_not_change_with_its_file(model: Path, tmp_path: Path):
    shutil.copytree(model, tmp_path / "m")
    state, path = LazyModel(tmp_path / "m", "cpu").state, tmp_path / "m/model.safetensors"
    before = {name: value.clone() for name, value in state.items()}
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    for name, value in state.items():
        assert torch.equal(value, before[name]), name


def test_as_many_threads_as_torch(exported: Path):
    found = OnnxModel(exported / "model.onnx").session.get_session_options().intra_op_num_threads
    assert found == torch.get_num_threads()


def test_a_network_that_the_weights_do_not_fit_is_refused(folders: dict[str, Path]):
    source = LazyModel(folders["classifier"], "cpu")
    hint = "its task.json or config.json belongs to another model"
    with refusal("classifier.weight is [2, 32], but the task needs [3, 32]", hint):
        task = task_of(replace(source.task_config, labels=("a", "b", "c")))
        source.network(lambda config: TaskModel(config, task.head()))


def test_eight_bits_are_for_processors(monkeypatch: pytest.MonkeyPatch):
    with refusal("int8 is for CPUs", "leave --precision out: GPUs use bf16"):
        engine.precision_for(torch.nn.Linear(2, 2, device="meta"), "int8")
    with refusal("the precision 'fp8' is not known", "use auto, "):
        engine.precision_for(torch.nn.Linear(2, 2), "fp8")  # type: ignore[arg-type]


def test_an_exported_file_that_fails(exported: Path):
    network = OnnxModel(exported / "model.onnx")
    ids = torch.tensor([1 << 20])
    with refusal("onnxruntime fails", "its tokenizer or config.json belongs to another model"):
        network(ids, Layout.of([1]))
    network.width += 1
    with refusal("which the file does not declare", "export the model again"):
        network(torch.tensor([1]), Layout.of([1]))


def test_eight_bits_need_instructions_of_the_processor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bertworks.models.transformer.cpu_supports_int8", lambda: False)
    with refusal("this processor has no instructions for int8", "leave --precision out"):
        engine.precision_for(torch.nn.Linear(2, 2), "int8")
