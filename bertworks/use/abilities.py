"""What a model can be asked, by the names of a server's paths, as plain functions on values: a request, checked by
`openapi`, becomes a `Question`. No HTTP, no threads: who computes when is `batching`'s part."""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import bertworks
from bertworks.data.questions import Encoded
from bertworks.errors import BertworksError, UsageError
from bertworks.files.model import is_exported
from bertworks.files.names import locate
from bertworks.files.task import TaskDescription, has_task
from bertworks.learn.answers import mark_entities, sigmoid
from bertworks.learn.inference import logits_of
from bertworks.learn.whitening import normalized
from bertworks.use.embedder import Embedder
from bertworks.use.explain import explain
from bertworks.use.fill import Filler
from bertworks.use.finetuning import decoding_of
from bertworks.use.index import Index
from bertworks.use.predict import Predictor, item_of
from bertworks.use.rerank import Reranker, fits_pairs

Request = Mapping[str, Any]
Rows = NDArray[np.float32]


class TooMuchError(UsageError):
    """More than one request may ask for."""


@dataclass(frozen=True)
class Limits:
    """Of one request."""

    body_bytes: int = 2_000_000
    texts: int = 2048
    tokens: int = 65_536  # of all its texts, in all windows
    k: int = 100  # answers for one question
    explained_tokens: int = 128


@dataclass(frozen=True)
class Question:
    """What a request asks: `answer(rows)` is the value that JSON can say, rows being what `compute` gives for `units`,
    among whatever other units of other questions. `costs`: of each unit, in tokens; where no network reads, 1."""

    answer: Callable[[Sequence[Any]], Any]
    units: Sequence[Any] = ()
    costs: Sequence[int] = ()
    compute: Callable[[Sequence[Any]], Sequence[Any]] = list


Ask = Callable[[Request], Question]


