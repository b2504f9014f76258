"""Small requests of one client while another one abandons the largest requests of every route.
Long."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from bertworks.checkpoints.resolve import resolve_model
from bertworks.retrieval.index import Index
from bertworks.serve.batching import Limits
from bertworks.serve.openapi import ENDPOINTS, paths_of
from tests.scenarios.test_serve_load import resident
from tests.support import SUPPORT
from tests.support.fine import write_model
from tests.support.heavy_requests import HEAVY, small
from tests.support.served import process, stop, write_head

ABANDONED = 50
SECONDS = 2.0  # of small requests beside the abandoned ones
SLOWEST = 1.0  # seconds, the 99th percentile
MEMORY = 1.3  # times that after one request of each kind
PAUSE = 0.02  # between small requests
HEADS: dict[str, dict[str, Any]] = {
    "classification": {"task": "classification", "labels": ("neg", "pos"), "text": ("text",)},
    "pairs": {"task": "classification", "labels": ("no", "yes"), "text": ("query", "text")},
    "tagging": {"task": "tagging", "labels": ("O", "B-person", "I-person")},
    "qa": {"task": "qa"},
    "choice": {"task": "choice", "num_choices": 3},
}
KINDS = ("minilm", "words", *HEADS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The arguments of a server of each kind of model."""
    folder = tmp_path_factory.mktemp("models")
    models = {"minilm": resolve_model("minilm"), "words": write_model(folder / "words")}
    models |= {name: write_head(folder / name, **head) for name, head in HEADS.items()}
    arguments = {name: [str(model)] for name, model in models.items()}
    for name, searched in (("minilm", "minilm"), ("words", "words"), ("pairs", "words")):
        index = Index.create(
            folder / f"index of {name}", models[searched], device="cpu", language="english"
        )
        index.add([f"{'a b c film story men ' * 100}{n}" for n in range(200)])
        arguments[name] += ["--index", str(index.folder)]
    return arguments


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="memory is read as Linux tells it"
)
@pytest.mark.parametrize("kind", KINDS)
def test_small_requests_are_answered_beside_the_largest_abandoned_ones(
    kind: str, folders: dict[str, list[str]]
):
    """It needs two free cores: the server and its clients share them."""
    failures, figures = list[str](), list[str]()
    with (
        process(*folders[kind]) as (running, url),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        info = client.get("info").json()
        limits = Limits(**info["limits"])
        little = {paths_of(name)[0]: small(name, info) for name in info["abilities"]}
        for path, body in little.items():
            assert client.post(path, json=body).status_code == 200, path
        start = resident(running.pid)
        paths = client.get("openapi.json").json()["paths"]
        assert {path for path, methods in paths.items() if "post" in methods} == {
            path for name in info["abilities"] for path in paths_of(name)
        }
        for name in info["abilities"]:
            for what, body in HEAVY[name](info, limits).items():
                begin, seconds, statuses, most = time.perf_counter(), list[float](), set[int](), 0
                command = [
                    sys.executable,
                    str(SUPPORT / "abandoning.py"),
                    url,
                    paths_of(name)[0],
                ]
                content = json.dumps(body, ensure_ascii=False).encode()
                assert len(content) <= limits.body_bytes
                with subprocess.Popen(
                    ["nice", "-n", "10", *command, str(ABANDONED)], stdin=subprocess.PIPE
                ) as abandoning:
                    assert abandoning.stdin is not None
                    abandoning.stdin.write(content)
                    abandoning.stdin.close()
                    while time.perf_counter() < begin + SECONDS or abandoning.poll() is None:
                        for path, request in little.items():
                            sent = time.perf_counter()
                            statuses.add(client.post(path, json=request).status_code)
                            seconds.append(time.perf_counter() - sent)
                        most = max(most, resident(running.pid))
                        time.sleep(PAUSE)
                slow, memory = float(np.quantile(seconds, 0.99)), most / start
                figures.append(
                    f"{kind} {name} {what}: {statuses}, p99 {slow:.3f} s, memory {memory:.2f}, "
                    f"{len(seconds)} requests"
                )
                print(figures[-1], flush=True)
                if statuses != {200} or slow > SLOWEST or memory > MEMORY:
                    failures.append(figures[-1])
        code, _, log = stop(running)
    assert not failures
    assert code == 0
    assert not [line for line in log if line["level"] == "error"]
    assert set(info["abilities"]) <= ENDPOINTS.keys()
