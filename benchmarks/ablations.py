"""The comparisons of the papers on the benchmarks' data, for docs/concepts/results.md.

    python benchmarks/ablations.py [--only table6 joint ...] [--workers 1] [--show] [--quick]

Each is one `bertworks evaluate ablation`; the page shows the command. What is finished stays in
results/ablations.json and is not run again: its tables, and the score of each arm, seed and
measure. results/ablations/NAME.jsonl.gz has the same scores of 1,000 resamples of the held-out
rows, from which a test computes every mean and interval of the tables again. What was stopped
(Ctrl-C) resumes in build/ablations. Figures depend on steps and epochs, not on time, so several may
run at once (--workers, one thread each) and next to other work; but the arms of translators,
elmo and memory have equal time, and need a core of their own. All take about a day on one core.
"""

import argparse
import csv
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from provenance import HERE, provenance, skip_without, write_between

PAGE = HERE.parent / "docs" / "concepts" / "results.md"
STORE = HERE / "results" / "ablations.json"
FIGURES = HERE / "results" / "ablations"
WORK = HERE.parent / "build" / "ablations"
TEXT = "text/en-wikipedia-8m.jsonl.gz"
HELD_OUT_NOVELS = 2  # of the sorted files, the last ones
PASSAGE_WORDS = 1500
PASSAGES = 30  # of a novel, that are learned
SMALL = 1_000_000  # characters
FACTS = ("time", "commit", "cpu", "cpu_flags", "versions")
WRITING = Lock()
Maker = Callable[[Path, Path], Path]


def corpus(data: Path, _: Path) -> Path:
    return data / TEXT


