"""An export for programs that look for onnx/model.onnx: transformers.js, optimum,
sentence-transformers."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import bertworks as bw
from bertworks.checkpoints.storage import read_json
from tests.interop.test_export import write_encoder, write_head
from tests.scenarios.test_encoder_folders import write_folder
from tests.support import ROOT

TEXTS = ["What a film!", "It was long and loud."]
GUIDE = ROOT / "docs/guides/export-onnx.md"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_head(tmp_path_factory.mktemp("classifier") / "model", "classification")


def test_both_places_open_and_hold_the_same_file(classifier: Path, tmp_path: Path) -> None:
    list(bw.export(classifier, tmp_path / "top"))
    events = list(bw.export(classifier, tmp_path / "below", subfolder=True))
    top, below = tmp_path / "top/model.onnx", tmp_path / "below/onnx/model.onnx"
    assert top.read_bytes() == below.read_bytes()
    assert not (tmp_path / "below/model.onnx").exists()
    assert not (tmp_path / "top/onnx").exists()
    assert str(below) in events[-1].text
    assert events[-1].fields["bytes"] == below.stat().st_size
    assert "`onnx/model.onnx` is a BERT" in (tmp_path / "below/README.md").read_text(
        encoding="utf-8"
    )
    expected = bw.Predictor(tmp_path / "top", device="cpu").predict(TEXTS)
    assert bw.Predictor(tmp_path / "below", device="cpu").predict(TEXTS) == expected
    # beside the subfolder, not in it
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        assert (tmp_path / "below" / name).read_bytes() == (tmp_path / "top" / name).read_bytes()


def test_a_finished_export_is_recognised_in_its_place_only(
    classifier: Path, tmp_path: Path
) -> None:
    list(bw.export(classifier, tmp_path / "out", subfolder=True))
    assert "complete" in next(iter(bw.export(classifier, tmp_path / "out", subfolder=True))).text
    with pytest.raises(bw.UsageError, match="not empty"):
        list(bw.export(classifier, tmp_path / "out"))
    list(bw.export(classifier, tmp_path / "top"))
    # as in exports of earlier versions
    assert "place" not in read_json(tmp_path / "top/export.json")["request"]


def test_eight_bits_and_an_encoder(tmp_path: Path) -> None:
    encoder = write_encoder(tmp_path / "model")
    list(bw.export(encoder, tmp_path / "out", subfolder=True, int8=True))
    assert [path.name for path in (tmp_path / "out/onnx").iterdir()] == ["model.onnx"]
    exact, rounded = (
        bw.embed(folder, TEXTS, device="cpu") for folder in (encoder, tmp_path / "out")
    )
    assert float(np.sum(exact * rounded, axis=1).min()) > 0.9 * float(
        np.sum(exact * exact, axis=1).min()
    )


@pytest.mark.parametrize("reads", ["the first token", "the mean"])
def test_transformers_js_says_the_same(reads: str, classifier: Path, tmp_path: Path) -> None:
    """The example of the guide, in node. BERTWORKS_TRANSFORMERS_JS: see CONTRIBUTING.md."""
    packages = Path(os.environ.get("BERTWORKS_TRANSFORMERS_JS", "/nowhere")) / "node_modules"
    node = shutil.which("node")
    if node is None or not (packages / "@huggingface/transformers").exists():
        pytest.skip(
            "BERTWORKS_TRANSFORMERS_JS names no folder with the npm package, or there is no node"
        )
    if reads == "the mean":
        classifier = write_folder(tmp_path / "model", classifier)
    list(bw.export(classifier, tmp_path / "models/reviews", subfolder=True))
    (script,) = re.findall(r"```js\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "example.mjs").write_text(script, encoding="utf-8")
    (tmp_path / "node_modules").symlink_to(packages)
    command = [node, "example.mjs"]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    answers = json.loads(result.stdout.splitlines()[-1])
    expected = bw.Predictor(classifier, device="cpu", precision="fp32").predict(TEXTS)
    assert [answer["label"] for answer in answers] == [answer["label"] for answer in expected]
    scores = [answer["score"] for answer in expected]
    np.testing.assert_allclose([answer["score"] for answer in answers], scores, atol=1e-5)
