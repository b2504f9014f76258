"""Requests -> jobs, by the names of the server's paths. No HTTP, no threads.

- pre-trained models: vectors, cosines, tokens for masks, with the values of Text Embeddings Inference and OpenAI
- fine-tuned models: labels, ranks, entities, answers, with the values of Text Embeddings Inference and of Hugging
  Face's pipelines
- `Abilities`: all of them for one model
"""

import base64
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

import bertworks
from bertworks.batching.features import Features
from bertworks.checkpoints.task_config import TaskConfig
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.decoding import Decoder, is_entity_tagset, sigmoid
from bertworks.inference.embed import Embedder
from bertworks.inference.engine import LazyModel
from bertworks.inference.explain import explain
from bertworks.inference.masked_lm import Filler
from bertworks.inference.predictor import Predictor, item_of
from bertworks.inference.whitening import normalized
from bertworks.retrieval.index import Index
from bertworks.retrieval.ranking import Reranker, fits_pairs
from bertworks.serve.job import (
    DTYPES,
    Ask,
    InferenceJob,
    Limits,
    Request,
    RequestTooLargeError,
    Rows,
    first_of,
    prompt_of,
    refuse_cut,
    texts_of,
)
from bertworks.training.device import PrecisionOption, choose_device

MOST_FILLINGS = 100  # of a mask


class AskPretrained:
    """What a model that was not fine-tuned can be asked."""

    def __init__(self, model: LazyModel, precision: PrecisionOption = "auto"):
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

    def embed(self, request: Request) -> InferenceJob:
        units, costs = self._read(texts_of(request["inputs"]), request)
        wanted = request["dimensions"], request["normalize"]
        return InferenceJob(lambda rows: list(self._vectors(rows, *wanted)), units, costs, self._raw)

    def similarity(self, request: Request) -> InferenceJob:
        texts = [request["inputs"]["source_sentence"], *request["inputs"]["sentences"]]
        given = {name: value for name, value in (request["parameters"] or {}).items() if value is not None}
        units, costs = self._read(texts, {**request, **given})  # TEI has them there, but nowhere else

        def answer(rows: Sequence[Rows]) -> Any:
            first, others = np.split(self._vectors(rows, None), [1])
            return (others @ first[0]).tolist()

        return InferenceJob(answer, units, costs, self._raw)

    def embeddings(self, request: Request) -> InferenceJob:
        units, costs = self._read(texts_of(request["input"]), request)

        def answer(rows: Sequence[Rows]) -> Any:
            vectors = self._vectors(rows, request["dimensions"]).astype("<f4")
            coded = request["encoding_format"] == "base64"
            shown = [base64.b64encode(v.tobytes()).decode() for v in vectors] if coded else vectors.tolist()
            data = [{"object": "embedding", "index": n, "embedding": one} for n, one in enumerate(shown)]
            usage = {"prompt_tokens": sum(costs), "total_tokens": sum(costs)}
            return {"object": "list", "data": data, "model": self._name, "usage": usage}

        return InferenceJob(answer, units, costs, self._raw)

    def fill(self, request: Request) -> InferenceJob:
        k, filler = request["top_k"], self._filler
        try:
            asked = [filler.read(text) for text in texts_of(request["inputs"])]
        except BertworksError as error:  # one has no mask
            raise UsageError(error.what, hint=error.hint) from None
        costs = [sum(one.costs) for one in asked]

        def answer(rows: Sequence[Any]) -> Any:
            found = [filler.fillings(one, row, k) for one, row in zip(asked, rows, strict=True)]
            return found[0] if isinstance(request["inputs"], str) else found

        return InferenceJob(answer, asked, costs, self._likeliest)

    def _likeliest(self, asked: Sequence[Any]) -> list[Any]:
        return self._filler.top_tokens(asked, MOST_FILLINGS)


