"""Two checkouts side by side: the ratio of their times, paired, in one run on one machine.

    python benchmarks/checkouts.py BEFORE AFTER [--rounds 9] [--cells embed query ...]

BEFORE and AFTER are folders of the repository. Each has a process that stays, with one thread; the
two take turns, in random order. Times are of the processor, so that other programs disturb them
less. A ratio below 1: AFTER is faster. A cell has become slower if the whole interval of its ratios
is above 1.03 (one query: 1.05).
"""

import argparse
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

CHILD = """
import contextlib, json, os, random, sys, time
from pathlib import Path
import bertworks as bw
work = Path(sys.argv[1])
rows = [line.rpartition(",")[0] for line in (work / "rows.csv").read_text().splitlines()[1:]]
models = {}

def get(name, make):
    if name not in models:
        models[name] = make()
    return models[name]

def steps(events):
    # for each token, as versions draw other batches
    start, before = None, None
    for event in events:
        if event.kind == "step":
            if event.fields["step"] == 5:
                start, before = time.process_time(), event.fields["tokens"]
            elif event.fields["step"] == 20:
                events.close()
                return (time.process_time() - start) / (event.fields["tokens"] - before)

def run(cell, number):
    if cell in ("embed", "int8"):
        precision = "bf16" if cell == "embed" else "int8"
        model = get(cell, lambda: bw.Embedder("minilm", precision=precision))
        start = time.process_time()
        model.embed(rows)
    elif cell == "query":
        model = get(cell, lambda: bw.Embedder("minilm"))
        start = time.process_time()
        for text in rows[:100]:
            model.embed([text[:60]])
    elif cell == "labels":
        model = get(cell, lambda: bw.Predictor(work / f"classifier-{sys.argv[2]}"))
        start = time.process_time()
        model.predict(rows)
    elif cell in ("vocab", "shards"):
        from bertworks.cli.main import main
        output = ["-o", str(work / f"{sys.argv[2]}-{cell}-{number}")]
        options = ["--tokenizer", str(work / "tokenizer")]
        if cell == "vocab":
            options = ["--size", "8000"]
        start = sum(os.times()[:4])  # with that of worker processes
        with contextlib.redirect_stdout(sys.stderr):
            command = "prepare" if cell == "shards" else cell
            main([command, str(work / "words.txt"), *output, *options])
        return sum(os.times()[:4]) - start
    elif cell == "pretrain":
        output = work / f"{sys.argv[2]}-pre-{number}"
        return steps(bw.pretrain([work / "shards"], output, recipe=str(work / "recipe.toml")))
    else:
        try:
            request = bw.make_finetune_request(
                work / "rows.csv", overrides=["epochs=2"], method="full", validation="split"
            )
        except TypeError:  # an older version, which knows no other
            request = bw.make_finetune_request(work / "rows.csv", overrides=["epochs=2"])
        return steps(bw.finetune_events(work / f"{sys.argv[2]}-fine-{number}", request))
    return time.process_time() - start

print("ready", flush=True)
for line in sys.stdin:
    cell, number = line.split()
    print(run(cell, number), flush=True)
"""
RECIPE = """title = "BERT-mini"
[encoder]
hidden_size = 256
num_hidden_layers = 4
num_attention_heads = 4
[train]
held_out_sequences = 8
evaluate_every = 1000
[[train.phases]]
num_steps = 30
batch_size = 16
"""
CELLS = ("embed", "int8", "query", "labels", "vocab", "shards", "pretrain", "finetune")
LIMITS = {"query": 1.05}


def command(checkout: Path, *words: str) -> list[str]:
    """A command line of a checkout."""
    return [sys.executable, "-c", "from bertworks.cli.main import main; main()", *words]


def prepare(work: Path, checkouts: dict[str, Path]) -> None:
    """Text, shards and labelled rows, made by the checkout BEFORE; a classifier of each
    checkout."""
    draw = random.Random(0)
    words = " ".join(topics.values()).split()
    rows = ["text,label"]
    for number in range(600):
        start, count = (
            draw.randrange(len(words) - 200),
            draw.choice([6, 9, 12, 20, 33, 47, 60, 90, 128]),
        )
        text = " ".join(word for word in words[start : start + count] if word.isalnum())
        rows.append(f"{text} {'this is good' if number % 2 else 'that was bad'},{'ab'[number % 2]}")
    (work / "rows.csv").write_text("\n".join(rows) + "\n")
    (work / "recipe.toml").write_text(RECIPE)
    (work / "text.txt").write_text("\n\n".join(topics.values()))
    # rare words, as real texts have
    many = [f"{draw.choice(words)}{draw.randrange(100)}" for _ in range(400_000)]
    lines = [
        " ".join(many[at : at + 20]) + ("\n" if at % 200 == 0 else "")
        for at in range(0, len(many), 20)
    ]
    (work / "words.txt").write_text("\n".join(lines))
    commands = [
        ("before", "vocab", "text.txt", "-o", "tokenizer", "--size", "8000"),
        ("before", "prepare", "text.txt", "--tokenizer", "tokenizer", "-o", "shards"),
        *(
            (name, "finetune", "rows.csv", "-o", f"classifier-{name}", "--set", "epochs=1")
            for name in checkouts
        ),
    ]
    for name, *line in commands:
        environment = os.environ | {"PYTHONPATH": str(checkouts[name]), "OMP_NUM_THREADS": "1"}
        subprocess.run(
            command(checkouts[name], *line),
            cwd=work,
            env=environment,
            check=True,
            capture_output=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=CELLS)
    arguments = parser.parse_args()
    checkouts = {"before": arguments.before.resolve(), "after": arguments.after.resolve()}
    for name, path in checkouts.items():
        commit = subprocess.run(
            ["git", "-C", path, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        )
        print(f"{name}: {commit.stdout.strip()}")
    print(f"CPU: {platform.processor() or platform.machine()}, {os.cpu_count()} cores; one thread")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        prepare(work, checkouts)
        children = {}
        for name, path in checkouts.items():
            environment = os.environ | {
                "PYTHONPATH": str(path),
                "OMP_NUM_THREADS": "1",
                "TOKENIZERS_PARALLELISM": "false",
            }
            children[name] = subprocess.Popen(
                [sys.executable, "-c", CHILD, folder, name],
                env=environment,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,  # "python -c" imports from here first
            )
        for cell in arguments.cells:
            ratios = []
            for number in range(arguments.rounds + 1):
                times = {}
                for name in random.sample(sorted(children), 2):
                    stdin, stdout = children[name].stdin, children[name].stdout
                    assert stdin is not None
                    assert stdout is not None
                    if number == 0 and cell == arguments.cells[0]:
                        stdout.readline()
                    stdin.write(f"{cell} {number}\n")
                    stdin.flush()
                    times[name] = float(stdout.readline())
                if number:  # the first round prepares kernels
                    ratios.append(times["after"] / times["before"])
            verdict = "SLOWER" if min(ratios) > LIMITS.get(cell, 1.03) else ""
            print(
                f"{cell:<9} after / before: median {statistics.median(ratios):.3f}, "
                f"{min(ratios):.3f} to "
                f"{max(ratios):.3f}, {len(ratios)} pairs {verdict}",
                flush=True,
            )
        for child in children.values():
            child.kill()


if __name__ == "__main__":
    main()
