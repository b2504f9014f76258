"""From raw text, or shards, to a pre-trained model in one call that can be repeated: whatever is done already is not
done again. Not here: the training itself (`run`)."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

from ..errors import BertworksError
from ..files.checkpoint import locked
from ..files.model import Model, load_model
from ..learn.machine import DTYPES, Precision, best_precision, choose_device, keep_memory, measure_matmul
from ..learn.plan import choose, fit, measure
from ..learn.recipe import Recipe, dump, load, parse, replaced
from ..text.atomic import write_text
from ..text.shards import Shards
from ..text.tokenizer import Tokenizer
from .events import Event
from .prepare import Documents, make_shards, make_vocabulary
from .request import Request, claim, make_request, seconds_of
from .run import Corpus, Run

RESERVE = 0.06  # of a budget: evaluations, checkpoints, the last report


@dataclass(frozen=True)
class Estimate:
    """What a run will take."""

    title: str
    parameters: int
    memory: int  # bytes of the training process
    steps: int
    tokens: int
    seconds: float
    disk: int  # bytes of the run folder
    tokens_per_second: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"recipe       {self.title}",
                f"parameters   {self.parameters:,}",
                f"memory       {self.memory / 1e9:.1f} GB",
                f"steps        {self.steps:,}",
                f"tokens       {self.tokens:,}  ({self.tokens_per_second:,.0f} per second on this machine)",
                f"time         {readable(self.seconds)} of training",
                f"disk         {self.disk / 1e9:.2f} GB in the run folder",
            ]
        )


def pretrain(
    inputs: Sequence[str | Path],
    output: str | Path,
    *,
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    budget: str | None = None,
    tokenizer: str | None = None,
    init: str | None = None,
    device: str = "auto",
    precision: str | None = None,
    seed: int | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    text_column: str | None = None,
    documents: Documents = "auto",
) -> Iterator[Event]:
    """Pre-trains a BERT and yields what happens; `output` becomes a model folder.

    Args:
        inputs: raw text (files, folders, globs), or one shards folder.
        recipe: a name or a TOML file.
        budget: a time such as "30m" or "2h". Without a recipe everything is chosen to suit it; with one, only the
            number of steps. With neither: one hour.
        overrides: `table.field=value` words on top of the recipe.
        tokenizer: a tokenizer folder; None: a vocabulary is made from the text.
        init: a model folder to begin with, whose configuration and tokenizer are taken.

    Raises:
        UsageError: the folder belongs to a run with other settings, or the request is contradictory.
        BertworksError: the text, the disk or the training does not allow it.
    """
    begin = time.perf_counter()
    request = make_request(inputs, recipe, overrides, budget, tokenizer, init, precision, seed, text_column, documents)
    output = Path(output)
    where = choose_device(device)
    with closing(_Processes(where)) as processes:
        if not processes.first:
            processes.wait()
        with locked(output) if processes.first else closing(processes):
            if processes.first:
                claim(output, request, overwrite)
                yield from _prepare(output, request, where, begin, workers)
                processes.wait()
            resolved = parse((output / "recipe.toml").read_text(encoding="utf-8"), "recipe.toml")
            shards = Shards.open(request.shards_folder(output))
            corpus = Corpus(shards, _limited(shards.tokenizer(), resolved), _corpus_facts(shards, request))
            state = None if init is None else load_model(init, needs={"encoder"}).state
            chosen = cast(Precision, resolved.train.precision)
            keep_memory()
            yield from Run(output, resolved, corpus, where, chosen, state).events()


def estimate(
    inputs: Sequence[str | Path],
    *,
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    budget: str | None = None,
    tokenizer: str | None = None,
    init: str | None = None,
    device: str = "auto",
    precision: str | None = None,
    seed: int | None = None,
    text_column: str | None = None,
    documents: Documents = "auto",
) -> Estimate:
    """What `pretrain` with the same arguments would take, measured with some training steps on random tokens."""
    request = make_request(inputs, recipe, overrides, budget, tokenizer, init, precision, seed, text_column, documents)
    where = choose_device(device)
    chosen = _precision(request, where)
    tokens = request.corpus_tokens()
    resolved = _begin_recipe(request, where, chosen, tokens)
    if tokenizer is not None:
        resolved = _with_vocabulary(resolved, Tokenizer.load(tokenizer).vocab_size)
    elif not resolved.encoder.vocab_size:
        resolved = _with_vocabulary(resolved, resolved.vocabulary.size)
    measured = measure(resolved, where, chosen)
    if request.budget:
        resolved = replaced(fit(resolved, seconds_of(request.budget) * (1 - RESERVE), measured.step_seconds), overrides)
    seconds = sum(
        phase.num_steps * cost for phase, cost in zip(resolved.train.phases, measured.step_seconds, strict=True)
    )
    parameters = resolved.encoder.num_parameters(resolved.sampling.pairs == "next_sentence")
    return Estimate(
        resolved.title,
        parameters,
        measured.memory,
        resolved.train.num_steps,
        resolved.train.num_tokens,
        seconds,
        parameters * 4 * (3 * 3 + 1) + tokens * (2 if resolved.encoder.vocab_size <= 65536 else 4),
        resolved.train.num_tokens / seconds,
    )


def readable(seconds: float) -> str:
    """42 s, 12 min, 3 h 05 min, 2 d 4 h."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    if minutes < 2880:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


class _Processes:
    """The processes that torchrun started, or this one alone. The first prepares while the others wait."""

    def __init__(self, device: torch.device):
        self.many = int(os.environ.get("WORLD_SIZE", "1")) > 1
        self.ours = self.many and not dist.is_initialized()
        if self.ours:
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(days=1))
        self.first = not self.many or dist.get_rank() == 0

    def wait(self) -> None:
        if self.many:
            dist.barrier()

    def close(self) -> None:
        if self.ours and dist.is_initialized():
            self.ours = False
            dist.destroy_process_group()