class AskFinetuned:
    """What a fine-tuned model can be asked."""

    def __init__(self, model: LazyModel, precision: PrecisionOption = "auto"):
        self._predictor = Predictor(model, precision=precision)
        self._decoding = Decoder(self._predictor.description)
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

    def _question(self, asked: Sequence[Any], request: Request, said: Callable[[Features, Rows], Any]) -> InferenceJob:
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

        return InferenceJob(answer, units, [sum(len(one.input_ids) for one in unit) for unit in units], self._logits)

    def _logits(self, units: Sequence[Any]) -> list[Rows]:
        return self._predictor.logits(units)

    def predict(self, request: Request) -> InferenceJob:
        """TEI: a text; a list is one pair, here also a prompt with its choices; a list of lists is many items."""
        given = request["inputs"]
        many = isinstance(given, list) and isinstance(given[0], list)
        found = self._question(
            [one[0] if isinstance(one, list) and len(one) == 1 else one for one in (given if many else [given])],
            request,
            lambda encoded, logits: self._labels(encoded, logits, request["raw_scores"]),
        )
        return found if many else first_of(found)

    def _labels(self, encoded: Features, logits: Rows, raw: bool) -> list[dict[str, Any]]:
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

    def rerank(self, request: Request) -> InferenceJob:
        texts, labels = request["texts"], self._predictor.description.labels

        def score(encoded: Features, logits: Rows) -> float:
            number = logits[0, 1:] - logits[0, :1] if labels else logits[0]
            return float(number[0] if request["raw_scores"] else sigmoid(number)[0])

        found = self._question([(request["query"], text) for text in texts], request, score)

        def answer(rows: Sequence[Rows]) -> Any:
            scores = found.answer(rows)
            order = sorted(range(len(texts)), key=lambda n: -scores[n])
            shown = [{"text": texts[n]} if request["return_text"] else {} for n in order]
            return [{"index": n, "score": scores[n], **more} for n, more in zip(order, shown, strict=True)]

        return InferenceJob(answer, found.units, found.costs, found.compute)

    def ner(self, request: Request) -> InferenceJob:
        found = self._question(texts_of(request["inputs"]), request, self._entities)
        return found if isinstance(request["inputs"], list) else first_of(found)

    def _entities(self, encoded: Features, logits: Rows) -> list[dict[str, Any]]:
        answer, text = self._decoding(encoded, logits), encoded.item.texts[0]
        if is_entity_tagset(self._predictor.description.labels):
            found = [(one["type"], one["score"], one["start"], one["end"]) for one in answer["entities"]]
        else:
            places = encoded.offsets.tolist()
            found = [(tag, p, *at) for tag, p, at in zip(answer["tags"], answer["scores"], places, strict=True)]
        names = ("entity_group", "score", "start", "end")
        return [{**dict(zip(names, one, strict=True)), "word": text[one[2] : one[3]]} for one in found]

    def qa(self, request: Request) -> InferenceJob:
        many, k = isinstance(request["inputs"], list), request["top_k"]

        def said(encoded: Features, logits: Rows) -> dict[str, Any]:
            answer = self._decoding(encoded, logits)
            best = [{**one, "answer": one["text"]} for one in answer["n_best"][:k]]
            for one in best:
                del one["text"]
            given = {name: answer[name] for name in ("answer", "score", "start", "end")}
            return {**given, "n_best": best} if k > 1 else given

        asked = request["inputs"] if many else [request["inputs"]]
        found = self._question([(one["question"], one["context"]) for one in asked], request, said)
        return found if many else first_of(found)


def _reads(d: TaskConfig) -> str:
    match d.task:
        case "qa":
            return "question"
        case "choice":
            return "choices"
        case "tagging" | "spans":
            return "text"
        case _:
            return {1: "text", 2: "pair"}.get(len(d.text), "text or pair") if not d.separator else "text"


