"""Requests to the main path, `POST /` and `/invocations`: what they want from the model.

Text Embeddings Inference answers there what the model is for, and clients of Hugging Face's
pipelines send the requests of all tasks there, if their "model" is the address of a server. No
HTTP, no network.
"""

from collections.abc import Mapping
from typing import Any

INVOCATIONS = "invocations"
# The abilities that can be invoked. If a request does not say which it wants, the model answers
# with the first of those that it has.
INVOKED = ("predict", "ner", "qa", "embed", "fill", "rerank", "similarity")
# Settings that only requests for vectors have: with them, the mask token in a text is a part of the
# text.
_VECTOR_SETTINGS = ("normalize", "prompt_name", "truncate", "truncation_direction", "dimensions")


def invoked_ability(request: Any, info: Mapping[str, Any]) -> str:
    """Return the name of the ability that a request to the main path is for.

    The model may lack it.

    The fields of the request decide first, then what the model can do. A masked language model
    gives vectors, or fills masks if `parameters` has `targets` or if every text has the mask token.

    Args:
        request: a JSON value that is not checked yet.
        info: what the model offers, as in `GET /info`.
    """
    fields = request if isinstance(request, dict) else {}
    inputs = fields.get("inputs")
    items = inputs if isinstance(inputs, list) else [inputs]
    first = items[0] if items and isinstance(items[0], dict) else {}
    if "query" in fields and "texts" in fields:
        return "rerank"
    if "source_sentence" in first:
        return "similarity"
    if "question" in first:
        return "qa"
    default = next(name for name in INVOKED if name in info["abilities"])
    if (
        default == "embed"
        and "fill" in info["abilities"]
        and _has_masks(fields, items, info["mask_token"])
    ):
        return "fill"
    return default


def _has_masks(fields: Mapping[str, Any], texts: list[Any], mask: str) -> bool:
    """Return whether masks are to be filled in the texts of a request."""
    parameters = fields.get("parameters")
    if isinstance(parameters, dict) and parameters.get("targets") is not None:
        return True
    if any(fields.get(name) is not None for name in _VECTOR_SETTINGS):
        return False
    return all(isinstance(text, str) and mask in text for text in texts)
