"""What a GPU does with this package, in less than three minutes: whether it computes the right
thing, keeps the promises and how fast it is. Each line of the report is on disk at once; what fails
is a line, and the rest follows.

    python benchmarks/gpu/run.py --out gpu-report           # on a machine with a GPU, as `make gpu`
    python benchmarks/gpu/run.py --out /tmp/report --device cpu --quick   # tries the scripts

All parts prepare at the same time, and compute one after the other, the most important one first.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
# seconds, in order
PARTS = {"speed": 52.0, "parity": 20.0, "resume": 40.0, "feed": 22.0, "peers": 34.0}
TOTAL = 168.0
READY = 30.0  # to prepare


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "gpu-report")))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--total", type=float, default=TOTAL, help="seconds of everything")
    parser.add_argument("--parts", default=",".join(PARTS), help="names with commas, in this order")
    options = parser.parse_args()
    begin, out = time.perf_counter(), options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for name in ("report.jsonl", "report.md"):
        (out / name).unlink(missing_ok=True)
    (out / "report.md").write_text("# A GPU run\n\n", encoding="utf-8")
    machine(out)
    scale = options.total / TOTAL
    parts = {
        name: Worker(name, PARTS[name] * scale, options, out) for name in options.parts.split(",")
    }
    wrong = 0
    for name, worker in parts.items():
        left = options.total - (time.perf_counter() - begin)
        wrong += worker.turn(min(PARTS[name] * scale, left), READY * max(1.0, scale))
        note(
            out,
            f"\n*{name}: {worker.ended}, {time.perf_counter() - begin:.0f} s since the start*\n",
        )
    return int(wrong > 0)


class Worker:
    """The process of a part. Its words go to a log."""

    def __init__(self, name: str, seconds: float, options: argparse.Namespace, out: Path):
        words = [
            sys.executable,
            str(HERE / f"{name}.py"),
            "--wait",
            "--out",
            str(out),
            "--device",
            options.device,
        ]
        words += ["--seconds", str(seconds - 3)] + ["--quick"] * options.quick
        paths = os.pathsep.join(
            [str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        self.log = (out / f"{name}.log").open("wb")
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=os.environ | {"PYTHONPATH": paths},
        )
        self.prepared, self.ended = threading.Event(), "not started"
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.write(line)
            self.log.flush()
            if line.rstrip().endswith(b"is ready"):
                self.prepared.set()
            else:
                sys.stdout.buffer.write(line)
                sys.stdout.flush()
        self.prepared.set()  # it ended

    def turn(self, seconds: float, ready: float) -> bool:
        """Waits for the part, at most this long, and ends it. Whether something was wrong."""
        if seconds <= 0 or not self.prepared.wait(ready):
            self.process.kill()
            self.ended = "no time left" if seconds <= 0 else "was not ready"
            return True
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(b"go\n")
            self.process.stdin.flush()
            self.ended = f"exit code {self.process.wait(seconds)}"
        except subprocess.TimeoutExpired:
            self.ended = f"stopped after {seconds:.0f} s"
        except OSError:
            self.ended = f"ended early with exit code {self.process.wait(5)}"
        self.process.kill()
        return self.process.wait() != 0


def machine(out: Path) -> None:
    """What nvidia-smi says."""
    try:
        done = subprocess.run(["nvidia-smi"], capture_output=True, timeout=20, check=False)
        (out / "smi.txt").write_bytes(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        note(out, f"nvidia-smi: {error}\n")


def note(out: Path, text: str) -> None:
    with (out / "report.md").open("a", encoding="utf-8") as stream:
        stream.write(text)


if __name__ == "__main__":
    sys.exit(main())
