"""Static vectors of words: how fast they are trained and how good they are, beside gensim.

    python benchmarks/static_vectors.py [--words N] [--epochs N] [--seeds 0 1 2]
    python benchmarks/static_vectors.py --choose 5e-3 1e-2 [--recipes cbow]

Both learn from the same sentences of the same known words, with the same dimensions, window,
negative words, subsampling and epochs, in turns, each in a process of its own with one thread on
one core. The time is that of the processor: of bertworks from the shards to the model folder, with
evaluations and checkpoints; of gensim that of `train`, the sentences in a file (its fastest way).
Spearman's correlation is computed by `evaluate similarity` for both. A finished cell is kept in
results/static_vectors.json, so that a run that was stopped continues; the table goes to
docs/concepts/results.md. gensim is in benchmarks/.peers/gensim (`make bench-peers`), or that of
--python.

`--choose` compares learning rates on other text, the novels, with seed 0, and prints them; nothing
is kept.
"""

import argparse
import gzip
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from provenance import HERE, process, provenance, skip_without, write_between

DATA = Path(os.environ.get("BERTWORKS_DATA", HERE.parents[1] / "shared" / "data"))
PAIRS = {
    "MEN": "EN-MEN-TR-3k.txt",
    "WS-353": "EN-WS-353-SIM.txt",
    "SimLex": "EN-SIMLEX-999.txt",
    "RG-65": "EN-RG-65.txt",
}
RESULTS = HERE / "results" / "static_vectors.json"
PAGE = HERE.parent / "docs" / "concepts" / "results.md"
KINDS = {"skip-gram": 1, "cbow": 0}  # `sg` of gensim
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--words", type=int, default=8_000_000, help="of the text, from its start")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--recipes", nargs="+", default=["skip-gram"], choices=KINDS)
    parser.add_argument("--core", default=str(min(os.sched_getaffinity(0))))
    parser.add_argument("--python", default=str(HERE / ".peers" / "gensim" / "bin" / "python"))
    parser.add_argument("--choose", type=float, nargs="+", metavar="RATE", default=[])
    parser.add_argument("--fresh", action="store_true", help="forget the cells that are kept")
    parser.add_argument("--job", help="of one process, as JSON")
    a = parser.parse_args()
    if a.job:
        print(json.dumps(work(**json.loads(a.job))))
        return
    skip_without(DATA / "text")
    with tempfile.TemporaryDirectory() as folder:
        if a.choose:
            choose(a, Path(folder))
        else:
            compare(a, Path(folder))


def compare(a: argparse.Namespace, folder: Path) -> None:
    about = provenance(("torch", "numpy", "tokenizers"))
    settings = {"words": a.words, "epochs": a.epochs}
    kept: Row = json.loads(RESULTS.read_text()) if RESULTS.exists() and not a.fresh else {}
    rows: list[Row] = kept.get("rows", []) if kept.get("settings") == settings else []
    cells = [(recipe, seed, who) for seed in a.seeds for recipe in a.recipes for who in WHO]
    done = {(row["recipe"], row["seed"], row["who"]) for row in rows}
    shards = folder / "shards"
    for recipe, seed, who in cells:
        if (recipe, seed, who) in done:
            continue
        if not shards.exists():
            text = write_text(wikipedia(), a.words, folder / "text.jsonl")
            job(a, "prepare", text=str(text), recipe=recipe, output=str(folder))
        options = {"shards": str(shards), "recipe": recipe, "seed": seed, "epochs": a.epochs}
        output = folder / f"{recipe}-{seed}-{who}"
        if who == "gensim":
            sentences = str(folder / f"sentences-{seed}.txt")
            job(a, "sentences", output=sentences, **options)
            result = job(
                a, "gensim", python=a.python, output=f"{output}.txt", sentences=sentences, **options
            )
            job(a, "import", text=f"{output}.txt", output=str(output))
        else:
            result = job(a, "bertworks", output=str(output), **options)
        result |= {"spearman": job(a, "similarity", model=str(output))}
        rows.append({"recipe": recipe, "seed": seed, "who": who, **result})
        RESULTS.write_text(
            json.dumps({**about, "settings": settings, "rows": rows}, indent=2) + "\n"
        )
        print(recipe, seed, who, result, flush=True)
    lines = table(rows, [recipe for recipe in KINDS if any(r["recipe"] == recipe for r in rows)])
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    gensim = next(row["version"] for row in rows if row["who"] == "gensim")
    lines += [
        "",
        f"The first {a.words:,} words of Wikipedia, {a.epochs} epochs, "
        f"{len({row['seed'] for row in rows})} seeds. `{about['command']}` at {about['commit']}, "
        f"{about['time'][:10]}; {about['cpu']}, one core, {' '.join(about['cpu_flags'])}; load "
        f"{about['load_average'][0]}; {versions}, gensim {gensim}.",
    ]
    write_between(PAGE, "static-vectors", "\n".join(lines))
    print("\n".join(lines))


