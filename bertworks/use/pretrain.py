"""From raw text, or shards, to a pre-trained model in one call that can be repeated: whatever is done already is not
done again. Not here: the training itself (`run`)."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

from ..errors import BertworksError, UsageError
from ..files.checkpoint import locked
from ..files.model import Model, load_model
from ..learn.machine import DTYPES, Precision, best_precision, choose_device, keep_memory, measure_matmul
from ..learn.plan import choose, fit, measure
from ..learn.recipe import Recipe, dump, load, parse, replaced
from ..text.atomic import write_text
from ..text.corpus import CorpusReader
from ..text.shards import Shards
from ..text.tokenizer import Tokenizer
from .events import Event
from .prepare import Documents, make_shards, make_vocabulary
from .run import Corpus, Run, versions

RESERVE = 0.06  # of a budget: evaluations, checkpoints, the last report
CHARACTERS_PER_TOKEN = 4.2  # for estimates before there is a vocabulary
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Request:
    """What a person asked for: the same request in the same folder goes on, another is refused."""

    inputs: tuple[str, ...]
    recipe: str | None = None
    overrides: tuple[str, ...] = ()
    budget: str | None = None
    tokenizer: str | None = None
    init: str | None = None
    precision: str | None = None
    seed: int | None = None
    text_column: str | None = None
    documents: Documents = "auto"


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
        budget: a time such as "30m" or "2h". Without a recipe everything is chosen to suit it; with one, only the number
            of steps. With neither: one hour.
        overrides: `table.field=value` words on top of the recipe.
        tokenizer: a tokenizer folder; None: a vocabulary is made from the text.
        init: a model folder to begin with, whose configuration and tokenizer are taken.

    Raises:
        UsageError: the folder belongs to a run with other settings, or the request is contradictory.
        BertworksError: the text, the disk or the training does not allow it.
    """
    begin = time.perf_counter()
    request = _request(inputs, recipe, overrides, budget, tokenizer, init, precision, seed, text_column, documents)
    output = Path(output)
    where = choose_device(device)
    with closing(_Processes(where)) as processes:
        if not processes.first:
            processes.wait()
        with locked(output) if processes.first else closing(processes):
            if processes.first:
                _claim(output, request, overwrite)
                yield from _prepare(output, request, where, begin, workers)
                processes.wait()
            resolved = parse((output / "recipe.toml").read_text(encoding="utf-8"), "recipe.toml")
            shards = Shards.open(_shards_folder(output, request))
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
    request = _request(inputs, recipe, overrides, budget, tokenizer, init, precision, seed, text_column, documents)
    where = choose_device(device)
    chosen = _precision(request, where)
    tokens = _corpus_tokens(request)
    resolved = _begin_recipe(request, where, chosen, tokens)
    if tokenizer is not None:
        resolved = _with_vocabulary(resolved, Tokenizer.load(tokenizer).vocab_size)
    elif not resolved.encoder.vocab_size:
        resolved = _with_vocabulary(resolved, resolved.vocabulary.size)
    measured = measure(resolved, where, chosen)
    if request.budget:
        resolved = replaced(fit(resolved, _seconds(request.budget) * (1 - RESERVE), measured.step_seconds), overrides)
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


def _request(
    inputs: Sequence[str | Path],
    recipe: str | None,
    overrides: Sequence[str],
    budget: str | None,
    tokenizer: str | None,
    init: str | None,
    precision: str | None,
    seed: int | None,
    text_column: str | None,
    documents: Documents,
) -> Request:
    if tokenizer and init:
        raise UsageError("a model to begin with brings its own tokenizer", fix="give --tokenizer or --init")
    if budget:
        _seconds(budget)
    given = [str(one) for one in ([inputs] if isinstance(inputs, str | Path) else inputs)]
    names = tuple(str(Path(one).resolve()) if Path(one).exists() else one for one in given)
    if recipe and recipe.endswith(".toml") and Path(recipe).is_file():
        recipe = str(Path(recipe).resolve())
    return Request(
        names, recipe, tuple(overrides), budget or (None if recipe else "1h"), tokenizer, init, precision, seed,
        text_column, documents,
    )  # fmt: skip


def _seconds(budget: str) -> float:
    """90s, 30m, 2h, 1d, 1h30m -> seconds."""
    total, number = 0.0, ""
    for letter in budget.strip().lower():
        if letter in UNITS and number:
            total, number = total + float(number) * UNITS[letter], ""
        elif letter.isdigit() or letter == ".":
            number += letter
        else:
            number = "?"
            break
    if number or total < 10:
        raise UsageError(f"{budget!r} is no budget", fix="write a time of 10 s or more such as 30m, 2h or 1h30m")
    return total


