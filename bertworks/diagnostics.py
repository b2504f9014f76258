"""Reports this machine's hardware, the settings chosen for it, and whether training works.

`doctor` yields one `Check` at a time, so that each is printed at once. It changes nothing.
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
from bertworks.config import packaged_table
from bertworks.errors import BertworksError
from bertworks.io.processes import allowed_cpus, cpu_quota, group_folders
from bertworks.io.system import read_system_file
from bertworks.models.transformer import cpu_supports_int8
from bertworks.runs.pretrain import pretrain
from bertworks.training.device import DTYPES, best_precision, choose_device, measure_matmul

_TABLES = packaged_table(__file__, "diagnostics.toml")
_EXTRAS: dict[str, tuple[str, str]] = _TABLES["extras"]
_LITTLE_MEMORY = 1 << 30
_LITTLE_DISK = 1 << 30
_REPORT = "please report this with the lines above"


@dataclass(frozen=True)
class Check:
    """One result: `text` for users, `fields` for programs, and a `hint` if it is not `good`."""

    name: str
    text: str
    good: bool = True
    hint: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)


def doctor() -> Iterator[Check]:
    """Run the checks, which takes about five seconds."""
    yield _versions()
    yield from _extras()
    yield _system()
    yield _cores()
    yield _memory()
    yield _disk()
    device = choose_device()
    yield _device(device)
    yield from _speed(device)
    yield _self_test()


def _versions() -> Check:
    names = ("torch", "numpy", "tokenizers", "safetensors", "pyarrow")
    versions = {"bertworks": bertworks.__version__, "python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in names} | {
        "torch": str(torch.__version__)
    }
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Check("versions", text, fields=versions)


def _extras() -> Iterator[Check]:
    for name, (extra, purpose) in _EXTRAS.items():
        try:
            version = importlib.metadata.version(name)
            yield Check("extras", f"{name} {version} ({purpose})", fields={name: version})
        except importlib.metadata.PackageNotFoundError:
            yield Check(
                "extras",
                f'{name} is not installed; {purpose} need it: pip install "bertworks[{extra}]"',
                fields={name: None},
            )


def _system() -> Check:
    cpuinfo = read_system_file("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    known = set(flags[1].split()) if flags else set()
    has = [name for name, flag in _TABLES["instructions"].items() if flag in known]
    processor = model[1] if model else platform.processor() or platform.machine()
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    text = f"{system}; {processor}; {', '.join(has) or 'no vector instructions found'}"
    return Check(
        "system", text, fields={"system": system, "processor": processor, "instructions": has}
    )


def _cores() -> Check:
    """Cores that this process may use (affinity, control group), and the threads of torch."""
    cores = os.cpu_count() or 1
    allowed = len(allowed_cpus())
    quota = cpu_quota()
    usable = min(allowed, quota or allowed)
    threads = torch.get_num_threads()
    limits = f"{cores} in the machine"
    limits += f", {allowed} by affinity" if allowed < cores else ""
    limits += f", {quota:g} by control group" if quota else ""
    text = f"{usable:g} usable ({limits}); torch computes with {threads} threads"
    fields = {"cores": cores, "affinity": allowed, "quota": quota, "torch_threads": threads}
    if threads <= max(1.0, usable):
        return Check("cores", text, fields=fields)
    return Check(
        "cores",
        f"{text}: more than cores, which is slow",
        False,
        f"OMP_NUM_THREADS={int(usable)}",
        fields,
    )


def _memory() -> Check:
    meminfo = dict(
        re.findall(r"^(\w+):\s+(\d+) kB$", read_system_file("/proc/meminfo"), re.MULTILINE)
    )
    total, free = (int(meminfo.get(name, 0)) * 1024 for name in ("MemTotal", "MemAvailable"))
    limit = _memory_limit()
    text = f"{total / 1e9:.1f} GB"
    if limit and (not total or limit < total):
        free = min(free or limit, limit)
        text = f"{limit / 1e9:.1f} GB by control group, of {text} in the machine"
    is_low = bool(total) and free < _LITTLE_MEMORY
    hint = "close other programs, or train a smaller model" if is_low else None
    fields = {"total": total, "free": free, "limit": limit}
    return Check("memory", f"{text}; {free / 1e9:.1f} GB free", not is_low, hint, fields)


def _memory_limit() -> int | None:
    """Memory limit of the control groups in bytes; None: no limit."""
    files = (
        folder / name
        for folder in group_folders("memory")
        for name in ("memory.max", "memory.limit_in_bytes")
    )
    limits = [
        int(text) for text in (read_system_file(file).strip() for file in files) if text.isdigit()
    ]
    return min((limit for limit in limits if limit < 1 << 60), default=None)


def _disk() -> Check:
    usage = shutil.disk_usage(".")
    is_low = usage.free < _LITTLE_DISK
    hint = "delete files, or work in another folder" if is_low else None
    text = f"{usage.free / 1e9:.1f} GB free of {usage.total / 1e9:.1f} GB in this folder"
    return Check("disk", text, not is_low, hint, {"free": usage.free, "total": usage.total})


def _device(device: torch.device) -> Check:
    if device.type == "cuda":
        p = torch.cuda.get_device_properties(device)
        text = (
            f"{torch.cuda.device_count()} x {p.name}, {p.total_memory / 1e9:.0f} GB, CUDA "
            f"{torch.version.cuda}"
        )
        return Check(
            "device", text, fields={"device": str(device), "name": p.name, "memory": p.total_memory}
        )
    why = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no GPU"
    return Check("device", f"cpu ({why})", fields={"device": "cpu"})


def _speed(device: torch.device) -> Iterator[Check]:
    speeds = {name: measure_matmul(dtype, device) for name, dtype in DTYPES.items()}
    text = ", ".join(
        f"{name} {speed / 1e9:,.{1 if speed < 1e10 else 0}f} GFLOP/s"
        for name, speed in speeds.items()
    )
    yield Check("matmul speed", text, fields=speeds)
    precision = best_precision(device)
    gain = speeds["bf16"] / speeds["fp32"]
    text = (
        f"device {device}, precision {precision}, because bf16 multiplies matrices {gain:.1f} "
        "times as fast as fp32"
    )
    int8 = device.type == "cpu" and cpu_supports_int8()
    if int8:
        text += "; --precision int8 is available for inference"
    yield Check(
        "chosen",
        text,
        fields={"device": str(device), "precision": precision, "gain": gain, "int8": int8},
    )


def _self_test() -> Check:
    """Pre-train a small model in a temporary folder.

    It runs on the device and in the precision that `pretrain` chooses.
    """
    begin = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="bertworks-doctor-") as folder:
            first, *_, last = _train_a_little(Path(folder))
    except BertworksError as error:
        return Check("self-test", f"failed: {error}", False, error.hint)
    except (OSError, RuntimeError) as error:
        return Check("self-test", f"failed: {type(error).__name__}: {error}", False, _REPORT)
    seconds = time.perf_counter() - begin
    text = f"text, vocabulary, shards, 30 steps: loss {first:.2f} -> {last:.2f}"
    fields = {"first_loss": first, "last_loss": last, "seconds": seconds}
    if not last < 0.7 * first:
        return Check("self-test", f"{text}: it does not learn", False, _REPORT, fields)
    return Check("self-test", f"{text}, in {seconds:.1f} s", fields=fields)


def _train_a_little(folder: Path) -> list[float]:
    """Return the masked LM losses of steps on a little text.

    The masks are the same in every epoch, so that the text can be memorized.
    """
    facts = ("white cat is north", "old dog was east", "red horse ran south")
    sentences = (f"The {words} of the town." for words in facts)
    (folder / "text.txt").write_text(
        "\n\n".join([" ".join(sentences)] * 16) + "\n", encoding="utf-8"
    )
    events = pretrain([folder / "text.txt"], folder / "model", workers=1, **_TABLES["self_test"])
    return [event.fields["masked_lm_loss"] for event in events if event.kind == "step"]
