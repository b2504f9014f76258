"""What remote storage costs: rows -> vectors -> file, on s3:// (moto's server on this machine) and
on a disk.

    python benchmarks/remote.py [--rows 20000] [--runs 3] [--threads 1]

Runs are processes of their own, interleaved; the ratios are those of whole commands. Each run on
s3:// has an empty cache: it copies the rows from the storage, and uploads the vectors. The vectors
must be equal, and nothing else may stay in the storage. Needs s3fs and moto[server].
"""

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provenance import provenance, publish

WORDS = (
    "the of a river city house new film song year water light garden music paper stone road "
    "winter school"
).split()


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bertworks-bench-") as scratch:
        results = compare(arguments, Path(scratch))
    shown = table(results)
    publish("remote", results, f"```\n{shown}\n```")
    print(shown)


def compare(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    rows = scratch / "rows.jsonl"
    with rows.open("w") as file:
        for number in range(arguments.rows):
            words = [WORDS[(number * step + step) % len(WORDS)] for step in range(3, 25)]
            file.write(json.dumps({"text": " ".join([str(number), *words])}) + "\n")
    port = "5555"
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", port], stderr=subprocess.DEVNULL
    )
    keys = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    variables = os.environ | keys | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    os.environ.update(variables)
    import s3fs

    try:
        storage = s3fs.S3FileSystem(use_listings_cache=False)
        for _ in range(100):  # until the server listens
            try:
                storage.mkdir("bucket")
                break
            except Exception:
                time.sleep(0.2)
        storage.put_file(str(rows), "bucket/rows.jsonl")
        seconds: dict[str, list[tuple[float, float]]] = {"disk": [], "s3": []}
        digests = set[str]()
        for run in range(arguments.runs):
            for where, data, output in (
                ("disk", str(rows), str(scratch / f"{run}.npy")),
                ("s3", "s3://bucket/rows.jsonl", f"s3://bucket/{run}.npy"),
            ):
                cache = scratch / f"cache-{run}"
                seconds[where].append(
                    embed(data, output, variables | {"BERTWORKS_CACHE": str(cache)}, arguments)
                )
            content = storage.cat_file(f"bucket/{run}.npy"), (scratch / f"{run}.npy").read_bytes()
            digests |= {hashlib.sha256(part).hexdigest() for part in content}
        left = storage.find("bucket")
    finally:
        server.terminate()
        server.wait()
    assert len(digests) == 1, digests
    assert left == [*(f"bucket/{run}.npy" for run in range(arguments.runs)), "bucket/rows.jsonl"], (
        left
    )
    results = provenance(["torch", "s3fs", "moto"]) | {"rows": arguments.rows, "seconds": seconds}
    return results | {"bytes": rows.stat().st_size}


def embed(
    data: str, output: str, variables: Mapping[str, str], arguments: argparse.Namespace
) -> tuple[float, float]:
    """The seconds of a command, and those of the CPU, which other programs change little."""
    words = [
        "-m",
        "bertworks.cli.main",
        "--threads",
        str(arguments.threads),
        "embed",
        "minilm",
        data,
        "-o",
        output,
    ]
    begin = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], env=dict(variables), check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begin, cpu


def table(results: Mapping[str, Any]) -> str:
    median = {
        where: [statistics.median(part) for part in zip(*runs)]
        for where, runs in results["seconds"].items()
    }
    least = {
        where: [min(part) for part in zip(*runs)] for where, runs in results["seconds"].items()
    }
    lines = [
        f"{results['rows']:,} rows of {results['bytes'] / 1e6:.1f} MB, "
        f"{len(results['seconds']['s3'])} runs"
    ]
    lines.append("       seconds: median   least   CPU, median   CPU, least")
    for name in median:
        (wall, cpu), (least_wall, least_cpu) = median[name], least[name]
        lines.append(f"{name:<5}{wall:18.1f}{least_wall:8.1f}{cpu:14.1f}{least_cpu:13.1f}")
    ratio = [part["s3"][kind] / part["disk"][kind] for kind in (0, 1) for part in (median, least)]
    return "\n".join(
        [*lines, f"ratio{ratio[0]:18.2f}{ratio[1]:8.2f}{ratio[2]:14.2f}{ratio[3]:13.2f}"]
    )


if __name__ == "__main__":
    main()
