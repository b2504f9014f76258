"""BERTopic finds topics with the vectors of bertworks, by the lines of the guide. Nothing is
downloaded."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bertopic import BERTopic

import bertworks as bw

sys.path.insert(0, str(Path(__file__).parents[2]))  # tests.support

from tests.support.fine import write_model

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "embed.md"
SUBJECTS = ("Anna lives in Oslo", "some music in this town", "sad dogs and good men")
TEXTS = [
    f"{subject} {word}"
    for subject in SUBJECTS
    for word in "the a film story good bad men heard last night".split()
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def names(folder: Path) -> dict[str, Any]:
    """Return the names that the code of the guide defines."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    (block,) = [block for block in blocks if "from bertopic" in block]
    names: dict[str, Any] = {"bertworks": bw}
    exec(block.replace('"minilm"', repr(str(folder))), names)
    return names


def test_topics(names: dict[str, Any]):
    topic_model = names["topic_model"]
    topic_model.min_topic_size = 5
    topic_model.hdbscan_model.min_cluster_size = 5
    topics, _ = topic_model.fit_transform(TEXTS)
    assert len(topics) == len(TEXTS)
    assert len(set(topics) - {-1}) >= 2
    vectors = topic_model._extract_embeddings(TEXTS, method="document")
    np.testing.assert_allclose(vectors, names["embedder"].encode(TEXTS), atol=2e-6)


def test_similar_topics(names: dict[str, Any]):
    numbers, similarities = names["topic_model"].find_topics("music", top_n=2)
    assert len(numbers) == len(similarities) == 2


def test_the_object_itself_is_not_taken(folder: Path):
    """The guide says so: BERTopic would take another model, which it cannot download here."""
    with pytest.raises(OSError, match=r"couldn.t connect|all-MiniLM-L6-v2"):
        BERTopic(embedding_model=bw.Embedder(folder)).fit(TEXTS)
