"""Hints that name another command lead on: it is typed as the message has it, and does what it is
advised for."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bertworks
from bertworks.inference.embedder import Embedder
from tests.checkpoints.test_tensorflow import numbers, written
from tests.support.fine import write_reviews
from tests.support.gpt import write_gpt2
from tests.support.served import write_head
from tests.support.shell import Shell
from tests.support.tables import FAST, read_table, short, write_table, write_text


@pytest.fixture
def text(shell: Shell) -> Path:
    return write_text("my text.txt")


@pytest.fixture
def classifier(shell: Shell) -> Path:
    return write_head(
        Path("my classifier"), task="classification", text=("text",), labels=("neg", "pos")
    )


def num_documents(shards: str) -> int:
    return int(json.loads((Path(shards) / "manifest.json").read_text())["documents"])


def test_no_tokenizer(shell: Shell, text: Path):
    Path("empty").mkdir()
    answer = shell.fails("prepare", text, "--tokenizer", "empty", "-o", "out")
    advice = shell.shows(answer, "make one with `bertworks vocab TEXT -o FOLDER`")
    shell.types(advice, "--size", "200", TEXT=text, FOLDER="new tokenizer")
    shell.works("prepare", text, "--tokenizer", "new tokenizer", "-o", "out", "--workers", "1")
    assert num_documents("out") == 12


def test_shards_are_no_text(shell: Shell, text: Path):
    shell.works("vocab", text, "-o", "my tokenizer", "--size", "200", "--workers", "1")
    options = ["--tokenizer", "my tokenizer", "--workers", "1"]
    shell.works("prepare", text, *options, "-o", "my shards")
    answer = shell.fails("prepare", "my shards", *options, "-o", "out")
    shell.types(shell.shows(answer, "`bertworks pretrain {} -o MODEL`"), *short(), MODEL="model")
    model, tokenizer = bertworks.load("model"), bertworks.Tokenizer.load(Path("my tokenizer"))
    assert model.tokenizer.tokens == tokenizer.tokens
    write_text("other.txt", 8)
    command = shell.shows(answer, "`bertworks prepare TEXT TEXT ...`")
    joined = command.replace("TEXT TEXT ...", f"{shlex.quote(str(text))} other.txt")
    shell.types(joined, *options, "-o", "joined")
    assert num_documents("joined") == 20


def test_a_model_without_a_task(shell: Shell, model: Path):
    shutil.copytree(model, "my model")
    data = write_reviews(Path("my reviews.csv"), 40)
    advice = shell.shows(
        shell.fails("predict", "my model", data),
        "fine-tune it: bertworks finetune DATA --model {} -o ANOTHER-FOLDER",
    )
    shell.types(advice, *FAST, DATA=data, ANOTHER_FOLDER="an other")
    shell.works("predict", "an other", data, "-o", "out.csv")
    assert len(read_table("out.csv")) == 40


def test_a_column_that_divides_the_rows(shell: Shell, model: Path):
    rows = [(f"a {mood} film {n}", mood) for n, mood in enumerate(["good", "bad"] * 20)]
    parts = ["train", "train", "train", "test"] * 10
    data = write_table(
        "a.csv", ("text", "label", "subset"), *((*row, p) for row, p in zip(rows, parts))
    )
    advice = shell.shows(
        shell.fails("finetune", data, "--model", model, "-o", "all"),
        "write one file for each part: bertworks finetune TRAIN --dev DEV;",
    )
    for part in ("train", "test"):
        chosen = [row for row, p in zip(rows, parts) if p == part]
        write_table(f"{part}.csv", ("text", "label"), *chosen)
    options = ["--model", model, *FAST, "-o", "divided"]
    shell.types(advice.removesuffix(";"), *options, TRAIN="train.csv", DEV="test.csv")
    assert json.loads(Path("divided/task.json").read_text())["labels"] == ["bad", "good"]


def test_models_of_the_other_direction(shell: Shell, model: Path):
    write_gpt2(Path("gpt 2"))
    answer = shell.fails("fill", "gpt 2", "a [MASK]")
    assert "a text" in shell.types(shell.shows(answer, 'bertworks generate {} "a text"'))
    answer = shell.fails("generate", model, "a text")
    assert "%" in shell.types(shell.shows(answer, 'bertworks fill {} "a text with {}"'))


def test_pickled_weights(shell: Shell, model: Path):
    weights = load_file(model / "model.safetensors")
    shutil.copytree(model, "it's old")
    Path("it's old/model.safetensors").unlink()
    torch.save(weights, "it's old/pytorch_model.bin")
    advice = (
        "if you trust where it comes from: bertworks convert {} -o ANOTHER-FOLDER --trust-pickle"
    )
    for command in (
        ("fill", "it's old", "the [MASK]"),
        ("export", "it's old", "-o", "exported"),
        ("convert", "it's old", "-o", "again"),
    ):
        answer = shell.shows(shell.fails(*command), advice)
    shell.types(answer, ANOTHER_FOLDER="safe")
    assert shell.works("fill", "safe", "the [MASK]") == shell.works("fill", model, "the [MASK]")


def test_a_pickled_module_of_vectors(shell: Shell, model: Path, text: Path):
    Embedder(model, device="cpu").save("it's theirs")
    folder = Path("it's theirs/2_Dense")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"in_features": 32, "out_features": 8}))
    weights = {"linear.weight": torch.ones(8, 32), "linear.bias": torch.ones(8)}
    torch.save(weights, folder / "pytorch_model.bin")
    modules = folder.with_name("modules.json")
    dense = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    modules.write_text(json.dumps([*json.loads(modules.read_text()), dense]))
    answer = shell.fails("embed", "it's theirs", text, "-o", "v.npy")
    advice = "if you trust it: bertworks convert {} -o ANOTHER-FOLDER --trust-pickle"
    shell.types(shell.shows(answer, advice), ANOTHER_FOLDER="safe")
    shell.works("embed", "safe", text, "-o", "v.npy")
    assert np.load("v.npy").shape[1] == 8


def test_a_folder_without_a_card_is_not_uploaded(shell: Shell, model: Path):
    shutil.copytree(model, "no card")
    Path("no card/README.md").unlink()
    answer = shell.fails("push", "no card", "me/x", "--dry-run")
    advice = shell.shows(answer, "bertworks convert {} -o ANOTHER-FOLDER")
    shell.types(advice, ANOTHER_FOLDER="again")
    assert "README.md" in shell.works("push", "again", "me/x", "--dry-run")


def test_variables_that_are_left_out_of_an_import(shell: Shell):
    more = {name: np.ones(3, np.float32) for name in ("more/of it", "and/it's", "x")}
    prefix = written(Path("uncased it's"), numbers() | more)
    answer = shell.fails("import", prefix, "-o", "out")
    options = shlex.split(answer.split("continue without: ")[1])
    assert options[1::2] == sorted(more)
    shell.works("import", prefix, "-o", "out", *options)
    assert json.loads(Path("out/config.json").read_text())["hidden_act"] == "gelu_new"


def test_an_index_is_made_and_searched(shell: Shell, model: Path):
    texts = ["good films of the town", "bad dogs", "men heard music"]
    data = write_table("docs.csv", ("id", "text"), *((f"n{n}", t) for n, t in enumerate(texts)))
    Path("it's new").mkdir()
    answer = shell.fails("search", "it's new", "dogs")
    advice = shell.shows(answer, "bertworks index DOCUMENTS -o {}")
    shell.types(advice, "--model", model, DOCUMENTS=data)
    found = shell.works("search", "it's new", "dogs", "--ranking", "bm25")
    assert "n1" in found.splitlines()[0]
    (vectors,) = Path("it's new").glob("*.safetensors")
    vectors.write_bytes(vectors.read_bytes()[:-64] + bytes(64))
    answer = shell.fails("index", "-o", "it's new", "--verify")
    advice = shell.shows(answer, "delete its folder and repeat the `bertworks index` command")
    shutil.rmtree("it's new")
    shell.types(advice, data, "-o", "it's new", "--model", model)
    assert shell.works("search", "it's new", "dogs", "--ranking", "bm25") == found


def test_an_export_with_the_output_that_is_needed(shell: Shell, classifier: Path):
    pytest.importorskip("onnxruntime")
    data = write_reviews(Path("r.csv"), 5)
    shell.works("export", classifier, "-o", "an export")
    answer = shell.fails("embed", "an export", data, "--text", "text", "-o", "v.npy")
    advice = shell.shows(answer, "bertworks export MODEL --encoder -o FOLDER")
    shell.types(advice, MODEL=classifier, FOLDER="for vectors")
    shell.works("embed", "for vectors", data, "--text", "text", "-o", "v.npy")
    assert len(np.load("v.npy")) == 5


def test_the_help_of_a_command(shell: Shell, model: Path):
    answer = shell.fails("fill", model, "the [MASK]", "--tpo-k", "3")
    command = re.search(r"bertworks fill --help", answer)
    assert command is not None
    assert "--top-k" in shell.types(command[0])
