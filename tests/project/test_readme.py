"""The README is true: its blocks run, its targets exist, the sizes are those of the code."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import httpx
import pytest

from bertworks.cli.parser import make_app
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import infer_schema
from bertworks.models.config import BERT_SIZES
from bertworks.models.settings import PRETRAINING_HEADS
from bertworks.tasks.registry import TASKS
from tests.support import ROOT, served

README = (ROOT / "README.md").read_text(encoding="utf-8")
AGENTS = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
RECIPE = """
title = "small enough for a test"
[encoder]
num_hidden_layers = 1
hidden_size = 32
num_attention_heads = 2
intermediate_size = 64
max_position_embeddings = 128
[train]
held_out_sequences = 8
[[train.phases]]
num_steps = 4
batch_size = 4
sequence_length = 32
"""


def guide(name: str) -> str:
    return (ROOT / "docs" / "guides" / f"{name}.md").read_text(encoding="utf-8")


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the examples of the repository, where `bertworks` and `python` are the ones
    under test."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "test.toml").write_text(RECIPE)
    (folder / "bin").mkdir()
    for name, command in (
        ("bertworks", f"{sys.executable} -m bertworks.cli.main"),
        ("python", sys.executable),
    ):
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    return folder


def run(command: list[str], folder: Path) -> str:
    """Run a command in the folder and return its standard output."""
    environment = os.environ | {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def shortened(text: str) -> str:
    """The same with runs of a few steps, and with the model pre-trained here in place of minilm."""
    assert "--budget 10m" in text or 'budget="10m"' in text or "minilm" in text
    text = text.replace("--budget 10m", "--recipe test.toml").replace(
        'budget="10m"', 'recipe="test.toml"'
    )
    text = text.replace(
        "index examples/messages.csv --model minilm", "index examples/messages.csv --model mybert"
    )
    text = text.replace('load("minilm")', 'load("mybert")')
    text = text.replace("--model minilm", "--model mybert --set epochs=1")
    return text.replace('model="minilm"', 'model="mybert", overrides=["epochs=1"]')


def test_blocks_run(folder: Path):
    """The blocks of the README, and of the guides that go on from there. Pre-training comes first,
    since its model is used in the other blocks. In Python, the runs are those of the commands,
    finished already. No file is there but the examples and what the blocks write."""
    (finetuning,) = blocks("bash")
    (search,) = blocks("bash", guide("search"))
    (pretraining,) = blocks("bash", guide("pretrain"))
    output = run(
        ["bash", "-e", "-c", shortened("\n".join([pretraining, finetuning, search]))], folder
    )
    assert len(re.findall(r"cosine -?0\.\d{3}  \d+  \w", output)) == 2, "the results of the search"
    assert (folder / "mybert" / "model.safetensors").is_file()
    assert (folder / "why.html").is_file()
    assert (
        (folder / "scored.csv").read_text().startswith("id,text,predicted_label,predicted_score,")
    )
    (finetuning,) = blocks("python")
    (loading,) = blocks("python", guide("which-model"))
    pretraining, *_ = blocks("python", guide("pretrain"))
    output = run([sys.executable, "-c", shortened(pretraining)], folder)
    assert "masked_lm_loss" in output
    assert "saved" not in output, "the run was finished already"
    model = (folder / "messages-model" / "model.safetensors").stat()
    output = run([sys.executable, "-c", shortened(finetuning)], folder)
    assert re.match(
        r"\[\{'label': '(delivery|payment|return|account)', 'score': 0\.\d+\}\]$", output
    )
    assert (folder / "messages-model" / "model.safetensors").stat() == model, (
        "the run was finished already"
    )
    can, scores, shape, predicted = run(
        [sys.executable, "-c", shortened(loading)], folder
    ).splitlines()
    assert can.startswith("('embed', 'explain', 'fill', 'score') 32 [")
    assert re.fullmatch(r"\[-[\d.]+, -[\d.]+\]", scores)
    assert shape == "(2, 32)"
    assert predicted.startswith("[{'label': ")


def test_the_table_of_jobs_names_commands():
    """Each row of "What else it does" names commands that exist, and a page to read."""
    names = set(make_app())
    section = README.split("## What else it does")[1].split("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| (\[[^|]+\)) \|$", section, re.MULTILINE)
    assert len(rows) >= 12
    for commands, _ in rows:
        words = [command.split()[0] for command in re.findall(r"`([^`]+)`", commands)]
        assert words or commands == "all commands"
        assert set(words) <= names, commands


def test_pictures_exist():
    pictures = re.findall(r'<img src="([^"]+)"', README)
    assert pictures
    assert [picture for picture in pictures if not (ROOT / picture).is_file()] == []


def test_the_lines_of_pip_name_what_is_here():
    """bertworks is on no package index: it is installed from its folder or its repository. All
    other names are those of the Makefile."""
    pages = README + guide("install") + AGENTS
    lines = re.findall(r"\bpip install ([^`\n#]+)", pages)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    makefile = (ROOT / "Makefile").read_text()
    assert lines
    for word in shlex.split(" ".join(lines)):
        if match := re.fullmatch(
            r"(?:\.|bertworks\b(?=.* git\+))(?:\[([\w,]+)\])?(?: @ .*)?", word
        ):
            assert set(filter(None, (match[1] or "").split(","))) <= set(extras)
            assert word.startswith(".") or word.endswith("] @ git+REPOSITORY-URL")
        else:
            assert word.startswith(("--", "https://download.pytorch.org/")) or word in makefile, (
                word
            )


def test_the_examples_are_fit_for_training():
    reader = RowReader(ROOT / "examples" / "messages.csv")
    schema, _ = infer_schema(reader, TASKS)
    labels = Counter(row["topic"] for row, *_ in reader)
    assert schema.task == "classification"
    assert set(labels.values()) == {40}
    assert len(labels) == 4
    assert f"{labels.total()} made-up customer messages" in README


def test_the_extras_of_the_guide_are_those_of_the_package():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    rows = re.findall(r"^\| `(\w+)` \| \[", guide("install"), re.MULTILINE)
    assert set(rows) == set(extras) - {"dev", "bench", "site"}


def test_blocks_of_the_guide_to_text_run(folder: Path):
    commands = ["mkdir guide", "cd guide", *blocks("bash", guide("prepare-text"))]
    run(["bash", "-e", "-c", "\n".join(commands)], folder)
    assert (folder / "guide" / "mytok" / "vocab.txt").is_file()
    assert (folder / "guide" / "myshards" / "manifest.json").is_file()


def without_figures(text: str) -> list[str]:
    """The lines of a text with a mark for each number, since processors round differently."""
    return [re.sub(r"[-+]?\d[\d.,]*", "#", line).rstrip() for line in text.splitlines()]


@pytest.mark.slow
def test_the_tutorial_runs_and_prints_what_it_shows(folder: Path):
    """Its commands in their order, with the model minilm. A line that ends in an ellipsis is the
    beginning of one that is printed, and a line of dots stands for others."""
    pages = guide("tutorial") + guide("tutorial-serve")
    commands = [block for block in blocks("bash", pages) if "bertworks serve" not in block]
    output = run(["bash", "-e", "-c", "exec 2>&1\n" + "\n".join(commands)], folder)
    for name in ("mistakes.csv", "answers.csv"):
        output += (folder / name).read_text(encoding="utf-8")
    (program,) = blocks("python", pages)
    output += run([sys.executable, "-c", program], folder)
    printed = without_figures(output)
    for line in without_figures("\n".join(blocks("text", pages))):
        begin, *rest = line.partition("...")
        if not line.startswith("topics-model at http"):
            assert any(
                other.startswith(begin) if rest[0] else other == line for other in printed
            ), line

    (request,) = map(shlex.split, blocks("sh", pages))
    curl, _, address, *_, body = request
    assert curl == "curl"
    with served.process(str(folder / "topics-model")) as (server, url):
        path = address.removeprefix("localhost:8080")
        answer = httpx.post(url.rstrip("/") + path, json=json.loads(body)).json()
        served.stop(server)
    (shown,) = blocks("json", pages)
    assert answer[0]["label"] == json.loads(shown)[0]["label"] == "delivery"
    assert {tuple(score) for score in answer} == {tuple(score) for score in json.loads(shown)}


def test_the_tutorial_ends_where_its_second_part_begins():
    first, second = guide("tutorial"), guide("tutorial-serve")
    assert blocks("bash", first)[-1].endswith(" -o topics-model\n")
    assert blocks("bash", second)[0].startswith("bertworks predict topics-model ")
    numbers = re.findall(r"^## (\d)\. ", first + second, re.MULTILINE)
    assert numbers == list("12345678")
    minutes = re.findall(r"^## \d\. .*\((\d) minutes\)$", first + second, re.MULTILINE)
    assert len(minutes) == len(numbers)
    assert 25 <= sum(map(int, minutes)) <= 30


def test_make_targets_exist():
    targets = set(re.findall(r"`?make (\w+)", README))
    makefile = (ROOT / "Makefile").read_text()
    assert targets >= {"install", "demo", "test"}
    assert [
        target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)
    ] == []


def test_the_sizes_are_those_of_the_code():
    page = (ROOT / "docs" / "concepts" / "family.md").read_text()
    rows = re.findall(
        r"^\| `bert-(\w+)` \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) M \|$", page, re.MULTILINE
    )
    expected = [
        (
            n,
            f"{c.num_hidden_layers}",
            f"{c.hidden_size}",
            f"{c.num_attention_heads}",
            f"{c.num_parameters(*PRETRAINING_HEADS) / 1e6:.1f}",
        )
        for n, c in BERT_SIZES.items()
    ]
    assert rows == expected


def test_the_first_screen_has_an_example_its_output_and_results():
    screen = "\n".join(README.splitlines()[:55])
    for part in ("make install", "<img", "bertworks finetune", "accuracy", "bag of words"):
        assert part in screen


def test_the_page_for_agents_lists_every_package():
    tree = AGENTS.split("## Where what is")[1].split("```")[1]
    packages = {path.parent.name for path in (ROOT / "bertworks").glob("*/__init__.py")}
    assert [name for name in sorted(packages) if f"{name}/" not in tree] == []


def test_the_page_for_agents_names_ten_commands_that_parse():
    app = make_app()
    commands = re.findall(r"^\| `(bertworks [^`]+)` \|", AGENTS, re.MULTILINE)
    assert len(commands) == 10
    for command in commands:
        assert callable(app.parse_args(shlex.split(command)[1:])[0])


def test_the_front_pages_are_short():
    assert README.count("\n") <= 120
    assert AGENTS.count("\n") <= 80


def test_the_table_of_speeds_has_six_rows_with_a_processor():
    table = README.split("## Speed")[1].split("\n## ")[0]
    rows = re.findall(r"^\| [^|-][^|]* \|[^|]+\|[^|]*\| ([^|]+) \|$", table, re.MULTILINE)
    assert rows[0] == "CPU"
    assert len(rows) == 7
    assert not re.search(r"\b[0-9a-f]{7,}\b", table), "no hashes of commits"
