"""How fast texts become vectors and labels on the CPU: bertworks and what people use instead.

    make bench-peers       installs the others, each into its own environment (peers.txt)
    python benchmarks/inference.py [--works minilm base sst2 query alone] [--contenders NAME ...]
                                   [--rounds 3] [--texts 2000] [--base-texts 500] [--threads N]
                                   [--quick] [--profile] [--show] [--avx2]

All get the same real texts and give their answers in the same order; what they give is compared
with transformers in fp32. Every measurement is a process of its own with the model loaded and warm;
they take turns; medians of the rounds. Only real tokens are counted. All run with their defaults,
and a second time with what bertworks sets for itself: memory that glibc keeps, and threads that
soon sleep. Contenders that are not installed are left out, and named.

    minilm, base   vectors of texts of mixed length: of MiniLM-L6, and of the shape of BERT-Base
    with random weights,
                   which takes every n-th text only
    sst2           the probabilities of two labels for the dev set of SST-2: BERT-Base, random
                   weights
    query          one text of 12 tokens after the other; and seconds from nothing to the first
                   vector
    alone          bertworks only: how soon commands answer, tokens/s of more and more texts, of up
                   to a million sentences, and of longer and longer texts, and where the time goes.
                   --profile: only this last one, published nowhere

After every round of a work its figures, and where they come from, are in
results/inference/WORK.json, and the page shows all that is there: works can be measured one by one,
and what was done is kept. --show: only the page.

"of matmul" is the share of the speed of large matrix products, in the best precision of this
machine: products that the real tokens need over products that the machine could have done. It is
measured in every round; the best one counts.

--avx2: as on a machine without AVX-512 and AMX, by the switches of the libraries; another table.
ONNX Runtime has no such switch, and keeps what the machine has.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from contenders import CONTENDERS, FINISHED, REFERENCE, Job
from inference_tables import COLUMNS, stages_table, tables
from materials import Lengths, labelled_texts, queries, random_models, real_texts
from provenance import HERE, PAGE, process, provenance, write_between

# what the command `bertworks` sets
COMMAND = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"}
OURS = COMMAND | {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
SETTINGS: dict[str, dict[str, str]] = dict(zip(COLUMNS, ({}, OURS), strict=True))  # ours are both
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "CT2_FORCE_CPU_ISA": "AVX2",
}
STORE = HERE / "results" / "inference"
WORKS = ("minilm", "base", "sst2", "query", "alone")
GROWTH = {
    "texts": (1_000, 10_000, 100_000),
    "sentences of 12 tokens": (1_000, 10_000, 100_000, 1_000_000),
}
QUICK_TEXTS = 24


@dataclass(frozen=True)
class Work:
    title: str
    model: Path
    texts: list[str]
    classify: bool = False
    kind: str = "speed"


def main() -> None:
    arguments = parse()
    if arguments.show:
        show()
        return
    with tempfile.TemporaryDirectory(prefix="bertworks-bench-") as scratch:
        bench = Bench(arguments, Path(scratch))
        if arguments.profile:
            print("\n".join(stages_table(bench.profile(max(bench.ceiling().values())))))
            return
        for name in arguments.works:
            for results in bench.alone() if name == "alone" else bench.compare(name):
                if not arguments.quick:
                    STORE.mkdir(parents=True, exist_ok=True)
                    (STORE / f"{name}{'-avx2' * arguments.avx2}.json").write_text(
                        json.dumps(results, indent=2) + "\n"
                    )
                    show()
            print("\n".join(tables(name, results)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--works", nargs="+", choices=WORKS, default=WORKS)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--base-texts", type=int, default=500)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--peers",
        type=Path,
        default=HERE / ".peers",
        help="where `make bench-peers` installed them",
    )
    parser.add_argument(
        "--quick", action="store_true", help="does it run? one round, few texts, a tiny network"
    )
    parser.add_argument(
        "--profile", action="store_true", help="only where the time of bertworks goes"
    )
    parser.add_argument(
        "--avx2", action="store_true", help="as on a machine without AVX-512 and AMX"
    )
    parser.add_argument("--show", action="store_true", help="measure nothing, write the page again")
    return parser.parse_args()


def origin(arguments: argparse.Namespace) -> dict[str, Any]:
    """Where figures come from, the versions of the peers among it."""
    lines = [
        line.split()
        for line in (HERE / "peers.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    peers = dict(package.split("==") for _, *packages in lines for package in packages)
    found = provenance(("torch", "tokenizers", "numpy"))
    if arguments.avx2:
        found["cpu_flags"] = [
            flag for flag in found["cpu_flags"] if not flag.startswith(("avx512", "amx"))
        ]
    return {**found, "versions": peers | found["versions"], "threads": arguments.threads}


# --- the parent: contenders take turns


class Bench:
    """All that is measured, one thing at a time."""

    def __init__(self, arguments: argparse.Namespace, scratch: Path):
        self.arguments, self.scratch, self.lengths = arguments, scratch, Lengths()
        self.switches = AVX2 if arguments.avx2 else {}
        quick = arguments.quick
        # now: what is measured changes the page, and so the name of the commit
        self.origin = origin(arguments)
        self.rounds, self.seconds = (1, 0.1) if quick else (arguments.rounds, 5.0)
        models = random_models("tiny" if quick else "base", arguments.peers / "models")
        self.filled = models["pretrained"]
        self.minilm = self.filled if quick else self.lengths.folder
        count = QUICK_TEXTS if quick else arguments.texts
        texts = real_texts(count, self.lengths)
        every = max(1, count // min(count, arguments.base_texts))
        small, base = ("BERT-tiny", "BERT-tiny") if quick else ("MiniLM-L6", "BERT-Base")
        works = {
            "minilm": Work(f"Vectors, {small}", self.minilm, texts),
            "base": Work(f"Vectors, {base}", self.filled, texts[::every]),
            "sst2": Work(
                f"Labels, {base}",
                models["classifier"],
                labelled_texts(872, self.lengths)[:count],
                True,
            ),
            "query": Work(
                f"One query, {small}", self.minilm, queries(100, self.lengths), kind="query"
            ),
        }
        self.works = {name: work for name, work in works.items() if name in arguments.works}
        here = set(self.origin["cpu_flags"])
        wanted = [
            name
            for name in arguments.contenders
            if not (needs := CONTENDERS[name].needs) or needs & here
        ]
        self.contenders = [name for name in wanted if Path(self.python(name)).exists()]
        self.absent = [name for name in wanted if name not in self.contenders]

    def python(self, contender: str) -> str:
        environment = CONTENDERS[contender].environment
        return (
            str(self.arguments.peers / environment / "bin" / "python")
            if environment
            else sys.executable
        )

    def compare(self, work: str) -> Iterator[dict[str, Any]]:
        """What is known of a work after each round."""
        begin, ceilings = time.perf_counter(), []
        runs: dict[str, Any] = {
            name: {column: [] for column in SETTINGS} for name in self.contenders
        }
        self.convert(self.works[work])
        self.write(work, self.works[work].texts)
        for number in range(self.rounds):
            ceilings.append(self.ceiling())
            for name in self.contenders:
                if self.works[work].classify and not CONTENDERS[name].classifies:
                    continue
                for column in list(SETTINGS)[
                    : 1 if self.arguments.quick or not CONTENDERS[name].environment else 2
                ]:
                    found = self.run(work, name, column, number)
                    runs[name][column].append(found)
                    shown = (
                        f"{found['p50']:9.2f} ms"
                        if "p50" in found
                        else f"{found['seconds']:8.1f} s"
                    )
                    print(f"{work:7} {name:28} {column:13} {shown}", file=sys.stderr, flush=True)
            ceiling = max(speed for found in ceilings for speed in found.values())
            yield {
                **self.origin,
                "rounds": number + 1,
                "ceilings": ceilings,
                "ceiling": ceiling,
                "absent": self.absent,
                "work": self.summary(work, runs, ceiling),
                "seconds": time.perf_counter() - begin,
            }

    def write(self, name: str, texts: Sequence[str]) -> str:
        path = self.scratch / f"{name}.json"
        path.write_text(json.dumps(texts))
        return str(path)

    def files(self, work: Work) -> Path:
        return self.arguments.peers / "models" / f"{work.model.name}-files"

    def convert(self, work: Work) -> None:
        """What three of the others read; made once."""
        files, python = self.files(work), self.arguments.peers / "convert" / "bin" / "python"
        if (files / FINISHED).exists() or not python.exists():
            return
        print(f"converting {work.model.name} ...", file=sys.stderr, flush=True)
        job = Job("", "convert", str(work.model), str(files))
        process(
            str(HERE / "contenders.py"),
            [json.dumps(asdict(job))],
            self.arguments.threads,
            python=str(python),
        )

    def run(self, name: str, contender: str, column: str, number: int) -> dict[str, Any]:
        """One measurement."""
        work = self.works[name]
        settings = {"TOKENIZERS_PARALLELISM": "true"} | SETTINGS[column]
        if not CONTENDERS[contender].environment:
            # As in the command, and so with one thread for tokens; a loaded model that answers
            # queries is a library.
            settings = {} if work.kind == "query" else COMMAND
        job = Job(
            contender,
            work.kind,
            str(work.model),
            str(self.files(work)),
            work.classify,
            self.arguments.threads,
            str(self.scratch / f"{name}.json"),
            str(self.answers(name, contender)) if number == 0 else "",
            self.seconds,
        )
        found = self.process(job, settings)
        if work.kind == "query":
            begin = time.perf_counter()
            self.process(replace(job, work="start"), settings)
            found["first_vector"] = time.perf_counter() - begin
        return found

    def process(self, job: Job, settings: dict[str, str]) -> dict[str, Any]:
        return process(
            str(HERE / "contenders.py"),
            [json.dumps(asdict(job))],
            self.arguments.threads,
            python=self.python(job.contender),
            settings=settings | self.switches,
        )

    def answers(self, name: str, contender: str) -> Path:
        return self.scratch / f"{name}, {contender}.npy"

    def summary(self, name: str, runs: dict[str, Any], ceiling: float) -> dict[str, Any]:
        """Medians of each contender in each column, and how many times as fast bertworks is."""
        from bertworks.checkpoints.model_folder import ModelFolder

        work = self.works[name]
        lengths = self.lengths(work.texts)
        config = ModelFolder(work.model).config
        flops = config.flops_per_token(round(sum(n * n for n in lengths) / sum(lengths)), 0) / 3
        about = {
            "title": work.title,
            "texts": len(lengths),
            "tokens": sum(lengths),
            "longest": max(lengths),
        }
        found: dict[str, Any] = {}
        for contender, columns in runs.items():
            for column, measured in columns.items():
                if not measured:
                    continue
                one = {key: statistics.median(run[key] for run in measured) for key in measured[0]}
                if work.kind == "speed":
                    one["tokens_per_second"] = sum(lengths) / one["seconds"]
                    one["of_matmul"] = one["tokens_per_second"] * flops / ceiling
                found.setdefault(contender, {})[column] = one
            if contender in found and work.kind == "speed":
                found[contender]["agreement"] = self.agreement(name, contender)
        times = "p50" if work.kind == "query" else "seconds"
        if ours := found.get("bertworks"):
            for columns in found.values():
                for column in SETTINGS:
                    if column in columns:
                        columns[column]["bertworks_is_faster"] = (
                            columns[column][times] / ours["default settings"][times]
                        )
        return {**about, "medians": found, "runs": runs}

    def agreement(self, name: str, contender: str) -> float | None:
        """The worst cosine of a vector with the right one; of probabilities the largest
        difference."""
        right, given = self.answers(name, REFERENCE), self.answers(name, contender)
        if not right.exists():
            return None
        a, b = (np.load(path).astype(np.float64) for path in (right, given))
        if self.works[name].classify:
            return float(np.abs(a - b).max())
        return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())

    # --- bertworks alone

    def stages(self, what: str, **job: Any) -> dict[str, Any]:
        return process(
            str(HERE / "stages.py"),
            [what, json.dumps(job)],
            self.arguments.threads,
            settings=COMMAND | self.switches,
        )

    def ceiling(self) -> dict[str, float]:
        return self.stages("ceiling")

    def growth(self, model: str, texts: Sequence[str]) -> dict[str, Any]:
        source = self.scratch / "texts.jsonl"
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        found, tokens = (
            self.stages("growth", model=model, source=str(source)),
            sum(self.lengths(texts)),
        )
        return {**found, "tokens": tokens, "tokens_per_second": tokens / found["seconds"]}

    def profile(self, ceiling: float) -> dict[str, Any]:
        texts = real_texts(
            QUICK_TEXTS if self.arguments.quick else self.arguments.texts, self.lengths
        )
        return self.stages(
            "profile", model=str(self.minilm), texts=self.write("profile", texts), ceiling=ceiling
        )

    def alone(self) -> Iterator[dict[str, Any]]:
        begin, ceilings = time.perf_counter(), [self.ceiling()]
        ceiling = max(ceilings[0].values())
        quick, model = self.arguments.quick, str(self.minilm)
        grown, texts = {}, real_texts(max(GROWTH["texts"]), self.lengths)
        given = dict(zip(GROWTH, (texts, queries(max(GROWTH["texts"]), self.lengths)), strict=True))
        for kind, counts in GROWTH.items():
            for count in (10, 20) if quick else counts:
                some = [given[kind][n % len(given[kind])] for n in range(count)]
                grown[f"{count:,} {kind}"] = self.growth(model, some)
                print(f"alone   {count:,} {kind}", file=sys.stderr, flush=True)
        work = {
            "start": self.stages(
                "start", model=model, filled=str(self.filled), times=1 if quick else 5
            ),
            "growth": grown,
            "lengths": self.stages(
                "lengths",
                model=model,
                texts=self.write("lengths", texts[:1000]),
                tokens=1024 if quick else 32_768,
            ),
            "profile": self.profile(ceiling),
        }
        about = {"rounds": 1, "ceilings": ceilings, "ceiling": ceiling, "absent": []}
        yield {**self.origin, **about, "work": work, "seconds": time.perf_counter() - begin}


def show() -> None:
    """Writes the page from what is known."""
    found = [(name, STORE / f"{name}{suffix}.json") for name in WORKS for suffix in ("", "-avx2")]
    parts = [tables(name, json.loads(path.read_text())) for name, path in found if path.exists()]
    write_between(PAGE, "inference", "\n\n".join("\n".join(lines) for lines in parts))


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    main()
