"""How much faster a student with half of the layers classifies than its teacher, which is minilm
with six.

    python benchmarks/student.py [--rounds 5] [--texts 1000]

The same real texts, one thread, in turns; medians. The speed does not depend on what the models
have learned.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from materials import Lengths, real_texts
from provenance import provenance, publish

import bertworks as bw


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=1000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    texts = real_texts(arguments.texts, lengths_of := Lengths())
    tokens = sum(lengths_of(texts))
    rows = [{"text": text, "label": "ab"[number % 2]} for number, text in enumerate(texts[:40])]
    seconds: dict[str, list[float]] = {"teacher": [], "student": []}
    with tempfile.TemporaryDirectory() as name:
        teacher, student = (Path(name) / role for role in seconds)
        options: dict[str, Any] = {"method": "full", "epochs": 1, "validation": "split"}
        bw.finetune(rows, output=teacher, **options)
        bw.finetune(rows, output=student, model=teacher, teacher=teacher, layers=3, **options)
        models = {role: bw.load(Path(name) / role) for role in seconds}
        for number in range(arguments.rounds + 1):
            for role, model in models.items():
                begin = time.perf_counter()
                model.predict(texts)
                if number:  # the first round prepares kernels
                    seconds[role].append(time.perf_counter() - begin)
    both = {role: tokens / statistics.median(row) for role, row in seconds.items()}
    results = provenance(["torch"]) | {
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": both,
    }
    line = f"teacher {both['teacher']:,.0f} tokens/s, student {both['student']:,.0f}"
    line += f": {both['student'] / both['teacher']:.2f} times as fast"
    print(line)
    publish("student", results, f"```\n{line}\n```")


if __name__ == "__main__":
    main()