class Abilities:
    """All that a model, and an index, can be asked.

    Args:
        model: a folder, pre-trained, fine-tuned, exported or of sentence-transformers; `minilm`; a hub id.
        index: the folder of an index, in which documents are found by the model that made it.

    Attributes:
        asks: by name, what makes a question of a request; it raises UsageError where the request cannot be met.
        info: what `GET /info` says of the model.

    Raises:
        BertworksError: no such model or index.
    """

    def __init__(
        self, model: str | Path, *, index: str | Path | None = None, device: str = "auto", limits: Limits | None = None
    ):
        self.limits, self.folder = limits or Limits(), locate(model)
        self.name = Path(model).name or str(model)
        speaker = _Finetuned(self, device) if has_task(self.folder) else _Pretrained(self, device)
        self.tokenizer, self.asks, self.info = speaker.tokenizer, speaker.asks, speaker.info
        if index is not None:
            self._add_search(Path(index), speaker, device)
        if not is_exported(self.folder):
            self.asks["explain"] = self.explain
        self.asks |= {"tokenize": self.tokenize, "decode": self.decode}
        self.info = {"model_id": self.name, "model_sha": None, "model_dtype": "float32", "index": None,
                     "mask_token": self.tokenizer.special_tokens["mask_token"], "abilities": list(self.asks),
                     "vocabulary": self.tokenizer.vocab_size,
                     "version": bertworks.__version__, **self.info}  # fmt: skip

    def _add_search(self, folder: Path, speaker: "_Pretrained | _Finetuned", device: str) -> None:
        own = isinstance(speaker, _Pretrained)
        index = Index(folder, model=self.folder if own else None, device=device)
        index.embedder  # noqa: B018  the wrong model is told of at once
        second = speaker.reranker if isinstance(speaker, _Finetuned) else None
        facts = {"documents": len(index), "model": index.manifest.model, "rerank": second is not None}
        self.info["index"] = {**facts, "rankings": ["hybrid", "dense", "bm25"]}

        def compute(asked: Sequence[Request]) -> list[Any]:
            return [
                index.search(a["query"], a["k"], ranking=a["ranking"], rerank=second if a["rerank"] else None)
                for a in asked
            ]

        def search(request: Request) -> Question:
            if request["rerank"] and second is None:
                raise UsageError("this server's model cannot read again what was found", fix='leave "rerank" out')
            return Question(lambda rows: rows[0], [request], [1], compute)

        self.asks["search"] = search

    def explain(self, request: Request) -> Question:
        texts = _texts(request["inputs"])
        self.within(sum(map(len, self.tokenizer.ids(texts))), self.limits.explained_tokens)
        return Question(lambda rows: rows[0], [(texts, request)], [1], self._explanations)

    def _explanations(self, asked: Sequence[tuple[list[str], Request]]) -> list[dict[str, Any]]:
        """Each with a network of its own: to explain is to change for a moment what the network reads."""
        return [self._explanation(texts, request) for texts, request in asked]

    def _explanation(self, texts: list[str], request: Request) -> dict[str, Any]:
        found = explain(self.folder, *texts, target=request["target"], baseline=request["baseline"])
        nothing = dict.fromkeys(("gradients", "completeness_error", "steps", "occlusion", "attention", "similarity"))
        maps = found.maps() if request["maps"] else {}
        size = {"layers": len(found.attention), "heads": len(found.attention[0])}
        return {**nothing, **found.as_dict(), "model": self.name, "tokens": found.tokens, "spans": found.spans,
                **size, **maps}  # fmt: skip

    def tokenize(self, request: Request) -> Question:
        t, prompt = self.tokenizer, _prompt(request, self.info.get("prompts", ()))
        encodings = [t.encode(prompt + text) for text in _texts(request["inputs"])]
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
        return Question(lambda _: tokens)

    def decode(self, request: Request) -> Question:
        many = request["ids"] if request["ids"] and isinstance(request["ids"][0], list) else [request["ids"]]
        texts = [self.tokenizer.decode(ids, skip_special_tokens=request["skip_special_tokens"]) for ids in many]
        return Question(lambda _: texts)

    def within(self, tokens: int, most: int | None = None) -> None:
        """Raises TooMuchError where a request has more tokens than it may."""
        most = self.limits.tokens if most is None else most
        if tokens > most:
            raise TooMuchError(f"{tokens:,} tokens: expected {most:,} at most", fix="send less at once")


class _Pretrained:
    """What a model that was not fine-tuned can be asked."""

    def __init__(self, abilities: Abilities, device: str):
        self._abilities = abilities
        self._embedder = Embedder(abilities.folder, device=device)
        settings, self.tokenizer = self._embedder.settings, self._embedder.tokenizer
        self.asks: dict[str, Ask] = {"embed": self.embed, "similarity": self.similarity, "embeddings": self.embeddings}
        try:
            self._filler = Filler(abilities.folder)
            self.asks["fill"] = self.fill
        except BertworksError:  # it has no head for masks, for the folder itself was read a moment ago
            pass
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
        prompt = None if name is None else _prompt(request, self._embedder.settings.prompts)
        units, cut = self._embedder.units(texts, prompt)
        _refuse_cut(request, cut)
        return units, [len(unit[0].input_ids) for unit in units]

    def _vectors(self, rows: Sequence[Rows], dimensions: int | None, normalize: bool = True) -> Rows:
        found = np.stack(rows)[:, :dimensions]
        return normalized(found) if normalize else found

    def embed(self, request: Request) -> Question:
        units, costs = self._read(_texts(request["inputs"]), request)
        wanted = request["dimensions"], request["normalize"]
        return Question(lambda rows: self._vectors(rows, *wanted).tolist(), units, costs, self._embedder.raw)

    def similarity(self, request: Request) -> Question:
        texts = [request["inputs"]["source_sentence"], *request["inputs"]["sentences"]]
        units, costs = self._read(texts, request)

        def answer(rows: Sequence[Rows]) -> Any:
            first, others = np.split(self._vectors(rows, None), [1])
            return (others @ first[0]).tolist()

        return Question(answer, units, costs, self._embedder.raw)

    def embeddings(self, request: Request) -> Question:
        units, costs = self._read(_texts(request["input"]), request)

        def answer(rows: Sequence[Rows]) -> Any:
            vectors = self._vectors(rows, request["dimensions"]).astype("<f4")
            coded = request["encoding_format"] == "base64"
            shown = [base64.b64encode(v.tobytes()).decode() for v in vectors] if coded else vectors.tolist()
            data = [{"object": "embedding", "index": n, "embedding": one} for n, one in enumerate(shown)]
            usage = {"prompt_tokens": sum(costs), "total_tokens": sum(costs)}
            return {"object": "list", "data": data, "model": self._abilities.name, "usage": usage}

        return Question(answer, units, costs, self._embedder.raw)

    def fill(self, request: Request) -> Question:
        texts, k = _texts(request["inputs"]), request["top_k"]
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


