"""What a model that was not fine-tuned can be asked: vectors of texts, cosines, words for masks. The values are those
of Text Embeddings Inference and of OpenAI."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertworks.errors import BertworksError, UsageError
from bertworks.files.opened import Opened
from bertworks.learn.machine import Choice
from bertworks.learn.whitening import normalized
from bertworks.serve.question import DTYPES, Ask, Question, Request, Rows, prompt_of, refuse_cut, texts_of
from bertworks.use.embedder import Embedder
from bertworks.use.fill import Filler

MOST_FILLINGS = 100  # of a mask


class AskPretrained:
    """What a model that was not fine-tuned can be asked."""

    def __init__(self, model: Opened, precision: Choice = "auto"):
        self._name, self.asks = model.name, dict[str, Ask]()
        why: list[BertworksError] = []  # an exported model gives one of the two
        self.info: dict[str, Any] = {"labels": [], "reads": "text", "prompts": {}, "dimension": None}
        try:
            self._filler = Filler(model)
            self.asks["fill"] = self.fill
            self.info["max_input_length"] = self._filler.longest
        except BertworksError as error:
            why.append(error)
        try:
            self._embedder = e = Embedder(model, precision=precision)
            self.asks |= {"embed": self.embed, "similarity": self.similarity, "embeddings": self.embeddings}
            self.info |= {
                "max_input_length": e.settings.max_length,
                "prompts": dict(e.settings.prompts),
                "dimension": e.dimension,
                "model_dtype": DTYPES[e.precision],
            }
        except BertworksError as error:
            why.append(error)
        if not self.asks:
            raise why[-1]
        pooling = self._embedder.settings.pooling if "embed" in self.asks else None
        self.info |= {"model_type": {"embedding": {"pooling": pooling}},
                      "task": "masked-lm" if "fill" in self.asks else "embedding"}  # fmt: skip

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
        return Question(lambda rows: list(self._vectors(rows, *wanted)), units, costs, self._raw)

    def similarity(self, request: Request) -> Question:
        texts = [request["inputs"]["source_sentence"], *request["inputs"]["sentences"]]
        given = {name: value for name, value in (request["parameters"] or {}).items() if value is not None}
        units, costs = self._read(texts, {**request, **given})  # TEI has them there, but nowhere else

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
        k, filler = request["top_k"], self._filler
        try:
            asked = [filler.read(text) for text in texts_of(request["inputs"])]
        except BertworksError as error:  # one has no mask
            raise UsageError(error.what, fix=error.fix) from None
        costs = [sum(one.costs) for one in asked]

        def answer(rows: Sequence[Any]) -> Any:
            found = [filler.answer(one, row, k) for one, row in zip(asked, rows, strict=True)]
            return found[0] if isinstance(request["inputs"], str) else found

        return Question(answer, asked, costs, self._likeliest)

    def _likeliest(self, asked: Sequence[Any]) -> list[Any]:
        return self._filler.likeliest(asked, MOST_FILLINGS)