def _claim(output: Path, request: Request, overwrite: bool) -> None:
    """Takes the folder for this request. Refused if it holds another run, or what is no run at all."""
    path = output / "run.json"
    content = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(request).items()}
    if request.recipe and request.recipe.endswith(".toml") and Path(request.recipe).is_file():
        content["recipe_sha256"] = hashlib.sha256(Path(request.recipe).read_bytes()).hexdigest()
    if overwrite and path.exists():
        _clear(output)
    if path.exists():
        there = json.loads(path.read_text(encoding="utf-8"))["request"]
        differing = [name for name in content if content[name] != there.get(name)]
        if differing:
            lines = "".join(f"\n  {n}: {there.get(n)!r} there, {content[n]!r} now" for n in differing)
            raise UsageError(
                f"the folder holds a run with other settings:{lines}",
                where=str(output),
                fix="-o ANOTHER-FOLDER keeps both; --overwrite deletes the run that is there",
            )
        return
    strange = [p.name for p in output.iterdir() if not p.name.startswith(".")]
    if strange:
        raise UsageError(
            f"the folder is not empty and holds no run: {', '.join(sorted(strange)[:5])}",
            where=str(output),
            fix="-o ANOTHER-FOLDER, or empty this one",
        )
    write_text(path, json.dumps({"request": content, "versions": versions()}, indent=2, ensure_ascii=False) + "\n")


def _clear(output: Path) -> None:
    for path in output.iterdir():
        if path.name.startswith("."):
            continue  # the lock that we hold
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _prepare(
    output: Path, request: Request, device: torch.device, begin: float, workers: int | None
) -> Iterator[Event]:
    """Everything up to the resolved recipe: vocabulary, shards, plan."""
    if (output / "recipe.toml").exists():
        if not _is_shards(request):
            yield from _make_shards(output, request, Tokenizer.load(output / "tokenizer"), workers)
        return
    chosen = _precision(request, device)
    resolved = _begin_recipe(request, device, chosen, _corpus_tokens(request))
    if not _is_shards(request):
        if request.init:
            tokenizer = load_model(request.init).tokenizer
            tokenizer.save(output / "tokenizer")
        elif request.tokenizer:
            tokenizer = Tokenizer.load(request.tokenizer)
            tokenizer.save(output / "tokenizer")
        elif not (output / "tokenizer" / "tokenizer.json").exists():
            yield Event("stage", "making a vocabulary", {"stage": "vocabulary"})
            yield from make_vocabulary(
                request.inputs, output / "tokenizer", resolved.vocabulary, text_column=request.text_column,
                documents=request.documents, workers=workers,
            )  # fmt: skip
        yield Event("stage", "writing shards", {"stage": "shards"})
        yield from _make_shards(output, request, Tokenizer.load(output / "tokenizer"), workers)
    shards = Shards.open(_shards_folder(output, request))
    resolved = _with_vocabulary(resolved, shards.manifest.vocab_size)
    if request.init:
        _check_init(load_model(request.init), shards, resolved)
    if request.budget:
        measured = measure(resolved, device, chosen)
        left = _seconds(request.budget) * (1 - RESERVE) - (time.perf_counter() - begin)
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
        resolved = replaced(choose(_seconds(str(request.budget)), matmul, tokens), request.overrides)
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


def _is_shards(request: Request) -> bool:
    return len(request.inputs) == 1 and (Path(request.inputs[0]) / "manifest.json").is_file()


def _shards_folder(output: Path, request: Request) -> Path:
    return Path(request.inputs[0]) if _is_shards(request) else output / "shards"


def _make_shards(output: Path, request: Request, tokenizer: Tokenizer, workers: int | None) -> Iterator[Event]:
    if "-" in request.inputs and (output / "shards" / "manifest.json").exists():
        return  # what came through standard input is not read twice
    yield from make_shards(
        request.inputs, output / "shards", tokenizer, text_column=request.text_column,
        documents=request.documents, workers=workers,
    )  # fmt: skip


def _corpus_tokens(request: Request) -> int:
    """Of the shards; of raw text a guess by the size of its files."""
    if _is_shards(request):
        return Shards.open(request.inputs[0]).manifest.tokens
    if "-" in request.inputs:
        return 10_000_000
    reader = CorpusReader(request.inputs, text_column=request.text_column, documents=request.documents)
    packed = {".gz": 2.8, ".zst": 3.0, ".xz": 3.6, ".bz2": 3.6, ".parquet": 2.0}
    size = sum(path.stat().st_size * packed.get(path.suffix, 1.0) for path in reader.files)
    return int(size / CHARACTERS_PER_TOKEN)


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
