"""What a fine-tuned model can be asked: labels, ranks, entities, answers. The values are those of Text Embeddings
Inference, and in their style those of Hugging Face's pipelines."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from bertworks.data.questions import Encoded
from bertworks.files.opened import Opened
from bertworks.files.task import TaskDescription
from bertworks.learn.answers import mark_entities, sigmoid
from bertworks.learn.machine import Choice
from bertworks.runs.finetuning import decoding_of
from bertworks.serve.question import DTYPES, Ask, Question, Request, Rows, first_of, refuse_cut, texts_of
from bertworks.use.predictor import Predictor, item_of
from bertworks.use.rerank import Reranker, fits_pairs


class AskFinetuned:
    """What a fine-tuned model can be asked."""

    def __init__(self, model: Opened, precision: Choice = "auto"):
        self._predictor = Predictor(model, precision=precision)
        self._decoding = decoding_of(self._predictor.description)
        d = self._predictor.description
        self.reranker = Reranker(self._predictor) if fits_pairs(d) else None
        self.asks: dict[str, Ask] = {}
        match d.task:
            case "tagging" | "spans":
                self.asks["ner"] = self.ner
            case "qa":
                self.asks["qa"] = self.qa
            case _:
                self.asks["predict"] = self.predict
        if self.reranker is not None:
            self.asks["rerank"] = self.rerank
        names = d.labels or (("LABEL_0",) if d.task == "regression" else ())
        table = {"id2label": {str(n): name for n, name in enumerate(names)},
                 "label2id": {name: n for n, name in enumerate(names)}}  # fmt: skip
        self.info: dict[str, Any] = {
            "model_dtype": DTYPES[self._predictor.precision],
            "model_type": {"reranker" if self.reranker is not None else "classifier": table},
            "max_input_length": d.max_length,
            "task": d.task,
            "labels": list(d.labels),
            "reads": _reads(d),
            "prompts": {},
            "dimension": None,
        }

    def _question(self, asked: Sequence[Any], request: Request, said: Callable[[Encoded, Rows], Any]) -> Question:
        """said: an item and its logits -> the value of it."""
        items = [item_of(one, number, self._predictor.description) for number, one in enumerate(asked)]
        reading = self._predictor.reading
        encoded = [one for item in items for one in reading([item])]
        refuse_cut(request, [one.num_truncated for one in encoded])
        # Windows of a long text are units of their own, so that it need not be computed in one go.
        together = self._predictor.description.task == "choice"
        parts = [[one.unit] if together else [[window] for window in one.unit] for one in encoded]
        units = [unit for part in parts for unit in part]
        edges = list(pairwise(accumulate(map(len, parts), initial=0)))

        def answer(rows: Sequence[Rows]) -> Any:
            own = (np.concatenate(rows[first:end]) for first, end in edges)
            return [said(one, logits) for one, logits in zip(encoded, own, strict=True)]

        return Question(answer, units, [sum(len(one.input_ids) for one in unit) for unit in units], self._logits)

    def _logits(self, units: Sequence[Any]) -> list[Rows]:
        return self._predictor.logits(units)

    def predict(self, request: Request) -> Question:
        """TEI: a text; a list is one pair, here also a prompt with its choices; a list of lists is many items."""
        given = request["inputs"]
        many = isinstance(given, list) and isinstance(given[0], list)
        found = self._question(
            [one[0] if isinstance(one, list) and len(one) == 1 else one for one in (given if many else [given])],
            request,
            lambda encoded, logits: self._labels(encoded, logits, request["raw_scores"]),
        )
        return found if many else first_of(found)

    def _labels(self, encoded: Encoded, logits: Rows, raw: bool) -> list[dict[str, Any]]:
        d, answer = self._predictor.description, self._decoding(encoded, logits)
        if d.task == "regression":
            return [{"score": answer["value"], "label": "LABEL_0"}]
        choice = d.task == "choice"
        names = encoded.item.texts[1:] if choice else d.labels
        chances = answer["scores"] if choice else [answer["scores"][label] for label in names]
        scores = (logits[:, 0] if choice else logits[0]).tolist() if raw else chances
        items: list[dict[str, Any]] = [{"score": s, "label": name} for s, name in zip(scores, names, strict=True)]
        for number, item in enumerate(items):
            if choice:
                item["index"] = number
            if d.task == "multilabel":
                item["given"] = item["label"] in answer["labels"]
        return sorted(items, key=lambda item: -item["score"])

    def rerank(self, request: Request) -> Question:
        texts, labels = request["texts"], self._predictor.description.labels

        def score(encoded: Encoded, logits: Rows) -> float:
            number = logits[0, 1:] - logits[0, :1] if labels else logits[0]
            return float(number[0] if request["raw_scores"] else sigmoid(number)[0])

        found = self._question([(request["query"], text) for text in texts], request, score)

        def answer(rows: Sequence[Rows]) -> Any:
            scores = found.answer(rows)
            order = sorted(range(len(texts)), key=lambda n: -scores[n])
            shown = [{"text": texts[n]} if request["return_text"] else {} for n in order]
            return [{"index": n, "score": scores[n], **more} for n, more in zip(order, shown, strict=True)]

        return Question(answer, found.units, found.costs, found.compute)

    def ner(self, request: Request) -> Question:
        found = self._question(texts_of(request["inputs"]), request, self._entities)
        return found if isinstance(request["inputs"], list) else first_of(found)

    def _entities(self, encoded: Encoded, logits: Rows) -> list[dict[str, Any]]:
        answer, text = self._decoding(encoded, logits), encoded.item.texts[0]
        if mark_entities(self._predictor.description.labels):
            found = [(one["type"], one["score"], one["start"], one["end"]) for one in answer["entities"]]
        else:
            places = encoded.offsets.tolist()
            found = [(tag, p, *at) for tag, p, at in zip(answer["tags"], answer["scores"], places, strict=True)]
        names = ("entity_group", "score", "start", "end")
        return [{**dict(zip(names, one, strict=True)), "word": text[one[2] : one[3]]} for one in found]

    def qa(self, request: Request) -> Question:
        many, k = isinstance(request["inputs"], list), request["top_k"]

        def said(encoded: Encoded, logits: Rows) -> dict[str, Any]:
            answer = self._decoding(encoded, logits)
            best = [{**one, "answer": one["text"]} for one in answer["n_best"][:k]]
            for one in best:
                del one["text"]
            given = {name: answer[name] for name in ("answer", "score", "start", "end")}
            return {**given, "n_best": best} if k > 1 else given

        asked = request["inputs"] if many else [request["inputs"]]
        found = self._question([(one["question"], one["context"]) for one in asked], request, said)
        return found if many else first_of(found)


def _reads(d: TaskDescription) -> str:
    match d.task:
        case "qa":
            return "question"
        case "choice":
            return "choices"
        case "tagging" | "spans":
            return "text"
        case _:
            return {1: "text", 2: "pair"}.get(len(d.text), "text or pair") if not d.separator else "text"
