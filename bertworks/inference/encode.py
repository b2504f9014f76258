"""Provide the method `encode` as other programs expect it of a model.

Some look for the methods of sentence-transformers; mteb has its `EncoderProtocol`.

- `texts_to_encode`: a list of texts, or the batches of a DataLoader, as texts
- `selected_prompt`: the prompt before the texts
- `similarity_matrix`, `pairwise_similarity`: how similar vectors are, by the measure of the model
- `mteb_model_meta`: the description of a model for mteb
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from bertworks.checkpoints.sentence_transformers import SentenceTransformerSettings
from bertworks.errors import expect, optional_import
from bertworks.io.tables import texts_of

DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # names of the prompt before documents
_PROMPTS_OF_TYPE = {"query": ("query",), "document": DOCUMENT_PROMPTS}
_DISTANCE_ORDERS = {"manhattan": 1.0, "euclidean": 2.0}  # the norms of differences


def texts_to_encode(inputs: Any) -> list[str]:
    """Return the texts in the first argument of `encode`.

    Args:
        inputs: a list, a column or a table of texts (see `texts_of`); or the batches of a
            DataLoader, of which each is a dict with a list of texts named "text". Other entries of
            a batch, such as ids, are not read.

    Raises:
        UsageError: a batch without a list of texts, or a value that is no text.
    """
    is_stream = (
        isinstance(inputs, Iterable)
        and not isinstance(inputs, Set)
        and not hasattr(inputs, "__getitem__")
    )
    if is_stream:  # a generator, or a DataLoader
        inputs = list(inputs)
    has_batches = isinstance(inputs, list | tuple) and len(inputs) > 0 and _is_batch(inputs[0])
    if not has_batches:
        return list(texts_of(inputs, "give a list of strings, or one string"))
    texts: list[Any] = []
    for number, batch in enumerate(inputs, 1):
        expect(
            _is_batch(batch),
            f"batch {number} is {batch!r:.60}: expected a dict with a list of texts named 'text'",
            hint="pass texts: other inputs have no vectors here",
        )
        texts.extend(batch["text"])
    return list(texts_of(texts, "give a list of strings, or one string"))


def _is_batch(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("text"), list | tuple)


def selected_prompt(
    settings: SentenceTransformerSettings,
    *,
    prompt: str | None,
    prompt_name: str | None,
    task_metadata: Any,
    prompt_type: str | None,
) -> str:
    """Return the prompt before the texts, selected as sentence-transformers and mteb select it.

    The first of these that is given decides: `prompt`, `prompt_name`, the task and the type of the
    texts. For a task, the first name decides that the model has: NAME-TYPE, NAME, KIND-TYPE, KIND,
    where NAME is the name of the task and KIND its kind, such as Retrieval. Then come the names of
    the type: query; or document, passage and corpus. Texts with a type never get the default prompt
    of the model; other texts get it if nothing else is selected.

    Args:
        prompt: the prompt itself.
        prompt_name: the name of a prompt of the model. "query" and "document" are known for each
            model, and are empty for one that has no such prompt.
        task_metadata: a task of mteb, with attributes `name` and `type`; None: no task.
        prompt_type: "query" or "document"; None: neither.

    Raises:
        UsageError: the model has no prompt with this name; or there is no such type.
    """
    kind_of_text = None if prompt_type is None else str(getattr(prompt_type, "value", prompt_type))
    types = " and ".join(_PROMPTS_OF_TYPE)
    is_known_type = kind_of_text is None or kind_of_text in _PROMPTS_OF_TYPE
    expect(
        is_known_type, f"there is no prompt_type {kind_of_text!r}", hint=f"the types are {types}"
    )
    if prompt is not None:
        return prompt
    if prompt_name is not None:
        names = [
            *settings.prompts,
            *(name for name in _PROMPTS_OF_TYPE if name not in settings.prompts),
        ]
        what = f"the model has no prompt named {prompt_name!r}"
        expect(prompt_name in names, what, hint=f"the names are {', '.join(names)}")
        return settings.prompt(prompt_name)
    candidates: list[str] = []
    if task_metadata is not None:
        for name in (task_metadata.name, task_metadata.type):
            if kind_of_text is not None:
                candidates.append(f"{name}-{kind_of_text}")
            candidates.append(name)
    if kind_of_text is not None:
        candidates.extend(_PROMPTS_OF_TYPE[kind_of_text])
        return settings.prompt(*candidates)
    known = [name for name in candidates if name in settings.prompts]
    return settings.prompt(*known)  # without names, the default prompt


def similarity_matrix(measure: str, vectors_1: Any, vectors_2: Any) -> Tensor:
    """Return how similar each of M vectors is to each of N, float32 [M, N]: more is more similar.

    Args:
        measure: cosine, dot, euclidean or manhattan. The last two are distances, and their
            similarity is the negative distance.
        vectors_1: [M, dimension], or one vector [dimension].
        vectors_2: [N, dimension], or one vector [dimension].
    """
    first = torch.atleast_2d(_tensor(vectors_1))
    second = torch.atleast_2d(_tensor(vectors_2))
    if measure in _DISTANCE_ORDERS:
        distances: Tensor = torch.cdist(first, second, p=_DISTANCE_ORDERS[measure])
        return -distances
    if measure == "cosine":
        first = normalize(first, dim=-1)
        second = normalize(second, dim=-1)
    product: Tensor = first @ second.T
    return product


def pairwise_similarity(measure: str, vectors_1: Any, vectors_2: Any) -> Tensor:
    """Return how similar each of N vectors is to the vector with the same number, float32 [N].

    Args:
        measure: see `similarity_matrix`.
        vectors_1: [N, dimension].
        vectors_2: [N, dimension].
    """
    first = _tensor(vectors_1)
    second = _tensor(vectors_2)
    if measure in _DISTANCE_ORDERS:
        distances: Tensor = torch.linalg.vector_norm(
            first - second, ord=_DISTANCE_ORDERS[measure], dim=-1
        )
        return -distances
    if measure == "cosine":
        first = normalize(first, dim=-1)
        second = normalize(second, dim=-1)
    products: Tensor = first * second
    return products.sum(-1)


def _tensor(vectors: Any) -> Tensor:
    """Return vectors as a tensor: of a tensor, an array, or a list of either."""
    if isinstance(vectors, Tensor):
        return vectors.float()
    if isinstance(vectors, list | tuple) and vectors and isinstance(vectors[0], Tensor):
        return torch.stack(list(vectors)).float()
    return torch.from_numpy(np.array(vectors, np.float32))


def mteb_model_meta(
    name: str, settings: SentenceTransformerSettings, dimension: int, fingerprint: Mapping[str, Any]
) -> Any:
    """Return the `ModelMeta` of a model for mteb.

    It keeps results of earlier evaluations by name and revision.

    Args:
        name: the name of the model, without an organization.
        fingerprint: everything that the vectors depend on, except the texts: its hash is the
            revision, so that mteb never takes the results of other vectors for those of this model.

    Raises:
        BertworksError: mteb is not installed.
    """
    with optional_import("mteb_model_meta", "mteb"):
        from mteb.models.model_meta import ModelMeta, ScoringFunction
    content = json.dumps(fingerprint, sort_keys=True)
    fields = {
        "name": f"bertworks/{name}",
        "revision": hashlib.sha256(content.encode()).hexdigest()[:40],
        "max_tokens": settings.max_length,
        "embed_dim": dimension,
        "similarity_fn_name": ScoringFunction(settings.similarity),
        "use_instructions": any(settings.prompts.values()),
        "framework": ["PyTorch"],
    }
    return ModelMeta.create_empty(overwrites=fields)