def _prepare(
    output: Path, request: Request, device: torch.device, begin: float, workers: int | None
) -> Iterator[Event]:
    """Everything up to the resolved recipe: vocabulary, shards, plan."""
    if (output / "recipe.toml").exists():
        if not request.is_shards:
            yield from _make_shards(output, request, Tokenizer.load(output / "tokenizer"), workers)
        return
    chosen = _precision(request, device)
    resolved = _begin_recipe(request, device, chosen, request.corpus_tokens())
    if not request.is_shards:
        if request.init:
            tokenizer = load_model(request.init).tokenizer
            tokenizer.save(output / "tokenizer")
        elif request.tokenizer:
            tokenizer = Tokenizer.load(request.tokenizer)
            tokenizer.save(output / "tokenizer")
        elif not (output / "tokenizer" / "tokenizer.json").exists():
            yield Event("stage", "making a vocabulary", {"stage": "vocabulary"})
            made = make_vocabulary(
                request.inputs, output / "tokenizer", resolved.vocabulary, text_column=request.text_column,
                documents=request.documents, workers=workers,
            )  # fmt: skip
            yield from _notes(made)
        yield Event("stage", "writing shards", {"stage": "shards"})
        yield from _make_shards(output, request, Tokenizer.load(output / "tokenizer"), workers)
    shards = Shards.open(request.shards_folder(output))
    resolved = _with_vocabulary(resolved, shards.manifest.vocab_size)
    if request.init:
        _check_init(load_model(request.init), shards, resolved)
    if request.budget:
        measured = measure(resolved, device, chosen)
        left = seconds_of(request.budget) * (1 - RESERVE) - (time.perf_counter() - begin)
        if left < 5:
            raise BertworksError(
                f"making the vocabulary and the shards took the whole budget of {request.budget}",
                where=str(output), fix="the shards are kept: give more time with -o ANOTHER-FOLDER and this folder's "
                f"shards as input: bertworks pretrain {output / 'shards'} -o ANOTHER-FOLDER --budget 1h",
            )  # fmt: skip
        resolved = replaced(fit(resolved, left, measured.step_seconds), request.overrides)
        resolved = replace(resolved, train=replace(resolved.train, precision=chosen))
    write_text(output / "recipe.toml", dump(resolved))
    yield Event("plan", _describe(resolved), {"recipe": asdict(resolved)})


def _begin_recipe(request: Request, device: torch.device, precision: Precision, tokens: int) -> Recipe:
    """The recipe before the number of steps (under a budget) and the vocabulary are known."""
    if request.recipe:
        resolved = load(request.recipe, request.overrides)
    else:
        matmul = measure_matmul(DTYPES[precision], device)
        resolved = replaced(choose(seconds_of(str(request.budget)), matmul, tokens), request.overrides)
    if request.init:
        resolved = replace(resolved, encoder=load_model(request.init).config)
    resolved = replace(resolved, train=replace(resolved.train, precision=precision))
    return resolved if request.seed is None else replace(resolved, seed=request.seed)


def _precision(request: Request, device: torch.device) -> Precision:
    if request.precision in ("fp32", "bf16"):
        return cast(Precision, request.precision)
    if request.recipe:
        asked = load(request.recipe, request.overrides).train.precision
        if asked != "auto":
            return asked
    return best_precision(device)


def _with_vocabulary(recipe: Recipe, size: int) -> Recipe:
    """The recipe with as many words as the tokenizer has."""
    return replace(recipe, encoder=replace(recipe.encoder, vocab_size=size))


def _check_init(model: Model, shards: Shards, recipe: Recipe) -> None:
    if model.tokenizer.sha256 != shards.tokenizer().sha256:
        raise BertworksError(
            "the model to begin with and the shards have different tokenizers",
            where=str(shards.folder),
            fix="give the raw text, or make shards with the model's tokenizer: bertworks prepare --tokenizer MODEL",
        )


def _limited(tokenizer: Tokenizer, recipe: Recipe) -> Tokenizer:
    """The tokenizer, which must not let through more tokens than the model has positions."""
    tokenizer.model_max_length = min(tokenizer.model_max_length, recipe.encoder.max_position_embeddings)
    return tokenizer


def _make_shards(output: Path, request: Request, tokenizer: Tokenizer, workers: int | None) -> Iterator[Event]:
    if "-" in request.inputs and (output / "shards" / "manifest.json").exists():
        return  # what came through standard input is not read twice
    made = make_shards(
        request.inputs, output / "shards", tokenizer, text_column=request.text_column,
        documents=request.documents, workers=workers,
    )  # fmt: skip
    yield from _notes(made)


def _notes(events: Iterator[Event]) -> Iterator[Event]:
    """The end of a stage is not the end of the run."""
    for event in events:
        yield replace(event, kind="note") if event.kind == "done" else event


def _corpus_facts(shards: Shards, request: Request) -> dict[str, object]:
    m = shards.manifest
    return {"documents": m.documents, "sentences": m.sentences, "tokens": m.tokens, "sha256": m.files["tokens.bin"]}


def _describe(recipe: Recipe) -> str:
    c, parts = recipe.encoder, []
    for phase in recipe.train.phases:
        parts.append(f"{phase.num_steps:,} steps of {phase.batch_size} x {phase.sequence_length} tokens")
    return (
        f"{recipe.title}: {c.num_hidden_layers} layers, hidden size {c.hidden_size}, vocabulary {c.vocab_size:,}, "
        f"{c.num_parameters() / 1e6:.1f} M parameters, {recipe.train.precision}; {', then '.join(parts)}"
    )
