"""The family in ten minutes: the commands of that page with what they print, and one score of all.

    python benchmarks/ten_minutes.py [--data DATA] [--folder FOLDER] [--only bert ...] [--show]
    [--quick]

Each system trains for three minutes, one thread, on the English text that `bertworks demo` collects
from Python (translators and XLM: the captions of Multi30k; LEGAL-BERT: a novel). Afterwards each
network that reads one text is frozen, and a linear head on its vectors learns to tell from which
library a paragraph of Python's documentation is: one score with which all can be compared. The
models stay in FOLDER: run the same command again to resume. Results are in
results/ten_minutes.json.
"""

import argparse
import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from provenance import HERE, provenance, skip_without, write_between

PAGE = HERE.parent / "docs" / "concepts" / "family-in-ten-minutes.md"
STORE = HERE / "results" / "ten_minutes.json"
ORIGINS = "demo/origins"
TEXT = "demo/training.jsonl"
CAPTION = '"Two dogs are playing in the snow."'
NUM_PAIRS = 29_000
NUM_JOINT = 800  # rows of each task of the joint fine-tuning


@dataclass(frozen=True)
class System:
    """A system of the page.

    title: its name in the table of scores.
    commands: what the page shows, in order; {budget} is the time of the training.
    model: the folder that gets a score; "" if it cannot be fine-tuned on single texts.
    """

    title: str
    commands: tuple[str, ...]
    model: str = ""


def _pretraining(recipe: str, model: str, *words: str) -> str:
    """Return the command that trains a recipe on the text of the demo."""
    options = "".join(f" {word}" for word in words)
    chosen = f" --recipe {recipe}" if recipe else ""
    return f"bertworks pretrain {TEXT} -o {model}{chosen} --budget {{budget}}{options}"


def _translator(recipe: str, model: str) -> tuple[str, str]:
    """Return the commands that train a translator and use it."""
    return (
        f"bertworks pretrain --parallel train.en train.de -o {model} --recipe {recipe} "
        "--budget {budget}",
        f"bertworks translate {model} {CAPTION}",
    )


