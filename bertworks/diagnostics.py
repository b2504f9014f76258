"""What this machine has, what was chosen for it and why, and whether text really becomes a model here.

Every finding is a `Check`, made one after the other so that a person sees them as they come. Nothing is changed.
"""

import importlib.metadata
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import bertworks
from bertworks.errors import BertworksError
from bertworks.models.config import EncoderConfig
from bertworks.models.packed_linear import cpu_supports_int8
from bertworks.runs.pretrain_job import held_out_batches
from bertworks.text.corpus import CorpusReader
from bertworks.text.shards import write_shards
from bertworks.text.vocabulary import VocabularyConfig, train_vocabulary
from bertworks.training.device import DTYPES, best_precision, choose_device, measure_matmul
from bertworks.training.loop import train
from bertworks.training.objectives import PretrainingModel
from bertworks.training.optimization import OptimizerConfig, make_optimizer

_INSTRUCTIONS = {  # as people call them: as /proc/cpuinfo does
    "AVX2": "avx2",
    "AVX-512": "avx512f",
    "AVX-512 bf16": "avx512_bf16",
    "AMX bf16": "amx_bf16",
}
_EXTRAS = {
    "sentencepiece": ("vocab", "unigram vocabularies"),
    "faiss-cpu": ("faiss", "approximate searches"),
    "onnxruntime": ("export", "exported models"),
    "starlette": ("serve", "servers"),
}
_LITTLE_MEMORY, _LITTLE_DISK = 1 << 30, 1 << 30
_SELF_TEST_STEPS = 30


@dataclass(frozen=True)
class Check:
    """One finding. `text` is for people, `fields` for programs; where it is not `good`, `hint` says what to do."""

    name: str
    text: str
    good: bool = True
    hint: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)


def doctor() -> Iterator[Check]:
    """Yield what was found, in the order in which a person asks; takes about five seconds."""
    yield _versions()
    yield from _extras()
    yield _system()
    yield _cores()
    yield _memory()
    yield _disk()
    device = choose_device()
    yield _device(device)
    yield from _speed(device)
    yield _self_test(device)


def _versions() -> Check:
    names = ("torch", "numpy", "tokenizers", "safetensors", "pyarrow")
    versions = {"bertworks": bertworks.__version__, "python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in names} | {"torch": str(torch.__version__)}
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Check("versions", text, fields=versions)


def _extras() -> Iterator[Check]:
    for name, (extra, purpose) in _EXTRAS.items():
        try:
            version = importlib.metadata.version(name)
            yield Check("extras", f"{name} {version} ({purpose})", fields={name: version})
        except importlib.metadata.PackageNotFoundError:
            text = f'{name} is not installed; {purpose} need it: pip install "bertworks[{extra}]"'
            yield Check("extras", text, fields={name: None})


def _system() -> Check:
    cpuinfo = _read("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    known = set(flags[1].split()) if flags else set()
    has = [name for name, flag in _INSTRUCTIONS.items() if flag in known]
    processor = model[1] if model else platform.processor() or platform.machine()
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    text = f"{system}; {processor}; {', '.join(has) or 'no vector instructions found'}"
    return Check("system", text, fields={"system": system, "processor": processor, "instructions": has})


def _cores() -> Check:
    """Cores that this process may use (affinity, control-group quota) beside the threads that torch starts."""
    there = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    quota = _processor_quota()
    usable = min(allowed, quota) if quota else float(allowed)
    threads = torch.get_num_threads()
    limits = [f"{there} in the machine"]
    if allowed < there:
        limits.append(f"{allowed} by affinity")
    if quota:
        limits.append(f"{quota:g} by control group")
    text = f"{usable:g} usable ({', '.join(limits)}); torch computes with {threads} threads"
    fields = {"cores": there, "affinity": allowed, "quota": quota, "torch_threads": threads}
    if threads > max(1.0, usable):
        return Check(
            "cores", f"{text}: more than cores, which is slow", False, f"OMP_NUM_THREADS={int(usable)}", fields
        )
    return Check("cores", text, fields=fields)


def _memory() -> Check:
    meminfo = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE))
    total, free = (int(meminfo.get(name, 0)) * 1024 for name in ("MemTotal", "MemAvailable"))
    limit = _memory_limit()
    if limit and (not total or limit < total):
        free = min(free, limit) if free else limit
        text = (
            f"{limit / 1e9:.1f} GB by control group, of {total / 1e9:.1f} GB in the machine; {free / 1e9:.1f} GB free"
        )
    else:
        text = f"{total / 1e9:.1f} GB, {free / 1e9:.1f} GB free"
    fields = {"total": total, "free": free, "limit": limit}
    if total and free < _LITTLE_MEMORY:
        return Check("memory", text, False, "close other programs, or train a smaller size", fields)
    return Check("memory", text, fields=fields)


def _disk() -> Check:
    usage = shutil.disk_usage(".")
    text = f"{usage.free / 1e9:.1f} GB free of {usage.total / 1e9:.1f} GB here"
    hint = "free some, or run in another folder"
    fields = {"free": usage.free, "total": usage.total}
    return Check("disk", text, usage.free >= _LITTLE_DISK, hint if usage.free < _LITTLE_DISK else None, fields)


