"""The README is true: its blocks run, its targets exist, the sizes are those of the code."""

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


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with data, where `bertworks` and `python` are the ones under test."""
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


def run(command: list[str], folder: Path) -> str:
    """Run a command in the folder and return its standard output."""
    environment = os.environ | {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


def shortened(text: str) -> str:
    """The same with runs of a few steps, and with the model pre-trained here in place of minilm."""
    assert "--budget 1h" in text or 'budget="1h"' in text or "minilm" in text
    text = text.replace("--budget 1h", "--recipe test.toml").replace('budget="1h"', 'recipe="test.toml"')
    text = text.replace('load("minilm")', 'load("mybert")')
    text = text.replace("--model minilm", "--model mybert --set epochs=1")
    return text.replace('model="minilm"', 'model="mybert", overrides=["epochs=1"]')


def test_blocks_run(folder: Path):
    """Pre-training first, since its model is used in the other blocks. In Python, it is the same, finished run."""
    finetuning, *pretraining = blocks("bash")
    run(["bash", "-e", "-c", shortened("\n".join([*pretraining, finetuning]))], folder)
    assert (folder / "mybert" / "model.safetensors").is_file()
    assert (folder / "scored.csv").read_text().startswith("text,predicted_label,predicted_score,")
    finetuning, pretraining, loading = blocks("python")
    output = run([sys.executable, "-c", shortened(pretraining)], folder)
    assert "masked_lm_loss" in output
    assert "saved" not in output, "the run was finished already"
    output = run([sys.executable, "-c", shortened(finetuning)], folder)
    assert re.match(r"\[\{'label': '(pos|neg)', 'score': 0\.\d+\}\]$", output)
    assert (folder / "my-reviews" / "config.json").is_file()
    can, filled, scores, shape, predicted = run([sys.executable, "-c", shortened(loading)], folder).splitlines()
    assert can.startswith("('embed', 'explain', 'fill', 'score') 32 [")
    assert filled
    assert re.fullmatch(r"\[-[\d.]+, -[\d.]+\]", scores)
    assert shape == "(2, 32)"
    assert predicted.startswith("[{'label': ")
    assert (folder / "why.html").is_file()


def test_blocks_of_the_guide_to_text_run(folder: Path):
    guide = (ROOT / "docs" / "guides" / "prepare-text.md").read_text(encoding="utf-8")
    run(["bash", "-e", "-c", "\n".join(["mkdir guide", "cd guide", *blocks("bash", guide)])], folder)
    assert (folder / "guide" / "mytok" / "vocab.txt").is_file()
    assert (folder / "guide" / "myshards" / "manifest.json").is_file()


def test_make_targets_exist():
    targets = set(re.findall(r"`?make (\w+)", README))
    makefile = (ROOT / "Makefile").read_text()
    assert targets >= {"demo", "test"}
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_the_sizes_are_those_of_the_code():
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


def test_the_first_screen_has_an_example_its_output_and_results():
    screen = "\n".join(README.splitlines()[:55])
    for part in ("make demo", "make test", "bw.finetune", "accuracy", "| bertworks |"):
        assert part in screen


def test_the_readme_lists_every_package():
    tree = README.split("## Packages")[1].split("```")[1]
    packages = {path.parent.name for path in (ROOT / "bertworks").glob("*/__init__.py")}
    assert [name for name in sorted(packages) if f"{name}/" not in tree] == []


def test_the_readme_is_short():
    assert README.count("\n") <= 150
