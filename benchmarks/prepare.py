"""How fast raw text becomes token ids: `write_shards`, the bare tokenizer and `datasets`.

    python benchmarks/prepare.py [CORPUS] [--documents 300] [--threads 2] [--runs 3] [--times 10]

All runs are processes of their own, interleaved; the table shows medians. MB are 10^6 bytes of
UTF-8 text.

    bare, processes   encode_batch_fast of `tokenizers` in N processes, on sentences that are
    already cut and in memory;
                      nothing is read, written or even taken out of the result
    bare, threads     the same in one process with the library's own N threads
    bertworks         from the compressed file to finished shards on disk (fsync included), with N
                      workers
    datasets          load_dataset, map(tokenise), map(group into sequences of 512), as in the
                      run_mlm.py of transformers, num_proc = N, cache empty

Peak memory is the sum over all processes of a run of what each has for itself plus its part of what
they share (PSS).
"""

import argparse
import gzip
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from provenance import provenance, publish, skip_without

HERE = Path(__file__).resolve().parent
CONTENDERS = ("bare, processes", "bare, threads", "bertworks", "datasets")
BATCH = 1000  # sentences, as the `map` of datasets takes


def main() -> None:
    arguments = parse()
    skip_without(arguments.corpus)
    if arguments.run:
        sys.path.insert(0, str(HERE.parent))
        run = {"bertworks": run_bertworks, "datasets": run_datasets}.get(arguments.run, run_bare)
        print(json.dumps(run(arguments)))
        return
    with tempfile.TemporaryDirectory(prefix="bertworks-bench-") as scratch:
        results = compare(arguments, Path(scratch))
    shown = table(results)
    publish("prepare", results, f"```\n{shown}\n```")
    print(shown)


