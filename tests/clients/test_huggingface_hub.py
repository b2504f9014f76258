"""InferenceClient of huggingface_hub, with the address of a server in place of a model."""

from collections.abc import Mapping

from huggingface_hub import InferenceClient


def test_vectors_of_the_embedding_path(servers: Mapping[str, str]):
    assert InferenceClient(f"{servers['masked']}/embed").feature_extraction("good film").shape == (1, 32)
