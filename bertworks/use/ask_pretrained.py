"""What a model that was not fine-tuned can be asked: vectors of texts, cosines, words for masks. The values are those
of Text Embeddings Inference and of OpenAI."""

import base64
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from bertworks.errors import BertworksError, UsageError
from bertworks.learn.whitening import normalized
from bertworks.use.embedder import Embedder
from bertworks.use.fill import Filler
from bertworks.use.question import Ask, Question, Request, Rows, prompt_of, refuse_cut, texts_of


class AskPretrained:
    """What a model that was not fine-tuned can be asked."""

    def __init__(self, folder: Path, name: str, device: str):
        self._name = name
        self._embedder = Embedder(folder, device=device)
        settings, self.tokenizer = self._embedder.settings, self._embedder.tokenizer
        self.asks: dict[str, Ask] = {"embed": self.embed, "similarity": self.similarity, "embeddings": self.embeddings}
        with suppress(BertworksError):  # it has no head for masks: the folder itself was read a moment ago
            self._filler = Filler(folder)
            self.asks["fill"] = self.fill
        self.info: dict[str, Any] = {
            "model_type": {"embedding": {"pooling": settings.pooling}},
            "max_input_length": settings.max_length,
            "task": "masked-lm" if "fill" in self.asks else "embedding",
            "labels": [],
            "reads": "text",
            "prompts": dict(settings.prompts),
            "dimension": self._embedder.dimension,
        }

    def _read(self, texts: list[str], request: Request) -> tuple[list[Any], list[int]]:
        """Units and how many tokens each has."""
        name = request.get("prompt_name")
        prompt = None if name is None else prompt_of(request, self._embedder.settings.prompts)
        units, cut = self._embedder.units(texts, prompt)
        refuse_cut(request, cut)
        return units, [len(unit[0].input_ids) for unit in units]

    def _raw(self, units: Sequence[Any]) -> list[Rows]:
        return list(self._embedder.raw(units))

    def _vectors(self, rows: Sequence[Rows], dimensions: int | None, normalize: bool = True) -> Rows:
        found = np.stack(rows)[:, :dimensions]
        return normalized(found) if normalize else found

    def embed(self, request: Request) -> Question:
        units, costs = self._read(texts_of(request["inputs"]), request)
        wanted = request["dimensions"], request["normalize"]
        return Question(lambda rows: self._vectors(rows, *wanted).tolist(), units, costs, self._raw)

    def similarity(self, request: Request) -> Question:
        texts = [request["inputs"]["source_sentence"], *request["inputs"]["sentences"]]
        units, costs = self._read(texts, request)

        def answer(rows: Sequence[Rows]) -> Any:
            first, others = np.split(self._vectors(rows, None), [1])
            return (others @ first[0]).tolist()

        return Question(answer, units, costs, self._raw)

    def embeddings(self, request: Request) -> Question:
        units, costs = self._read(texts_of(request["input"]), request)

        def answer(rows: Sequence[Rows]) -> Any:
            vectors = self._vectors(rows, request["dimensions"]).astype("<f4")
            coded = request["encoding_format"] == "base64"
            shown = [base64.b64encode(v.tobytes()).decode() for v in vectors] if coded else vectors.tolist()
            data = [{"object": "embedding", "index": n, "embedding": one} for n, one in enumerate(shown)]
            usage = {"prompt_tokens": sum(costs), "total_tokens": sum(costs)}
            return {"object": "list", "data": data, "model": self._name, "usage": usage}

        return Question(answer, units, costs, self._raw)

    def fill(self, request: Request) -> Question:
        texts, k = texts_of(request["inputs"]), request["top_k"]
        ids = [self.tokenizer.encode(text).ids for text in texts]
        mask = self.tokenizer.special_tokens["mask_token"]
        if unasked := [n for n, one in enumerate(ids) if self.tokenizer.mask_id not in one]:
            raise UsageError(f"text {unasked[0]} has no {mask}", fix=f"put {mask} where a word is missing")
        # A mask is compared with the whole vocabulary, and in a text that is too long has a window of its own.
        masks = [one.count(self.tokenizer.mask_id) for one in ids]
        costs = [
            len(one) + 8 * count if len(one) <= self._filler.longest else count * self._filler.longest
            for one, count in zip(ids, masks, strict=True)
        ]
        return Question(_one_or_all(request), [(text, k) for text in texts], costs, self._fillings)

    def _fillings(self, asked: Sequence[tuple[str, int]]) -> list[Any]:
        return [self._filler(text, k) for text, k in asked]


def _one_or_all(request: Request) -> Callable[[Sequence[Any]], Any]:
    return (lambda rows: rows[0]) if isinstance(request["inputs"], str) else list
