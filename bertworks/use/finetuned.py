"""A fine-tuning whose result answers: one call from data to `Predictor`. Not here: the training (`runs.finetune`)."""

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from bertworks.runs.finetune import finetune_events, make_finetune_request
from bertworks.use.predictor import Predictor


def finetune(
    data: str | Path,
    *,
    model: str | Path = "minilm",
    output: str | Path | None = None,
    device: str = "auto",
    overwrite: bool = False,
    **options: Any,
) -> Predictor:
    """Fine-tunes and returns the model with the best state on dev, ready to answer: `.predict(texts)`, `.save(folder)`.
    It says nothing while it works, which takes minutes; to see what happens, go through `finetune_events`.

    Args:
        data: a file, or a folder with a train and a dev file.
        output: the run folder; None: a temporary one, which lives as long as what is returned.
        options: those of `make_finetune_request`: dev, task, text, label, recipe, overrides, seed and others.

    Raises:
        UsageError, BertworksError: see `finetune_events`.
    """
    request = make_finetune_request(data, model=model, **options)
    folder = Path(tempfile.mkdtemp(prefix="bertworks-") if output is None else output)
    try:
        for _ in finetune_events(folder, request, device=device, overwrite=overwrite):
            pass
        predictor = Predictor(folder, device=device)
    except BaseException:
        if output is None:
            shutil.rmtree(folder)
        raise
    if output is None:
        weakref.finalize(predictor, shutil.rmtree, folder, ignore_errors=True)
    return predictor
