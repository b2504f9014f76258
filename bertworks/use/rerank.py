"""A fine-tuned model of pairs as a judge: it reads a query together with each text. Not here: which texts (`index`)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertworks.errors import UsageError
from bertworks.files.task import TaskDescription
from bertworks.learn.ranking import Scores
from bertworks.use.predictor import Predictor


def fits_pairs(d: TaskDescription) -> bool:
    """Whether a model says one number of a pair of texts, or may do so: of transformers' own folders nobody knows."""
    one = d.task == "regression" or (d.task == "classification" and len(d.labels) == 2)
    return one and len(d.text) in (0, 2)


class Reranker:
    """`reranker(query, texts)` is float32 [texts], greater for texts that fit better: the number of a model for
    regression, or the probability of the second of two labels.

    Raises:
        BertworksError: no such model, or it was not fine-tuned.
        UsageError: it gives no such number.
    """

    def __init__(self, model: str | Path | Predictor, *, device: str = "auto"):
        self._predictor = model if isinstance(model, Predictor) else Predictor(model, device=device)
        d = self._predictor.description
        if not fits_pairs(d):
            raise UsageError(
                f"this model was fine-tuned for {d.task}, with {len(d.labels)} labels and {len(d.text)} texts",
                where=str(self._predictor.folder),
                fix="fine-tune one on pairs (query, text) with two labels, the second of which says that they fit, or "
                "with numbers",
            )
        self._label = d.labels[1] if d.labels else None

    def __call__(self, query: str, texts: Sequence[str]) -> Scores:
        answers = self._predictor.predict([(query, text) for text in texts], probabilities=self._label is not None)
        values = [answer["value"] if self._label is None else answer["scores"][self._label] for answer in answers]
        return np.array(values, np.float32)
