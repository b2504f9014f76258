"""The largest requests that a server permits, for every endpoint, and small ones.

A new endpoint needs an entry in `HEAVY` and in `SMALL`: the tests that drive all routes fail
without it.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any

from bertworks.serve.batching import Limits
from bertworks.serve.openapi import INVOCATIONS, INVOKED

Info = Mapping[str, Any]
Body = dict[str, Any]
ROOM = 200  # bytes of a body for names and settings


def words(size: int, seed: int = 0) -> str:
    """A text of `size` characters, of different short words."""
    draw = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return " ".join("".join(draw.choices(letters, k=3)) for _ in range(size // 4 + 1))[:size]


def letters(count: int) -> str:
    """A text of `count` words of one letter."""
    return " ".join("abcdefghij"[n % 10] for n in range(count))


def texts(limits: Limits) -> dict[str, Any]:
    """Texts that fill a body: a single one, many short ones, and many that have as many tokens as
    are permitted."""
    room = limits.body_bytes - ROOM
    each = max(1, min(room // limits.texts - 4, 2 * limits.tokens // limits.texts - 8))
    return {
        "a long text": words(room),
        "a long word": "x" * room,
        "control characters": "\x01" * (room // 6),
        "many texts": [letters(max(1, each // 2)) for _ in range(limits.texts)],
        "many words": [words(max(1, each), seed) for seed in range(limits.texts)],
        "many long texts": [words(room // limits.texts - 12)] * limits.texts,
    }


def masks(info: Info, limits: Limits) -> dict[str, Any]:
    """Texts with masks. A mask costs about as much as 10 tokens."""
    mask = info["mask_token"]
    room = limits.body_bytes - ROOM
    longest = info["max_input_length"]
    in_text = min(longest - 2, limits.tokens // 10)
    return {
        "masks in one window": " ".join([mask] * in_text),
        "masks in many windows": " ".join([mask] * min(room // 8, limits.tokens // (longest + 10))),
        "a mask in a long text": f"{mask} {letters(min(limits.tokens // 2, room // 2) - 20)}",
        "a mask in a text of two bytes a token": f"{letters(room // 2 - 20)} {mask}",
        "many texts with a mask": [f"{mask} {letters(8)}"] * min(limits.texts, limits.tokens // 20),
        "a mask in many long texts": [f"{mask} {letters(longest - 4)}"]
        * (limits.tokens // (longest + 8)),
    }


def _named(name: str, values: Mapping[str, Any], **settings: Any) -> dict[str, Body]:
    return {what: {name: value, **settings} for what, value in values.items()}


def _similarity(info: Info, limits: Limits) -> dict[str, Body]:
    lists = {
        what: value if isinstance(value, list) else [value] for what, value in texts(limits).items()
    }
    return {
        what: {"inputs": {"source_sentence": "a", "sentences": value}}
        for what, value in lists.items()
    }


def _fill(info: Info, limits: Limits) -> dict[str, Body]:
    return {
        f"{what}, {top_k} tokens": {"inputs": inputs, "top_k": top_k, "return_text": True}
        for what, inputs in masks(info, limits).items()
        for top_k in (5, limits.k)
    }


def _predict(info: Info, limits: Limits) -> dict[str, Body]:
    bodies = {}
    for what, value in texts(limits).items():
        items = value if isinstance(value, list) else [value]
        if info["reads"] == "choices":
            choices = (info.get("choices") or 3) * ["a"]
            inputs: Any = [[item, *choices] for item in items[: len(items) // 2 + 1]]
        elif info["reads"] == "pair":
            inputs = [[item, "a"] for item in items[: len(items) // 2 + 1]]
        else:
            inputs = [[item] for item in items]
        bodies[what] = {"inputs": inputs}
    return bodies


def _translate(info: Info, limits: Limits) -> dict[str, Body]:
    bodies = {
        what: {"texts": value if isinstance(value, list) else [value], "cut": True}
        for what, value in texts(limits).items()
    }
    longest = info["max_input_length"]
    bodies["as many tokens as are permitted"] = {
        "texts": [letters(longest // 4)] * min(limits.texts, limits.tokens // longest),
        "no_repeat_ngram": 3,
    }
    bodies["as many hypotheses as are permitted"] = {
        "texts": ["a"] * min(limits.texts, limits.tokens // (longest * info["largest_beam"])),
        "beam": info["largest_beam"],
        "max_tokens": longest,
    }
    return bodies


def _rerank(info: Info, limits: Limits) -> dict[str, Body]:
    lists = {
        what: value if isinstance(value, list) else [value] for what, value in texts(limits).items()
    }
    bodies = {
        what: {"query": "a", "texts": value, "return_text": True} for what, value in lists.items()
    }
    half = (limits.body_bytes - ROOM) // 2
    bodies["a long query"] = {"query": words(half), "texts": ["a"] * min(limits.texts, half // 8)}
    bodies["a query in the lane of small bodies"] = {"query": words(8000), "texts": ["a"] * 1000}
    return bodies


def _qa(info: Info, limits: Limits) -> dict[str, Body]:
    bodies: dict[str, Body] = {}
    for what, value in texts(limits).items():
        contexts = value if isinstance(value, list) else [value]
        inputs = [
            {"question": "who ?", "context": context}
            for context in contexts[: len(contexts) // 3 + 1]
        ]
        bodies[what] = {"inputs": inputs, "top_k": limits.k}
    as_many_tokens = letters(limits.tokens // 2)
    bodies["as many tokens as are permitted"] = {
        "inputs": {"question": "who ?", "context": as_many_tokens}
    }
    return bodies


def _search(info: Info, limits: Limits) -> dict[str, Body]:
    length = limits.query_characters
    queries = {
        "words": words(length),
        "letters": letters(length // 2),
        "no spaces": "山東京都日本語" * (length // 7),
    }
    queries["longer than permitted"] = words(limits.body_bytes - ROOM)
    bodies = {}
    for what, query in queries.items():
        for ranking in ("hybrid", "bm25"):
            settings = {
                "k": limits.k,
                "matches": True,
                "ranking": ranking,
                "rerank": info["index"]["rerank"],
            }
            bodies[f"{what}, {ranking}"] = {"query": query, **settings}
    return bodies


def _explain(info: Info, limits: Limits) -> dict[str, Body]:
    count = min(limits.explained_tokens, info["max_input_length"]) - 8
    text: Any = letters(count)
    if info["reads"] == "choices":
        text = [letters(count // 4), *["a"] * 3]
    elif info["reads"] in ("pair", "question"):
        text = [letters(count // 2), letters(count // 2)]
    elif info["task"] == "masked-lm":
        text = f"{info['mask_token']} {letters(count - 1)}"
    bodies: dict[str, Body] = {"as many tokens as are permitted": {"inputs": text, "maps": True}}
    if isinstance(text, str):
        bodies["more tokens than are permitted"] = {
            "inputs": f"{text} {letters((limits.body_bytes - ROOM) // 2 - 200)}"
        }
    return bodies


def _tokenize(info: Info, limits: Limits) -> dict[str, Body]:
    bodies = _named("inputs", texts(limits))
    bodies["as many tokens as are permitted"] = {
        "inputs": letters(min(limits.tokens, limits.body_bytes // 2) - 200)
    }
    # in a vocabulary in which a letter and the space before it are two tokens
    bodies["a quarter as many words"] = {
        "inputs": letters(min(limits.tokens, limits.body_bytes // 2) // 4)
    }
    return bodies


def _decode(info: Info, limits: Limits) -> dict[str, Body]:
    most, last = limits.tokens, info["vocabulary"] - 1
    lists = {
        "one list": [last] * most,
        "many lists": [[last] * (most // limits.texts)] * limits.texts,
        "more than permitted": [[0] * (limits.body_bytes // 4 // limits.texts)] * limits.texts,
    }
    return _named("ids", lists, skip_special_tokens=False)


def _invocations(info: Info, limits: Limits) -> dict[str, Body]:
    """Every request that the main path takes."""
    return {
        f"{name}, {what}": body
        for name in INVOKED
        if name in info["abilities"]
        for what, body in HEAVY[name](info, limits).items()
    }


HEAVY: Mapping[str, Callable[[Info, Limits], dict[str, Body]]] = {
    "embed": lambda info, limits: _named("inputs", texts(limits)),
    "embed_all": lambda info, limits: _named("inputs", texts(limits)),
    "similarity": _similarity,
    "embeddings": lambda info, limits: _named("input", texts(limits)),
    "fill": _fill,
    "predict": _predict,
    "translate": _translate,
    "rerank": _rerank,
    "ner": lambda info, limits: _named("inputs", texts(limits)),
    "qa": _qa,
    "search": _search,
    "explain": _explain,
    "tokenize": _tokenize,
    "decode": _decode,
    INVOCATIONS: _invocations,
}


def small(name: str, info: Info) -> Body:
    """A small request to an endpoint."""
    item: Any = {
        "pair": ["a film", "a story"],
        "choices": ["a", "b", "c", "d"],
        "question": ["who ?", "Anna lives"],
    }
    item = item.get(
        info["reads"],
        f"a {info['mask_token']} film" if info["task"] == "masked-lm" else "a good film",
    )
    if name == INVOCATIONS and "translate" in info["abilities"]:
        name = "translate"
    return SMALL[name](item)


SMALL: Mapping[str, Callable[[Any], Body]] = {
    "embed": lambda item: {"inputs": "a good film"},
    "embed_all": lambda item: {"inputs": "a good film"},
    "similarity": lambda item: {
        "inputs": {"source_sentence": "a film", "sentences": ["a story", "men and dogs"]}
    },
    "embeddings": lambda item: {"input": ["a good film"], "encoding_format": "base64"},
    "fill": lambda item: {"inputs": item},
    "predict": lambda item: {"inputs": item},
    "translate": lambda item: {"texts": ["a good film"], "max_tokens": 3},
    "rerank": lambda item: {"query": "a film", "texts": ["a story", "men and dogs"]},
    "ner": lambda item: {"inputs": "Anna lives in Oslo"},
    "qa": lambda item: {"inputs": {"question": "who ?", "context": "Anna lives in Oslo"}},
    "search": lambda item: {"query": "good film", "k": 3, "matches": True},
    "explain": lambda item: {"inputs": item},
    "tokenize": lambda item: {"inputs": "a good film"},
    "decode": lambda item: {"ids": [1, 2, 3]},
    INVOCATIONS: lambda item: SMALL["qa" if item[0] == "who ?" else "predict"](item),
}