class _Finetuned:
    """What a fine-tuned model can be asked."""

    def __init__(self, abilities: Abilities, device: str):
        self._abilities, self._predictor = abilities, Predictor(abilities.folder, device=device)
        self._decoding = decoding_of(self._predictor.description)
        self.tokenizer, d = self._predictor.tokenizer, self._predictor.description
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
        _refuse_cut(request, [one.num_truncated for one in encoded])
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
        return logits_of(self._predictor.network, units, self._predictor.precision)

    def predict(self, request: Request) -> Question:
        """TEI: a text; a list is one pair, here also a prompt with its choices; a list of lists is many items."""
        given = request["inputs"]
        many = isinstance(given, list) and isinstance(given[0], list)
        found = self._question(
            [one[0] if isinstance(one, list) and len(one) == 1 else one for one in (given if many else [given])],
            request,
            lambda encoded, logits: self._labels(encoded, logits, request["raw_scores"]),
        )
        return found if many else _first(found)

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
            if not labels:
                return float(logits[0, 0])
            difference = logits[0, 1:] - logits[0, :1]
            return float(difference[0] if request["raw_scores"] else sigmoid(difference)[0])

        found = self._question([(request["query"], text) for text in texts], request, score)

        def answer(rows: Sequence[Rows]) -> Any:
            scores = found.answer(rows)
            order = sorted(range(len(texts)), key=lambda n: -scores[n])
            shown = [{"text": texts[n]} if request["return_text"] else {} for n in order]
            return [{"index": n, "score": scores[n], **more} for n, more in zip(order, shown, strict=True)]

        return Question(answer, found.units, found.costs, found.compute)

    def ner(self, request: Request) -> Question:
        found = self._question(_texts(request["inputs"]), request, self._entities)
        return found if isinstance(request["inputs"], list) else _first(found)

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
        return found if many else _first(found)


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


def _texts(inputs: str | list[str]) -> list[str]:
    return [inputs] if isinstance(inputs, str) else inputs


def _prompt(request: Request, prompts: Any) -> str:
    name = request.get("prompt_name")
    if name is None:
        return ""
    if name not in prompts:
        known = f"it has {', '.join(prompts)}" if prompts else "it has none"
        raise UsageError(f"the model has no prompt {name!r:.60}: {known}")
    return str(prompts[name])


def _refuse_cut(request: Request, cut: Sequence[int]) -> None:
    if request.get("truncate") is False and (long := [n for n, count in enumerate(cut) if count]):
        raise TooMuchError(
            f"text {long[0]} is {cut[long[0]]} tokens too long", fix='shorten it, or ask with "truncate"'
        )


def _first(question: Question) -> Question:
    """Of one item the value itself, and not a list of it."""
    return Question(lambda rows: question.answer(rows)[0], question.units, question.costs, question.compute)


def _one_or_all(request: Request) -> Callable[[Sequence[Any]], Any]:
    return (lambda rows: rows[0]) if isinstance(request["inputs"], str) else list