WHO = ("gensim", "bertworks")


def table(rows: list[Row], recipes: Iterable[str]) -> list[str]:
    """Return Markdown: means over seeds, and the ratio of the speeds, paired by seed."""
    lines = [
        f"| recipe | | words per CPU-second | {' | '.join(PAIRS)} |",
        "|---" * (3 + len(PAIRS)) + "|",
    ]
    for recipe in recipes:
        of_recipe = {(row["who"], row["seed"]): row for row in rows if row["recipe"] == recipe}
        seeds = [s for who, s in of_recipe if who == "gensim" and ("bertworks", s) in of_recipe]
        for who in WHO:
            own = [of_recipe[who, seed] for seed in seeds]
            if not own:
                continue
            speeds = [row["words"] / row["seconds"] for row in own]
            ratios = [
                speed / of_recipe["gensim", seed]["words"] * of_recipe["gensim", seed]["seconds"]
                for speed, seed in zip(speeds, seeds, strict=True)
            ]
            cells = [f"{statistics.mean(speeds):,.0f} ({statistics.mean(ratios):.2f} x)"]
            for name in PAIRS:
                values = [row["spearman"][name] for row in own]
                spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
                cells.append(f"{statistics.mean(values):.3f}{spread}")
            lines.append(f"| {recipe} | {who} | {' | '.join(cells)} |")
    return lines


def choose(a: argparse.Namespace, folder: Path) -> None:
    """Print held-out losses and correlations of learning rates on the novels."""
    for recipe in a.recipes:
        text = write_text(novels(), a.words, folder / "text.jsonl")
        job(a, "prepare", text=str(text), recipe=recipe, output=str(folder / recipe))
        for rate in a.choose:
            output = str(folder / f"{recipe}-{rate}")
            options = {"shards": str(folder / recipe / "shards"), "recipe": recipe, "seed": 0}
            result = job(a, "bertworks", output=output, epochs=a.epochs, rate=rate, **options)
            print(recipe, rate, result, job(a, "similarity", model=output), flush=True)


def job(a: argparse.Namespace, what: str, *, python: str | None = None, **options: Any) -> Row:
    """What a process of its own on the core returns."""
    words = ["--job", json.dumps({"what": what, **options})]
    return process(__file__, words, 1, [a.core], python=python or sys.executable)


def work(what: str, **options: Any) -> Row:
    """The work of one process."""
    jobs: dict[str, Callable[..., Row]] = {
        "prepare": prepare,
        "sentences": write_sentences,
        "gensim": with_gensim,
        "import": import_vectors,
        "bertworks": with_bertworks,
        "similarity": similarity,
    }
    return jobs[what](**options)


def prepare(text: str, recipe: str, output: str) -> Row:
    from bertworks.runs.prepare import make_shards, make_vocabulary
    from bertworks.text.corpus import CorpusReader
    from bertworks.text.tokenizer import Tokenizer
    from bertworks.training.recipe import load_recipe

    reader = CorpusReader([text])
    folder = Path(output)
    list(make_vocabulary(reader, folder / "tokenizer", load_recipe(recipe).vocabulary, workers=1))
    tokenizer = Tokenizer.load(folder / "tokenizer")
    list(make_shards(reader, folder / "shards", tokenizer, workers=1))
    return {}


def training_words(shards: Any, seed: int) -> Iterator[list[str]]:
    """The known words of each sentence of the documents that bertworks trains on."""
    from bertworks.runs.pretrain_job import split_documents, split_long_documents

    store = split_long_documents(shards)
    documents, _ = split_documents(store, seed)
    tokenizer = shards.tokenizer()
    tokens = store.tokens[:].tolist()
    borders = store.sentences.tolist()
    for document in documents.tolist():
        first, last = store.documents[document : document + 2].tolist()
        for sentence in range(first, last):
            ids = tokens[borders[sentence] : borders[sentence + 1]]
            yield [tokenizer.tokens[n] for n in ids if n not in tokenizer.special_ids]


