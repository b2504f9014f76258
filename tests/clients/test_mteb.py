"""mteb evaluates objects of bertworks on local data, with the figures that it has for
sentence-transformers.

Nothing is downloaded: the tasks make their data, and the models are in local folders.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported

import re
import sys
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTaskClassification, AbsTaskRetrieval, AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import CrossEncoderProtocol, EncoderProtocol, SearchProtocol
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
from mteb.types import PromptType
from sentence_transformers import SentenceTransformer
from torch.utils.data import DataLoader

import bertworks as bw
from bertworks.checkpoints.sentence_transformers import SentenceTransformerSettings

sys.path.insert(0, str(Path(__file__).parents[2]))  # tests.support

from tests.support.fine import write_model
from tests.support.served import write_head

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "embed.md"
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
    "STS": "Oslo ",
    "STS12": "dogs ",
    "SciFact-document": "a town ",
}


def description(name: str, kind: str, score: str) -> TaskMetadata:
    """Return the metadata of a task whose data are made here."""
    return TaskMetadata(
        name=name,
        description="Local data",
        type=kind,
        dataset={"path": "local/data", "revision": "1"},
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score=score,
        reference=None,
        date=None,
        domains=[],
        task_subtypes=[],
        license="mit",
        annotations_creators=None,
        dialect=[],
        sample_creation=None,
        bibtex_citation="",
    )


class LocalSTS(AbsTaskSTS):
    """Pairs of texts with scores."""

    metadata = description("LocalSTS", "STS", "cosine_spearman")
    min_score = 0
    max_score = 5

    def load_data(self, num_proc: int | None = None, **options: Any) -> None:
        """Make the pairs."""
        pairs = list(combinations(TEXTS, 2))
        scores = [n * 7 % 10 / 2 for n in range(len(pairs))]
        first, second = zip(*pairs, strict=True)
        rows = Dataset.from_dict({"sentence1": first, "sentence2": second, "score": scores})
        self.dataset = DatasetDict({"test": rows})
        self.data_loaded = True


class LocalClassification(AbsTaskClassification):
    """Texts with labels."""

    metadata = description("LocalClassification", "Classification", "accuracy")
    n_experiments = 2
    samples_per_label = 8

    def load_data(self, num_proc: int | None = None, **options: Any) -> None:
        """Make the texts."""
        texts = [f"{text} {text[:n]}" for n in range(8) for text in TEXTS]
        rows = Dataset.from_dict({"text": texts, "label": [n % 2 for n in range(len(texts))]})
        self.dataset = DatasetDict({"train": rows, "test": rows})
        self.data_loaded = True


class LocalRetrieval(AbsTaskRetrieval):
    """Queries and documents."""

    metadata = description("LocalRetrieval", "Retrieval", "ndcg_at_10")

    def load_data(self, num_proc: int | None = None, **options: Any) -> None:
        """Make queries, of which each has one document."""
        documents = [
            {"id": f"d{n}", "title": text.split()[0], "text": text} for n, text in enumerate(TEXTS)
        ]
        queries = [{"id": f"q{n}", "text": text.split()[-1]} for n, text in enumerate(TEXTS)]
        data = {
            "corpus": Dataset.from_list(documents),
            "queries": Dataset.from_list(queries),
            "relevant_docs": {f"q{n}": {f"d{n}": 1} for n in range(len(TEXTS))},
            "top_ranked": None,
        }
        self.dataset = {"default": {"test": data}}
        self.data_loaded = True


TASKS = (LocalSTS, LocalClassification, LocalRetrieval)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder with prompts."""
    folder = write_model(tmp_path_factory.mktemp("models") / "prompted")
    SentenceTransformerSettings(prompts=PROMPTS, default_prompt="document").save(folder, 32)
    return folder


def scores(model: Any, task: type) -> Mapping[str, Any]:
    """Return the figures of a task."""
    result = mteb.evaluate(model, task(), cache=None, show_progress_bar=False)
    (figures,) = result.task_results[0].scores["test"]
    return figures


