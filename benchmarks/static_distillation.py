"""Static vectors out of MiniLM, without and with a training on texts: how much of its quality they
keep.

    python benchmarks/static_distillation.py [--texts N] [--folder FOLDER]

Both tables have 256 numbers and the frequencies of the same 8 M words of Wikipedia; the second one
is fitted to the vectors of MiniLM for texts of it (`convert --train`). Measured are search for
documents (Cranfield), search for the paragraph of a question (SQuAD 1.1 dev, 2,000 questions; no
article of it is in that Wikipedia), and the similarity of sentences (STS-B train, which nothing
here was trained on). The choices were made on other data (docs/experiments, 2026-11-30). Intervals
of 95 % resample queries, articles and pairs, the same ones for both tables. The table goes to
docs/concepts/results.md.

--folder keeps the models, so that a run that was stopped continues.
"""

import argparse
import gzip
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from provenance import HERE, provenance, skip_without, write_between

from bertworks.datasets.reader import RowReader
from bertworks.evaluation.retrieval import Collection, read_collection
from bertworks.inference.embedder import Embedder, normalized
from bertworks.interop.convert import convert
from bertworks.io.inputs import IssueCounter
from bertworks.metrics.intervals import (
    RowSums,
    correlations,
    mean_sums,
    middle,
    paired_difference,
    resampled,
)
from bertworks.retrieval.ranking import ranking_figures, top_k

DATA = Path(os.environ.get("BERTWORKS_DATA", HERE.parents[1] / "shared" / "data"))
WIKIPEDIA = DATA / "text" / "en-wikipedia-8m.jsonl.gz"
RESULTS = HERE / "results" / "static_distillation.json"
PAGE = HERE.parent / "docs" / "concepts" / "results.md"
QUESTIONS = 2000
NAMES = {"minilm": "`minilm`", "distilled": "`--static 256`", "trained": "`--static 256 --train`"}
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=30_000)
    parser.add_argument("--folder", type=Path)
    a = parser.parse_args()
    skip_without(WIKIPEDIA)
    about = provenance(("torch", "numpy", "tokenizers"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.folder or Path(temporary)
        models: dict[str, str | Path] = {"minilm": "minilm"}
        seconds = {}
        for name, options in (
            ("distilled", {"text": [WIKIPEDIA]}),
            ("trained", {"train": [WIKIPEDIA], "train_texts": a.texts}),
        ):
            models[name] = folder / name
            begin = time.process_time()
            if not (folder / name).exists():
                for event in convert("minilm", folder / name, static=256, **options):
                    if event.kind != "stage":
                        print(event.text, flush=True)
                seconds[name] = round(time.process_time() - begin)
        figures: dict[str, dict[str, RowSums]] = {name: {} for name in models}
        groups: dict[str, list[str]] = {"Cranfield": [], "STS-B": []}
        questions, groups["SQuAD"] = squad()
        for name, model in models.items():
            embedder = Embedder(model)
            cranfield = read_collection(DATA / "retrieval" / "cranfield")
            figures[name]["Cranfield"] = gains(embedder, cranfield)
            figures[name]["SQuAD"] = gains(embedder, questions)
            figures[name]["STS-B"] = similarity(embedder)
            print(name, {key: round(value.value, 4) for key, value in figures[name].items()})
    rows = []
    for task in ("Cranfield", "SQuAD", "STS-B"):
        row: Row = {"task": task}
        for name in models:
            metric = figures[name][task]
            row[name] = [metric.value, *middle(resampled(metric, groups[task]))]
        value, interval = paired_difference(
            figures["trained"][task], figures["distilled"][task], groups[task]
        )
        row["difference"] = [value, *interval]
        rows.append(row)
    content = {**about, "texts": a.texts, "seconds": seconds, "rows": rows}
    RESULTS.write_text(json.dumps(content, indent=2) + "\n")
    lines = [*table(rows), "", f"{a.texts:,} texts. `{about['command']}` at {about['commit']}, "]
    lines[-1] += f"{about['time'][:10]}; {about['cpu']}, {' '.join(about['cpu_flags'])}."
    write_between(PAGE, "static-distillation", "\n".join(lines))
    print("\n".join(lines))


def table(rows: list[Row]) -> list[str]:
    """Return Markdown."""
    lines = [f"| | {' | '.join(NAMES.values())} | difference of the two |", "|---" * 5 + "|"]
    for row in rows:
        teacher = row["minilm"][0]
        cells = [f"{teacher:.3f}"]
        for name in ("distilled", "trained"):
            value, low, high = row[name]
            cells.append(f"{value:.3f} ({low:.3f} to {high:.3f}), {value / teacher:.0%}")
        value, low, high = row["difference"]
        lines.append(
            f"| {row['task']} | {' | '.join(cells)} | {value:+.3f} ({low:+.3f} to {high:+.3f}) |"
        )
    return lines


def squad() -> tuple[Collection, list[str]]:
    """Return a collection of paragraphs and some questions; and the article of each question."""
    with gzip.open(DATA / "squad" / "dev-v1.1.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    documents: dict[str, str] = {}
    questions = []
    for article in articles:
        for paragraph in article["paragraphs"]:
            name = str(len(documents))
            documents[name] = paragraph["context"]
            questions += [(q["question"], name, article["title"]) for q in paragraph["qas"]]
    drawn = random.Random(0).sample(questions, QUESTIONS)
    queries = {str(n): question for n, (question, _, _) in enumerate(drawn)}
    grades = {str(n): {name: 1} for n, (_, name, _) in enumerate(drawn)}
    collection = Collection(documents, queries, grades, IssueCounter(), IssueCounter(), set())
    return collection, [title for _, _, title in drawn]


def gains(embedder: Embedder, collection: Collection) -> RowSums:
    """Return nDCG@10 of each query by the cosine of vectors."""
    names = list(collection.documents)
    documents = normalized(embedder.embed([text or "-" for text in collection.documents.values()]))
    queries = normalized(embedder.embed(list(collection.queries.values())))
    values = []
    for vector, query in zip(queries, collection.queries, strict=True):
        best = [names[n] for n in top_k(documents @ vector, 10)]
        values.append(ranking_figures(best, collection.grades[query])["ndcg@10"])
    return mean_sums(values)


def similarity(embedder: Embedder) -> RowSums:
    """Return Spearman's correlation of cosines with the scores of STS-B."""
    rows = [row.values for row in RowReader(DATA / "glue" / "STS-B" / "train.tsv")]
    first, second = (
        normalized(embedder.embed([str(row[name]) for row in rows]))
        for name in ("sentence1", "sentence2")
    )
    gold = [float(row["score"]) for row in rows]
    return correlations(gold, np.sum(first * second, 1).tolist())["spearman"]


if __name__ == "__main__":
    main()