def write_sentences(output: str, shards: str, seed: int, **_: Any) -> Row:
    from bertworks.text.shards import Shards

    lines = (" ".join(words) + "\n" for words in training_words(Shards.open(shards), seed) if words)
    Path(output).write_text("".join(lines))
    return {}


def with_bertworks(
    shards: str, recipe: str, seed: int, epochs: int, output: str, rate: float | None = None
) -> Row:
    """Train, and return the processor time, the known words that were read, the held-out loss."""
    import numpy as np
    import torch

    import bertworks as bw
    from bertworks.batching.sampling import SamplingConfig
    from bertworks.text.shards import Shards
    from bertworks.training.recipe import load_recipe

    torch.set_num_threads(1)
    phase = load_recipe(recipe).train.phases[0]
    opened = Shards.open(shards)
    assert load_recipe(recipe).sampling == SamplingConfig(format="sentences")
    from bertworks.runs.pretrain_job import split_documents, split_long_documents

    store = split_long_documents(opened)
    documents, _ = split_documents(store, seed)
    borders = store.sentences[store.documents]
    tokens = int((borders[documents + 1] - borders[documents]).sum())
    known = sum(map(len, training_words(opened, seed)))
    steps = round(epochs * tokens / (phase.batch_size * phase.sequence_length))
    overrides = [f"train.phases.0.num_steps={steps}"]
    if rate is not None:
        overrides.append(f"optimizer.learning_rate={rate}")
    begin = None
    loss = float("nan")
    options: dict[str, Any] = {"recipe": recipe, "overrides": overrides, "seed": seed}
    for event in bw.pretrain([shards], output, device="cpu", **options):
        if event.kind == "plan":
            begin = time.process_time()
        if event.kind == "evaluation":
            loss = float(np.mean([v for k, v in event.fields.items() if k.endswith("_loss")]))
    assert begin is not None
    return {
        "seconds": time.process_time() - begin,
        "words": known * steps * phase.batch_size * phase.sequence_length / tokens,
        "loss": loss,
    }


def with_gensim(
    sentences: str, recipe: str, seed: int, epochs: int, output: str, shards: str
) -> Row:
    """Train with gensim, and return the processor time and the words that were read."""
    import gensim
    from gensim.models import Word2Vec

    model = Word2Vec(
        vector_size=100,
        sg=KINDS[recipe],
        hs=0,
        negative=5,
        window=5,
        sample=1e-3,
        min_count=1,
        workers=1,
        seed=seed + 1,
        epochs=epochs,
    )
    model.build_vocab(corpus_file=sentences)
    begin = time.process_time()
    model.train(
        corpus_file=sentences,
        total_words=model.corpus_total_words,
        epochs=epochs,
    )
    seconds = time.process_time() - begin
    model.wv.save_word2vec_format(output)
    words = epochs * model.corpus_total_words
    return {"seconds": seconds, "words": words, "version": gensim.__version__}


def import_vectors(text: str, output: str) -> Row:
    import bertworks as bw

    list(bw.import_checkpoint(text, output))
    return {}


def similarity(model: str) -> Row:
    import bertworks as bw

    files = {name: DATA / "probe" / "word-similarity" / file for name, file in PAIRS.items()}
    figures = bw.evaluate_similarity(model, [*files.values()], device="cpu")["files"]
    return {name: round(figures[str(file)]["spearman"], 4) for name, file in files.items()}


def wikipedia() -> Iterator[str]:
    with gzip.open(DATA / "text" / "en-wikipedia-8m.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def novels() -> Iterator[str]:
    """Chapters of about a thousand lines."""
    for path in sorted((DATA / "text" / "en-novels-2m").glob("*.txt.gz")):
        text = gzip.decompress(path.read_bytes()).decode()
        paragraphs = re.split(r"\n\s*\n", text)
        paragraphs = [" ".join(paragraph.split()) for paragraph in paragraphs]
        for start in range(0, len(paragraphs), 200):
            yield "\n".join(paragraphs[start : start + 200])


def write_text(texts: Iterable[str], words: int, path: Path) -> Path:
    """Write documents, up to a number of words."""
    left = words
    with path.open("w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n")
            left -= len(text.split())
            if left <= 0:
                break
    return path


if __name__ == "__main__":
    main()