@pytest.mark.parametrize("task", TASKS)
def test_the_figures_are_those_of_sentence_transformers(task: type, folder: Path):
    expected = scores(SentenceTransformer(str(folder), device="cpu"), task)
    assert 0 < abs(expected["main_score"]) < 1
    for model in (bw.Embedder(folder, precision="fp32"), bw.load(folder, precision="fp32")):
        found = scores(model, task)
        assert found["main_score"] == pytest.approx(expected["main_score"], abs=1e-4)


@pytest.mark.parametrize(
    "task", ["STS12", "STS13", "SciFact", "NFCorpus", "Banking77Classification"]
)
@pytest.mark.parametrize("prompt_type", [None, PromptType.query, PromptType.document])
def test_the_prompts_are_those_of_sentence_transformers(
    task: str, prompt_type: PromptType | None, folder: Path
):
    theirs = SentenceTransformerEncoderWrapper(SentenceTransformer(str(folder), device="cpu"))
    ours = bw.Embedder(folder, precision="fp32")
    metadata = mteb.get_task(task).metadata
    arguments = {
        "task_metadata": metadata,
        "hf_split": "test",
        "hf_subset": "default",
        "prompt_type": prompt_type,
    }
    batches = DataLoader(Dataset.from_dict({"text": TEXTS}), batch_size=2)
    np.testing.assert_allclose(
        ours.encode(batches, **arguments, batch_size=2),
        theirs.encode(batches, **arguments),
        atol=1e-5,
    )


def test_protocols(folder: Path):
    for model in (bw.Embedder(folder), bw.load(folder)):
        assert isinstance(model, EncoderProtocol)
        assert not isinstance(model, CrossEncoderProtocol | SearchProtocol)


def test_a_fine_tuned_model(tmp_path: Path):
    folder = write_head(
        tmp_path / "classes", task="classification", labels=("neg", "pos"), text=("text",)
    )
    assert isinstance(bw.load(folder), EncoderProtocol)
    with pytest.raises(TypeError, match="CrossEncoder"):
        scores(bw.load(folder), LocalSTS)
    assert -1 < scores(bw.Embedder(folder), LocalSTS)["main_score"] < 1


def test_the_description_of_a_model(folder: Path, tmp_path: Path):
    meta = bw.Embedder(folder, precision="fp32").mteb_model_meta
    assert (meta.name, meta.embed_dim, meta.max_tokens) == ("bertworks/prompted", 32, 64)
    assert meta.similarity_fn_name == "cosine"
    assert meta.use_instructions is True
    assert bw.load(folder, precision="fp32").mteb_model_meta.revision == meta.revision
    others = [
        bw.Embedder(folder, precision="fp32", pooling="cls"),
        bw.Embedder(folder, precision="fp32", normalize=True),
        bw.Embedder(folder, precision="fp32", max_length=9),
        bw.Embedder(folder, precision="bf16"),
        bw.Embedder(write_model(tmp_path / "prompted"), precision="fp32"),
    ]
    revisions = {meta.revision, *(other.mteb_model_meta.revision for other in others)}
    assert len(revisions) == 6, "mteb would take the results of one for those of another"


def test_results_are_kept_by_revision(folder: Path, tmp_path: Path):
    cache = mteb.ResultCache(cache_path=tmp_path)
    figures = []
    for pooling in ("mean", "cls", "mean"):
        model = bw.Embedder(folder, pooling=pooling, precision="fp32")
        result = mteb.evaluate(model, LocalSTS(), cache=cache, show_progress_bar=False)
        figures.append(result.task_results[0].get_score())
    assert figures[2] == pytest.approx(figures[0], abs=1e-6), "mteb stores six digits"
    assert abs(figures[1] - figures[0]) > 0.001


def test_the_code_of_the_guide(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    blocks = re.findall(
        r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    (block,) = [block for block in blocks if "import mteb" in block]
    monkeypatch.setenv("MTEB_CACHE", str(tmp_path))
    monkeypatch.setattr(mteb, "get_tasks", lambda names: [LocalSTS()])
    names: dict[str, Any] = {"bertworks": bw}
    exec(block.replace('"minilm"', repr(str(folder))), names)
    assert names["results"].task_results[0].task_name == "LocalSTS"
