"""The OpenAPI document is true, and the main path answers as the paths that it stands for.

schemathesis, which knows nothing else of a server, finds what the document says and no fault. Long:
thousands of requests, most of them wrong.
"""

import html
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bertworks.retrieval.index import Index
from bertworks.serve.openapi import invoked_ability
from tests.support.fine import write_model, write_translator
from tests.support.served import Local, process, write_head

SETTINGS = """
[checks.negative_data_rejection]
expected-statuses = [400, 413, 415, 422, 429, 431]
[[operations]]
include-path = "/explain"  # words and labels of a model, and numbers of tokens, are in no schema
[operations.checks.positive_data_acceptance]
enabled = false
[[operations]]
# the targets of a mask are words of the vocabulary, and a sentence may have too many tokens
include-path-regex = "^/(fill|translate|invocations)?$"
[operations.checks.positive_data_acceptance]
enabled = false
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["words", "classification", "qa", "choice", "translation"])
def test_schemathesis_finds_no_fault(kind: str, model: Path, tmp_path: Path):
    index = Index.create(tmp_path / "idx", model, device="cpu")
    index.add(["good film", "sad dogs"])
    arguments = [str(model), "--index", str(index.folder)]
    if kind == "translation":
        arguments = [str(write_translator(tmp_path / "model"))]
    elif kind != "words":
        labels = ("neg", "pos") if kind == "classification" else ()
        arguments = [str(write_head(tmp_path / "model", task=kind, labels=labels))]
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    with process(*arguments) as (_, url):
        command = [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "--config-file",
            "schemathesis.toml",
            "run",
            f"{url}openapi.json",
            "--max-response-time",
            "60",
            "--max-examples",
            "20",
            "--request-timeout",
            "60",
            "--phases",
            "examples,coverage,fuzzing",
            "--continue-on-failure",
            "--no-color",
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, "\n".join(line[:300] for line in done.stdout.splitlines() if line)[
        -8000:
    ]


HEADS: dict[str, dict[str, Any]] = {
    "classes": {"task": "classification", "labels": ("neg", "pos"), "text": ("text",)},
    "pairs": {"task": "classification", "labels": ("no", "yes"), "text": ("query", "text")},
    "tags": {"task": "tagging", "labels": ("O", "B-person", "I-person")},
    "questions": {"task": "qa"},
}
SENTENCES = {"inputs": {"source_sentence": "a film", "sentences": ["a story", "men and dogs"]}}
QUESTION = {"inputs": {"question": "who ?", "context": "Anna lives in Oslo"}}
# A model, a request, and the path of its own where it has the same answer.
REQUESTS: list[tuple[str, dict[str, Any], str]] = [
    ("masked", {"inputs": "good film"}, "/embed"),
    ("masked", {"inputs": ["good film", "a story"], "normalize": False}, "/embed"),
    ("masked", SENTENCES, "/similarity"),
    ("masked", {"inputs": "a [MASK] film"}, "/fill"),
    ("masked", {"inputs": ["a [MASK] film", "the [MASK] was [MASK]"], "top_k": 2}, "/fill"),
    ("masked", {"inputs": ["a [MASK] film", "a story"]}, "/embed"),
    ("masked", {"inputs": "a [MASK] film", "truncate": True}, "/embed"),
    ("classes", {"inputs": "good film"}, "/predict"),
    ("classes", {"inputs": [["good film"], ["a story"]]}, "/predict"),
    ("pairs", {"query": "a film", "texts": ["a story", "men and dogs"]}, "/rerank"),
    ("pairs", {"inputs": ["a film", "a story"]}, "/predict"),
    ("tags", {"inputs": "Anna lives in Oslo"}, "/ner"),
    ("questions", QUESTION, "/qa"),
    ("questions", {"inputs": [QUESTION["inputs"]] * 2}, "/qa"),
]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Local]]:
    folder = tmp_path_factory.mktemp("models")
    models = {"masked": write_model(folder / "masked")}
    models |= {name: write_head(folder / name, **head) for name, head in HEADS.items()}
    locals_ = {name: Local(model, precision="fp32") for name, model in models.items()}
    yield locals_
    for local in locals_.values():
        local.application.close()


@pytest.mark.parametrize(("model", "body", "path"), REQUESTS)
def test_the_main_path_answers_as_the_path_of_the_request(
    model: str, body: dict[str, Any], path: str, servers: dict[str, Local]
):
    expected = servers[model].post(path, body)
    assert expected.status_code == 200
    for main in ("/", "//", "/invocations"):
        answer = servers[model].post(main, body)
        assert (answer.status_code, answer.json()) == (200, expected.json()), main


def test_what_the_model_lacks_is_refused_by_the_name_of_its_path(servers: dict[str, Local]):
    for model, body, path in (
        ("classes", SENTENCES, "/similarity"),
        ("masked", QUESTION, "/qa"),
        ("tags", {"query": "a", "texts": ["b"]}, "/rerank"),
    ):
        answer = servers[model].post("/", body)
        assert answer.status_code == 424
        assert f"does not offer {path};" in answer.json()["error"]


def test_a_wrong_request_is_checked_as_on_the_path_of_the_model(servers: dict[str, Local]):
    for model, path in (
        ("masked", "/embed"),
        ("classes", "/predict"),
        ("tags", "/ner"),
        ("questions", "/qa"),
    ):
        for body in (
            [],
            {},
            {"inputs": []},
            {"inputs": {"a": "b"}},
            {"inputs": 3},
            {"inputs": [[]]},
        ):
            expected = servers[model].post(path, body)
            answer = servers[model].post("/", body)
            assert expected.status_code == 422
            assert (answer.status_code, answer.json()) == (422, expected.json())
    assert (
        servers["masked"]
        .send("POST", "/", content=b"{", headers={"content-type": "application/json"})
        .status_code
        == 400
    )
    assert servers["masked"].send("POST", "/", content=b"{}").status_code == 415


def test_get_is_still_the_page(servers: dict[str, Local]):
    page = servers["classes"].send("GET", "/")
    assert page.headers["content-type"].startswith("text/html")
    assert servers["classes"].send("HEAD", "/").status_code == 200
    refused = servers["classes"].send("PUT", "/")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST, GET, HEAD")
    assert servers["classes"].send("GET", "/invocations").status_code == 405


def test_targets_fill_masks_even_beside_a_setting_of_vectors():
    info = {"abilities": ["fill", "embed", "similarity"], "mask_token": "[MASK]"}
    request = {"inputs": "a [MASK]", "truncate": None, "parameters": {"targets": ["film"]}}
    assert invoked_ability(request, info) == "fill"
    assert invoked_ability(request | {"truncate": True}, info) == "fill"
    assert invoked_ability({"inputs": "a [MASK]", "normalize": True}, info) == "embed"
    assert invoked_ability({"inputs": "a [MASK]"}, info | {"abilities": ["embed"]}) == "embed"
    assert invoked_ability({"inputs": "a"}, info | {"abilities": ["fill"]}) == "fill"


@pytest.mark.parametrize("path", ["/", "//", "///", "/invocations", "/invocations/", "/predict"])
def test_every_post_needs_the_token(path: str, tmp_path: Path):
    model = write_head(tmp_path / "model", **HEADS["classes"])
    with Local(model, token="a secret of two words") as local:
        body = {"json": {"inputs": "good film"}}
        for headers in ({}, {"authorization": "Bearer other"}):
            answer = local.send("POST", path, headers=headers, **body)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        right = {"authorization": "Bearer a secret of two words"}
        assert local.send("POST", path, headers=right, **body).status_code == 200
        assert local.send("POST", "/health").status_code == 401
        assert local.send("GET", "/health").status_code == 200
        assert local.send("GET", "/ping").status_code == 200
        for path in ("/docs", "/openapi.json", "/info"):
            assert local.send("GET", path).status_code == 401
            assert local.send("GET", path, headers=right).status_code == 200
        assert local.send("GET", "//").status_code == 200
        assert local.send("HEAD", "/").status_code == 200


def test_without_a_token_pages_of_other_sites_are_refused_on_the_main_path(
    servers: dict[str, Local],
):
    body = {"json": {"inputs": "good film"}}
    for headers in ({"origin": "https://other.example"}, {"host": "other.example"}):
        for path in ("/", "//", "/invocations"):
            assert servers["classes"].send("POST", path, headers=headers, **body).status_code == 403


def test_the_page_of_the_document_has_every_path_and_loads_nothing(servers: dict[str, Local]):
    for local in servers.values():
        assert local.send("GET", "/ping").json() == {"status": "ok"}
        answer = local.send("GET", "/docs")
        assert answer.headers["content-type"].startswith("text/html")
        text = html.unescape(answer.text)
        for path, methods in local.send("GET", "/openapi.json").json()["paths"].items():
            for method, operation in methods.items():
                assert f"<h2>{method.upper()} {path}</h2><p>{operation['summary']}</p>" in text
        assert re.findall(r"(?:src|href)=\"([^\"]*)\"", answer.text) == ["page.css", "openapi.json"]
        assert "<script" not in answer.text


def test_names_of_labels_are_text_on_the_page_of_the_document(tmp_path: Path):
    markup = "<img src=x onerror=alert(1)>"
    with Local(write_head(tmp_path / markup, **HEADS["classes"])) as local:
        assert markup not in local.send("GET", "/docs").text
        assert html.escape(markup) in local.send("GET", "/docs").text
