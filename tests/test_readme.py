"""The README does what it says: its blocks run, its links lead somewhere, its table is what the code says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fine import write_reviews

from bertworks.models.config import BERT_SIZES, PRETRAINING_HEADS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
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


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with somebody's data, where `bertworks` and `python` are the ones under test."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "test.toml").write_text(RECIPE)
    (folder / "held-out.txt").write_text("The value of a name is an object. An object has a type. " * 20)
    write_reviews(folder / "reviews.csv", 60)
    (folder / "new.csv").write_text("text\nWhat a film!\n")
    (folder / "bin").mkdir()
    for name, command in (("bertworks", f"{sys.executable} -m bertworks.cli.main"), ("python", sys.executable)):
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    return folder


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    answer = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer


def quickly(text: str) -> str:
    """The same with runs of a few steps, which begin with the model that was made a line before."""
    assert "--budget 1h" in text or 'budget="1h"' in text or "minilm" in text
    text = text.replace("--budget 1h", "--recipe test.toml").replace('budget="1h"', 'recipe="test.toml"')
    text = text.replace('load("minilm")', 'load("mybert")')
    text = text.replace("--model minilm", "--model mybert --set epochs=1")
    return text.replace('model="minilm"', 'model="mybert", overrides=["epochs=1"]')


def test_blocks_run_one_after_the_other(folder: Path):
    """The Python block about pre-training asks for the same run as the commands before it, and so finds it done."""
    run(["bash", "-e", "-c", quickly("\n".join(blocks("bash")))], folder)
    assert (folder / "mybert" / "model.safetensors").is_file()
    assert (folder / "scored.csv").read_text().startswith("text,predicted_label,predicted_score,")
    pretraining, finetuning, loading = blocks("python")
    answer = run([sys.executable, "-c", quickly(pretraining)], folder)
    assert "masked_lm_loss" in answer.stdout
    assert "saved" not in answer.stdout, "the run was done already"
    answer = run([sys.executable, "-c", quickly(finetuning)], folder)
    assert re.match(r"\[\{'label': '(pos|neg)', 'score': 0\.\d+\}\]$", answer.stdout)
    assert (folder / "my-reviews" / "config.json").is_file()
    can, filled, scores, shape, predicted = run([sys.executable, "-c", quickly(loading)], folder).stdout.splitlines()
    assert can.startswith("('embed', 'explain', 'fill', 'score') 32 [")
    assert filled
    assert re.fullmatch(r"\[-[\d.]+, -[\d.]+\]", scores)
    assert shape == "(2, 32)"
    assert predicted.startswith("[{'label': ")
    assert (folder / "why.html").is_file()


def test_make_targets_exist():
    targets = set(re.findall(r"`?make (\w+)", README))
    makefile = (ROOT / "Makefile").read_text()
    assert targets >= {"demo", "test"}
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_the_table_is_what_the_code_says():
    page = (ROOT / "docs" / "guides" / "pretrain.md").read_text()
    rows = re.findall(r"^\| `bert-(\w+)` \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) M \|$", page, re.MULTILINE)
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


def test_the_first_screen_has_the_example():
    assert README.index("bw.finetune") < README.index("\n| ")
    assert README[: README.index("</table>")].count("\n") <= 50


def test_the_readme_is_short():
    assert README.count("\n") <= 150