class Abilities:
    """All that a model, and an index, can be asked.

    Args:
        model: a folder, pre-trained, fine-tuned, exported or of sentence-transformers; `minilm`; a hub id.
        index: the folder of an index, in which documents are found by the model that made it.
        precision: of vectors as `Embedder` has it, of predictions as `Predictor`.

    Attributes:
        on_cpu: whether it computes there.
        asks: by name, what makes a question of a request; it raises UsageError where the request cannot be met.
        info: what `GET /info` says of the model.

    Raises:
        BertworksError: no such model or index.
        UsageError: an exported model in bf16.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        index: str | Path | None = None,
        device: str = "auto",
        precision: PrecisionOption = "auto",
        limits: Limits | None = None,
    ):
        self.limits, self._model = limits or Limits(), LazyModel(model, device)
        self.name, self.tokenizer = self._model.name, self._model.tokenizer
        self.on_cpu = choose_device(device).type == "cpu"
        finetuned = self._model.has_task
        speaker = (AskFinetuned if finetuned else AskPretrained)(self._model, precision)
        self.asks, self.info = speaker.asks, speaker.info
        if index is not None:
            self._add_search(Path(index), speaker, device)
        if not self._model.exported:
            self.asks["explain"] = self.explain
        self.asks |= {"tokenize": self.tokenize, "decode": self.decode}
        self.info = {"model_id": self.name, "model_sha": None, "model_dtype": "float32", "index": None,
                     "mask_token": self.tokenizer.special_tokens["mask_token"], "abilities": list(self.asks),
                     "vocabulary": self.tokenizer.vocab_size,
                     "version": bertworks.__version__, **self.info}  # fmt: skip

    def _add_search(self, folder: Path, speaker: AskPretrained | AskFinetuned, device: str) -> None:
        index = Index(folder, model=self._model if isinstance(speaker, AskPretrained) else None, device=device)
        index.embedder  # noqa: B018  the wrong model is told of at once
        second = speaker.reranker if isinstance(speaker, AskFinetuned) else None
        facts = {"documents": len(index), "model": index.manifest.model, "rerank": second is not None}
        self.info["index"] = {**facts, "rankings": ["hybrid", "dense", "bm25"]}

        def compute(asked: Sequence[Request]) -> list[Any]:
            return [
                index.search(a["query"], a["k"], ranking=a["ranking"], rerank=second if a["rerank"] else None)
                for a in asked
            ]

        def search(request: Request) -> InferenceJob:
            if request["rerank"] and second is None:
                raise UsageError("this server's model cannot read again what was found", hint='leave "rerank" out')
            return InferenceJob(lambda rows: rows[0], [request], [1], compute)

        self.asks["search"] = search

    def explain(self, request: Request) -> InferenceJob:
        texts = texts_of(request["inputs"])
        self.within(sum(map(len, self.tokenizer.ids(texts))), self.limits.explained_tokens)
        return InferenceJob(lambda rows: rows[0], [(texts, request)], [1], self._explanations)

    def _explanations(self, asked: Sequence[tuple[list[str], Request]]) -> list[dict[str, Any]]:
        return [self._explanation(texts, request) for texts, request in asked]

    def _explanation(self, texts: list[str], request: Request) -> dict[str, Any]:
        found = explain(self._model, *texts, target=request["target"], baseline=request["baseline"])
        nothing = dict.fromkeys(("gradients", "completeness_error", "steps", "occlusion", "attention", "similarity"))
        maps = found.maps() if request["maps"] else {}
        size = {"layers": len(found.attention), "heads": len(found.attention[0])}
        return {**nothing, **found.as_dict(), "model": self.name, "tokens": found.tokens, "spans": found.spans,
                **size, **maps}  # fmt: skip

    def tokenize(self, request: Request) -> InferenceJob:
        t, prompt = self.tokenizer, prompt_of(request, self.info.get("prompts", ()))
        encodings = t.encode_batch([prompt + text for text in texts_of(request["inputs"])])
        self.within(sum(len(one.ids) for one in encodings))
        tokens = [
            [
                {"id": n, "text": t.tokens[n], "special": n in t.special_ids,
                 "start": None if added else place[0], "stop": None if added else place[1]}
                for n, place, added in zip(e.ids, e.offsets, e.special_tokens_mask, strict=True)
                if request["add_special_tokens"] or not added
            ]
            for e in encodings
        ]  # fmt: skip
        return InferenceJob(lambda _: tokens)

    def decode(self, request: Request) -> InferenceJob:
        many = request["ids"] if request["ids"] and isinstance(request["ids"][0], list) else [request["ids"]]
        texts = [self.tokenizer.decode(ids, skip_special_tokens=request["skip_special_tokens"]) for ids in many]
        return InferenceJob(lambda _: texts)

    def within(self, tokens: int, most: int | None = None) -> None:
        """Raises TooMuchError where a request has more tokens than it may."""
        most = self.limits.tokens if most is None else most
        if tokens > most:
            raise RequestTooLargeError(f"{tokens:,} tokens: expected {most:,} at most", hint="send less at once")
