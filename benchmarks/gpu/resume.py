"""A training that is killed at a step and resumed: equal bits with a fixed order of sums, and
without one."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import Part
from corpus import write_shards

STEPS, KILLED = 60, 31
KINDS = ("1", "0")  # BERTWORKS_DETERMINISTIC
Processes = dict[str, "subprocess.Popen[bytes]"]


def main() -> None:
    if "--child" in sys.argv:
        train_here(*sys.argv[sys.argv.index("--child") + 1 :])
        return
    part = Part("resume")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shards = write_shards(folder, 20 if part.quick else 400, 300 if part.quick else 4000)
        names = [f"{kind}-{what}" for kind in KINDS for what in ("whole", "killed", "again")]
        first = {name: start(part, folder / name, shards, name[0]) for name in names}
        later = {
            name: start(part, folder / name, shards, name[0])
            for name in names
            if name.endswith("killed")
        }
        part.ready()
        try:
            part.attempt("kill and resume", kill_and_resume, part, folder, first, later)
        finally:
            for process in (*first.values(), *later.values()):
                process.kill()


def kill_and_resume(part: Part, folder: Path, first: Processes, later: Processes) -> None:
    """Runs at the same time: the order of sums must not depend on what else the GPU does."""
    for process in first.values():
        go(process)
    for name in later:
        kill_at_step(first[name], folder / name)
        go(later[name])
    for process in first.values():
        process.wait(max(1.0, part.left()))
    codes = {name: process.wait(max(1.0, part.left())) for name, process in later.items()}
    for kind in KINDS:
        digests = {what: digest(folder / f"{kind}-{what}") for what in ("whole", "killed", "again")}
        part.line(
            "kill and resume",
            fixed_order=kind == "1",
            steps=STEPS,
            killed_at=KILLED,
            exit_code=codes[f"{kind}-killed"],
            resumed_equal=digests["whole"] == digests["killed"],
            repeated_equal=digests["whole"] == digests["again"],
            losses=losses(folder / f"{kind}-whole"),
            resumed=losses(folder / f"{kind}-killed"),
        )


def go(process: "subprocess.Popen[bytes]") -> None:
    """It has imported what it needs, and waits for a line."""
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.flush()


def start(part: Part, output: Path, shards: Path, kind: str) -> "subprocess.Popen[bytes]":
    size = "tiny" if part.quick else "base"
    words = [sys.executable, __file__, "--child", str(shards), str(output), str(part.device), size]
    log, own = (
        (part.out / "resume-runs.log").open("ab"),
        os.environ | {"BERTWORKS_DETERMINISTIC": kind},
    )
    return subprocess.Popen(words, env=own, stdin=subprocess.PIPE, stdout=log, stderr=log)


def kill_at_step(process: "subprocess.Popen[bytes]", output: Path) -> None:
    """Once it has written the figures of a step after the last checkpoint."""
    while process.poll() is None and last_step(output) < KILLED:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()  # the system then releases the run folder


def last_step(output: Path) -> int:
    path = output / "metrics.jsonl"
    rows = path.read_text().splitlines() if path.exists() else []
    numbers = [json.loads(row)["step"] for row in rows if row.endswith("}")]
    return max(numbers, default=0)


def losses(output: Path) -> str:
    rows = [json.loads(row) for row in (output / "metrics.jsonl").read_text().splitlines()]
    return " ".join(f"{row['loss']:.6f}" for row in rows if "loss" in row)[-60:]


def digest(output: Path) -> str:
    """Of the weights, and of the optimizer's state, at the end."""
    files = [
        output / "model.safetensors",
        *sorted(output.glob("checkpoints/*/state.safetensors"))[-1:],
    ]
    return " ".join(
        hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else "missing"
        for file in files
    )


def train_here(shards: str, output: str, device: str, size: str) -> None:
    """A training of two layers of this width, with dropout, whose checkpoints are 10 steps
    apart."""
    from bertworks.runs.pretrain import pretrain

    sets = [
        "encoder.num_hidden_layers=2",
        "encoder.vocab_size=0",
        f"train.phases.0.num_steps={STEPS}",
        "train.phases.0.batch_size=64",
        f"train.phases.0.sequence_length={32 if size == 'tiny' else 128}",
        "train.held_out_sequences=16",
        "train.evaluate_every=30",
        "train.save_every=10",
        "optimizer.warmup=0.1",
        "train.phases.1.num_steps=1",
        "train.phases.1.batch_size=1",
        "train.phases.1.sequence_length=32",
        "sampling.copies=1",
    ]
    sys.stdin.readline()
    for event in pretrain(
        [shards], output, recipe=f"bert-{size}", overrides=sets, precision="bf16", device=device
    ):
        print(f"{time.time():.1f} {Path(output).name} {event.text}", flush=True)


main()
