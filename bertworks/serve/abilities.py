"""What a model can be asked, by the names of a server's paths, as plain functions on values: a request, checked by
`openapi`, becomes a `Question`. No HTTP, no threads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bertworks
from bertworks.errors import UsageError
from bertworks.files.opened import Opened
from bertworks.files.task import has_task
from bertworks.learn.machine import Choice, choose_device
from bertworks.serve.ask_finetuned import AskFinetuned
from bertworks.serve.ask_pretrained import AskPretrained
from bertworks.serve.question import Limits, Question, Request, TooMuchError, prompt_of, texts_of
from bertworks.use.explain import explain
from bertworks.use.index import Index


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
        precision: Choice = "auto",
        limits: Limits | None = None,
    ):
        self.limits, self._model = limits or Limits(), Opened(model, device)
        self.name, self.tokenizer = self._model.name, self._model.tokenizer
        self.on_cpu = choose_device(device).type == "cpu"
        finetuned = has_task(self._model.within)
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

        def search(request: Request) -> Question:
            if request["rerank"] and second is None:
                raise UsageError("this server's model cannot read again what was found", fix='leave "rerank" out')
            return Question(lambda rows: rows[0], [request], [1], compute)

        self.asks["search"] = search

    def explain(self, request: Request) -> Question:
        texts = texts_of(request["inputs"])
        self.within(sum(map(len, self.tokenizer.ids(texts))), self.limits.explained_tokens)
        return Question(lambda rows: rows[0], [(texts, request)], [1], self._explanations)

    def _explanations(self, asked: Sequence[tuple[list[str], Request]]) -> list[dict[str, Any]]:
        return [self._explanation(texts, request) for texts, request in asked]

    def _explanation(self, texts: list[str], request: Request) -> dict[str, Any]:
        found = explain(self._model, *texts, target=request["target"], baseline=request["baseline"])
        nothing = dict.fromkeys(("gradients", "completeness_error", "steps", "occlusion", "attention", "similarity"))
        maps = found.maps() if request["maps"] else {}
        size = {"layers": len(found.attention), "heads": len(found.attention[0])}
        return {**nothing, **found.as_dict(), "model": self.name, "tokens": found.tokens, "spans": found.spans,
                **size, **maps}  # fmt: skip

    def tokenize(self, request: Request) -> Question:
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