def _device(device: torch.device) -> Check:
    if device.type == "cuda":
        p = torch.cuda.get_device_properties(device)
        text = f"{torch.cuda.device_count()} x {p.name}, {p.total_memory / 1e9:.0f} GB, CUDA {torch.version.cuda}"
        return Check("device", text, fields={"device": str(device), "name": p.name, "memory": p.total_memory})
    why = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no GPU"
    return Check("device", f"cpu ({why})", fields={"device": "cpu"})


def _speed(device: torch.device) -> Iterator[Check]:
    speeds = {name: measure_matmul(dtype, device) for name, dtype in DTYPES.items()}
    text = ", ".join(f"{name} {speed / 1e9:,.{1 if speed < 1e10 else 0}f} GFLOP/s" for name, speed in speeds.items())
    yield Check("matmul speed", text, fields=speeds)
    precision, gain = best_precision(device), speeds["bf16"] / speeds["fp32"]
    text = f"device {device}, precision {precision}, because bf16 multiplies matrices {gain:.1f} times as fast as fp32"
    int8 = device.type == "cpu" and cpu_supports_int8()
    text += "; answers also with --precision int8" * int8
    yield Check("chosen", text, fields={"device": str(device), "precision": precision, "gain": gain, "int8": int8})


def _self_test(device: torch.device) -> Check:
    """From text to a falling loss, in a folder that is removed again: every wing of the package takes part, where and
    in the precision that a training would choose."""
    begin = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="bertworks-doctor-") as folder:
            tokens, first, last = _train_a_little(Path(folder), device)
    except (BertworksError, OSError, RuntimeError) as error:
        if isinstance(error, BertworksError):
            return Check("self-test", f"failed: {error}", False, error.hint)
        what = f"failed: {type(error).__name__}: {error}"
        return Check("self-test", what, False, "please report this with the lines above")
    seconds = time.perf_counter() - begin
    text = f"text, vocabulary of {tokens} tokens, shards, {_SELF_TEST_STEPS} steps: loss {first:.2f} -> {last:.2f}"
    fields = {"first_loss": first, "last_loss": last, "seconds": seconds}
    if not last < 0.7 * first:
        return Check(
            "self-test", f"{text}: it does not learn", False, "please report this with the lines above", fields
        )
    return Check("self-test", f"{text}, in {seconds:.1f} s", fields=fields)


def _train_a_little(folder: Path, device: torch.device) -> tuple[int, float, float]:
    """Tokens of the vocabulary, and the masked-word loss of the first and of the last step."""
    animals, colours, places = "cat dog horse cow".split(), "white black brown grey".split(), "house field wood".split()
    sentences = [f"The {c} {a} is in the {p}." for a in animals for c in colours for p in places]
    documents = [" ".join(sentences[i : i + 6]) for i in range(0, len(sentences), 6)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    reader = CorpusReader([folder / "text.txt"])
    tokenizer, _ = train_vocabulary((document.text for document in reader), VocabularyConfig(size=100))
    shards = write_shards(reader, tokenizer, folder / "shards", workers=1)
    everything = torch.arange(len(shards.documents) - 1).numpy()
    batches = held_out_batches(
        shards, everything, tokenizer, pairs=True, sequence_length=32, sequences=64, batch_size=64
    )
    torch.manual_seed(0)
    model = PretrainingModel(
        EncoderConfig(
            vocab_size=tokenizer.vocab_size, hidden_size=64, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=128, max_position_embeddings=32, hidden_dropout=0.0, attention_dropout=0.0,
        )
    ).to(device)  # fmt: skip
    config = OptimizerConfig(learning_rate=1e-2, warmup=0.0)
    optimizer, precision = make_optimizer(model, config), best_precision(device)
    steps = train(model, optimizer, lambda _: batches[:1], config, _SELF_TEST_STEPS, precision=precision)
    losses = [step.read()["masked_lm"].loss for step in steps]
    return tokenizer.vocab_size, losses[0], losses[-1]


def _processor_quota() -> float | None:
    """Cores that the control group grants, None without a limit (version 2, then version 1)."""
    quota, _, period = _read(_control_group("cpu.max") or "/sys/fs/cgroup/cpu.max").partition(" ")
    if not quota:
        quota = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").strip()
        period = _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if not quota.isdigit() or not period.strip().isdigit():
        return None
    return int(quota) / int(period)


def _memory_limit() -> int | None:
    """Bytes that the control group grants, None without a limit."""
    text = _read(_control_group("memory.max") or "/sys/fs/cgroup/memory.max").strip()
    text = text or _read("/sys/fs/cgroup/memory/memory.limit_in_bytes").strip()
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None


def _control_group(name: str) -> str | None:
    """The file of this process's own control group (version 2), if it is visible."""
    own = re.search(r"^0::/?(.*)$", _read("/proc/self/cgroup"), re.MULTILINE)
    path = Path("/sys/fs/cgroup") / (own[1] if own else "") / name
    return str(path) if path.exists() else None


def _read(path: str) -> str:
    """The text of a file of the kernel; empty where this system has none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