def part_of_corpus(data: Path, folder: Path) -> Path:
    """The first documents."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (target := folder / "part.jsonl").exists():
        with gzip.open(data / TEXT, "rt", encoding="utf-8") as file:
            target.write_text("".join(file.readlines(SMALL)), encoding="utf-8")
    return target


def glue(data: Path, folder: Path) -> Path:
    """The tasks that ablations name, each with a train and a dev file."""
    samples = {"train": "train-sample.jsonl.gz", "dev": "heldout-from-train-sample.jsonl.gz"}
    for task in ("RTE", "MRPC", "CoLA", "SST-2", "STS-B", "MNLI", "QNLI"):
        for part, sample in samples.items():
            is_sample = task in ("MNLI", "QNLI")
            name = f"{part}.jsonl.gz" if is_sample else f"{part}.tsv"
            link(data / "glue" / task / (sample if is_sample else name), folder / task / name)
    return folder


def novels(data: Path, folder: Path) -> Path:
    files = sorted((data / "text" / "en-novels-2m").glob("*.txt.gz"))
    for name, some in (("train", files[:-HELD_OUT_NOVELS]), ("test", files[-HELD_OUT_NOVELS:])):
        folder.mkdir(parents=True, exist_ok=True)
        if not (target := folder / f"{name}.txt").exists():
            target.write_bytes(b"".join(gzip.decompress(path.read_bytes()) for path in some))
    return folder


def novels_of_corpus(data: Path, _: Path) -> Path:
    return data / "text" / "en-novels-2m"


def passages(data: Path, folder: Path) -> Path:
    """Passages of novels and their authors: of each novel, those in dev are its last ones.

    The folder also gets a MiniLM with more positions.
    """
    rows = dict[str, list[tuple[str, str]]](train=[], dev=[])
    for path in sorted((data / "text" / "en-novels-2m").glob("*.txt.gz")):
        words = gzip.decompress(path.read_bytes()).decode("utf-8").split()
        starts = range(0, len(words) - PASSAGE_WORDS + 1, PASSAGE_WORDS)
        author = path.name.partition("_")[0]
        of_novel = [(" ".join(words[start : start + PASSAGE_WORDS]), author) for start in starts]
        num_dev = len(of_novel) // 4
        rows["dev"] += of_novel[-num_dev:]
        learned = of_novel[:-num_dev]
        step = max(1, len(learned) // PASSAGES)
        rows["train"] += learned[::step][:PASSAGES]
    folder.mkdir(parents=True, exist_ok=True)
    for name, passages_of_part in rows.items():
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "author"), *passages_of_part])
    if not (longer := folder / "minilm-1024").exists():
        words = ["convert", "minilm", "-o", str(longer), "--positions", "1024"]
        subprocess.run([str(Path(sys.executable).with_name("bertworks")), *words], check=True)
    return folder


def tokens(data: Path, folder: Path) -> Path:
    for part in ("probe/ud-english-ewt", "ner/wnut17"):
        link(data / part, folder / Path(part).name)
    return folder


def link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        target.symlink_to(source.resolve())


class Comparison(NamedTuple):
    """name: of the ablation. text, data: give or make the corpus and the labelled data, from the
    folder of all data and a folder for what is made; None: it needs none. seeds: None: its own
    number. quick: the factor of all steps or times with --quick."""

    name: str
    text: Maker | None = corpus
    data: Maker | None = None
    seeds: int | None = None
    quick: float = 0.004


COMPARISONS = [
    Comparison("table6"),
    Comparison("directions", data=tokens),
    Comparison("table7", text=None, data=lambda data, _: data / "ner/wikigold/wikigold.conll.txt"),
    Comparison("table8"),
    Comparison("table5", data=glue),
    Comparison("nsp-sop"),
    Comparison("albert"),
    Comparison("electra", data=glue),
    Comparison("distillation", text=None, data=glue, seeds=5),
    Comparison("joint", text=None, data=glue),
    Comparison("translation", text=None, data=lambda data, _: data / "parallel/en-de"),
    Comparison("translators", text=None, data=lambda data, _: data / "parallel/en-de", quick=0.2),
    Comparison("static", data=lambda data, _: data / "probe"),
    Comparison("elmo", data=lambda data, _: data / "probe", quick=0.3),
    Comparison("adaptation", data=novels),
    Comparison("long", text=None, data=passages),
    Comparison("memory", novels_of_corpus, quick=0.1),
    Comparison("xlnet", novels_of_corpus, lambda data, _: data / "probe", quick=0.02),
    Comparison("roberta", text=part_of_corpus),
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = Path(os.environ.get("BERTWORKS_DATA", "."))
    parser.add_argument(
        "--data", type=Path, default=data, help="the folder with text/, glue/, ner/ and others"
    )
    parser.add_argument("--only", nargs="+", choices=[one.name for one in COMPARISONS], default=[])
    parser.add_argument("--workers", type=int, default=1, help="comparisons at a time")
    parser.add_argument("--show", action="store_true", help="run nothing, write the tables again")
    parser.add_argument(
        "--quick", action="store_true", help="does it run? a seed, a few steps; nothing is kept"
    )
    options = parser.parse_args()
    skip_without(options.data / TEXT)
    wanted = [one for one in COMPARISONS if not options.only or one.name in options.only]
    failed = list[str]()
    if not options.show:
        with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.workers) as pool:
            folder = Path(scratch) if options.quick else WORK
            known = {} if options.quick else read_store()
            missing = [one for one in wanted if not known.get(one.name, {}).get("complete")]
            failed = [
                why for why in pool.map(lambda one: run(one, folder, options), missing) if why
            ]
    if not options.quick:
        write_between(PAGE, "ablations", tables())
    if failed:
        raise SystemExit("\n".join(failed))


def read_store() -> dict[str, dict[str, Any]]:
    known: dict[str, dict[str, Any]] = json.loads(STORE.read_text()) if STORE.exists() else {}
    return known


def run(one: Comparison, folder: Path, options: argparse.Namespace) -> str:
    """Run a comparison, and keep its table. Returns where to see why it failed; "": it did not."""
    shown, output = ["bertworks", "evaluate", "ablation", one.name], folder / one.name
    words = [str(Path(sys.executable).with_name("bertworks")), *shown[1:]]
    for option, make in ((), one.text), (("--data",), one.data):
        if make:
            made = make(options.data, folder / "data" / make.__name__)
            inside = made.is_relative_to(options.data)
            words += [*option, str(made)]
            shown += [*option, str(made.relative_to(options.data)) if inside else make.__name__]
    more = ["--seeds", str(one.seeds)] if one.seeds else []
    quick = ["--seeds", "1", "--scale", str(one.quick)] if options.quick else more
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    output.mkdir(parents=True, exist_ok=True)
    with (folder / f"{one.name}.log").open("a") as log:
        done = subprocess.run(
            [*words, "-o", str(output), *quick], env=environment, stdout=log, stderr=log
        )
    if not options.quick and (output / "table.md").exists():
        keep(one.name, " ".join([*shown, *more]), output, complete=not done.returncode)
    if not done.returncode:
        return ""
    log_file = folder / f"{one.name}.log"
    if options.quick:  # its folder is temporary
        return "failed:\n" + log_file.read_text()
    return f"failed: see {log_file}"


def keep(name: str, command: str, output: Path, *, complete: bool) -> None:
    """Store the tables and scores of a comparison.

    output: the folder that `evaluate ablation` wrote. complete: whether all seeds are in its
        tables.
    """
    facts = {fact: value for fact, value in provenance(["torch"]).items() if fact in FACTS}
    table = (output / "table.md").read_text()
    figures = (output / "figures.jsonl").read_bytes()
    with WRITING:
        FIGURES.mkdir(parents=True, exist_ok=True)
        (FIGURES / f"{name}.jsonl.gz").write_bytes(gzip.compress(figures, mtime=0))
        entry = {
            "command": command,
            "complete": complete,
            **facts,
            "scores": scores_by_seed(figures),
            "table": table,
        }
        STORE.write_text(json.dumps(read_store() | {name: entry}, indent=1) + "\n")


def scores_by_seed(figures: bytes) -> dict[str, dict[str, dict[str, float]]]:
    """Return the score of each measure, arm and seed.

    figures: the lines of `figures.jsonl`.
    """
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for line in figures.splitlines():
        figure = json.loads(line)
        seeds = scores.setdefault(figure["measure"], {}).setdefault(figure["arm"], {})
        seeds[str(figure["seed"])] = figure["value"]
    return scores


def tables() -> str:
    """All tables, one heading lower than in their files."""
    known, parts = read_store(), list[str]()
    for one in (one for one in COMPARISONS if one.name in known):
        found = known[one.name]
        title, _, rest = found["table"].strip().removeprefix("# ").partition("\n")
        where = f"`{found['command']} -o {one.name}`, at {found['commit']}."
        if "remark" in found:  # about this run, written into the store by hand
            where += f" {found['remark']}"
        parts += [f"### {title}", "", where, rest.replace("\n## ", "\n#### ").rstrip(), ""]
    missing = [one.name for one in COMPARISONS if not known.get(one.name, {}).get("complete")]
    if missing:
        parts.append(f"Not run with all seeds yet: {', '.join(missing)}.")
    without_scores = [
        one.name for one in COMPARISONS if one.name in known and "scores" not in known[one.name]
    ]
    if without_scores:
        parts.append(
            "Run before the scores of each seed were stored, so that their intervals cannot be "
            "computed again: "
            f"{', '.join(without_scores)}."
        )
    return "\n".join(parts)


if __name__ == "__main__":
    main()