SYSTEMS: Mapping[str, System] = {
    "word2vec": System("word2vec", (_pretraining("skip-gram", "vectors"),), "vectors"),
    "seq2seq": System("seq2seq with attention", _translator("seq2seq-bahdanau", "seq2seq")),
    "elmo": System("ELMo", (_pretraining("elmo-small", "myelmo"),), "myelmo"),
    "transformer": System("Transformer", _translator("transformer-tiny", "transformer")),
    "gpt": System("GPT", (_pretraining("gpt", "mygpt"),), "mygpt"),
    "gpt2": System(
        "GPT-2",
        (
            _pretraining("gpt2", "mygpt2"),
            'bertworks generate mygpt2 "This function returns" --max-tokens 20',
        ),
        "mygpt2",
    ),
    "transformer-xl": System(
        "Transformer-XL",
        (
            _pretraining("transformer-xl-small", "myxl"),
            'bertworks generate myxl "This function returns" --max-tokens 20',
        ),
    ),
    "bert": System(
        "BERT",
        (_pretraining("", "mybert"), 'bertworks fill mybert "This function returns a [MASK]."'),
        "mybert",
    ),
    "roberta": System("RoBERTa", (_pretraining("roberta", "myroberta"),), "myroberta"),
    "albert": System("ALBERT", (_pretraining("albert", "myalbert"),), "myalbert"),
    "distilbert": System(
        "DistilBERT",
        (_pretraining("distilbert", "student", "--teacher mybert"),),
        "student",
    ),
    "electra": System("ELECTRA", (_pretraining("electra", "myelectra"),), "myelectra"),
    "xlnet": System("XLNet", (_pretraining("xlnet-small", "myxlnet"),), "myxlnet"),
    "xlm": System(
        "XLM",
        (
            "bertworks pretrain train.en train.de --language en --language de "
            "--parallel pairs.tsv -o xlm --recipe xlm-small --set sampling.parallel_rate=0.5 "
            "--budget {budget}",
        ),
    ),
    "mt-dnn": System(
        "MT-DNN", ("bertworks finetune rte.tsv mrpc.tsv --joint -o mt-dnn --epochs 1",)
    ),
    "legal-bert": System(
        "LEGAL-BERT",
        ("bertworks pretrain domain.txt -o adapted --init mybert --budget {budget}",),
        "adapted",
    ),
    "probe": System(
        "structural probe",
        (
            "bertworks evaluate probe minilm ud-english-ewt --layers 0,3,6 --sample 500 "
            "--rank 64 --epochs 10",
        ),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BERTWORKS_DATA", ".")))
    parser.add_argument("--folder", type=Path, help="of the models; a temporary one if it is unset")
    parser.add_argument("--only", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--show", action="store_true", help="run nothing, write the page again")
    parser.add_argument(
        "--quick", action="store_true", help="does it run? seconds of training; nothing is kept"
    )
    arguments = parser.parse_args()
    skip_without(arguments.data / "parallel")
    known: dict[str, Any] = {"systems": {}}
    if STORE.exists() and not arguments.quick:
        known = json.loads(STORE.read_text())
    if not arguments.show:
        with tempfile.TemporaryDirectory(prefix="bertworks-bench-") as scratch:
            run_all(arguments, known, arguments.folder or Path(scratch))
    if not arguments.quick:
        for name in known["systems"]:
            write_between(PAGE, name, transcript(name, known["systems"][name]))
        write_between(PAGE, "ten-minutes", table(known["systems"]))
    print(table(known["systems"]))


def run_all(arguments: argparse.Namespace, known: dict[str, Any], folder: Path) -> None:
    """Run the systems that are not in the store."""
    folder.mkdir(parents=True, exist_ok=True)
    write_files(arguments.data, folder)
    for name in arguments.only:
        if name in known["systems"]:
            continue
        budget = "20s" if arguments.quick else "3m"
        known["systems"][name] = run(SYSTEMS[name], budget, folder)
        print(json.dumps({name: known["systems"][name]}), flush=True)
        if not arguments.quick:
            content = {**known, "provenance": provenance(("torch", "tokenizers"))}
            STORE.write_text(json.dumps(content, indent=1) + "\n")


def write_files(data: Path, folder: Path) -> None:
    """Write the files that the commands name into a folder."""
    from bertworks.demo.corpus import write_demo_corpus, write_demo_origins

    if not (folder / TEXT).exists():
        (folder / "demo").mkdir(exist_ok=True)
        write_demo_corpus(folder / "demo")
    if not (folder / ORIGINS).exists():
        parts = [folder / "demo" / f"{part}.jsonl" for part in ("training", "held-out")]
        write_demo_origins(parts, folder / ORIGINS)
    for language in ("en", "de"):
        content = gzip.decompress((data / f"parallel/en-de/train.{language}.gz").read_bytes())
        (folder / f"train.{language}").write_bytes(content)
    sides = [
        (folder / f"train.{language}").read_text().replace("\t", " ").split("\n")[:NUM_PAIRS]
        for language in ("en", "de")
    ]
    lines = ["\t".join(pair) for pair in zip(*sides, strict=True)]
    (folder / "pairs.tsv").write_text("\n".join(lines) + "\n")
    novels = sorted((data / "text/en-novels-2m").glob("*.txt.gz"))
    (folder / "domain.txt").write_bytes(gzip.decompress(novels[0].read_bytes()))
    entailments = (data / "glue/RTE/train.tsv").read_text(encoding="utf-8").splitlines()
    (folder / "rte.tsv").write_text("\n".join(entailments[: NUM_JOINT + 1]) + "\n")
    write_paraphrases(data / "glue/MRPC/msr_paraphrase_train.txt", folder / "mrpc.tsv")
    shutil.copytree(data / "probe/ud-english-ewt", folder / "ud-english-ewt", dirs_exist_ok=True)


def write_paraphrases(source: Path, path: Path) -> None:
    """Write the pairs of MRPC with the columns label, text_a and text_b."""
    rows = [line.split("\t") for line in source.read_text(encoding="utf-8-sig").splitlines()[1:]]
    labels = ("different", "same")
    lines = [f"{labels[int(row[0])]}\t{row[3]}\t{row[4]}\n" for row in rows[:NUM_JOINT]]
    path.write_text("label\ttext_a\ttext_b\n" + "".join(lines), encoding="utf-8")


def run(system: System, budget: str, folder: Path) -> dict[str, Any]:
    """Return what the commands of a system print, and the score of its model."""
    outputs = [
        [command, printed(command.format(budget=budget), folder)] for command in system.commands
    ]
    result: dict[str, Any] = {"budget": budget, "outputs": outputs}
    if system.model:
        result["origins"] = origins(system.model, folder)
    return result


def origins(model: str, folder: Path) -> dict[str, Any]:
    """Return the score of a linear head on the vectors of a model, and those of the baselines."""
    output = f"{model}-origins"
    printed(
        f"bertworks finetune {ORIGINS}/train.csv --dev {ORIGINS}/dev.csv --model {model} "
        f"--method frozen -o {output} --overwrite",
        folder,
    )
    result = json.loads((folder / output / "result.json").read_text())
    return {
        "score": result["score"],
        "interval": result["intervals"][result["metric"]],
        "rows": result["rows"],
        "baselines": {
            row["method"]: {"score": row["score"], "interval": row["interval"]}
            for row in result["baselines"]["methods"][1:]
        },
    }


def printed(command: str, folder: Path) -> list[str]:
    """Return the lines of a command's standard output, without those that say what to do next."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    words = shlex.split(command)
    process = subprocess.run(
        [sys.executable, "-m", "bertworks.cli.main", *words[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise SystemExit(f"failed: {command}\n{process.stderr}")
    lines = process.stdout.splitlines()
    return [line for line in lines if not line.startswith(("see ", "next: "))]


def transcript(name: str, system: Mapping[str, Any]) -> str:
    """Return the commands of a system and what they printed, as Markdown."""
    commands = [command.format(budget=system["budget"]) for command, _ in system["outputs"]]
    lines = ["```", *commands, "```", "```text"]
    for _, output in system["outputs"]:
        lines += output
    return "\n".join([*lines, "```"])


def table(systems: Mapping[str, Any]) -> str:
    """Return the scores of all systems that have one, and of the baselines, the best first."""
    scores = {
        SYSTEMS[name].title: system["origins"]
        for name, system in systems.items()
        if "origins" in system
    }
    baselines = next(iter(scores.values()))["baselines"]
    rows = sorted((scores | baselines).items(), key=lambda row: -row[1]["score"])
    lines = ["| after three minutes | accuracy |", "|---|---|"]
    for title, figures in rows:
        low, high = figures["interval"]
        lines.append(
            f"| {title} | {100 * figures['score']:.1f} % ({100 * low:.1f} to {100 * high:.1f}) |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