def parse() -> argparse.Namespace:
    data = Path(os.environ.get("BERTWORKS_DATA", "."))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "corpus", nargs="?", type=Path, default=data / "text" / "en-wikipedia-8m.jsonl.gz"
    )
    parser.add_argument(
        "--vocabulary", type=Path, default=data / "vocab" / "bert-base-uncased-vocab.txt"
    )
    parser.add_argument("--documents", type=int, help="only this number, from the first")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--times",
        type=int,
        default=10,
        help="also one run on the corpus repeated this number of times; 1: none",
    )
    parser.add_argument("--run", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


# --- the parent: prepares the same input for all, starts them in turn, watches their memory


def compare(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    sys.path.insert(0, str(HERE.parent))
    from bertworks.text.tokenizer import Tokenizer

    origin = provenance(("tokenizers", "numpy", "datasets", "transformers"))
    folder = scratch / "tokenizer"
    folder.mkdir()
    (folder / "vocab.txt").write_bytes(arguments.vocabulary.read_bytes())
    Tokenizer.load(folder).save(folder)
    size = copy_corpus(arguments, scratch / "corpus.jsonl.gz", 1)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(arguments.runs):
        for name in CONTENDERS:
            runs[name].append(start(name, arguments, scratch, size))
            print(
                f"{name:16} {runs[name][-1]['mb_per_second']:6.2f} MB/s",
                file=sys.stderr,
                flush=True,
            )
    if arguments.times > 1:
        size_repeated = copy_corpus(arguments, scratch / "corpus.jsonl.gz", arguments.times)
        runs[f"bertworks, {arguments.times} times"] = [
            start("bertworks", arguments, scratch, size_repeated)
        ]
    medians = {
        name: {key: statistics.median(run[key] for run in found) for key in found[0]}
        for name, found in runs.items()
    }
    bare = max(medians[name]["mb_per_second"] for name in CONTENDERS[:2])
    return {
        **origin,
        "corpus": arguments.corpus.name,
        "text_bytes": size,
        "threads": arguments.threads,
        "medians": medians,
        "share_of_bare_tokenizer": medians["bertworks"]["mb_per_second"] / bare,
        "runs": runs,
    }


def copy_corpus(arguments: argparse.Namespace, path: Path, times: int) -> int:
    """The corpus as one .jsonl.gz, which all contenders can read; returns the bytes of its text."""
    size = 0
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as file:
        for _ in range(times):
            for text in read_texts(arguments.corpus, arguments.documents):
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                size += len(text.encode("utf-8"))
    return size


def read_texts(path: Path, documents: int | None = None) -> Iterator[str]:
    from bertworks.text.corpus import CorpusReader

    for number, document in enumerate(CorpusReader([path])):
        if number == documents:
            return
        yield document.text


def start(name: str, arguments: argparse.Namespace, scratch: Path, size: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--run", name, "--scratch", str(scratch)]
    command += ["--threads", str(arguments.threads)]
    threads = "1" if name == "bare, processes" else str(arguments.threads)
    environment = os.environ | {
        "RAYON_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "true" if name == "bare, threads" else "false",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": tempfile.mkdtemp(dir=scratch),
    }
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    peak = [0]
    watcher = threading.Thread(target=watch, args=(process, peak))
    watcher.start()
    output, errors = process.communicate()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{name} failed:\n{errors}")
    seconds = json.loads(output.splitlines()[-1])["seconds"]
    return {
        "seconds": seconds,
        "mb_per_second": size / 1e6 / seconds,
        "peak_memory_mb": peak[0] / 1e3,
    }


def watch(process: subprocess.Popen[str], peak: list[int]) -> None:
    """Keep the largest sum of kilobytes of a process and its descendants, looked up ten times a
    second."""
    while process.poll() is None:
        total, waiting = 0, [process.pid]
        while waiting:
            number = waiting.pop()
            try:
                for task in Path(f"/proc/{number}/task").iterdir():
                    waiting += map(int, (task / "children").read_text().split())
                lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
                total += next(
                    (int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0
                )
            except OSError:
                continue  # it has just ended
        peak[0] = max(peak[0], total)
        time.sleep(0.1)


def table(results: dict[str, Any]) -> str:
    lines = [
        f"{results['corpus']}: {results['text_bytes'] / 1e6:.1f} MB of text, "
        f"{results['threads']} threads, {results['cpu']}",
        f"{'':22}{'MB/s':>8}{'seconds':>10}{'peak MB':>10}",
    ]
    for name, median in results["medians"].items():
        lines.append(
            f"{name:22}{median['mb_per_second']:8.2f}{median['seconds']:10.2f}{median['peak_memory_mb']:10.0f}"
        )
    return "\n".join(
        [*lines, f"bertworks / bare tokenizer: {results['share_of_bare_tokenizer']:.2f}"]
    )


# --- the contenders, each in a process of its own


def run_bertworks(arguments: argparse.Namespace) -> dict[str, float]:
    from bertworks.text.corpus import CorpusReader
    from bertworks.text.shards import write_shards
    from bertworks.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(arguments.scratch / "tokenizer")
    begin = time.perf_counter()
    reader = CorpusReader([arguments.scratch / "corpus.jsonl.gz"])
    write_shards(
        reader, tokenizer, arguments.scratch / "shards", workers=arguments.threads, overwrite=True
    )
    return {"seconds": time.perf_counter() - begin}


def run_bare(arguments: argparse.Namespace) -> dict[str, float]:
    from bertworks.text.segmentation import split_sentences

    sentences = [
        sentence
        for text in read_texts(arguments.scratch / "corpus.jsonl.gz")
        for sentence in split_sentences(text)
    ]
    batches = [sentences[start : start + BATCH] for start in range(0, len(sentences), BATCH)]
    if arguments.run == "bare, threads":
        begin, end = encode(arguments.scratch, batches, lambda: None)
        return {"seconds": end - begin}
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(arguments.threads)
    spans: multiprocessing.Queue[tuple[float, float]] = context.Queue()

    def work(number: int) -> None:
        spans.put(encode(arguments.scratch, batches[number :: arguments.threads], ready.wait))

    workers = [context.Process(target=work, args=(number,)) for number in range(arguments.threads)]
    for worker in workers:
        worker.start()
    begins, ends = zip(*(spans.get() for _ in workers), strict=True)
    for worker in workers:
        worker.join()
    return {"seconds": max(ends) - min(begins)}


def encode(
    scratch: Path, batches: list[list[str]], wait: Callable[[], object]
) -> tuple[float, float]:
    """When the encoding of all batches began and ended; the tokenizer is loaded before."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(scratch / "tokenizer" / "tokenizer.json"))
    wait()
    begin = time.monotonic()
    for batch in batches:
        tokenizer.encode_batch_fast(batch, add_special_tokens=False)
    return begin, time.monotonic()


def run_datasets(arguments: argparse.Namespace) -> dict[str, float]:
    import datasets
    import transformers

    datasets.disable_progress_bars()
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.scratch / "tokenizer")
    tokenizer.model_max_length = 1 << 30
    length = 512

    def tokenise(examples: dict[str, list[str]]) -> Any:
        return tokenizer(examples["text"], return_special_tokens_mask=True)

    def group(examples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {
            name: [number for row in rows for number in row] for name, rows in examples.items()
        }
        total = len(next(iter(joined.values()))) // length * length
        return {
            name: [row[i : i + length] for i in range(0, total, length)]
            for name, row in joined.items()
        }

    begin = time.perf_counter()
    files = str(arguments.scratch / "corpus.jsonl.gz")
    found = datasets.load_dataset("json", data_files=files, split="train")
    tokenised = found.map(
        tokenise, batched=True, num_proc=arguments.threads, remove_columns=["text"]
    )
    tokenised.map(group, batched=True, num_proc=arguments.threads)
    return {"seconds": time.perf_counter() - begin}


if __name__ == "__main__":
    main()
