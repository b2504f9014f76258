"""Every command and every option that a message advises is typed here, and gives the right result.

A test is marked with the templates (see tests/hints.py) of the messages that it has seen and
followed. A new message needs a test, or a reason below.
"""

import csv
import gzip
import importlib.metadata
import importlib.util
import io
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
import uvicorn
from safetensors.torch import load_file

import bertworks
from bertworks.checkpoints.model_folder import save_model
from bertworks.checkpoints.resolve import packaged_minilm
from bertworks.cli.main import main
from bertworks.config import override
from bertworks.datasets.reader import RowReader
from bertworks.demo.tour import _next_steps
from bertworks.diagnostics import _EXTRAS, _extras, _speed
from bertworks.errors import BertworksError
from bertworks.events import Event
from bertworks.inference.embedder import Embedder
from bertworks.io.atomic_write import folder_lock
from bertworks.io.options import ReadOptions
from bertworks.models.config import EncoderConfig
from bertworks.models.packed_linear import cpu_supports_int8
from bertworks.serve.server import bound
from bertworks.text.shards import Shards
from bertworks.text.vocabulary import train_vocabulary
from bertworks.training.budget import Measurement, fit_steps
from bertworks.training.objectives import PretrainingModel
from bertworks.training.recipe import load_recipe
from tests.support import ROOT
from tests.support.fine import write_choices, write_conll, write_reviews, write_squad
from tests.support.gpt import write_gpt2
from tests.support.hints import TESTED, VERBS, Shell, templates
from tests.support.served import write_head
from tests.support.tiny import write_recipe
from tests.support.treebanks import write_treebank
from tests.training.test_objectives import TINY

NETWORK = "the command needs the network"
GPU = "the message needs a GPU"
NOT_ADVICE = "no advice: a heading, a help text, or what an option means"
NOT_TYPED = {  # why a template is not tested here
    "pip install --no-deps --force-reinstall {}": NETWORK,
    "pip install --no-deps {}; or {}": NETWORK,
    "if you trust it, name it: {} --model {}": (
        "test_index: the model that a stranger's index names"
    ),
    "bertworks convert {} -o ANOTHER-FOLDER --accept-changes": (
        "test_weights_record: what transformers saved"
    ),
    (
        "if you trust its {}: bertworks convert {} -o FOLDER --trust-pickle, and name that folder"
    ): "test_pickled_weights: a name on the hub",
    "bertworks convert . -o {} --language {}": "test_model_cards: a model of several languages",
    "bertworks search {} QUERY": "test_index: the model that a stranger's index names",
    "agree on the model's page, then `hf auth login`": NETWORK,
    "check the spelling; of a private model, `hf auth login`": NETWORK,
    "hf auth login (or set HF_TOKEN), with a token with write access": NETWORK,
    "hf auth login with a token with write access": NETWORK,
    "leave --precision out: GPUs use bf16": GPU,
    "bertworks convert {} -o {} --language {}, and name that one": (
        "test_languages: the language of texts"
    ),
    "bertworks convert {} -o {} --language {}": "test_languages: the language of texts",
    "give --language once per input, such as en, in their order": "test_languages: every run of it",
    "give --language for each input, one that the model has": "test_languages: more training",
    "--recipe xlm-tlm and --parallel belong together, and xlm-mlm without": (
        "test_languages: estimates"
    ),
    "--recipe xlm-mlm": "test_languages: an estimate of each recipe",
    "--set sampling.format=stream": "test_languages: every run of it has this format",
    "--budget {}s is the shortest; and --overwrite": (
        "only a machine that is too slow says so; test_pretrain has one"
    ),
    (
        "run the same command again: it resumes after the finished parts; fewer --workers need "
        "less "
        "memory"
    ): "test_shards: a killed worker, and the command again",
    (
        "run the same command again: portions that are made are kept; fewer --workers need less "
        "memory"
    ): "test_bulk: portions that end their processes, and the command again",
    "write to a folder that all machines share: -o SHARED/FILE": "only a second machine says so",
    (
        "start the cluster again, then the same command: finished portions are kept; or --on local"
    ): "test_bulk: killed processes of Ray, and the command again",
    (
        "send no ids of tokens; LangChain: check_embedding_ctx_length=False; or start the server "
        "with "
        "--token-ids"
    ): "test_token_ids: a server without and with the option",
    "--on ray": NOT_ADVICE,
    "--estimate=sizes": "test_pretrain: an estimate without a measurement",
    "make the folder writable, or choose another with -o": (
        "test_checkpoint: a checkpoint that cannot be written"
    ),
    "make tokenizer.json: `python -c {}`": (
        "test_tokenizer_folders runs the command of a refused family"
    ),
    "left out of their own ranking, as in BEIR (--keep-identical keeps them)": (
        "test_retrieval runs both ways"
    ),
    "report this, with the versions that `bertworks doctor` shows": "test_doctor: the command",
    "use another output folder, or --overwrite": (
        "only a program that was changed says so: the recipe is the same"
    ),
    "--threads {}: expected a number from 1, or auto": NOT_ADVICE,
    "bertworks serve {}": NOT_ADVICE,
    "The task of a joint fine-tuning: finetune --joint.": NOT_ADVICE,
    (
        "The tokenizer is in this folder. `bertworks predict` reads the folder if the model has "
        "the "
        "head of a task."
    ): "test_export predicts with an exported folder",
    **dict.fromkeys(
        ("--budget {}m{}", " or --method frozen"), "test_methods: a budget too short for an epoch"
    ),
    "give --budget or --epochs, not both": "test_methods: a budget and epochs contradict",
    **dict.fromkeys(("--method {}", "another --model"), "test_baselines: what can help"),
    **dict.fromkeys(
        (
            "-o ANOTHER-FOLDER, or delete the folder first: each restart would overwrite what is "
            "done",
            "leave --processes out: an estimate needs one process",
            "leave --processes out: several trainings need one process",
            "bertworks slurm pretrain SHARDS -o MODEL",
            "--nodes 2, or --nodes 1:2 if one may be lost or come later",
            "--rendezvous node1:29500",
            "on each machine: --nodes 2 --rendezvous node1:29500",
            "give their number on each machine: --processes 1",
            "--nodes, --rendezvous and --restarts are for several processes",
            "--rendezvous with a name that each machine knows, or an IP address",
        ),
        "test_launch: what is refused",
    ),
    "--device cuda: each process takes one of the GPUs": GPU,
    "start the same command on each of them, or name fewer: --nodes 1:2": (
        "test_lost_processes starts such machines"
    ),
    (
        "-o FOLDER on a disk that all machines share; the data must be at the same path on each of "
        "them"
    ): "test_lost_processes: machines with and without",
    "--set {}": "a part of a message, which test_a_setting_that_a_method_does_not_use has",
    (
        "bertworks evaluate task MODEL-FOLDER test.csv\n"
        "bertworks evaluate mlm MODEL-FOLDER held-out.txt"
    ): "test_first_hour: examples in the help",
}

FAST = (
    "--set",
    "epochs=1",
    "--set",
    "batch_size=8",
    "--set",
    "optimizer.learning_rate=2e-3",
    "--device",
    "cpu",
)


NOT_TYPED |= {
    text: NOT_ADVICE
    for text in templates()
    if text.startswith(
        (
            "\n`{}` is {}, opset",
            "A command that uses a model",
            "((flan-|m|by)?t5",
            "#!/bin/bash",
            " --nodes ",
            "--nodes {}: ",
            "--rendezvous {}: ",
            "--processes {}",
        )
    )
}


def says(*found: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The templates of the messages that a test has to see."""

    def mark(function: Callable[..., None]) -> Callable[..., None]:
        for template in found:
            TESTED[template].append(function.__name__)

        @wraps(function)
        def followed(**fixtures: Any) -> None:
            function(**fixtures)
            assert fixtures["shell"].found == set(found)

        return followed

    return mark


@pytest.fixture
def shell(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Shell:
    """In a folder with a name that a shell does not read as one word."""
    (tmp_path / "it's here").mkdir()
    monkeypatch.chdir(tmp_path / "it's here")
    return Shell(capsys)


def test_every_advice_is_followed_by_a_test() -> None:
    """Of the whole code: what a person is to type is typed here, or there is a reason why not."""
    missing = {
        text: file
        for text, file in templates().items()
        if text not in TESTED and text not in NOT_TYPED
    }
    assert missing == {}
    stale = sorted((set(TESTED) | set(NOT_TYPED)) - set(templates()))
    assert stale == [], "no longer in the code"
    # others may type them as well
    here = {text for text, names in TESTED.items() if {*names} & {*globals()}}
    assert sorted(here & set(NOT_TYPED)) == []


def test_every_command_has_its_verb_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    @cache
    def help_of(verb: str) -> str:
        assert main([verb, "--help"]) == 0, verb
        return capsys.readouterr().out

    seen = set()
    for template in templates():
        for verb, rest in re.findall(r"(?<![\w-])bertworks ([a-z]+)((?: [^\s`]+)*)", template):
            if (verb in VERBS.split("|") or "`bertworks" in template) and template not in NOT_TYPED:
                seen.add(verb)
                for option in re.findall(r"(?<!\S)--?[a-z][\w-]*", rest):
                    assert re.search(rf"(?<!\S){option}(?![\w-])", help_of(verb)), (
                        f"{verb} has no {option}"
                    )
    assert len(seen) > 6


# Raw text: vocab, prepare, pretrain


SENTENCE = (
    "the old house stands by the river and the dogs of the town know who built it in the "
    "year of the flood"
)


def write_text(path: Path, documents: int = 12) -> Path:
    words = SENTENCE.split()
    lines = [
        " ".join([*words[n % 7 :], *words[: n % 5]]).capitalize() + "."
        for n in range(documents * 4)
    ]
    path.write_text(
        "\n\n".join("\n".join(lines[n : n + 4]) for n in range(0, len(lines), 4)) + "\n"
    )
    return path


def short(*replacements: tuple[str, str]) -> list[str]:
    """Options of a pre-training that takes a moment."""
    recipe = write_recipe(Path("tiny.toml"), ("num_steps = 40", "num_steps = 3"), *replacements)
    return ["--recipe", str(recipe), "--device", "cpu", "--workers", "1"]


@pytest.fixture
def text(shell: Shell) -> Path:
    return write_text(Path("my text.txt"))


@pytest.fixture
def tokenizer(shell: Shell, text: Path) -> Path:
    shell.works("vocab", text, "-o", "my tokenizer", "--size", "200", "--workers", "1")
    return Path("my tokenizer")


def shards_of(folder: Path | str) -> int:
    return int(json.loads((Path(folder) / "manifest.json").read_text())["documents"])


@says("make one with `bertworks vocab TEXT -o FOLDER`")
def test_no_tokenizer(shell: Shell, text: Path) -> None:
    Path("empty").mkdir()
    answer = shell.fails("prepare", text, "--tokenizer", "empty", "-o", "out")
    advice = shell.shows(answer, "make one with `bertworks vocab TEXT -o FOLDER`")
    shell.types(advice, "--size", "200", TEXT=text, FOLDER="new tokenizer")
    shell.works("prepare", text, "--tokenizer", "new tokenizer", "-o", "out", "--workers", "1")
    assert shards_of("out") == 12


@says(
    "--on local, --on ray or --on ray://HEAD:10001",
    "--on, --part and --join exclude each other",
    "--part {}: there is no such part",
    "of 40 parts, --part 0/40 is the first and --part 39/40 the last",
    "first each --part, then --join alone",
    "{}: part {} is complete; after all parts: the same command with --join",
    "run the parts that did not finish again; or make the portions here: --on local instead of "
    "--join",
    "use the same version, settings and kind of machine for all; or begin anew: rm -r {}",
    "start it there: ray start --head; set RAY_AUTH_TOKEN to its token; or --on local",
)
def test_large_jobs(shell: Shell, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertworks.text.file_groups._GROUP", 1)
    Path("corpus").mkdir()
    for number in "012":
        shutil.copy(text, f"corpus/{number}.txt")
    shell.works("vocab", "corpus", "-o", "words", "--size", "200")
    job = ("prepare", "corpus", "--tokenizer", "words", "-o", "out")
    shell.shows(shell.fails(*job, "--on", "spark"), "--on local, --on ray or --on ray://HEAD:10001")
    answer = shell.fails(*job, "--part", "2/2")
    shell.shows(answer, "--part {}: there is no such part")
    shell.shows(answer, "of 40 parts, --part 0/40 is the first and --part 39/40 the last")
    answer = shell.fails(*job, "--part", "0/2", "--join")
    shell.shows(answer, "--on, --part and --join exclude each other")
    shell.shows(answer, "first each --part, then --join alone")
    answer = shell.works(*job, "--part", "0/2")
    shell.shows(answer, "{}: part {} is complete; after all parts: the same command with --join")
    one = (
        "run the parts that did not finish again; or make the portions here: --on local instead "
        "of --join"
    )
    shell.shows(shell.fails(*job, "--join"), one)
    shell.works(*job, "--part", "1/2")
    shell.works(*job, "--join")
    shell.works("prepare", "corpus", "--tokenizer", "words", "-o", "new", "--part", "0/2")
    other = ("prepare", "corpus/0.txt", "--tokenizer", "words", "-o", "new", "--part", "0/2")
    anew = "use the same version, settings and kind of machine for all; or begin anew: rm -r {}"
    advice = shell.shows(shell.fails(*other), anew)
    shutil.rmtree(shlex.split(advice.rpartition("begin anew: ")[2])[2])
    shell.works(*other)
    if importlib.util.find_spec("ray"):
        head = shell.fails(
            "prepare", "corpus", "--tokenizer", "words", "-o", "far", "--on", "ray://127.0.0.1:9"
        )
        shell.shows(
            head,
            "start it there: ray start --head; set RAY_AUTH_TOKEN to its token; or --on local",
        )
    shell.works(
        "prepare", "corpus", "--tokenizer", "words", "-o", "far", "--on", "local", "--workers", "1"
    )
    assert shards_of("far") == shards_of("out")


@says("sed -i 's/\\r$//' {}")
def test_a_vocabulary_with_the_line_ends_of_windows(shell: Shell, tokenizer: Path) -> None:
    tokens = list(json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"])
    (tokenizer / "tokenizer.json").unlink()
    (tokenizer / "vocab.txt").write_text("".join(f"{token}\r\n" for token in tokens), newline="")
    with pytest.raises(BertworksError) as error:
        bertworks.Tokenizer.load(tokenizer)
    shell.types(shell.shows(error.value.hint, "sed -i 's/\\r$//' {}"))
    assert bertworks.Tokenizer.load(tokenizer).tokens == tokens


@says("give --algorithm bpe --cased; or --special-tokens bert")
def test_special_tokens_of_roberta(shell: Shell, text: Path) -> None:
    roberta = ("vocab", text, "--size", "400", "--special-tokens", "roberta")
    shell.shows(
        shell.fails(*roberta, "-o", "out"), "give --algorithm bpe --cased; or --special-tokens bert"
    )
    shell.works(*roberta, "--algorithm", "bpe", "--cased", "-o", "roberta")
    shell.works(*roberta[:-1], "bert", "-o", "bert")
    pieces = [bertworks.Tokenizer.load(Path(name)).tokens[0] for name in ("roberta", "bert")]
    assert pieces == ["<s>", "[PAD]"]


@says("-o FOLDER", "--data FOLDER names the folder")
def test_an_ablation(shell: Shell, text: Path) -> None:
    tiny = [
        "hidden_size=16",
        "num_attention_heads=2",
        "num_hidden_layers=1",
        "max_position_embeddings=64",
    ]
    overrides = [f"encoder.{word}" for word in tiny] + [
        "train.phases=[{num_steps=2, batch_size=4, sequence_length=32}]"
    ]
    lines = [
        "title = 'T'",
        "source = 'S'",
        "[vocabulary]",
        "size = 200",
        "[pretrain]",
        "recipe = 'bert-mini'",
    ]
    lines += [f"overrides = {json.dumps(overrides)}"]
    for arm in ("a", "b"):
        lines += ["[[arms]]", f"name = '{arm}'", "pretrain = {overrides = []}"]
    lines += ["[[measures]]", "name = 'reviews'", "title = 'Reviews'", "kind = 'finetuning'"]
    lines += [
        "options = {data = '{data}/r.csv', method = 'full', overrides = ['epochs=1', "
        "'max_length=32']}"
    ]
    Path("mine.toml").write_text("\n".join(lines))
    Path("labelled data").mkdir()
    write_reviews(Path("labelled data/r.csv"), 60)
    command = ("evaluate", "ablation", "mine.toml", text, "--seeds", "1")
    shell.shows(shell.fails(*command), "-o FOLDER")
    shell.shows(shell.fails(*command, "-o", "out"), "--data FOLDER names the folder")
    assert "| b |" in shell.works(*command, "-o", "out", "--data", "labelled data")


@says("; or --algorithm bpe or unigram, which use words of up to {} characters")
def test_text_without_spaces(shell: Shell) -> None:
    Path("text.txt").write_text("\n\n".join("abcdefghij" * 50 + str(n) for n in range(100, 160)))
    answer = shell.fails("vocab", "text.txt", "-o", "out", "--size", "300")
    shell.shows(answer, "; or --algorithm bpe or unigram, which use words of up to {} characters")
    shell.works("vocab", "text.txt", "-o", "out", "--size", "300", "--algorithm", "bpe")
    t = bertworks.Tokenizer.load(Path("out"))
    (ids,) = t.ids(["abcdefghij" * 50])
    assert t.unk_id not in ids
    assert len(ids) < 100


@says("{option} 512m, or {option} 1g")
def test_a_size(shell: Shell, text: Path) -> None:
    answer = shell.fails("vocab", text, "-o", "out", "--max-memory", "much")
    advice = shell.shows(answer, "{option} 512m, or {option} 1g")
    options = re.findall(r"--max-memory \w+", advice)
    for option in options:
        shell.works("vocab", text, "-o", f"out {option}", "--size", "200", *option.split())
    first, second = (bertworks.Tokenizer.load(Path(f"out {option}")).tokens for option in options)
    assert first == second  # memory does not change the vocabulary


@says("-o ANOTHER-FOLDER: its content would be lost")
def test_a_vocabulary_into_a_full_folder(shell: Shell, text: Path) -> None:
    Path("full").mkdir()
    Path("full/mine").write_text("mine")
    answer = shell.fails("vocab", text, "-o", "full", "--size", "200")
    shell.shows(answer, "-o ANOTHER-FOLDER: its content would be lost")
    shell.works("vocab", text, "-o", "another", "--size", "200")
    assert bertworks.Tokenizer.load(Path("another")).vocab_size > 20
    assert [path.name for path in Path("full").iterdir()] == ["mine"]


@says("see what is there: `ls {}`")
@pytest.mark.parametrize("name", ["nothing like it.xyz", "*.nothing"])
def test_nothing_there(shell: Shell, text: Path, name: str) -> None:
    answer = shell.fails("vocab", Path.cwd() / name, "-o", "out")
    assert "my text.txt" in shell.types(shell.shows(answer, "see what is there: `ls {}`"))


@says("`mkdir FOLDER; tar xf FILE -C FOLDER` unpacks it; then name the folder")
@pytest.mark.parametrize("name", ["packed.txt", "packed.txt.gz"])
def test_an_archive(shell: Shell, text: Path, name: str) -> None:
    with tarfile.open(name, "w:gz" if name.endswith(".gz") else "w") as archive:
        archive.add(text)
    answer = shell.fails("vocab", name, "-o", "out", "--size", "200")
    advice = shell.shows(
        answer, "`mkdir FOLDER; tar xf FILE -C FOLDER` unpacks it; then name the folder"
    )
    shell.types(advice, FOLDER="un packed", FILE=name)
    shell.works("vocab", "un packed", "-o", "out", "--size", "200", "--workers", "1")
    shell.works("vocab", text, "-o", "direct", "--size", "200", "--workers", "1")
    assert Path("out/tokenizer.json").read_bytes() == Path("direct/tokenizer.json").read_bytes()


@says("one JSON array, not JSON lines; `jq -c '.[]' FILE > FILE.jsonl` makes them")
@pytest.mark.skipif(not shutil.which("jq"), reason="jq is not installed")
def test_one_json_array(shell: Shell, text: Path) -> None:
    documents = text.read_text().split("\n\n")
    Path("array.json").write_text(
        json.dumps([{"text": document} for document in documents], indent=1)
    )
    answer = shell.fails("vocab", "array.json", "-o", "out")
    advice = shell.shows(
        answer, "one JSON array, not JSON lines; `jq -c '.[]' FILE > FILE.jsonl` makes them"
    )
    shell.types(advice, FILE="array.json")
    answer = shell.works("vocab", "array.json.jsonl", "-o", "out", "--size", "200")
    assert f"{len(documents)} documents" in answer


@says(": `{} FILE`")
def test_a_compressed_parquet_file(shell: Shell, text: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    documents = text.read_text().split("\n\n")
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": documents}), sink)
    Path("my rows.parquet.gz").write_bytes(gzip.compress(sink.getvalue()))
    answer = shell.fails("vocab", "my rows.parquet.gz", "-o", "out")
    shell.types(shell.shows(answer, ": `{} FILE`"), FILE="my rows.parquet.gz")
    answer = shell.works("vocab", "my rows.parquet", "-o", "out", "--size", "200")
    assert f"{len(documents)} documents" in answer


@says("look at it with `sed -n {}p {}`, repair the file or leave it out")
def test_malformed_lines(shell: Shell) -> None:
    Path("bad.jsonl").write_text('{"text": "a good line"}\n' + "{not json\n" * 10)
    answer = shell.fails("vocab", "bad.jsonl", "-o", "out")
    advice = shell.shows(answer, "look at it with `sed -n {}p {}`, repair the file or leave it out")
    assert shell.types(advice) == "{not json\n"


IN_ENCODINGS = {
    "cp1252": "café",
    "cp932": "日本",
    "euc-kr": "한국",
    "gb18030": "中国",
    "utf-16-le": "日本",
}
NO_LANGUAGE = b"a \xa0 \x81 \xd7 \xac b"


@says(
    "--encoding {}",
    "name the encoding: --encoding {}, ...",
    "name one that Python knows: --encoding {}, utf-16-le",
)
def test_raw_text_of_another_encoding(shell: Shell) -> None:
    """The encoding that is advised gives the vocabulary of the same text in UTF-8."""
    sentence = "日本語の文章は川のそばの古い家について語る。"
    Path("new.txt").write_text(f"{sentence}\n\n" * 200)
    Path("old.txt").write_bytes((f"{sentence}\n\n" * 200).encode("cp932"))

    def vocab(name: str, *words: object) -> list[object]:
        return ["vocab", name, "-o", f"{name} {words}", "--size", 200, "--workers", 1, *words]

    answer = shell.fails(*vocab("old.txt"))
    option = shell.shows(answer, "--encoding {}").split()
    assert option == ["--encoding", "cp932"]
    shell.works(*vocab("old.txt", *option))
    shell.works(*vocab("new.txt"))
    expected = bertworks.Tokenizer.load(Path("new.txt ()")).tokens
    assert bertworks.Tokenizer.load(Path(f"old.txt {tuple(option)}")).tokens == expected
    assert "日" in expected

    Path("odd.txt").write_bytes(b"%s\n" % NO_LANGUAGE * 100)
    answer = shell.fails(*vocab("odd.txt"))
    named = re.findall(
        r"[\w-]+",
        shell.shows(answer, "name the encoding: --encoding {}, ...").split("--encoding ")[1],
    )
    answer = shell.fails(*vocab("old.txt", "--encoding", "utf-9"))
    advice = shell.shows(answer, "name one that Python knows: --encoding {}, utf-16-le")
    assert named == re.findall(r"[\w-]+", advice.split("--encoding ")[1])[:-1]
    for name in [*named, "utf-16-le"]:
        words = IN_ENCODINGS[name]
        Path(name).write_bytes((f"{words} " * 9 + "\n").encode(name) * 30)
        shell.works(*vocab(name, "--encoding", name))
        t = bertworks.Tokenizer.load(Path(f"{name} ('--encoding', '{name}')"))
        assert t.unk_id not in t.ids([words])[0]
        assert not any("\N{REPLACEMENT CHARACTER}" in token for token in t.tokens)


def pdf(text: str) -> bytes:
    """A file of one page with a line of text."""
    content = f"BT /F 12 Tf 72 720 Td ({text}) Tj ET".encode()
    parts = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R"
        b" /Resources << /Font << /F 4 0 R >> >> >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
    ]
    made, places = b"%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        places.append(len(made))
        made += b"%d 0 obj\n%s\nendobj\n" % (number, part)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"xref\n0 6\n0000000000 65535 f \n%strailer\n"
    end += b"<< /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    return made + end % (table, len(made))


@says("`pdftotext FILE` makes text of it")
def test_a_pdf(shell: Shell) -> None:
    Path("my paper.pdf").write_bytes(pdf(SENTENCE))
    advice = shell.shows(
        shell.fails("vocab", "my paper.pdf", "-o", "out"), "`pdftotext FILE` makes text of it"
    )
    if shutil.which("pdftotext"):  # else only the message is tested
        shell.types(advice, FILE="my paper.pdf")
        assert SENTENCE in Path("my paper.txt").read_text()


@pytest.mark.slow
def test_the_commands_of_the_hub_exist(shell: Shell) -> None:
    """They need the network, but not for their help."""
    for template in (text for text in templates() if "hf auth login" in text):
        command = re.search(r"hf auth \w+", template)
        assert command is not None
        assert "token" in shell.types(command[0], "--help").lower()


def compressed(suffix: str) -> bytes:
    import bz2
    import lzma

    import pyarrow

    content = (SENTENCE.encode() + b"\n") * 5000
    if suffix == ".zst":
        return bytes(pyarrow.compress(content, codec="zstd", asbytes=True))
    return {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[suffix](content)


@says(
    "fetch it again (`{} {}` checks it), or leave it out", "gzip -t", "zstd -t", "xz -t", "bzip2 -t"
)
def test_a_damaged_file(shell: Shell) -> None:
    for suffix, program in ((".gz", "gzip"), (".zst", "zstd"), (".xz", "xz"), (".bz2", "bzip2")):
        name = f"it's cut.txt{suffix}"
        Path(name).write_bytes(compressed(suffix)[:-60])
        answer = shell.fails("vocab", name, "-o", "out", "--workers", "1")
        advice = shell.shows(answer, "fetch it again (`{} {}` checks it), or leave it out")
        shell.shows(answer, f"{program} -t")
        if shutil.which(program):
            with pytest.raises(AssertionError):  # the command finds the damage
                shell.types(advice)
            Path(name).write_bytes(compressed(suffix))
            shell.types(advice)


DAMAGED_SHARDS = (
    "copy the folder again; or make it again: repeat the `bertworks prepare` command with "
    "--overwrite, or delete this "
    "folder within a run and repeat the `bertworks pretrain` command"
)


@says(
    "make them: bertworks prepare TEXT --tokenizer TOKENIZER -o {}",
    DAMAGED_SHARDS,
    "type the `bertworks prepare` command again: it resumes",
    "write to another folder with -o, or replace the shards with --overwrite",
    "choose a new or empty folder with -o",
    "wait until it is done, or choose another folder with -o",
)
def test_shards(shell: Shell, text: Path, tokenizer: Path) -> None:
    def opening(folder: str) -> str:
        with pytest.raises(BertworksError) as error:
            Shards.open(Path(folder)).tokens[:].sum()
        return str(error.value.hint)

    Path("my shards").mkdir()
    advice = shell.shows(
        opening("my shards"), "make them: bertworks prepare TEXT --tokenizer TOKENIZER -o {}"
    )
    shell.types(advice, "--workers", 1, TEXT=text, TOKENIZER=tokenizer)
    assert shards_of("my shards") == 12
    words = [text, "--tokenizer", tokenizer, "--workers", 1]
    whole = Path("my shards/tokens.bin").read_bytes()
    for name, damage in (
        ("manifest.json", b"{"),
        ("sentences.npy", b"damaged"),
        ("tokens.bin", whole[::-1]),
    ):
        (Path("my shards") / name).write_bytes(damage)
        advice = shell.shows(opening("my shards"), DAMAGED_SHARDS)
        again, option = re.search(r"(`bertworks prepare` command) with (--\w+)", advice).groups()  # type: ignore[union-attr]
        shell.types(again, *words, "-o", "my shards", option)
        assert Path("my shards/tokens.bin").read_bytes() == whole
        assert Shards.open("my shards", verify=True).manifest.documents == 12
    Path("my shards/manifest.json").rename("kept")
    Path("my shards/plan.json").write_text("{}")
    shell.shows(opening("my shards"), "type the `bertworks prepare` command again: it resumes")
    Path("my shards/plan.json").unlink()
    Path("kept").rename("my shards/manifest.json")

    write_text(Path("other.txt"), 8)
    words = ["other.txt", *words[1:]]
    answer = shell.fails("prepare", *words, "-o", "my shards")
    shell.shows(answer, "write to another folder with -o, or replace the shards with --overwrite")
    shell.works("prepare", *words, "-o", "other shards")
    assert (shards_of("other shards"), shards_of("my shards")) == (8, 12)
    shell.works("prepare", *words, "-o", "my shards", "--overwrite")
    assert shards_of("my shards") == 8

    Path("full").mkdir()
    Path("full/mine").write_text("mine")
    answer = shell.fails("prepare", *words, "-o", "full")
    shell.shows(answer, "choose a new or empty folder with -o")
    with folder_lock(Path("my shards"), "busy", "wait"):
        answer = shell.fails("prepare", *words, "-o", "my shards")
        shell.shows(answer, "wait until it is done, or choose another folder with -o")
        shell.works("prepare", *words, "-o", "a third folder")
    assert shards_of("a third folder") == 8


@says(DAMAGED_SHARDS)
def test_damaged_shards_of_a_run(shell: Shell, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [text, *short(), "-o", "run"]
    with monkeypatch.context() as patch:
        patch.setattr(
            PretrainingModel, "forward", lambda *_: (_ for _ in ()).throw(BertworksError("stopped"))
        )
        shell.fails("pretrain", *words)
    whole = Path("run/shards/tokens.bin").read_bytes()
    Path("run/shards/tokens.bin").write_bytes(whole[::-1])
    advice = shell.shows(shell.fails("pretrain", *words), DAMAGED_SHARDS)
    shutil.rmtree("run/shards")
    shell.types(re.search(r"`bertworks pretrain`", advice)[0], *words)  # type: ignore[index]
    assert Path("run/shards/tokens.bin").read_bytes() == whole
    assert bertworks.load("run").fill(["the old [MASK]"])[0]


@says(
    "`bertworks pretrain {} -o MODEL`",
    "{} trains on it; `bertworks prepare TEXT TEXT ...` joins corpora",
)
def test_shards_are_no_text(shell: Shell, text: Path, tokenizer: Path) -> None:
    options = ["--tokenizer", tokenizer, "--workers", "1"]
    shell.works("prepare", text, *options, "-o", "my shards")
    answer = shell.fails("prepare", "my shards", *options, "-o", "out")
    shell.types(shell.shows(answer, "`bertworks pretrain {} -o MODEL`"), *short(), MODEL="model")
    assert len(bertworks.load("model").tokenizer.tokens) == len(
        bertworks.Tokenizer.load(tokenizer).tokens
    )
    shell.shows(answer, "{} trains on it; `bertworks prepare TEXT TEXT ...` joins corpora")
    other = write_text(Path("other.txt"), 8)
    command = re.search(r"`(bertworks prepare.*?)`", answer)
    assert command is not None
    words = shlex.split(command[1].replace("TEXT TEXT ...", f"{shlex.quote(str(text))} {other}"))
    shell.works(*words[1:], *options, "-o", "joined")
    assert shards_of("joined") == 20


@says(
    "name the text; `bertworks pretrain TEXT --init {}` continues from this model",
    "move it: `mv {} FOLDER`",
)
def test_a_model_or_a_tokenizer_is_no_text(
    shell: Shell, text: Path, tokenizer: Path, model: Path
) -> None:
    shutil.copytree(model, "a model")
    answer = shell.fails("prepare", "a model", "--tokenizer", tokenizer, "-o", "out")
    advice = shell.shows(
        answer, "name the text; `bertworks pretrain TEXT --init {}` continues from this model"
    )
    shell.types(advice, "-o", "continued", *short(), TEXT=text)
    assert bertworks.load("continued").config == bertworks.load("a model").config
    corpus = Path("corpus")
    corpus.mkdir()
    shutil.copy(text, corpus)
    shutil.copytree(tokenizer, corpus / "my tokenizer")
    answer = shell.fails("vocab", corpus, "-o", "out", "--size", "200")
    shell.types(shell.shows(answer, "move it: `mv {} FOLDER`"), FOLDER="moved away")
    assert "12 documents" in shell.works("vocab", corpus, "-o", "out", "--size", "200")
    assert Path("moved away/tokenizer.json").exists()


# Labelled data: check, finetune, predict, evaluate


@pytest.fixture
def classifier(shell: Shell) -> Path:
    return write_head(
        Path("my classifier"), task="classification", text=("text",), labels=("neg", "pos")
    )


def table(name: str, *rows: tuple[Any, ...]) -> Path:
    with Path(name).open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return Path(name)


def answers(name: str | Path) -> list[dict[str, str]]:
    with Path(name).open(newline="") as file:
        return list(csv.DictReader(file))


def about(folder: str | Path) -> dict[str, Any]:
    return dict(json.loads((Path(folder) / "task.json").read_text()))


@says(
    "next: bertworks finetune {} -o MODEL-FOLDER",
    "next: bertworks predict {} new.csv -o scored.csv",
    "bertworks predict . new.csv -o scored.csv",
)
def test_what_comes_next(shell: Shell, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_reviews(Path("my reviews.csv"), 60)
    answer = shell.works(
        "check", "my reviews.csv", "--model", model, "--text", "text", "--group", "reviewer"
    )
    advice = shell.shows(answer, "next: bertworks finetune {} -o MODEL-FOLDER")
    answer = shell.types(advice, *FAST, MODEL_FOLDER="it's a model")
    assert about("it's a model")["labels"] == ["neg", "pos"]
    write_reviews(Path("new.csv"), 5, seed=7)
    shell.types(shell.shows(answer, "next: bertworks predict {} new.csv -o scored.csv"))
    first = answers("scored.csv")
    assert [row["text"] for row in first] == [row["text"] for row in answers("new.csv")]
    assert {row["predicted_label"] for row in first} <= {"neg", "pos"}
    card = Path("it's a model/README.md").read_text()
    shutil.copy("new.csv", "it's a model")
    monkeypatch.chdir("it's a model")
    shell.types(shell.shows(card, "bertworks predict . new.csv -o scored.csv"))
    assert answers("scored.csv") == first


@says("fine-tune it: bertworks finetune DATA --model {} -o ANOTHER-FOLDER")
def test_a_model_without_a_task(shell: Shell, model: Path) -> None:
    shutil.copytree(model, "my model")
    data = write_reviews(Path("my reviews.csv"), 40)
    answer = shell.fails("predict", "my model", data)
    advice = shell.shows(
        answer, "fine-tune it: bertworks finetune DATA --model {} -o ANOTHER-FOLDER"
    )
    shell.types(advice, *FAST, DATA=data, ANOTHER_FOLDER="an other")
    assert len(shell.works("predict", "an other", data, "-o", "out.csv")) > 0
    assert len(answers("out.csv")) == 40


@says(
    "--joint trains one encoder with a head for each",
    "--mix is for --joint",
    "--mix 1",
    "leave out --joint",
    "--epochs 5",
    "--set {}=0",
    "leave out --task",
    "--task {}",
    "bertworks predict . new.csv --task {}\n",
)
def test_one_encoder_for_several_tasks(
    shell: Shell, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("good.csv", "new.csv", "sad.csv"):
        write_reviews(Path(name), 40)
    words: list[object] = ["finetune", "good.csv", "sad.csv", "--model", model, *FAST, "-o", "out"]
    advice = shell.shows(
        shell.fails(*words), "--joint trains one encoder with a head for each"
    ).split()[0]
    shell.shows(shell.fails(*words, "--mix", "2"), "--mix is for --joint")
    mix = shell.shows(shell.fails(*words, advice, "--mix", "-1"), "--mix 1").split()
    answer = shell.fails("finetune", "good.csv", *words[3:], "--joint")
    shell.shows(answer, "leave out --joint")
    shell.works("finetune", "good.csv", *words[3:-1], "alone", "--method", "full")
    stable = [*words[:5], "--joint", "--recipe", "stable", "--device", "cpu", "-o", "stable"]
    epochs = shell.shows(shell.fails(*stable), "--epochs 5").split()
    frozen = shell.shows(shell.fails(*words, advice, "--set", "lstm_units=3"), "--set {}=0").split()
    shell.works(*stable, *epochs, "--set", "lstm_units=3", *frozen)
    shell.works(*words, advice, *mix)
    for command in ("predict", "embed"):  # `embed` has no --task
        _, folder = shell.fails(command, "out", "new.csv").split("name the folder of one: ")
        shell.works(command, *shlex.split(folder), "new.csv")
    chosen = shell.shows(shell.fails("predict", "out", "new.csv", "--task", "no"), "--task {}")
    shell.works("predict", "out", "new.csv", *chosen.split())
    shell.shows(shell.fails("predict", "alone", "new.csv", "--task", "good"), "leave out --task")
    shell.works("predict", "alone", "new.csv")
    card = shell.shows(Path("out/README.md").read_text(), "bertworks predict . new.csv --task {}\n")
    shutil.copy("new.csv", "out")
    monkeypatch.chdir("out")
    shell.types(card.strip())


@says("--reset-head discards the model's head and trains a new one")
def test_a_head_with_other_labels(shell: Shell, classifier: Path) -> None:
    rows = [
        ("text", "mood"),
        *((f"good film {n}", "gut") for n in range(15)),
        *((f"bad {n}", "schlecht") for n in range(15)),
    ]
    words = [table("d.csv", *rows), "--model", classifier, *FAST]
    answer = shell.fails("finetune", *words, "-o", "new")
    shell.shows(answer, "--reset-head discards the model's head and trains a new one")
    shell.works("finetune", *words, "-o", "new", "--reset-head")
    assert about("new")["labels"] == ["gut", "schlecht"]


@says(
    "name the one with the {} with --{}",
    "did you mean {option} {}?",
    "name one of them with {option}",
    "name them: --text QUESTION --text CONTEXT",
    "name others: --text, --task",
    "name another column with --label, or another task with --task",
    "name them: --text PROMPT --text CHOICE1 --text CHOICE2",
)
def test_columns(shell: Shell, model: Path) -> None:
    def check(*words: object) -> list[object]:
        return ["check", *words, "--model", model]

    texts = [f"a {word} film of the town {n}" for n, word in enumerate(["good", "bad"] * 20)]
    data = table("a.csv", ("my text", "the mood"), *((text, text.split()[1]) for text in texts))
    answer = shell.fails(*check(data, "--text", "my texd"))
    option = (
        shell.shows(answer, "did you mean {option} {}?")
        .removeprefix("did you mean ")
        .removesuffix("?")
    )
    assert "'my text'" in shell.works(*check(data, *shlex.split(option)))
    answer = shell.fails(*check(data, "--label", "zzzzzz"))
    shell.shows(answer, "name one of them with {option}")
    assert "classification" in shell.works(*check(data, "--label", "the mood"))

    data = table(
        "b.csv",
        ("text", "since"),
        *((text, f"20{17 + n % 2}-01-01") for n, text in enumerate(texts)),
    )
    answer = shell.fails(*check(data))  # dates are inferred to be no classes
    option = shell.shows(answer, "name the one with the {} with --{}").split(" with ")[-1]
    assert "'since', 2 different values: 2017-01-01" in shell.works(*check(data, option, "since"))

    data = table(
        "c.csv", ("first", "second", "third", "label"), *((t, t, t, t.split()[1]) for t in texts)
    )
    answer = shell.fails(*check(data, "--text", "first", "--text", "second", "--text", "third"))
    shell.shows(answer, "name others: --text, --task")
    shell.works(*check(data, "--text", "first", "--text", "second"))

    data = table(
        "d.csv", ("text", "label"), *((text, f"label {n}") for n, text in enumerate(texts * 10))
    )
    answer = shell.fails(*check(data))
    shell.shows(answer, "name another column with --label, or another task with --task")
    data = table(
        "d.csv",
        ("text", "label", "mood"),
        *((t, f"label {n}", t.split()[1]) for n, t in enumerate(texts * 10)),
    )
    assert "'mood', 2 different values: bad" in shell.works(*check(data, "--label", "mood"))

    squad = write_squad(Path("q.json"), 30)
    answer = shell.fails(*check(squad, "--text", "question"))
    shell.shows(answer, "name them: --text QUESTION --text CONTEXT")
    assert "question" in shell.works(*check(squad, "--text", "question", "--text", "context"))

    data = write_choices(Path("choices.csv"), 40)
    answer = shell.fails(
        *check(data, "--task", "choice", "--text", "startphrase", "--label", "label")
    )
    shell.shows(answer, "name them: --text PROMPT --text CHOICE1 --text CHOICE2")
    named = [
        word
        for name in ("startphrase", "ending0", "ending1", "ending2")
        for word in ("--text", name)
    ]
    assert "choice" in shell.works(*check(data, "--task", "choice", *named, "--label", "label"))


@says("name the one that holds the text with {option}")
def test_no_column_looks_like_text(shell: Shell) -> None:
    data = table("n.csv", ("a", "b"), *((n, n + 1) for n in range(50)))
    answer = shell.fails("vocab", data, "-o", "out", "--size", "100")
    option = shell.shows(answer, "name the one that holds the text with {option}").split()[-1]
    rows = [("a", "b"), *((n, SENTENCE) for n in range(50))]
    shell.works("vocab", table("n.csv", *rows), "-o", "out", "--size", "100", option, "b")
    assert (
        "river" in " ".join(bertworks.Tokenizer.load(Path("out")).tokens)
        or Path("out/tokenizer.json").exists()
    )


def reviews(
    name: str = "a.csv", *, header: tuple[str, ...] = ("text", "label"), **more: Any
) -> Path:
    """Rows of a text and a mood. more: for each other column, its value in row n."""
    rows = [
        (f"a {mood} film of the town {n}", mood, *(make(n) for make in more.values()))
        for n, mood in enumerate(["good", "bad"] * 20)
    ]
    return table(name, (*header, *more), *rows)


def learned(answer: str) -> dict[str, str]:
    """The lines of `check` by their first word."""
    lines = (line.split(maxsplit=1) for line in answer.splitlines() if re.match(r"[a-z]+  ", line))
    return dict(reversed([(name, rest) for name, rest in lines]))


@says(
    "--encoding {}, or convert the file with iconv",
    "name its encoding: --encoding {}, ...; or repair the line",
    "it may be text in {}: --encoding {}",
)
def test_rows_of_another_encoding(shell: Shell, classifier: Path) -> None:
    texts = ["un bon film – café", "la fin était très drôle"]

    def predicted(name: str, option: list[str]) -> list[str]:
        shell.works("predict", classifier, name, "-o", "out.csv", "--overwrite", *option)
        return [row["text"] for row in answers("out.csv")]

    Path("old.csv").write_bytes("\n".join(["text", *texts, ""]).encode("cp1252"))
    answer = shell.fails("predict", classifier, "old.csv")
    advice = shell.shows(answer, "--encoding {}, or convert the file with iconv")
    assert predicted("old.csv", advice.split(",")[0].split()) == texts
    shell.types("iconv -f cp1252 -t UTF-8 old.csv > new.csv")
    assert predicted("new.csv", []) == texts

    Path("odd.csv").write_bytes(b"text\n%s\n" % NO_LANGUAGE)
    answer = shell.fails("predict", classifier, "odd.csv")
    advice = shell.shows(answer, "name its encoding: --encoding {}, ...; or repair the line")
    for name in re.findall(r"[\w-]+", advice.split("--encoding ")[1].split(", ...")[0]):
        text = IN_ENCODINGS[name]
        Path("odd.csv").write_bytes(f"text\n{text}\n".encode(name))
        assert predicted("odd.csv", ["--encoding", name]) == [text]
    Path("odd.csv").write_bytes(b"text\nrepaired\n")
    assert predicted("odd.csv", []) == ["repaired"]

    # without a mark
    Path("wide.csv").write_bytes("\n".join(["text", *texts * 20, ""]).encode("utf-16-le"))
    option = re.search(
        r"--.*",
        shell.shows(
            shell.fails("predict", classifier, "wide.csv"), "it may be text in {}: --encoding {}"
        ),
    )
    assert option is not None
    assert predicted("wide.csv", option[0].split()) == texts * 20


@says("--header if so, else --no-header")
def test_a_first_row_in_doubt(shell: Shell, model: Path) -> None:
    data = table(
        "a.csv",
        ("Sad dogs", "The town"),
        *((f"{n} good films", f"no. {n} of men") for n in range(40)),
    )
    words = ["embed", model, data, "-o", "v.npy", "--overwrite"]
    answer = shell.fails(*words)
    yes, no = re.findall(r"--[\w-]+", shell.shows(answer, "--header if so, else --no-header"))
    shell.works(*words, yes, "--text", "Sad dogs")
    with_header = np.load("v.npy")
    shell.works(*words, no, "--text", "column 1")
    assert (len(with_header), len(np.load("v.npy"))) == (40, 41)
    np.testing.assert_allclose(np.load("v.npy")[1:], with_header, atol=1e-5)


@says(
    "--columns word=1,tag=2, counted from 1",
    "--columns {} names no columns",
    "--columns word=2,tag=4, from 1",
    "--columns word=2,tag=4 names those of a CoNLL file, and --text that of a table",
)
def test_columns_of_conll(shell: Shell, model: Path) -> None:
    tagged = [("the", "O"), ("film", "B-work"), ("was", "O"), ("good", "O")]
    block = "".join(f"{word}\t{tag}\n" for word, tag in tagged)
    Path("two.conll").write_text(f"{block}\n" * 12)
    numbered = "".join(f"{n}\t{word}\tx\t{tag}\n" for n, (word, tag) in enumerate(tagged, 1))
    Path("four.conll").write_text(f"{numbered}\n" * 12)

    def check(name: str, *words: object) -> list[object]:
        return ["check", name, "--model", model, *words]

    def rows(name: str, option: str) -> list[Any]:
        example = learned(shell.works(*check(name, *option.split())))["example"]
        assert "the/O film/B-work was/O good/O" in example
        reader = RowReader(name, ReadOptions(columns=option.split()[1]))
        return [[*zip(row.values["tokens"], row.values["tags"], strict=True)] for row in reader]

    answer = shell.fails(*check("two.conll", "--columns", "word=1,tag=9"))
    option = shell.shows(answer, "--columns word=1,tag=2, counted from 1").split(", ")[0]
    assert rows("two.conll", option) == [tagged] * 12
    answer = shell.fails(*check("four.conll", "--columns", "2,4"))
    shell.shows(answer, "--columns {} names no columns")
    option = shell.shows(answer, "--columns word=2,tag=4, from 1").split(", ")[0]
    assert rows("four.conll", option) == [tagged] * 12
    answer = shell.fails(*check("four.conll", "--columns", "word=1,tag=4"))
    advice = shell.shows(
        answer, "--columns word=2,tag=4 names those of a CoNLL file, and --text that of a table"
    )
    assert rows("four.conll", advice.split(" names")[0]) == [tagged] * 12

    tokens, tags = zip(*tagged, strict=True)
    row = json.dumps({"number": ["1", "2", "3", "4"], "tokens": tokens, "tags": tags})
    Path("a.jsonl").write_text(f"{row}\n" * 12)
    words = check("a.jsonl", "--task", "tagging", "--label", "tags")
    shell.fails(*words, "--text", "number")
    found = learned(shell.works(*words, re.findall(r"--text", advice)[0], "tokens"))
    assert "film/B-work" in found["example"]


@says("--sentence-column {} --text {} --label {}")
def test_one_word_per_row(shell: Shell, model: Path) -> None:
    words = [("the", "O"), ("film", "B-work"), ("was", "O"), ("good", "O")]
    rows = [(f"Sentence: {n}" if not m else "", *words[m]) for n in range(12) for m in range(4)]
    data = table("ner.csv", ("Sentence #", "Word", "Tag"), *rows)
    answer = shell.fails("check", data, "--model", model)
    options = shlex.split(
        shell.shows(answer, "--sentence-column {} --text {} --label {}").split("; or")[0]
    )
    assert options[:2] == ["--sentence-column", "Sentence #"]
    found = learned(shell.works("check", data, "--model", model, *options))
    assert found["rows"].startswith("12 in train")
    assert "the/O film/B-work was/O good/O" in found["example"]


@says("--split {}")
def test_a_file_with_several_parts(shell: Shell, classifier: Path) -> None:
    rows = {"text": ["good films", "bad dogs", "good men"]}
    parts = {"test": rows, "validation": {"text": ["one film"]}}
    Path("all.json").write_text(
        json.dumps({name: [{"text": t} for t in part["text"]] for name, part in parts.items()})
    )
    answer = shell.fails("predict", classifier, "all.json")
    option = shell.shows(answer, "--split {}").split()
    shell.works("predict", classifier, "all.json", *option, "-o", "out.csv")
    assert [row["text"] for row in answers("out.csv")] == parts[option[1]]["text"]


@says(
    "write one file for each part: bertworks finetune TRAIN --dev DEV; --label COLUMN uses all rows"
)
def test_a_column_that_divides_the_rows(shell: Shell, model: Path) -> None:
    data = reviews(subset=lambda n: "test" if n % 4 == 0 else "train")
    answer = shell.fails("finetune", data, "--model", model, *FAST, "-o", "all")
    advice = shell.shows(
        answer,
        "write one file for each part: bertworks finetune TRAIN --dev DEV; --label COLUMN uses "
        "all rows",
    )
    parts: dict[str, list[tuple[str, ...]]] = {"train": [], "test": []}
    for row in answers(data):
        parts[row["subset"]].append((row["text"], row["label"]))
    for name, rows in parts.items():
        table(f"{name}.csv", ("text", "label"), *rows)
    command = advice.split("part: ")[1].split(";")[0]
    shell.types(
        command, "--model", model, *FAST, "-o", "divided", TRAIN="train.csv", DEV="test.csv"
    )
    assert about("divided")["labels"] == ["bad", "good"]
    option = re.findall(r"--label COLUMN", advice)[0].replace("COLUMN", "label").split()
    found = learned(shell.works("check", data, "--model", model, *option))
    assert found["rows"].startswith("40 in train")


@says(
    'write answers as in SQuAD, or spans as {"start": 0, "end": 5, "type": "person"}; or --label '
    "COLUMN"
)
def test_places_that_are_no_labels(shell: Shell, model: Path) -> None:
    data = table(
        "a.csv", ("text", "start"), *((f"a good film of the town {n}", n % 7) for n in range(40))
    )
    answer = shell.fails("check", data, "--model", model)
    advice = shell.shows(
        answer,
        'write answers as in SQuAD, or spans as {"start": 0, "end": 5, "type": "person"}; or '
        "--label COLUMN",
    )
    span = json.loads(re.search(r"\{.*\}", advice)[0])  # type: ignore[index]
    rows = [{"text": f"Anna, of the town {n}", "entities": [span]} for n in range(12)]
    Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "person" in learned(shell.works("check", "a.jsonl", "--model", model))["label"]
    found = learned(shell.works("check", write_squad(Path("q.json"), 30), "--model", model))
    assert found["task"].startswith("qa")
    option = re.findall(r"--label COLUMN", advice)[0].replace("COLUMN", "start").split()
    assert (
        "'start', 7 different values"
        in learned(shell.works("check", data, "--model", model, *option))["label"]
    )


def flags(name: str = "flags.csv", *, extra: bool = False) -> Path:
    """Texts with a column of 0 and 1 for each label."""
    rows = [
        (f"a film {n} of the town", n % 2, int(n % 3 == 0), *["x", "y"][n % 2 : n % 2 + extra])
        for n in range(40)
    ]
    return table(name, ("text", "rude", "loud", *["mood"][:extra]), *rows)


@says(
    "--label {}, or another; several columns of 0 and 1: --label {} --label ...",
    "--label NAME names one; --label-separator and --label-names are for --task multilabel",
    "leave {} out, or name other columns with --label",
    "--label {}",
    "--text {}",
)
def test_several_columns(shell: Shell, model: Path) -> None:
    data = flags(extra=True)

    def check(*words: object) -> list[object]:
        return ["check", data, "--model", model, *words]

    answer = shell.fails(*check())
    advice = shell.shows(
        answer, "--label {}, or another; several columns of 0 and 1: --label {} --label ..."
    )
    one = advice.split(", or")[0].split()
    found = learned(shell.works(*check(*one)))
    assert found["task"].startswith("classification")
    assert found["label"].startswith(f"'{one[1]}'")
    several = "--label rude --label loud".split()
    found = learned(shell.works(*check(*several)))
    assert found["task"].startswith("multilabel")
    assert re.search("loud.*rude|rude.*loud", found["label"])

    answer = shell.fails(*check(*several, "--task", "classification"))
    advice = shell.shows(
        answer,
        "--label NAME names one; --label-separator and --label-names are for --task multilabel",
    )
    option = re.findall(r"--label NAME", advice)[0].replace("NAME", "loud").split()
    assert learned(shell.works(*check(*option, "--task", "classification")))["label"].startswith(
        "'loud'"
    )
    option = re.findall(r"--task \w+", advice)[0].split()
    shell.works(*check(*several, *option))
    separator, names = re.findall(r"--label-\w+", advice)
    data = table(
        "b.csv",
        ("text", "kind"),
        *((f"a film {n} of the town", ["a+b", "a", "b"][n % 3]) for n in range(30)),
    )
    assert re.search(
        r"\ba, b\b",
        learned(shell.works(*check("--label", "kind", separator, "+", *option)))["label"],
    )
    data = Path("c.jsonl")
    lists = [{"text": f"a film {n} of the town", "kind": [n % 2, 1 - n % 2]} for n in range(30)]
    data.write_text("".join(json.dumps(row) + "\n" for row in lists))
    found = learned(shell.works(*check("--label", "kind", names, "rude,loud", *option)))
    assert re.search(r"rude, loud", found["label"])

    rows = [(f"a film {n} of the town", n % 2, 1, int(n % 3 == 0)) for n in range(40)]
    data = table("d.csv", ("text", "rude", "always", "loud"), *rows)
    answer = shell.fails(*check("--label", "rude", "--label", "always", "--label", "loud"))
    option = shell.shows(answer, "leave {} out, or name other columns with --label").split()[-1]
    found = learned(shell.works(*check(option, "rude", option, "loud")))
    assert "always" not in found["label"]

    write_head(
        Path("heads"),
        task="multilabel",
        text=("text",),
        label=("rude", "loud"),
        labels=("rude", "loud"),
    )
    words = ["evaluate", "task", "heads", data]
    answer = shell.fails(*words, "--label", "rude", "--label", "always")
    options = re.search(r"hint: (.*)", answer)
    assert options is not None
    assert shell.shows(answer, "--label {}")
    assert "f1" in shell.works(*words, *shlex.split(options[1])).lower()

    moods = ["good", "bad"] * 20
    texts = [f"the {mood} film of the old town by the river {n}" for n, mood in enumerate(moods)]
    data = table(
        "e.csv",
        ("my first", "my second", "label"),
        *zip(texts, map(str.upper, texts), moods, strict=True),
    )
    answer = shell.fails(*check())
    shell.shows(answer, "--text {}")
    one_text, two_texts = re.search(r"hint: (.*), or (.*)", answer).groups()  # type: ignore[union-attr]
    for options_of_texts, count in ((one_text, 1), (two_texts, 2)):
        shown = learned(shell.works(*check(*shlex.split(options_of_texts))))["text"]
        assert len(re.findall(r"'my \w+'", shown)) == count


@says("lists: --label-names A,B,C; columns: --label A --label B; one label: --task classification")
def test_labels_that_are_named_0_and_1(shell: Shell, model: Path) -> None:
    rows = [{"text": f"a film {n} of the town", "label": [n % 2, 1, n % 3 % 2]} for n in range(40)]
    Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["check", "a.jsonl", "--model", model, "--task", "multilabel"]
    answer = shell.fails(*words)
    advice = shell.shows(
        answer,
        "lists: --label-names A,B,C; columns: --label A --label B; one label: --task "
        "classification",
    )
    rows = [row | {"label": [n % 2, int(n % 5 == 0), n % 3 % 2]} for n, row in enumerate(rows)]
    Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    option = re.findall(r"--label-names \S+(?=;)", advice)[0].split()
    assert "A, B, C" in learned(shell.works(*words, *option))["label"]
    data = flags()
    columns = (
        re.findall(r"--label A --label B", advice)[0]
        .replace("A", "rude")
        .replace("B", "loud")
        .split()
    )
    assert learned(shell.works("check", data, "--model", model, *columns))["task"].startswith(
        "multilabel"
    )
    one = re.findall(r"--task \w+", advice)[0].split()
    found = learned(shell.works("check", data, "--model", model, "--label", "rude", *one))
    assert found["task"].startswith("classification")


@says("--decimal , for numbers; --label-separator , for several labels")
def test_commas_in_labels(shell: Shell, model: Path) -> None:
    rows = [(f"a good film of the town {n}", f"{n % 5},{n % 7}") for n in range(40)]
    data = table("a.csv", ("text", "score"), *rows)
    answer = shell.fails("check", data, "--model", model)
    advice = shell.shows(answer, "--decimal , for numbers; --label-separator , for several labels")
    options = re.findall(r"(--[\w-]+) (,)", advice)
    numbers = learned(shell.works("check", data, "--model", model, *options[0]))
    assert numbers["task"].startswith("regression")
    assert "4.6" in numbers["label"]
    names = learned(shell.works("check", data, "--model", model, *options[1]))
    assert names["task"].startswith("multilabel")
    assert "0, 1, 2, 3, 4, 5, 6" in names["label"]


@says("name another column with --text, or leave the other rows out: --text {}")
def test_few_rows_have_a_text(shell: Shell, model: Path) -> None:
    texts = [f"a good film of the town {n}" if n % 3 == 0 else "" for n in range(60)]
    rows = [(text, f"b{n}", ["pos", "neg"][n % 2]) for n, text in enumerate(texts)]
    data = table("a.csv", ("text", "body", "label"), *rows)
    answer = shell.fails("check", data, "--model", model)
    advice = shell.shows(
        answer, "name another column with --text, or leave the other rows out: --text {}"
    )
    other, same = re.findall(r"--text(?: \w+)?", advice)
    assert "'body'" in learned(shell.works("check", data, "--model", model, other, "body"))["text"]
    found = learned(shell.works("check", data, "--model", model, *same.split()))
    assert found["rows"].startswith("20 in train")


@says("name another column with --text; or this one, --text {}")
def test_texts_that_are_dates(shell: Shell, model: Path) -> None:
    rows = [(f"2024-11-{day:02} 10:{day:02}:00, Monday", f"b{day}") for day in range(1, 29)]
    data = table("a.csv", ("time", "place"), *rows)
    answer = shell.fails("embed", model, data, "-o", "v.npy")
    advice = shell.shows(answer, "name another column with --text; or this one, --text {}")
    other, same = re.findall(r"--text(?: \w+)?", advice)
    assert "text: place" in shell.works("embed", model, data, "-o", "v.npy", other, "place")
    assert "text: time" in shell.works("embed", model, data, "-o", "w.npy", *same.split())
    assert len(np.load("v.npy")) == len(np.load("w.npy")) == 28


@says("--max-row-bytes {}", "--max-row-bytes {}m")
def test_a_large_row(shell: Shell, classifier: Path) -> None:
    for size, given, template in (
        (3000, ["--max-row-bytes", "2k"], "--max-row-bytes {}"),
        (5 << 18, ["--max-row-bytes", "1m"], "--max-row-bytes {}m"),
    ):
        data = table("a.csv", ("text",), ("a good film",), ("a film " + "x" * size,))
        words = ["predict", classifier, data, "-o", "out.csv", "--overwrite"]
        answer = shell.fails(*words, *given)
        shell.works(*words, *shell.shows(answer, template).split())
        assert [row["text"] for row in answers("out.csv")] == [row["text"] for row in answers(data)]


@says("--guard-formulas writes ' before them")
def test_texts_that_are_formulas(shell: Shell, classifier: Path) -> None:
    data = table("a.csv", ("text",), ('=HYPERLINK("http://a.example")',), ("a good film",))
    answer = shell.works("predict", classifier, data, "-o", "out.csv")
    option = shell.shows(answer, "--guard-formulas writes ' before them").split()[0]
    assert answers("out.csv")[0]["text"] == answers(data)[0]["text"]
    assert option not in shell.works("predict", classifier, data, "-o", "safe.csv", option)
    assert [row["text"] for row in answers("safe.csv")] == [
        '\'=HYPERLINK("http://a.example")',
        "a good film",
    ]


@says("-o FILE")
def test_standard_output_that_is_closed(
    shell: Shell, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["predict", str(classifier), str(reviews())]
    monkeypatch.setattr(sys, "stdout", None)  # as after >&-
    assert main(words) == 1
    option = shell.shows(shell._capsys.readouterr().err, "-o FILE").replace("FILE", "out.csv")
    assert main([*words, *option.split()]) == 0
    assert [row["text"] for row in answers("out.csv")] == [row["text"] for row in answers("a.csv")]


@says('export BERTWORKS_API_KEY="$(python3 -c "import secrets; print(secrets.token_urlsafe())")"')
def test_a_short_key(shell: Shell, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTWORKS_API_KEY", "short")
    answer = shell.fails("serve", model, "--host", "0.0.0.0", "--port", "0")
    command = shell.shows(
        answer,
        'export BERTWORKS_API_KEY="$(python3 -c "import secrets; print(secrets.token_urlsafe())")"',
    )
    shown = subprocess.run(
        f'{command}; printf %s "$BERTWORKS_API_KEY"', shell=True, capture_output=True, text=True
    )
    assert len(shown.stdout) >= 32
    monkeypatch.setenv("BERTWORKS_API_KEY", shown.stdout)
    started = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, **_: started.append(self))
    shell.works("serve", model, "--host", "0.0.0.0", "--port", "0")
    assert started


@says("convert the file: `tr '\\r' '\\n' < OLD > NEW`")
def test_rows_that_end_in_carriage_returns(shell: Shell, classifier: Path) -> None:
    rows = ["text,mood", *(f'"a good film, {n}",good' for n in range(5))]
    Path("old.csv").write_bytes("\r".join(rows).encode())
    answer = shell.fails("predict", classifier, "old.csv")
    shell.types(
        shell.shows(answer, "convert the file: `tr '\\r' '\\n' < OLD > NEW`"),
        OLD="old.csv",
        NEW="new.csv",
    )
    shell.works("predict", classifier, "new.csv", "-o", "out.csv")
    assert [row["text"] for row in answers("out.csv")] == [f"a good film, {n}" for n in range(5)]


@says("write one name there; or is it --task multilabel?")
def test_a_list_where_a_label_is_expected(shell: Shell, model: Path) -> None:
    rows = [{"text": f"a film {n}", "label": "good"} for n in range(30)] + [
        {"text": "two", "label": ["good", "bad"]}
    ]
    rows += [{"text": f"a film {n}", "label": "bad"} for n in range(30)]
    Path("d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answer = shell.fails("check", "d.jsonl", "--model", model, "--task", "classification")
    shell.shows(answer, "write one name there; or is it --task multilabel?")
    assert "multilabel" in shell.works("check", "d.jsonl", "--model", model, "--task", "multilabel")


@says("-o ANOTHER-FILE", "choose another path with -o")
def test_outputs_in_the_way(shell: Shell, classifier: Path) -> None:
    data = write_reviews(Path("reviews.csv"), 5)
    before = data.read_bytes()
    shell.shows(shell.fails("predict", classifier, data, "-o", data), "-o ANOTHER-FILE")
    Path("taken.csv").mkdir()
    answer = shell.fails("evaluate", "task", classifier, data, "-o", "taken.csv")
    shell.shows(answer, "choose another path with -o")
    shell.works("evaluate", "task", classifier, data, "-o", "errors.csv")
    assert Path("errors.csv").exists()
    shell.works("predict", classifier, data, "-o", "another file.csv")
    assert len(answers("another file.csv")) == 5
    assert data.read_bytes() == before


@says("name another file, or --text COLUMN")
def test_no_row_has_a_text(shell: Shell) -> None:
    classifier = write_head(
        Path("c"), task="classification", text=("text",), label=("label",), labels=("neg", "pos")
    )
    data = table(
        "d.csv", ("text", "body", "label"), *(("", f"a film {n}", "pos") for n in range(5))
    )
    answer = shell.fails("evaluate", "task", classifier, data)
    shell.shows(answer, "name another file, or --text COLUMN")
    assert "5 rows" in shell.works("evaluate", "task", classifier, data, "--text", "body")


@says("{}; or skip all rows without a label: --skip-unlabelled")
def test_rows_without_a_label(shell: Shell, model: Path) -> None:
    data = table(
        "d.csv", ("text", "label"), *((f"a film {n}", ("pos", "neg", "")[n % 3]) for n in range(60))
    )
    answer = shell.fails("check", data, "--model", model)
    advice = shell.shows(answer, "{}; or skip all rows without a label: --skip-unlabelled")
    answer = shell.works("check", data, "--model", model, advice.split()[-1])
    assert "rows without a label, left out: 20" in answer
    assert "--skip-unlabelled" in answer.split("next: ")[1]


@says(
    "labels that differ only in case, width or spaces are different classes: {}; if they are one: "
    "--join-labels",
    "--join-labels reads it so; ",
)
def test_labels_in_two_spellings(shell: Shell, model: Path) -> None:
    rows = [(f"a film {n}", ("pos", "neg", "Pos", "pos")[n % 4]) for n in range(60)]
    data = table("d.csv", ("text", "label"), *rows)
    answer = shell.works("check", data, "--model", model)
    warning = (
        "labels that differ only in case, width or spaces are different classes: {}; if "
        "they are one: --join-labels"
    )
    shell.shows(answer, warning)
    assert "2 different values: neg, pos" in shell.works(
        "check", data, "--model", model, "--join-labels"
    )
    train = table("t.csv", ("text", "label"), *((text, label.lower()) for text, label in rows))
    answer = shell.fails("check", train, "--dev", data, "--model", model)
    shell.shows(answer, "--join-labels reads it so; ")
    assert "60 rows" in shell.works(
        "check", train, "--dev", data, "--model", model, "--join-labels"
    )


@says("--text {}, or another")
def test_two_columns_of_names_and_no_text(shell: Shell, model: Path) -> None:
    rows = [
        (f"Anna{chr(97 + n % 26)}", f"Boris{chr(97 + n // 3)}{chr(97 + n % 26)}", "xy"[n % 2])
        for n in range(60)
    ]
    data = table("d.csv", ("given", "other", "label"), *rows)
    answer = shell.fails("check", data, "--model", model)
    shell.shows(answer, "--text {}, or another")
    assert "'other'" in shell.works("check", data, "--model", model, "--text", "other")


@says("if they are numbers: --task regression; else name another column with --label")
def test_codes_with_leading_zeros(shell: Shell, model: Path) -> None:
    data = table("d.csv", ("text", "label"), *((f"a film {n}", f"{n:04}") for n in range(60)))
    answer = shell.fails("check", data, "--model", model)
    shell.shows(
        answer, "if they are numbers: --task regression; else name another column with --label"
    )
    assert "numbers from 0 to 59" in shell.works(
        "check", data, "--model", model, "--task", "regression"
    )


@says("; or leave such rows out: --skip-unlabelled")
def test_rows_without_the_field_of_the_label(shell: Shell, model: Path) -> None:
    rows = [
        {"text": f"a film {n}"} | ({"label": ("pos", "neg")[n % 2]} if n % 3 else {})
        for n in range(60)
    ]
    Path("d.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    answer = shell.fails("check", "d.jsonl", "--model", model)
    shell.shows(answer, "; or leave such rows out: --skip-unlabelled")
    answer = shell.works("check", "d.jsonl", "--model", model, "--skip-unlabelled")
    assert "rows without a label, left out: 20" in answer


@says("--text {}")
def test_a_model_of_pairs(shell: Shell) -> None:
    pairs = write_head(Path("pairs"), task="regression", text=("a", "b"))
    data = table(
        "d.csv",
        ("text", "title", "body"),
        *((f"text {n}", f"title {n}", f"body {n}") for n in range(5)),
    )
    answer = shell.fails("predict", pairs, data, "--text", "text")
    shell.shows(answer, "--text {}")
    command = re.search(r"(--text FIRST) (--text SECOND)", answer)
    assert command is not None
    shell.works("predict", pairs, data, *"--text title --text body".split(), "-o", "out.csv")
    expected = bertworks.Predictor(pairs, device="cpu").predict(
        [(f"title {n}", f"body {n}") for n in range(5)]
    )
    found = [float(row["predicted_value"]) for row in answers("out.csv")]
    np.testing.assert_allclose(found, [row["value"] for row in expected], atol=1e-4)


SMALLER = (
    "--sample 3000 reads fewer sentences, --layers 0,1 keeps fewer layers; TMPDIR names "
    "another disk"
)


@says(SMALLER)
def test_a_disk_too_small_for_hidden_states(
    shell: Shell, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_treebank(Path("ud"))
    words, free = ["evaluate", "probe", model, "ud", "--epochs", "1", "--rank", "2"], {"big": 10**9}
    monkeypatch.setattr(
        shutil,
        "disk_usage",
        lambda path: SimpleNamespace(free=free.get(Path(path).parent.name, 70_000)),
    )
    advice = shell.shows(shell.fails(*words), SMALLER)
    sample, layers = (re.search(rf"{option} \S+", advice) for option in ("--sample", "--layers"))
    assert sample is not None
    assert layers is not None
    assert "trained on 5 sentences" in shell.works(*words, *sample[0].replace("3000", "5").split())
    assert "layer 2" not in shell.works(*words, *layers[0].split())
    Path("big").mkdir()
    monkeypatch.setenv("TMPDIR", str(Path("big").absolute()))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert "layer 2" in shell.works(*words)
    assert list(Path("big").iterdir()) == []


@says(
    "fine-tune one: bertworks finetune TRAIN.json --dev DEV.json -o FOLDER",
    "give --predictions or --model",
)
def test_a_classifier_answers_no_questions(shell: Shell, classifier: Path, model: Path) -> None:
    train, dev = write_squad(Path("t.json"), 30), write_squad(Path("d.json"), 12)
    shell.shows(shell.fails("evaluate", "squad", "--data", dev), "give --predictions or --model")
    answer = shell.fails("evaluate", "squad", "--data", dev, "--model", classifier)
    advice = shell.shows(
        answer, "fine-tune one: bertworks finetune TRAIN.json --dev DEV.json -o FOLDER"
    )
    command = advice.replace("TRAIN.json", str(train)).replace("DEV.json", str(dev))
    shell.types(command, "--model", model, *FAST, FOLDER="qa model")
    assert (
        _json(shell.works("evaluate", "squad", "--data", dev, "--model", "qa model", "--json"))[
            "total"
        ]
        == 12
    )
    Path("answers.json").write_text(json.dumps({f"q{n}": "" for n in range(12)}))
    shell.works("evaluate", "squad", "--data", dev, "--predictions", "answers.json")


def _json(answer: str) -> dict[str, Any]:
    """The JSON object among lines of progress."""
    return dict(json.loads(re.search(r"\{.*\}", answer, re.DOTALL)[0]))  # type: ignore[index]


@pytest.mark.parametrize(
    ("task", "label", "wrong"),
    [
        ("multilabel", ["good", "new"], 5),
        ("regression", 1.5, "much"),
        ("tagging", ["O", "B-person"], 3.5),
        ("spans", [{"start": 0, "end": 1, "type": "person"}], 0),
        ("qa", [{"text": "film", "answer_start": 2}], "film"),
        ("choice", 1, "left"),
    ],
)
def test_labels_as_the_message_writes_them(
    task: str, label: Any, wrong: Any, shell: Shell, model: Path
) -> None:
    """A label of another form is refused, and the form in the message is read."""
    special: dict[str, dict[str, Any]] = {
        "qa": {"question": "what ?", "context": "a film in 1968 it is 1968"},
        "tagging": {"tokens": ["a", "film"]},
        "choice": {"prompt": "a", "choice1": "good film", "choice2": "bad film"},
    }
    texts = special.get(task, {"text": "a film of men"})
    named = [word for name in texts for word in ("--text", name)] + (
        ["--label", "label"] if task != "spans" else []
    )

    def check(last: Any) -> list[object]:
        rows = [
            {**texts, "label": label if n % 2 or task != "regression" else 2.5} for n in range(40)
        ]
        rows[0] |= {"choice": {"label": 0}, "multilabel": {"label": ["bad"]}}.get(task, {})
        rows.append({**texts, "label": last})
        for n, row in enumerate(rows):
            row |= {"context": f"{row['context']} {n}"} if task == "qa" else {}
        Path("d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return ["check", "d.jsonl", "--model", model, "--task", task, *named]

    answer = shell.fails(*check(wrong))
    form = re.search(r"hint: .*?(\[.*?\}?\]|\{.*?\}|\d)(?=$|,|:)", answer, re.MULTILINE)
    meant = json.loads(form[1]) if form else 3.5
    meant = [meant] if isinstance(meant, dict) else meant
    shell.works(*check(meant))
    if task not in ("regression", "choice"):
        assert len(_json(shell.works(*check(meant), "--json"))) > 3


@says(
    'bertworks generate {} "a text"',
    'bertworks fill {} "a text with {}"',
    "add --temperature 1, or leave them out",
    "generate([text])[0]",
    "generate(model, [text])",
    "leave --text out",
    "leave --within-word out",
)
def test_models_of_the_other_direction(shell: Shell, model: Path) -> None:
    write_gpt2(Path("gpt 2"))
    shell.types(
        shell.shows(shell.fails("fill", "gpt 2", "a [MASK]"), 'bertworks generate {} "a text"')
    )
    shell.types(
        shell.shows(
            shell.fails("generate", str(model), "a text"), 'bertworks fill {} "a text with {}"'
        )
    )
    words = ["generate", "gpt 2", "a text", "--top-k", "3"]
    shell.shows(shell.fails(*words), "add --temperature 1, or leave them out")
    shell.works(*words, "--temperature", "1")
    shell.shows(shell.fails("generate", "gpt 2", "a text", "--text", "b"), "leave --text out")
    shell.works("generate", "gpt 2", "a text")
    shell.shows(shell.fails("score", "gpt 2", "a text", "--within-word"), "leave --within-word out")
    shell.works("score", "gpt 2", "a text")
    loaded, text = bertworks.load("gpt 2"), "a text"
    for template, owner, arguments in (
        ("generate([text])[0]", loaded, (text,)),
        ("generate(model, [text])", bertworks, ("gpt 2", text)),
    ):
        with pytest.raises(BertworksError) as error:
            list(owner.generate(*arguments))
        call = shell.shows(error.value.hint, template)
        assert eval(f"list(owner.{call})", {"owner": owner, "text": text, "model": "gpt 2"})


@says(
    "{} of the model has {}: not used without --sampling model",
    "leave --sampling out, or the others",
    "leave --sampling out, and choose --temperature, --top-k and --top-p",
)
def test_the_sampling_of_a_model(shell: Shell) -> None:
    write_gpt2(Path("gpt 2"))
    file, words = Path("gpt 2/generation_config.json"), ["generate", "gpt 2", "a text"]
    file.write_text('{"do_sample": true, "top_k": 3}')
    note = shell.shows(
        shell.works(*words), "{} of the model has {}: not used without --sampling model"
    )
    option = note.split()[-2:]
    shell.works(*words, *option)
    answer = shell.fails(*words, *option, "--temperature", "1")
    shell.shows(answer, "leave --sampling out, or the others")
    shell.works(*words, "--temperature", "1")
    file.write_text('{"do_sample": true, "min_p": 0.1}')
    hint = "leave --sampling out, and choose --temperature, --top-k and --top-p"
    shell.shows(shell.fails(*words, *option), hint)
    shell.works(*words, "--temperature", "1", "--top-k", "40", "--top-p", "0.9")


@says(
    "fine-tune it: bertworks.finetune(DATA, model=...)",
    "fill([text])[0]",
    "score([text])[0]",
    "embed([text])[0]",
    "predict([text])[0]",
    "embed(model, [text])[0]",
    "fill(model, [text])",
    "score(model, [text])",
    "add([text])",
    "add([text], [id])",
    "delete([id])",
)
def test_advice_for_python(shell: Shell, model: Path, classifier: Path) -> None:
    """What a program is to call instead: one text is no list."""
    loaded, text = bertworks.load(model), "the [MASK] film"
    with pytest.raises(BertworksError) as error:
        loaded.predict([text])
    advice = shell.shows(error.value, "fine-tune it: bertworks.finetune(DATA, model=...)")
    call = (
        advice.removeprefix("fine-tune it: ")
        .replace("DATA", "data")
        .replace("...", "model, overrides=FAST[1:6:2]")
    )
    made = eval(
        call,
        {
            "bertworks": bertworks,
            "data": write_reviews(Path("r.csv"), 40),
            "model": model,
            "FAST": FAST,
        },
    )
    assert made.predict(["a good film"])[0]["label"] in ("neg", "pos")

    index = bertworks.Index.create("index", model, device="cpu")
    index.add(["a film"], ["1"])
    owners: list[tuple[str, Any, str]] = [
        ("embed([text])[0]", loaded, "embed"),
        ("fill([text])[0]", loaded, "fill"),
        ("score([text])[0]", loaded, "score"),
        ("embed([text])[0]", Embedder(model, device="cpu"), "embed"),
        ("predict([text])[0]", bertworks.Predictor(classifier, device="cpu"), "predict"),
        ("add([text])", index, "add"),
    ]
    for template, owner, method in owners:
        with pytest.raises(BertworksError) as error:
            getattr(owner, method)(text)
        shell.shows(error.value.hint, template)
        found = eval(f"owner.{error.value.hint}", {"owner": owner, "text": text})
        assert method == "add" or str(found) == str(next(iter(getattr(owner, method)([text]))))
    assert len(index) == 2
    with pytest.raises(BertworksError) as error:
        index.add(["b"], "1")
    assert eval(
        f"index.{shell.shows(error.value.hint, 'add([text], [id])')}",
        {"index": index, "text": "b", "id": "1"},
    )
    predictor = bertworks.Predictor(classifier, device="cpu")
    with pytest.raises(BertworksError) as error:
        predictor.score(["a good film"], "pos")
    names = {
        "predictor": predictor,
        "text": "a good film",
        "label": predictor.predict(["a good film"])[0]["label"],
    }
    assert eval(f"predictor.{error.value.hint}", names) == 1.0
    for name in ("fill", "score"):
        with pytest.raises(BertworksError) as error:
            list(getattr(bertworks, name)(model, text))
        call = f"bertworks.{shell.shows(error.value.hint, f'{name}(model, [text])')}"
        assert len(list(eval(call, {"bertworks": bertworks, "model": model, "text": text}))) == 1
    with pytest.raises(BertworksError) as error:
        index.delete("1")
    assert (
        eval(f"index.{shell.shows(error.value.hint, 'delete([id])')}", {"index": index, "id": "1"})
        == 1
    )
    with pytest.raises(BertworksError) as error:
        bertworks.embed(model, text)
    call = f"bertworks.{shell.shows(error.value.hint, 'embed(model, [text])[0]')}"
    found = eval(call, {"bertworks": bertworks, "model": model, "text": text})
    np.testing.assert_allclose(found, bertworks.embed(model, [text])[0], atol=1e-6)


# Run folders, folds, seeds


@pytest.fixture
def training(shell: Shell, model: Path) -> list[object]:
    """A fine-tuning that takes a moment, without its output."""
    return [
        "finetune",
        write_reviews(Path("r.csv"), 40),
        "--model",
        model,
        "--method",
        "full",
        *FAST,
    ]


def seed_of(folder: str) -> int | None:
    return json.loads((Path(folder) / "run.json").read_text())["request"]["seed"]  # type: ignore[no-any-return]


def weights(folder: str) -> bytes:
    return (Path(folder) / "model.safetensors").read_bytes()


@pytest.mark.slow
@says(
    "-o ANOTHER-FOLDER keeps both; --overwrite deletes the present run",
    "-o ANOTHER-FOLDER, or empty this one",
    "-o ANOTHER-FOLDER; or --overwrite, which deletes the run that is there",
    "wait for it, stop it, or choose another folder with -o",
)
def test_run_folders(shell: Shell, training: list[object]) -> None:
    shell.works(*training, "-o", "run")
    before = weights("run")
    other = [*training, "--seed", "5"]
    answer = shell.fails(*other, "-o", "run")
    shell.shows(answer, "-o ANOTHER-FOLDER keeps both; --overwrite deletes the present run")
    shell.works(*other, "-o", "another")
    assert (seed_of("run"), seed_of("another"), weights("run")) == (None, 5, before)
    shell.works(*other, "-o", "run", "--overwrite")
    assert weights("run") == weights("another") != before

    Path("full").mkdir()
    Path("full/mine").write_text("mine")
    shell.shows(shell.fails(*training, "-o", "full"), "-o ANOTHER-FOLDER, or empty this one")
    Path("full/mine").unlink()
    shell.works(*training, "-o", "full")
    assert weights("full") == before

    Path("full/run.json").write_text("{")
    answer = shell.fails(*training, "-o", "full")
    shell.shows(answer, "-o ANOTHER-FOLDER; or --overwrite, which deletes the run that is there")
    shell.works(*training, "-o", "full", "--overwrite")
    assert (weights("full"), seed_of("full")) == (before, None)

    with folder_lock(Path("busy"), "", ""):
        answer = shell.fails(*training, "-o", "busy")
        shell.shows(answer, "wait for it, stop it, or choose another folder with -o")
    shell.works(*training, "-o", "busy")
    assert weights("busy") == before


@says('bertworks generate {} "This is the"', 'bertworks generate {} "{}"')
def test_a_new_model_continues_texts(
    shell: Shell, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = (
        "hidden_size=16",
        "num_hidden_layers=1",
        "num_attention_heads=2",
        "max_position_embeddings=64",
    )
    phases = "train.phases=[{num_steps=2,batch_size=2,sequence_length=32}]"
    sets = [word for size in sizes for word in ("--set", f"encoder.{size}")]
    sets += ["--set", phases, "--set", "vocabulary.size=400", "--set", "train.held_out_sequences=4"]
    answer = shell.works(
        "pretrain", text, "--recipe", "gpt2", "--device", "cpu", "-o", "a new gpt", *sets
    )
    assert "This is the" in shell.types(shell.shows(answer, 'bertworks generate {} "This is the"'))
    monkeypatch.chdir("a new gpt")
    assert "France is" in shell.types(
        shell.shows(Path("README.md").read_text(), 'bertworks generate {} "{}"')
    )


@says(
    "put them back; or -o ANOTHER-FOLDER keeps the present model, --overwrite starts again",
    "put the old one back; or start another run: --recipe COPY.toml -o ANOTHER-FOLDER",
    'bertworks fill {} "{}"',
    'bertworks fill {} "This is the {}."',
)
def test_the_files_of_a_run(shell: Shell, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["pretrain", text, *short()]
    answer = shell.works(*words, "-o", "a run")
    advice = shell.shows(answer, 'bertworks fill {} "This is the {}."')
    assert shell.types(advice).count("%") == 5
    before, recipe = weights("a run"), Path("a run/recipe.toml").read_text()
    Path("a run/recipe.toml").write_text(recipe.replace("num_steps = 3", "num_steps = 4"))
    answer = shell.fails(*words, "-o", "a run")
    shell.shows(
        answer, "put the old one back; or start another run: --recipe COPY.toml -o ANOTHER-FOLDER"
    )
    Path("a run/recipe.toml").rename("COPY.toml")
    assert "4 steps" in shell.works(
        "pretrain", text, "--device", "cpu", "--recipe", "COPY.toml", "-o", "longer"
    )
    Path("a run/recipe.toml").write_text(recipe)
    shell.works(*words, "-o", "a run")
    assert weights("a run") == before

    shutil.rmtree("a run/checkpoints")
    answer = shell.fails(*words, "-o", "a run")
    shell.shows(
        answer,
        "put them back; or -o ANOTHER-FOLDER keeps the present model, --overwrite starts again",
    )
    shell.works(*words, "-o", "another")
    assert weights("a run") == weights("another") == before
    shell.works(*words, "-o", "a run", "--overwrite")
    assert weights("a run") == before

    monkeypatch.chdir("a run")
    answer = shell.types(shell.shows(Path("README.md").read_text(), 'bertworks fill {} "{}"'))
    assert answer.count("%") == 5


@says(
    "-o ANOTHER-FOLDER",
    "-o A-FOLDER-ELSEWHERE",
    "choose another folder with -o",
    "free space on that disk and make the folder writable, or choose another folder with -o",
)
def test_output_folders(shell: Shell, tokenizer: Path, training: list[object]) -> None:
    Path("corpus").mkdir()
    write_text(Path("corpus/t.txt"))
    words = ["prepare", "corpus", "--tokenizer", tokenizer, "--workers", "1", "-o"]
    shell.shows(shell.fails(*words, "corpus"), "-o ANOTHER-FOLDER")
    shell.shows(shell.fails(*words, "corpus/out"), "-o A-FOLDER-ELSEWHERE")
    Path("a file").touch()
    shell.shows(shell.fails(*words, "a file"), "choose another folder with -o")
    shell.works(*words, "else where")
    assert shards_of("else where") == 12
    assert [path.name for path in Path("corpus").iterdir()] == ["t.txt"]
    answer = shell.fails(*training, "-o", "/proc/nothing")
    shell.shows(
        answer,
        "free space on that disk and make the folder writable, or choose another folder with -o",
    )
    shell.works(*training, "-o", "run")


@pytest.mark.slow
@says(
    "leave torchrun out; or type one command for each: --seed 1 -o FOLDER-1",
    "use --seeds: it gives mean and interval",
)
def test_several_trainings(
    shell: Shell, training: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    answer = shell.fails(*training, "--seeds", "2", "-o", "out")
    advice = shell.shows(
        answer, "leave torchrun out; or type one command for each: --seed 1 -o FOLDER-1"
    )
    monkeypatch.delenv("WORLD_SIZE")
    shell.works(*training, *advice.split(": ")[1].split())
    assert seed_of("FOLDER-1") == 1
    shell.shows(
        shell.fails(*training, "--sweep", "seed=1,2", "-o", "out"),
        "use --seeds: it gives mean and interval",
    )
    assert re.search(
        r"accuracy [\d.]+% \([\d.]+ to [\d.]+%\)",
        shell.works(*training, "--seeds", "2", "-o", "out"),
    )


@pytest.mark.slow
@says(
    "name the other file alone: bertworks finetune {} --folds {} ...",
    "--dev FILE",
    "name the files: bertworks finetune TRAIN-FILE --dev DEV-FILE ...",
    "--folds {}, or fewer",
)
def test_train_and_dev(shell: Shell, model: Path) -> None:
    options = ["--model", str(model), *FAST]
    folder = Path("it's data")
    folder.mkdir()
    write_reviews(folder / "train.csv", 30)
    write_reviews(folder / "dev.csv", 10, seed=2)
    answer = shell.fails("finetune", folder, "--folds", 2, *options, "-o", "out")
    advice = shell.shows(answer, "name the other file alone: bertworks finetune {} --folds {} ...")
    command = re.search(r"bertworks finetune .*? --folds 2 \.\.\.", answer)
    assert command is not None
    shell.types(command[0], rest=shlex.join([*options, "-o", "folds"]))
    assert len(json.loads(Path("folds/trials.json").read_text())["trials"]) == 2

    write_reviews(folder / "train2.csv", 30)
    (folder / "train2.csv").rename(folder / "train-2.csv")
    answer = shell.fails("finetune", folder, *options, "-o", "out")
    advice = shell.shows(answer, "name the files: bertworks finetune TRAIN-FILE --dev DEV-FILE ...")
    shell.types(
        advice,
        rest=shlex.join([*options, "-o", "named"]),
        TRAIN_FILE=folder / "train-2.csv",
        DEV_FILE=folder / "dev.csv",
    )
    assert about("named")["labels"] == ["neg", "pos"]

    more = table("more.csv", ("text", "score"), ("a good film", 2.5), ("a bad film", 0.5))
    answer = shell.fails("finetune", more, *options, "--folds", 3, "-o", "out")
    advice = shell.shows(answer, "--folds {}, or fewer").removesuffix(", or fewer")
    shell.works("finetune", more, *options, *advice.split(), "-o", "fewer")

    one = table(
        "one.csv", ("text", "author", "score"), *((f"a film {n}", "me", n) for n in range(5))
    )
    words = ["finetune", one, *options, "--label", "score", "--text", "text", "--group", "author"]
    shell.shows(shell.fails(*words, "--folds", 3, "-o", "out"), "--dev FILE")
    shell.shows(shell.fails(*words, "-o", "out"), "--dev FILE")
    shell.works(
        *words,
        "--dev",
        table("dev.csv", ("text", "author", "score"), ("a film", "me", 1)),
        "-o",
        "with dev",
    )


@pytest.mark.slow
@says(
    "separate documents by -DOCSTART- lines, or name their column: --group COLUMN; or leave it out",
    "--group {} keeps each document on one side",
)
def test_documents(shell: Shell, model: Path) -> None:
    data = write_conll(Path("it's tagged.conll"), 40)
    words = ["--model", str(model), *FAST]
    context = ["--set", "document_context=true"]
    answer = shell.fails("finetune", data, *words, *context, "-o", "out")
    shell.shows(
        answer,
        "separate documents by -DOCSTART- lines, or name their column: --group COLUMN; or leave "
        "it out",
    )
    shell.works("finetune", data, *words, "-o", "left out")
    sentences = data.read_text().strip().split("\n\n")
    parts = [
        "\n\n".join(["-DOCSTART-\tO", *sentences[n : n + 5]]) for n in range(0, len(sentences), 5)
    ]
    data.write_text("\n\n".join(parts) + "\n")
    shell.works("finetune", data, *words, *context, "-o", "with documents")
    answer = shell.works("finetune", data, *words, "-o", "split")
    option = re.search(
        r"--group \S+", shell.shows(answer, "--group {} keeps each document on one side")
    )
    assert option is not None
    answer = shell.works("finetune", data, *words, "-o", "grouped", *shlex.split(option[0]))
    assert "documents are in train and in dev" not in answer


@says(
    "{} is {} times as frequent as {}: always predicting {} is right in {}; look at macro F1, and "
    "try "
    "--set class_weights=balanced",
    "the model's vocabulary does not fit these texts ({} tokens per word, {} unknown): name a "
    "model for their "
    "language with --model",
)
def test_warnings_about_data(shell: Shell, model: Path) -> None:
    rows = [
        ("text", "label"),
        *((f"ein Zug fährt {n}", "ja" if n % 9 else "nein") for n in range(90)),
    ]
    data = table("d.csv", *rows)
    answer = shell.works("check", data, "--model", model)
    text = next(template for template in templates() if template.endswith("class_weights=balanced"))
    advice = shell.shows(answer, text)
    shell.works(
        "finetune",
        data,
        "--model",
        model,
        *FAST,
        *advice.split(" try ")[1].split(),
        "-o",
        "balanced",
    )
    assert 'class_weights = "balanced"' in Path("balanced/recipe.toml").read_text()
    text = next(
        template
        for template in templates()
        if template.startswith("the model's vocabulary does not fit")
    )
    shell.shows(answer, text)
    write_german(Path("german"), [row[0] for row in rows])
    assert "does not fit these texts" not in shell.works("check", data, "--model", "german")


@says(
    "the model reads {} as {}: it drops marks that are letters in this language; name a model for "
    "it with --model"
)
def test_a_model_that_drops_vowel_signs(shell: Shell) -> None:
    sentence = "\u0939\u093f\u0928\u094d\u0926\u0940 \u0906\u091c"
    data = table(
        "d.csv",
        ("text", "label"),
        *((f"{sentence} {n}", "ja" if n % 2 else "nein") for n in range(90)),
    )
    texts = [f"{sentence} {' '.join(map(str, range(90)))}"]
    write_german(Path("stripping"), texts, strip_accents=True)
    text = next(template for template in templates() if "drops marks that are letters" in template)
    shell.shows(shell.works("check", data, "--model", "stripping"), text)
    write_german(Path("keeping"), texts)
    assert "drops marks" not in shell.works("check", data, "--model", "keeping")


@says(
    "{}: words that are too long, or have characters that the vocabulary lacks; --algorithm bpe "
    "has no unknown "
    "tokens"
)
def test_a_vocabulary_that_lacks_words(shell: Shell) -> None:
    Path("t.txt").write_text("\n\n".join([f"the cat sat on {'abc' * 40}"] * 40))
    answer = shell.works("vocab", "t.txt", "-o", "words", "--size", "300")
    shell.shows(
        answer,
        next(
            template for template in templates() if template.endswith("bpe has no unknown tokens")
        ),
    )
    assert "[UNK]:" not in shell.works(
        "vocab", "t.txt", "-o", "bytes", "--size", "300", "--algorithm", "bpe"
    )


def write_german(folder: Path, texts: list[Any], strip_accents: bool | None = None) -> None:
    """A model with a vocabulary of these texts."""
    settings = bertworks.VocabularyConfig(size=300, strip_accents=strip_accents)
    t, _ = train_vocabulary([" ".join(map(str, texts))] * 5, settings)
    config = EncoderConfig(
        vocab_size=t.vocab_size,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    save_model(folder, PretrainingModel(config).state_dict(), config, t, card="tiny")


# Models, vectors, search, servers


def copy_of(model: Path, name: str) -> Path:
    return Path(shutil.copytree(model, name))


@says("name it: --teacher MODEL", "--recipe distilbert")
def test_a_teacher(shell: Shell, text: Path, model: Path) -> None:
    words = [
        "pretrain",
        text,
        "-o",
        "out",
        "--device",
        "cpu",
        "--set",
        "encoder.num_hidden_layers=1",
    ]
    words += [
        word
        for size in ("num_steps=2", "batch_size=8", "sequence_length=32")
        for word in ("--set", f"train.phases.0.{size}")
    ]
    shell.shows(
        shell.fails(*words, "--recipe", "bert-tiny", "--teacher", model), "--recipe distilbert"
    )
    shell.shows(shell.fails(*words, "--recipe", "distilbert"), "name it: --teacher MODEL")
    shell.works(*words, "--recipe", "distilbert", "--teacher", model)
    assert (Path("out") / "model.safetensors").exists()


FINETUNED_TEACHER = (
    "fine-tune a teacher from the same model: bertworks finetune DATA --method full -o TEACHER"
)


@says(
    "leave out --teacher",
    "leave out --teacher; or --method full",
    FINETUNED_TEACHER,
    "--layers {}: expected a number from 1 to {}, the layers of the model",
    "--teacher is not available for {}: expected {}",
    "the method {} does not use --teacher",
)
def test_a_teacher_of_a_task(shell: Shell, model: Path) -> None:
    write_reviews(Path("DATA.csv"))
    write_choices(Path("choices.csv"))
    run = ["--model", model, "--epochs", 1, "--device", "cpu"]
    shell.works("finetune", "DATA.csv", *run, "--method", "full", "-o", "TEACHER")
    words = ["finetune", "DATA.csv", *run, "--teacher", "TEACHER", "-o", "out", "--layers", 1]
    answer = shell.fails(*words, "--method", "cosine")
    shell.shows(answer, "leave out --teacher; or --method full")
    shell.shows(answer, "the method {} does not use --teacher")
    layers = "--layers {}: expected a number from 1 to {}, the layers of the model"
    shell.shows(shell.fails(*words[:-1], 99), layers)
    shell.works(*words, "--method", "full")
    other = ["finetune", "choices.csv", *run, "-o", "other"]
    answer = shell.fails(*other, "--teacher", "TEACHER")
    shell.shows(answer, "leave out --teacher")
    shell.shows(answer, "--teacher is not available for {}: expected {}")
    shell.works(*other)
    write_reviews(Path("others.csv"))
    Path("others.csv").write_text(Path("others.csv").read_text().replace(",pos,", ",good,"))
    third = ["finetune", "others.csv", *run, "-o", "third", "--teacher"]
    shell.shows(shell.fails(*third, "TEACHER"), FINETUNED_TEACHER)
    shell.works("finetune", "others.csv", *run, "--method", "full", "-o", "THIRD")
    shell.works(*third, "THIRD")


@says(
    "--{} takes the tokenizer of the model",
    "give --{} or --{}, not both",
    "make new ones: bertworks prepare TEXT --tokenizer {} -o OTHER",
)
def test_two_tokenizers(shell: Shell, text: Path, tokenizer: Path, model: Path) -> None:
    copy_of(model, "my model")
    answer = shell.fails(
        "pretrain", text, "--tokenizer", tokenizer, "--init", "my model", "-o", "out"
    )
    shell.shows(answer, "--{} takes the tokenizer of the model")
    assert (
        shell.shows(answer, "give --{} or --{}, not both") == "give --tokenizer or --init, not both"
    )
    shell.works("pretrain", text, "--tokenizer", tokenizer, *short(), "-o", "new")
    assert bertworks.load("new").tokenizer.sha256 == bertworks.Tokenizer.load(tokenizer).sha256
    shell.works("prepare", text, "--tokenizer", tokenizer, "--workers", 1, "-o", "my shards")
    options = ["--recipe", "bare.toml", "--device", "cpu"]
    recipe = Path("tiny.toml").read_text()
    Path("bare.toml").write_text(
        re.sub(r"\[vocabulary\].*?\[optimizer\]", "[optimizer]", recipe, flags=re.DOTALL)
    )
    answer = shell.fails("pretrain", "my shards", "--init", "my model", *options, "-o", "out")
    advice = shell.shows(answer, "make new ones: bertworks prepare TEXT --tokenizer {} -o OTHER")
    command = re.search(r"bertworks prepare TEXT .* -o OTHER", answer)
    assert command is not None
    assert command[0] in advice or advice in answer
    shell.types(command[0], "--workers", 1, TEXT=text, OTHER="other shards")
    shell.works("pretrain", "other shards", "--init", "my model", *options, "-o", "continued")
    assert (
        bertworks.load("continued").tokenizer.sha256 == bertworks.load("my model").tokenizer.sha256
    )


EXTEND = "--extend-vocabulary {} takes all of them (0: leave it out); and --overwrite"


@says(
    "--extend-vocabulary {} adds words to the vocabulary of a model: one word or more",
    "give a model and a number: --init MODEL --extend-vocabulary 1000",
    "--extend-vocabulary chooses words of raw text, and these are shards",
    "name the text, or leave --extend-vocabulary out",
    "leave --extend-vocabulary out: --init alone continues with the vocabulary of the model",
    EXTEND,
)
def test_new_words(shell: Shell, text: Path, tokenizer: Path, model: Path) -> None:
    copy_of(model, "my model")
    old = bertworks.Tokenizer.load("my model")
    Path("domain.txt").write_text(text.read_text() + "\n\n" + "kalibodu sunomipe " * 9)
    short()
    Path("bare.toml").write_text(
        re.sub(r"(?s)\[vocabulary\].*?\[optimizer\]", "[optimizer]", Path("tiny.toml").read_text())
    )
    words = ["pretrain", "domain.txt", "--recipe", "bare.toml", "--device", "cpu", "-o", "out"]
    for options in (["--extend-vocabulary", 3], ["--extend-vocabulary", 0, "--init", "my model"]):
        answer = shell.fails(*words, *options)
        shell.shows(
            answer,
            "--extend-vocabulary {} adds words to the vocabulary of a model: one word or more",
        )
        advice = shell.shows(
            answer, "give a model and a number: --init MODEL --extend-vocabulary 1000"
        )
    options = advice.partition(": ")[2].replace("MODEL", "'my model'")
    answer = shell.fails(*words, *shlex.split(options))  # too many
    advice = shell.shows(answer, EXTEND).split()[:2]
    count = int(advice[1])
    shell.works(*words, "--init", "my model", *advice, "--overwrite")
    assert bertworks.Tokenizer.load("out").vocab_size == old.vocab_size + count
    Path("domain.txt").write_text(" ".join(old.tokens[5:]))
    answer = shell.fails(*words, "--init", "my model", "--extend-vocabulary", 1, "--overwrite")
    assert "--extend-vocabulary 0 takes all" in answer
    shell.works("prepare", text, "--tokenizer", "my model", "--workers", 1, "-o", "my shards")
    words[1] = "my shards"
    answer = shell.fails(*words, "--init", "my model", "--extend-vocabulary", 1, "--overwrite")
    shell.shows(answer, "--extend-vocabulary chooses words of raw text, and these are shards")
    shell.shows(answer, "name the text, or leave --extend-vocabulary out")
    shell.works(*words, "--init", "my model", "--overwrite")
    write_gpt2(Path("gpt2"))
    words[1] = text
    answer = shell.fails(
        *words,
        "--init",
        "gpt2",
        "--extend-vocabulary",
        1,
        "--overwrite",
        "--set",
        "sampling.format=stream",
    )
    shell.shows(
        answer,
        "leave --extend-vocabulary out: --init alone continues with the vocabulary of the model",
    )
    options = ["--init", "gpt2", "--overwrite", "--set", "sampling.format=stream"]
    shell.works(*words, *options)


@says("--set encoder.{}={}", "use the tokenizer of a {} model: --tokenizer FOLDER")
def test_networks_without_a_file_format(shell: Shell, text: Path, tokenizer: Path) -> None:
    words = ["pretrain", text, *short()]
    answer = shell.fails(*words, "-o", "out", "--set", "encoder.pooler_dropout=true")
    option = re.search(r"--set \S+", shell.shows(answer, "--set encoder.{}={}"))
    assert option is not None
    shell.works(*words, "-o", "out", "--set", "encoder.pooler_dropout=true", *option[0].split())
    family = ["--set", "encoder.family=roberta", "--set", "encoder.pooler_dropout=true"]
    answer = shell.fails(*words, "-o", "roberta", *family)
    shell.shows(answer, "use the tokenizer of a {} model: --tokenizer FOLDER")
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    folder = Path("of a roberta")
    folder.mkdir()
    letters = sorted({*map(chr, range(33, 127)), "Ġ", "Ċ"})
    content = {name: n for n, name in enumerate([*names, *letters])}
    (folder / "vocab.json").write_text(json.dumps(content))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "RobertaTokenizer"})
    )
    shell.works(
        *words,
        "-o",
        "roberta",
        *family,
        "--set",
        "sampling.format=full_sentences",
        "--tokenizer",
        folder,
    )
    assert json.loads(Path("roberta/config.json").read_text())["model_type"] == "roberta"


@says(
    "make one with `bertworks pretrain`",
    "make one with `bertworks pretrain`, or type {}",
    "use a folder that `bertworks pretrain` made, or one saved as BertForPreTraining",
    "bertworks convert {} -o ANOTHER-FOLDER, and name that one",
)
def test_folders_of_models(shell: Shell, model: Path, classifier: Path, text: Path) -> None:
    advice = shell.shows(
        shell.fails("embed", "nothing", text, "-o", "v.npy"),
        "make one with `bertworks pretrain`, or type {}",
    )
    if packaged_minilm():
        shell.works("embed", advice.split()[-1], text, "-o", "v.npy", "--precision", "fp32")
        assert np.load("v.npy").shape[1] == 384
    shell.shows(
        shell.fails("push", "nothing", "me/x", "--dry-run"), "make one with `bertworks pretrain`"
    )
    shell.works("pretrain", text, *short(), "-o", "pretrained")
    shell.works("push", "pretrained", "me/x", "--dry-run")
    answer = shell.fails("fill", classifier, "the [MASK]")
    shell.shows(
        answer, "use a folder that `bertworks pretrain` made, or one saved as BertForPreTraining"
    )
    shell.works("fill", "pretrained", "the [MASK]")

    old = Path("old folder")  # as the first versions of sentence-transformers wrote it
    Embedder(model, pooling="cls", device="cpu").save(old)
    (old / "0_BERT").mkdir()
    for path in [*old.iterdir()]:
        if path.is_file() and path.name not in (
            "modules.json",
            "config_sentence_transformers.json",
            "README.md",
        ):
            path.rename(old / "0_BERT" / path.name)
    modules = json.loads((old / "modules.json").read_text())
    (old / "modules.json").write_text(json.dumps([modules[0] | {"path": "0_BERT"}, *modules[1:]]))
    answer = shell.fails("push", old, "me/x", "--dry-run")
    command = re.search(
        r"bertworks convert .* -o ANOTHER-FOLDER",
        shell.shows(answer, "bertworks convert {} -o ANOTHER-FOLDER, and name that one"),
    )
    assert command is not None
    shell.types(command[0], ANOTHER_FOLDER="flat")
    assert "model.safetensors" in shell.works("push", "flat", "me/x", "--dry-run")
    for folder in (old, "flat"):
        shell.works("embed", folder, text, "-o", f"{folder}.npy", "--precision", "fp32")
    np.testing.assert_allclose(np.load("flat.npy"), np.load("old folder.npy"), atol=1e-5)


@says(
    "if you trust where it comes from: bertworks convert {} -o ANOTHER-FOLDER --trust-pickle",
    "leave --trust-pickle out",
)
def test_a_pickle(shell: Shell, model: Path, text: Path, tmp_path: Path) -> None:
    weights = load_file(model / "model.safetensors")
    copy_of(model, "it's old")
    Path("it's old/model.safetensors").unlink()
    torch.save(weights, "it's old/pytorch_model.bin")
    template = (
        "if you trust where it comes from: bertworks convert {} -o ANOTHER-FOLDER --trust-pickle"
    )
    reviews = write_reviews(tmp_path / "reviews.csv", 20)
    for command in (
        ("fill", "it's old", "the [MASK]"),
        ("embed", "it's old", text, "-o", "v.npy"),
        ("export", "it's old", "-o", "exported"),
        ("finetune", reviews, "--model", "it's old", "-o", "tuned", *FAST),
        ("convert", "it's old", "-o", "again"),
    ):
        answer = shell.shows(shell.fails(*command), template)
    shell.types(answer, ANOTHER_FOLDER="safe")
    assert shell.works("fill", "safe", "the [MASK]") == shell.works("fill", model, "the [MASK]")
    texts = ["a good film", "the bad men"]
    found, expected = bertworks.load("safe").embed(texts), bertworks.load(model).embed(texts)
    np.testing.assert_array_equal(found, expected)
    checkpoint = Path("checkpoint")
    checkpoint.mkdir()
    (checkpoint / "bert_model.ckpt.index").write_bytes(b"")
    answer = shell.fails("convert", checkpoint, "-o", "new", "--trust-pickle")
    shell.shows(answer, "leave --trust-pickle out")


@says("if you trust it: bertworks convert {} -o ANOTHER-FOLDER --trust-pickle")
def test_a_pickle_of_a_module(shell: Shell, model: Path, text: Path) -> None:
    Embedder(model, device="cpu").save("it's theirs")
    folder = Path("it's theirs/2_Dense")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"in_features": 32, "out_features": 8}))
    weights = {"linear.weight": torch.ones(8, 32), "linear.bias": torch.ones(8)}
    torch.save(weights, folder / "pytorch_model.bin")
    path = folder.with_name("modules.json")
    dense = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    path.write_text(json.dumps([*json.loads(path.read_text()), dense]))
    template = "if you trust it: bertworks convert {} -o ANOTHER-FOLDER --trust-pickle"
    answer = shell.fails("embed", folder.parent, text, "-o", "v.npy")
    shell.types(shell.shows(answer, template), ANOTHER_FOLDER="safe")
    shell.works("embed", "safe", text, "-o", "v.npy")
    assert np.load("v.npy").shape[1] == 8


@says(
    "bertworks convert {} -o ANOTHER-FOLDER",
    "unset HF_HUB_OFFLINE; or --dry-run",
    "connect to the network and run the same command again; or --dry-run",
)
def test_uploads(shell: Shell, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, damage in (("no card", lambda path: path.unlink()), ("a link", link)):
        folder = copy_of(model, name)
        damage(folder / "README.md")
        answer = shell.fails("push", folder, "me/x", "--dry-run")
        shell.types(
            shell.shows(answer, "bertworks convert {} -o ANOTHER-FOLDER"),
            ANOTHER_FOLDER=f"{name} again",
        )
        assert "README.md" in shell.works("push", f"{name} again", "me/x", "--dry-run")
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 20)
    answers = {
        "unset HF_HUB_OFFLINE; or --dry-run": huggingface_hub.errors.OfflineModeIsEnabled(
            "offline"
        ),
        "connect to the network and run the same command again; or --dry-run": OSError("no route"),
    }
    for template, error in answers.items():

        def refused(*_: object, e: Exception = error, **__: object) -> None:
            raise e

        monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refused)
        shell.shows(shell.fails("push", model, "me/x"), template)
        assert "dry run: nothing was sent" in shell.works("push", model, "me/x", "--dry-run")


def link(path: Path) -> None:
    path.rename("elsewhere.md")
    path.symlink_to(Path("elsewhere.md").resolve())


@says(
    "gelu is the approximation by tanh, as Google's code computes it (hidden_act gelu_new); "
    "Hugging Face's "
    "conversions say gelu, the exact function, which differs in the third decimal: --gelu exact",
    "--leave-out {}",
    "{option} FILE",
    "as the name {} says (--cased or --uncased decides)",
    "give bert_model.ckpt where there is a bert_model.ckpt.index; other models: bertworks convert",
)
def test_checkpoints_of_tensorflow(shell: Shell, model: Path) -> None:
    from tests.checkpoints.test_tensorflow import numbers, written

    more = {name: np.ones(3, np.float32) for name in ("more/of it", "and/it's", "x")}
    prefix = written(Path("uncased it's"), numbers() | more)
    answer = shell.fails("import", prefix, "-o", "out")
    shell.shows(answer, "--leave-out {}")
    option = shlex.split(answer.split("go on without: ")[1])
    assert option[1::2] == sorted(more)
    answer = shell.works("import", prefix, "-o", "out", *option)
    assert json.loads(Path("out/config.json").read_text())["hidden_act"] == "gelu_new"
    text = next(template for template in templates() if "--gelu exact" in template)
    shell.works(
        "import", prefix, "-o", "exact", *option, *shell.shows(answer, text).split(": ")[-1].split()
    )
    assert json.loads(Path("exact/config.json").read_text())["hidden_act"] == "gelu"
    shell.shows(answer, "as the name {} says (--cased or --uncased decides)")
    for name in ("cased", "uncased"):
        shell.works("import", prefix, "-o", name, *option, f"--{name}")
        assert bertworks.Tokenizer.load(Path(name)).lowercase is (name == "uncased")
    for name, moved in (("bert_config.json", "c.json"), ("vocab.txt", "v.txt")):
        (prefix.parent / name).rename(moved)
        answer = shell.fails("import", prefix, "-o", "moved", *option)
        shell.shows(answer, "{option} FILE")
        words = re.search(r"--\w+ FILE", answer)
        assert words is not None
        shell.works(
            "import",
            prefix,
            "-o",
            f"with {moved}",
            *option,
            *words[0].replace("FILE", moved).split(),
        )
        Path(moved).rename(prefix.parent / name)
        assert weights(f"with {moved}") == weights("out")
    answer = shell.fails("import", model, "-o", "out2")
    shell.shows(
        answer,
        "give bert_model.ckpt where there is a bert_model.ckpt.index; other models: bertworks "
        "convert",
    )
    shell.works("convert", model, "-o", "out2")
    assert bertworks.load("out2").config == bertworks.load(model).config


@says(
    "name a file of documents, or give --delete, --compact, --approximate or --verify",
    "bertworks index DOCUMENTS -o {}",
    "write one, or name another with --id",
    "bertworks index -o {} --approximate",
    "pip install {}",
)
def test_indexes(shell: Shell, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["good films of the town", "bad dogs", "men heard music"]
    data = table(
        "docs.csv",
        ("id", "name", "text"),
        *((n or "", f"n{n}", text) for n, text in enumerate(texts)),
    )
    shell.shows(
        shell.fails("index", "-o", "it's new"),
        "name a file of documents, or give --delete, --compact, --approximate or --verify",
    )
    Path("it's new").mkdir()
    answer = shell.fails("search", "it's new", "dogs")
    advice = shell.shows(answer, "bertworks index DOCUMENTS -o {}")
    answer = shell.fails(*shlex.split(advice.replace("DOCUMENTS", str(data)))[1:], "--model", model)
    shell.shows(answer, "write one, or name another with --id")
    shell.types(advice, "--model", model, "--id", "name", DOCUMENTS=data)
    assert "n1" in shell.works("search", "it's new", "dogs", "--ranking", "bm25").splitlines()[0]
    shell.works("index", "-o", "it's new", "--delete", "n1", "--compact")
    assert "nothing found" in shell.works("search", "it's new", "dogs", "--ranking", "bm25")
    shell.works("index", "-o", "it's new", "--verify")
    answer = shell.fails("search", "it's new", "dogs", "--approximate")
    advice = shell.shows(answer, "bertworks index -o {} --approximate")
    monkeypatch.setitem(sys.modules, "faiss", None)
    answer = shell.fails(*shlex.split(advice)[1:])
    requirement = re.search(r'"bertworks\[(\w+)\]"', shell.shows(answer, "pip install {}"))
    assert requirement is not None
    assert any(name.startswith("faiss") for name in extras()[requirement[1]])


@says("make the index again: delete its folder and repeat the `bertworks index` command")
def test_damaged_indexes(shell: Shell, model: Path) -> None:
    words = [write_reviews(Path("r.csv"), 20), "-o", "it's new", "--model", model, "--text", "text"]
    shell.works("index", *words)
    found = shell.works("search", "it's new", "a good film", "--ranking", "bm25")
    (vectors,) = Path("it's new").glob("*.safetensors")
    vectors.write_bytes(vectors.read_bytes()[:-64] + bytes(64))
    answer = shell.fails("index", "-o", "it's new", "--verify")
    advice = shell.shows(
        answer, "make the index again: delete its folder and repeat the `bertworks index` command"
    )
    shutil.rmtree("it's new")
    shell.types(advice, *words)
    assert shell.works("search", "it's new", "a good film", "--ranking", "bm25") == found


@says("bertworks index -o {} --compact stems them again", "; --text {} leaves the title out")
def test_titles_and_stems_of_an_index(
    shell: Shell, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = table(
        "docs.csv",
        ("headline", "the text"),
        ("Old dogs", "good films of the whole town"),
        ("", "men heard music last night"),
    )
    words = ["index", data, "--model", model, "-o"]
    answer = shell.works(*words, "it's new", "--language", "english")
    advice = (
        shell.shows(answer, "; --text {} leaves the title out")
        .removeprefix("; ")
        .removesuffix(" leaves the title out")
    )
    shell.works(*words, "other", *shlex.split(advice))
    search = ["search", "it's new", "dog", "--ranking", "bm25"]
    found = shell.works(*search)
    assert "Old dogs: good films" in found
    assert "nothing found" in shell.works("search", "other", "dogs", "--ranking", "bm25")
    with monkeypatch.context() as patch:
        patch.setattr("bertworks.retrieval.ranking.metadata.version", lambda _: "3.0.0")
        shell.works("index", "-o", "it's new", "--compact")
    advice = shell.shows(shell.fails(*search), "bertworks index -o {} --compact stems them again")
    shell.types(advice.removesuffix(" stems them again"))
    assert shell.works(*search) == found


@pytest.mark.skipif(
    not importlib.util.find_spec("faiss"), reason="faiss, an extra, is not installed"
)
@says("bertworks index -o {} --approximate")
def test_the_graph_of_an_index(shell: Shell, model: Path) -> None:
    shell.works(
        "index",
        write_reviews(Path("r.csv"), 200),
        "-o",
        "it's new",
        "--model",
        model,
        "--text",
        "text",
    )
    answer = shell.fails("search", "it's new", "a good film", "--approximate")
    shell.types(shell.shows(answer, "bertworks index -o {} --approximate"))
    assert len(shell.works("search", "it's new", "a good film", "--approximate").splitlines()) == 10


@says(
    "--learn-from a file with more texts, or --whitening center",
    "leave --precision out",
    "; --precision int8 is available for inference",
)
def test_vectors(
    shell: Shell, model: Path, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = write_reviews(Path("few.csv"), 10), write_reviews(Path("many.csv"), 200, seed=1)
    words = ["embed", model, few, "--text", "text", "-o", "v.npy", "--overwrite"]
    answer = shell.fails(*words, "--whitening", "whiten")
    shell.shows(answer, "--learn-from a file with more texts, or --whitening center")
    shell.works(*words, "--whitening", "whiten", "--learn-from", many)
    assert np.load("v.npy").shape == (10, 32)
    shell.works(*words, "--whitening", "center")
    np.testing.assert_allclose(np.load("v.npy").mean(0), 0, atol=1e-5)

    words = ["predict", classifier, few, "--probabilities", "-o", "p.csv", "--overwrite"]
    shell.works(*words, "--precision", "fp32")
    exact = answers("p.csv")
    if cpu_supports_int8():
        checks = "\n".join(check.text for check in _speed(torch.device("cpu")))
        shell.shows(checks, "; --precision int8 is available for inference")
        shell.works(*words, "--precision", "int8")
        for ours, theirs in zip(answers("p.csv"), exact, strict=True):
            found, expected = (json.loads(row["predicted_scores"])["pos"] for row in (ours, theirs))
            assert found == pytest.approx(expected, abs=0.05)
    else:
        shell.found.add("; --precision int8 is available for inference")
    monkeypatch.setattr("bertworks.models.packed_linear.cpu_supports_int8", lambda: False)
    shell.shows(shell.fails(*words, "--precision", "int8"), "leave --precision out")
    shell.works(*words)
    assert answers("p.csv") == exact


@pytest.mark.skipif(
    not importlib.util.find_spec("onnxruntime"), reason="onnxruntime, an extra, is not installed"
)
@says(
    "export the model with that output; for vectors: bertworks export MODEL --encoder -o FOLDER",
    "export it again with --encoder, or load what it was made of",
)
def test_exported_models(shell: Shell, classifier: Path) -> None:
    data = write_reviews(Path("r.csv"), 5)
    shell.works("export", classifier, "-o", "an export")
    answer = shell.fails("embed", "an export", data, "--text", "text", "-o", "v.npy")
    advice = shell.shows(
        answer,
        "export the model with that output; for vectors: bertworks export MODEL --encoder -o "
        "FOLDER",
    )
    shell.types(advice, MODEL=classifier, FOLDER="for vectors")
    for model in ("for vectors", classifier):
        shell.works(
            "embed", model, data, "--text", "text", "-o", f"{model}.npy", "--precision", "fp32"
        )
    np.testing.assert_allclose(np.load("for vectors.npy"), np.load("my classifier.npy"), atol=1e-4)
    with pytest.raises(BertworksError) as error:
        bertworks.load("an export").embed(["a film"])
    shell.shows(error.value, "export it again with --encoder, or load what it was made of")
    (found,), (expected,) = (
        bertworks.load(m, precision="fp32").embed(["a film"]) for m in ("for vectors", classifier)
    )
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(
    not importlib.util.find_spec("onnxruntime"), reason="onnxruntime, an extra, is not installed"
)
@says(
    "export a model that was fine-tuned with another recipe; or only the hidden states: --encoder"
)
def test_a_head_that_is_not_exported(shell: Shell, model: Path) -> None:
    data = write_conll(Path("t.conll"), 20)
    shell.works("finetune", data, "--model", model, *FAST, "--set", "lstm_units=8", "-o", "lstm")
    answer = shell.fails("export", "lstm", "-o", "out")
    shell.shows(
        answer,
        "export a model that was fine-tuned with another recipe; or only the hidden states: "
        "--encoder",
    )
    shell.works("export", "lstm", "-o", "out", "--encoder")
    (found,), (expected,) = (
        bertworks.load(m, precision="fp32").embed(["the film"]) for m in ("out", "lstm")
    )
    np.testing.assert_allclose(found, expected, atol=1e-4)


@says(
    "--threads 1, or --threads auto",
    "{}{} --help",
    "--model MODEL",
    "  this is a bug in bertworks: please report it with the output of\n  bertworks --debug {}",
)
def test_the_command_line(shell: Shell, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["fill", model, "the [MASK]"]
    monkeypatch.setattr("bertworks.training.device.THREADS.training_adapts", False)
    for option in shell.shows(
        shell.fails(*words, "--threads", "0"), "--threads 1, or --threads auto"
    ).split(", or "):
        monkeypatch.setenv("BERTWORKS_THREADS", "")
        shell.works(*words, *re.search(r"--threads \w+", option)[0].split())  # type: ignore[index]
    answer = shell.fails(*words, "--tpo-k", "3")
    shell.shows(answer, "{}{} --help")
    assert "--top-k" in shell.types(answer.split("hint: ")[1])
    shell.shows(shell.fails("fill", "--modle", model, "the [MASK]"), "--model MODEL")
    assert shell.works("fill", "--model", model, "the [MASK]") == shell.works(*words)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(bertworks, "fill", broken)
    copy_of(model, "it's mine")
    assert main(["fill", "it's mine", "the [MASK]"]) == 1
    answer = shell._capsys.readouterr().err
    shell.shows(
        answer,
        "  this is a bug in bertworks: please report it with the output of\n  bertworks --debug {}",
    )
    command = answer.split("the output of\n")[1].strip()
    assert main(shlex.split(command)[1:]) == 1
    answer = shell._capsys.readouterr().err
    assert "Traceback" in answer
    assert "RuntimeError: a fault" in answer
    assert shlex.split(command)[2:] == ["fill", "it's mine", "the [MASK]"]


@says("{option} VALUE", "--set {}=VALUE")
def test_options_of_other_programs(shell: Shell, model: Path) -> None:
    data = write_reviews(Path("r.csv"), 40)
    words = [
        "finetune",
        data,
        "--model",
        model,
        "--method",
        "full",
        "--validation",
        "split",
        "--device",
        "cpu",
    ]
    answer = shell.fails(*words, "--lr", "1e-3", "--epochs", "1", "-o", "out")
    rate = (
        shell.shows(answer, "{option} VALUE")
        .partition("hint: ")[2]
        .replace("VALUE", "1e-3")
        .split()
    )
    answer = shell.fails(*words, *rate, "--warmup", "0.5", "--epochs", "1", "-o", "out")
    warmup = shell.shows(answer, "--set {}=VALUE").replace("VALUE", "0.5").split()
    shell.works(*words, *rate, *warmup, "--epochs", "1", "-o", "out")
    recipe = tomllib.loads(Path("out/recipe.toml").read_text())
    assert (
        recipe["epochs"],
        recipe["optimizer"]["learning_rate"],
        recipe["optimizer"]["warmup"],
    ) == (1, 1e-3, 0.5)


@says("-o ANOTHER-FILE keeps it; --overwrite replaces it")
def test_an_output_that_exists(shell: Shell, classifier: Path) -> None:
    data = table("a.csv", ("text",), ("a good film",))
    words = ["predict", classifier, data, "-o", "mine.csv"]
    Path("mine.csv").write_text("mine")
    options = re.findall(
        r"--?[\w-]+",
        shell.shows(shell.fails(*words), "-o ANOTHER-FILE keeps it; --overwrite replaces it"),
    )
    assert Path("mine.csv").read_text() == "mine"
    shell.works(*words[:3], options[0], "another.csv")
    assert Path("mine.csv").read_text() == "mine"
    shell.works(*words, options[-1])
    assert Path("mine.csv").read_text() == Path("another.csv").read_text()


@says("if this is a text: -t {}", 'name a file; or give a text: -t "A text"')
def test_a_text_that_could_be_a_file(shell: Shell, classifier: Path) -> None:
    answer = shell.fails("predict", classifier, "Wonderful")
    option = shlex.split(shell.shows(answer, "if this is a text: -t {}").partition(": ")[2])
    assert "Wonderful,neg" in shell.works("predict", classifier, *option).replace("pos", "neg")
    answer = shell.fails("predict", classifier)
    option = shlex.split(
        shell.shows(answer, 'name a file; or give a text: -t "A text"').partition("text: ")[2]
    )
    assert "A text,neg" in shell.works("predict", classifier, *option).replace("pos", "neg")


@says("{}, after {} (--text-column {}: without)")
def test_titles_of_a_table(shell: Shell) -> None:
    table("a.csv", ("title", "body"), *((f"The town {n}", SENTENCE) for n in range(12)))
    words = ["vocab", "a.csv", "--size", "100", "--workers", "1", "-o"]
    answer = shell.works(*words, "with")
    assert (
        f"12 documents, {12 * len(SENTENCE) + sum(len(f'The town {n} ') for n in range(12)):,} "
        "characters"
    ) in answer
    option = re.search(
        r"--text-column \w+", shell.shows(answer, "{}, after {} (--text-column {}: without)")
    )
    assert option is not None
    assert f"12 documents, {12 * len(SENTENCE):,} characters" in shell.works(
        *words, "without", *option[0].split()
    )


@says("--port 0")
def test_a_port_that_is_taken(shell: Shell, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        answer = shell.fails("serve", model, "--port", taken.getsockname()[1])
        option = shell.shows(answer, "--port 0").split()
        listening = bound("127.0.0.1", int(option[1]))
        with listening:
            assert listening.getsockname()[1] not in (0, taken.getsockname()[1])


@says(
    "leave --device out: `bertworks doctor` lists the devices; under torchrun, at most {} processes"
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(shell: Shell, model: Path) -> None:
    data = write_reviews(Path("r.csv"), 5)
    words = ["embed", model, data, "--text", "text", "-o", "v.npy"]
    answer = shell.fails(*words, "--device", "cuda")
    shell.shows(
        answer,
        "leave --device out: `bertworks doctor` lists the devices; under torchrun, at most {} "
        "processes",
    )
    shell.works(*words)
    assert np.load("v.npy").shape == (5, 32)


@says(
    'try:     bertworks fill {} "The result is a [MASK]."',
    "         bertworks predict {} {} --top-k 3",
    "         bertworks pretrain YOUR-TEXT -o YOUR-MODEL --budget 1h",
    "         bertworks finetune YOUR-TABLE.csv -o YOUR-CLASSIFIER",
)
def test_after_the_demo(
    shell: Shell, model: Path, text: Path, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = Path("it's a demo")
    copy_of(model, str(demo / "model"))
    copy_of(classifier, str(demo / "classifier"))
    (demo / "origins").mkdir()
    write_reviews(demo / "origins/dev.csv", 6)
    lines = "\n".join(_next_steps(demo))
    assert (
        shell.types(
            shell.shows(lines, 'try:     bertworks fill {} "The result is a [MASK]."')
        ).count("%")
        == 5
    )
    shell.shows(lines, "         bertworks predict {} {} --top-k 3")
    command = re.search(r"bertworks predict .*", lines)
    assert command is not None
    shell.types(command[0], "-o", "out.csv")
    assert {row["predicted_label"] for row in answers("out.csv")} <= {"neg", "pos"}
    advice = shell.shows(lines, "         bertworks pretrain YOUR-TEXT -o YOUR-MODEL --budget 1h")
    made: list[Any] = []

    def pretrain(*words: Any, **options: Any) -> list[Event]:
        made.append((words, options))
        return [Event("done", "")]

    monkeypatch.setattr(bertworks, "pretrain", pretrain)
    shell.types(advice, YOUR_TEXT=text, YOUR_MODEL="mine")  # an hour; other tests run budgets
    assert made[0][0] == ([str(text)], Path("mine"))
    assert made[0][1]["budget"] == "1h"
    data = write_reviews(Path("r.csv"), 40)
    advice = shell.shows(lines, "         bertworks finetune YOUR-TABLE.csv -o YOUR-CLASSIFIER")
    shell.types(
        advice.replace("YOUR-TABLE.csv", str(data)), "--model", model, *FAST, YOUR_CLASSIFIER="mine"
    )
    assert about("mine")["labels"] == ["neg", "pos"]


@says(
    "{} of the tokens are [UNK]{}: the vocabulary does not fit this text; train one on it with "
    "`bertworks vocab`",
    "a word takes {} tokens on average: the vocabulary is of another language or field, or too "
    "small; train one with "
    "`bertworks vocab`",
)
def test_warnings_about_a_vocabulary(shell: Shell, tokenizer: Path, text: Path) -> None:
    lines = [
        f"das große Haus überquert täglich zwölf Brücken {word}."
        for word in ("süß", "schön", "grün", "größer")
    ]
    Path("german.txt").write_text("\n\n".join(lines * 20))
    backwards = " ".join(word[::-1] for word in SENTENCE.split())
    Path("backwards.txt").write_text("\n\n".join([f"{backwards}. {backwards}."] * 20))
    for name, end in (
        ("german.txt", "on it with `bertworks vocab`"),
        ("backwards.txt", "train one with `bertworks vocab`"),
    ):
        answer = shell.works(
            "prepare", name, "--tokenizer", tokenizer, "--workers", 1, "-o", f"shards of {name}"
        )
        shell.shows(answer, next(template for template in templates() if template.endswith(end)))
    shell.works("vocab", "german.txt", "-o", "german", "--size", "300")
    answer = shell.works(
        "prepare", "german.txt", "--tokenizer", "german", "--workers", 1, "-o", "shards 2"
    )
    assert "bertworks vocab" not in answer


@says("--budget {}m; or a smaller recipe; or smaller batches: --set train.phases.{}.batch_size={}")
def test_a_budget_that_is_too_short(shell: Shell) -> None:
    """The two ways out, with the cost of a step in proportion to its tokens."""
    recipe = load_recipe("bert-base")
    phases = tuple(replace(phase, num_steps=1) for phase in recipe.train.phases)
    recipe = replace(recipe, train=replace(recipe.train, phases=phases))

    def fitted(recipe: Any, minutes: float) -> Any:
        costs = [phase.batch_size * phase.sequence_length / 1000 for phase in recipe.train.phases]
        return fit_steps(recipe, 60 * minutes, costs)

    with pytest.raises(BertworksError) as error:
        fitted(recipe, 0.2)
    advice = shell.shows(
        error.value,
        "--budget {}m; or a smaller recipe; or smaller batches: --set "
        "train.phases.{}.batch_size={}",
    )
    minutes = int(re.search(r"--budget (\d+)m", advice)[1])  # type: ignore[index]
    assert all(phase.num_steps >= 1 for phase in fitted(recipe, minutes).train.phases)
    for _ in range(9):  # each time smaller
        setting = re.search(r"--set (train\.phases\.\d\.batch_size=\d+)", str(error.value))
        assert setting is not None
        recipe = override(recipe, [setting[1]])
        try:
            assert all(phase.num_steps >= 1 for phase in fitted(recipe, 0.2).train.phases)
        except BertworksError as again:
            error.value.hint = again.hint
        else:
            return
    pytest.fail("smaller batches do not help")


@says("--set encoder.lm_head_act={}", "--set encoder.choice_dropout={}")
def test_an_activation_and_a_dropout_of_heads_that_roberta_does_not_have(
    shell: Shell, text: Path
) -> None:
    settings: dict[str, object] = {
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
    }
    settings |= {"hidden_act": "relu", "sequence_dropout": 0.25, "token_dropout": "true"}
    fields = [f"encoder.{name}={value}" for name, value in settings.items()]
    phases = "train.phases=[{num_steps=2,batch_size=2,sequence_length=32}]"
    fields += [phases, "train.held_out_sequences=4", "vocabulary.size=300"]
    sets = [word for field in fields for word in ("--set", field)]
    words = [
        "pretrain",
        text,
        "--recipe",
        "roberta-small",
        "--device",
        "cpu",
        "--workers",
        "1",
        *sets,
        "-o",
        "out",
    ]
    dropout = shell.shows(shell.fails(*words), "--set encoder.choice_dropout={}").split()[-2:]
    option = shell.shows(shell.fails(*words, *dropout), "--set encoder.lm_head_act={}").split()[-2:]
    shell.works(*words, *dropout, *option)
    config = json.loads(Path("out/config.json").read_text())
    assert (config["model_type"], config["hidden_act"], config["classifier_dropout"]) == (
        "roberta",
        "relu",
        0.25,
    )
    assert bertworks.load("out").config.lm_head_activation == "gelu"


@says(
    "--set encoder.embedding_size={}",
    "--set sampling.format={}, and no [[objectives]] in the recipe",
)
def test_networks_and_heads_that_albert_has_no_place_for(
    shell: Shell, text: Path, tokenizer: Path
) -> None:
    settings = {
        "hidden_size": 16,
        "num_attention_heads": 2,
        "embedding_size": 16,
        "num_hidden_layers": 2,
    }
    fields = [f"encoder.{name}={value}" for name, value in settings.items()]
    phases = "train.phases=[{num_steps=2,batch_size=2,sequence_length=32}]"
    sets = [
        word
        for field in [*fields, phases, "train.held_out_sequences=4"]
        for word in ("--set", field)
    ]
    words = [
        "pretrain",
        text,
        "--tokenizer",
        tokenizer,
        "--recipe",
        "albert-small",
        "--device",
        "cpu",
        *sets,
    ]
    option = shell.shows(
        shell.fails(*words, "-o", "out"), "--set encoder.embedding_size={}"
    ).split()[-2:]
    other = ["--set", "sampling.format=next_sentence"]
    answer = shell.fails(*words, *option, *other, "-o", "out")
    advice = shell.shows(answer, "--set sampling.format={}, and no [[objectives]] in the recipe")
    found = re.search(r"--set [\w.=]+", advice)
    assert found is not None
    assert "sentence order" in shell.works(*words, *option, *other, *found[0].split(), "-o", "out")
    assert bertworks.load("out").config.embedding_size == 8
    assert json.loads(Path("out/config.json").read_text())["architectures"] == [
        "AlbertForPreTraining"
    ]


@says("time         not measured: --estimate speed computes a few steps on this machine")
def test_an_estimate_with_the_speed(shell: Shell, text: Path) -> None:
    recipe = write_recipe(Path("recipe.toml").absolute())
    words = ["pretrain", text, "--recipe", recipe, "--device", "cpu"]
    answer = shell.works(*words, "--estimate")
    shell.shows(
        answer, "time         not measured: --estimate speed computes a few steps on this machine"
    )
    assert "per second on this machine" in shell.works(*words, "--estimate", "speed")


@says("add -o MODEL; or --estimate, which writes nothing")
def test_pretrain_needs_an_output_or_estimates(shell: Shell, text: Path) -> None:
    words = ["pretrain", text, "--recipe", "bert-tiny", "--budget", "3m"]
    shell.shows(shell.fails(*words), "add -o MODEL; or --estimate, which writes nothing")
    before = sorted(Path().rglob("*"))
    assert "parameters" in shell.works(*words, "--estimate")
    assert sorted(Path().rglob("*")) == before


@says(
    "{}. Use --budget {}m, for {} steps{}",
    "; or --recipe {}: a smaller model is then chosen for the time",
)
def test_a_budget_that_teaches_nothing(
    shell: Shell, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(recipe: Any, *_: object) -> Measurement:
        """On a machine where a step takes as long as the model is large."""
        seconds = 1e-6 * recipe.encoder.num_parameters()
        return Measurement([seconds] * len(recipe.train.phases), 1 << 30)

    monkeypatch.setattr("bertworks.runs.pretrain.measure_steps", measured)
    monkeypatch.setattr("bertworks.runs.pretrain.measure_matmul", lambda *_: 1e10)
    words = ["pretrain", text, "-o", "out", "--estimate=speed"]
    smaller = "; or --recipe {}: a smaller model is then chosen for the time"
    titles = {
        "bert-base": "BERT-tiny",
        "albert-base": "ALBERT-tiny",
        "electra-small": "ELECTRA-tiny",
    }
    for recipe, title in titles.items():
        answer = shell.works(*words, "--recipe", recipe, "--budget", "20m")
        advice = shell.shows(answer, "{}. Use --budget {}m, for {} steps{}")
        longer = re.search(r"--budget \d+m", advice)[0].split()  # type: ignore[index]
        assert "too few" not in shell.works(*words, "--recipe", recipe, *longer)
        family = re.search(r"--recipe \w+", shell.shows(answer, smaller))[0].split()  # type: ignore[index]
        answer = shell.works(*words, *family, "--budget", "60m")
        assert title in answer
        assert "too few" not in answer


@says('bertworks generate {} "This is the"')
def test_a_new_model_that_reads_from_left_to_right(shell: Shell, text: Path) -> None:
    sizes = (
        "encoder.hidden_size=32",
        "encoder.num_hidden_layers=1",
        "encoder.num_attention_heads=2",
        "vocabulary.size=400",
        "train.held_out_sequences=8",
        "train.phases.0.num_steps=2",
        "train.phases.0.batch_size=4",
        "train.phases.0.sequence_length=32",
    )
    options = [word for size in sizes for word in ("--set", size)]
    answer = shell.works(
        "pretrain", text, "-o", "a run", "--recipe", "gpt2", *options, "--device", "cpu"
    )
    assert "This is the" in shell.types(shell.shows(answer, 'bertworks generate {} "This is the"'))


@says(
    'bertworks explain {} "The chef ate the idea."',
    "detect([text])[0]",
    "bertworks finetune DATA.csv --model . --recipe electra -o CLASSIFIER",
)
def test_advice_of_a_discriminator(
    shell: Shell, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(Path("electra.toml"), *TINY, ("num_steps = 40", "num_steps = 2"))
    answer = shell.works("pretrain", text, "-o", "a run", "--recipe", recipe, "--device", "cpu")
    advice = shell.shows(answer, 'bertworks explain {} "The chef ate the idea."')
    assert "as a replaced word" in shell.types(advice)
    loaded = bertworks.load("a run", device="cpu")
    with pytest.raises(BertworksError) as error:
        loaded.detect("a film")
    found = eval(
        f"loaded.{shell.shows(error.value.hint, 'detect([text])[0]')}",
        {"loaded": loaded, "text": "a film"},
    )
    assert found["text"] == "a film"
    write_reviews(Path("a run/DATA.csv"), 40)
    monkeypatch.chdir("a run")
    command = "bertworks finetune DATA.csv --model . --recipe electra -o CLASSIFIER"
    shell.types(shell.shows(Path("README.md").read_text(), command), "--device", "cpu")
    assert about("CLASSIFIER")["labels"] == ["neg", "pos"]


def extras() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return dict(project["optional-dependencies"])


@says('{} is not installed; {} need it: pip install "bertworks[{}]"')
def test_packages_that_are_missing(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    checks = list(_extras())
    assert len(checks) == len(_EXTRAS)
    for check, name in zip(checks, _EXTRAS, strict=True):
        advice = shell.shows(
            check.text, '{} is not installed; {} need it: pip install "bertworks[{}]"'
        )
        assert any(
            requirement.startswith(name)
            for requirement in extras()[re.search(r"\[(\w+)\]", advice)[1]]
        )  # type: ignore[index]
    code = "\n".join(path.read_text() for path in (ROOT / "bertworks").rglob("*.py"))
    assert set(re.findall(r"bertworks\[(\w+)\]", code)) <= set(extras())


@says("use a lower rate in a new folder: -o OTHER --set optimizer.learning_rate={}")
def test_a_loss_that_is_not_finite(
    shell: Shell, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = PretrainingModel.forward

    def damaged(self: PretrainingModel, batch: Any) -> Any:
        tallies = forward(self, batch)
        if self.training:
            first = tallies["masked_lm"]
            tallies["masked_lm"] = first._replace(loss=first.loss * torch.nan)
        return tallies

    words = ["pretrain", text, *short()]
    with monkeypatch.context() as patch:
        patch.setattr(PretrainingModel, "forward", damaged)
        answer = shell.fails(*words, "-o", "out")
    shell.shows(
        answer, "use a lower rate in a new folder: -o OTHER --set optimizer.learning_rate={}"
    )
    options = re.search(r"-o OTHER --set optimizer.learning_rate=(\S+)", answer)
    assert options is not None
    shell.works(*words, *options[0].split())
    assert load_recipe("OTHER/recipe.toml").optimizer.learning_rate == float(options[1]) == 3.3e-4


# Methods


@says("use --method {}")
def test_a_method_that_is_not_for_the_task(shell: Shell, model: Path) -> None:
    rows = [(f"a {label} film {n}", label) for n in range(12) for label in ("good", "bad")]
    data = table("answers.csv", ("text", "label"), *rows)
    command = ("finetune", data, "--model", model, *FAST)
    advice = shell.shows(
        shell.fails(*command, "--method", "cosine", "-o", "out"), "use --method {}"
    )
    for method in advice.removeprefix("use --method ").split(" or "):
        shell.works(
            *command[: None if method == "full" else -len(FAST)], "--method", method, "-o", method
        )
        assert about(method)["labels"] == ["bad", "good"]


@says(
    "--model minilm, or another model that reads in both directions",
    "--set lm_weight=0",
    "subtract {} from all of them, or use --model minilm",
)
def test_tasks_of_models_that_read_from_left_to_right(shell: Shell, model: Path) -> None:
    write_gpt2(Path("gpt"))
    data = write_conll(Path("data.conll"), 40)
    advice = "--model minilm, or another model that reads in both directions"
    command = ("finetune", data, "-o", "tagger", *FAST, "--model")
    shell.shows(shell.fails(*command, "gpt"), advice)
    shell.works(*command, model)
    reviews = write_reviews(Path("reviews.csv"), 40)
    command = (
        "finetune",
        reviews,
        "--model",
        model,
        "--recipe",
        "gpt",
        "-o",
        "out",
        *FAST,
        "--method",
        "full",
    )
    shell.works(*command, *shlex.split(shell.shows(shell.fails(*command), "--set lm_weight=0")))
    for name, mean in ("far", 1990), ("near", 0):
        table(
            f"{name}.csv",
            ("text", "score"),
            *((f"a film {n % 9}", str(mean + n % 9)) for n in range(40)),
        )
    command = ("--model", "gpt", "-o", "years", *FAST, "--method", "full", "--task", "regression")
    advice = shell.fails("finetune", "far.csv", *command)
    assert "subtract 1994" in shell.shows(
        advice, "subtract {} from all of them, or use --model minilm"
    )
    shell.works("finetune", "near.csv", *command)


@says(
    "--positive {}", "{}, {}; --positive {} reports that of the other label", "leave out --positive"
)
def test_the_class_whose_f1_is_reported(shell: Shell, model: Path) -> None:
    rows = [(f"a film {n}", "junk mail" if n % 5 == 0 else "ham") for n in range(20)]
    data = table("mail.csv", ("text", "label"), *rows)
    answer = shell.works("check", data, "--model", model)
    assert "F1 of        'junk mail', the rarer of the two labels" in answer
    note = shell.shows(answer, "{}, {}; --positive {} reports that of the other label")
    assert "--positive ham" in note
    shell.works("check", data, "--model", model, "--positive", "ham")
    refused = shell.fails("check", data, "--model", model, "--positive", "spam")
    options = shlex.split(shell.shows(refused, "--positive {}").split(" or ")[1])
    assert "F1 of        'junk mail'" in shell.works("check", data, "--model", model, *options)
    three = table(
        "three.csv", ("text", "label"), *((f"a film {n}", "abc"[n % 3]) for n in range(12))
    )
    answer = shell.fails("check", three, "--model", model, "--positive", "a")
    shell.shows(answer, "leave out --positive")
    shell.works("check", three, "--model", model)


@says("type smaller numbers of --seeds and --folds, or fewer values of --sweep")
def test_absurdly_many_trainings(shell: Shell, model: Path) -> None:
    data = table("mail.csv", ("text", "label"), *((f"a film {n}", "ab"[n % 2]) for n in range(40)))
    command = ("finetune", data, "--model", model, "-o", "runs", *FAST, "--method", "full")
    answer = shell.fails(*command, "--seeds", "1000000000000")
    shell.shows(answer, "type smaller numbers of --seeds and --folds, or fewer values of --sweep")
    shell.works(*command, "--seeds", "2")


@says("choose a smaller number of --seeds", "choose a smaller number of --steps or --scale")
def test_absurdly_many_trainings_of_an_evaluation(shell: Shell) -> None:
    Path("text.txt").write_text("A sentence.\n" * 40)
    command = ("evaluate", "ablation", "nsp-sop", "text.txt", "-o", "output")
    shell.shows(
        shell.fails(*command, "--seeds", "1000000000000"), "choose a smaller number of --seeds"
    )
    shell.shows(
        shell.fails(*command, "--steps", "1000000000000"),
        "choose a smaller number of --steps or --scale",
    )


@says("--positive {}", "leave out --positive")
def test_the_class_whose_f1_is_reported_by_an_evaluation(shell: Shell) -> None:
    write_head(Path("two"), task="classification", labels=("ham", "junk mail"), text=("text",))
    data = table("mail.csv", ("text", "label"), ("a film", "ham"), ("a bad film", "junk mail"))
    assert "F1 of 'junk mail'" in shell.works("evaluate", "task", "two", data)
    assert "F1 of 'ham'" in shell.works("evaluate", "task", "two", data, "--positive", "ham")
    refused = shell.fails("evaluate", "task", "two", data, "--positive", "spam")
    options = shlex.split(shell.shows(refused, "--positive {}").split(" or ")[1])
    assert "F1 of 'junk mail'" in shell.works("evaluate", "task", "two", data, *options)
    write_head(
        Path("three"), task="classification", labels=("ham", "junk mail", "spam"), text=("text",)
    )
    answer = shell.fails("evaluate", "task", "three", data, "--positive", "ham")
    shell.shows(answer, "leave out --positive")
    shell.works("evaluate", "task", "three", data)


@says("--max-length {}", "--set class_weights=balanced")
def test_advice_at_the_end_of_a_training(shell: Shell, model: Path) -> None:
    """The last line names what the warnings about the data have found."""
    rows = [(f"{SENTENCE} {n}", "rare" if n % 9 == 0 else "often") for n in range(45)]
    data = table("d.csv", ("text", "label"), *rows)
    command = ("finetune", data, "--model", model, "--device", "cpu", "--method", "frozen")
    answer = shell.works(*command, "--max-length", "16", "-o", "short").partition(
        "what can help: "
    )[2]
    shell.shows(answer, "--max-length {}")
    length = re.match(r"--max-length \d+", answer)
    assert length is not None
    options = [
        *shlex.split(length[0]),
        *shlex.split(shell.shows(answer, "--set class_weights=balanced")),
    ]
    answer = (
        shell.works(*command, *options, "-o", "long")
        .partition("what can help: ")[2]
        .splitlines()[0]
    )
    assert "more rows" in answer
    assert "--max-length" not in answer
    assert "class_weights" not in answer


@says("leave out {}; or --method full")
def test_a_setting_that_a_method_does_not_use(shell: Shell, model: Path) -> None:
    rows = [(f"a {label} film {n}", label) for n in range(12) for label in ("good", "bad")]
    data = table("answers.csv", ("text", "label"), *rows)
    command = (
        "finetune",
        data,
        "--model",
        model,
        "--method",
        "frozen",
        "--device",
        "cpu",
        "-o",
        "out",
    )
    many = (
        "--epochs",
        "3",
        "--learning-rate",
        "1e-3",
        "--batch-size",
        "4",
        "--seed",
        "2",
        "--set",
        "dropout=0.2",
    )
    for words in (
        many,
        ("--seeds", "3"),
        ("--sweep", "batch_size=4,8"),
        ("--set", "optimizer.warmup=0.2"),
    ):
        advice = shell.shows(shell.fails(*command, *words), "leave out {}; or --method full")
        options = [
            word for word in words if word.startswith("--") and word not in ("--set", "--sweep")
        ]
        assert all(option in advice for option in options)
        assert not Path("out").exists()
    assert "--set dropout" in shell.shows(
        shell.fails(*command, *many), "leave out {}; or --method full"
    )
    shell.works(*command, "--max-length", "32", "--set", "class_weights=balanced")
    assert about("out")["max_length"] == 32


@says("leave --recipe out")
def test_a_method_without_an_lstm(shell: Shell, model: Path) -> None:
    Path("names.conll").write_text("the O\nfilm B-work\n\n" * 12)
    command = ("finetune", "names.conll", "--model", model, "--method", "frozen")
    shell.shows(
        shell.fails(*command, "--recipe", "feature_based", "-o", "out"), "leave --recipe out"
    )
    shell.works(*command, "-o", "out")
    assert about("out")["task"] == "tagging"


@says("--set feature_layers=last")
def test_a_layer_that_a_model_does_not_have(shell: Shell, model: Path) -> None:
    Path("names.conll").write_text("the O\nfilm B-work\n\n" * 12)
    command = (
        "finetune",
        "names.conll",
        "--model",
        model,
        *FAST,
        "--recipe",
        "feature_based",
        "--set",
        "lstm_units=8",
    )
    advice = shell.shows(
        shell.fails(*command, "--set", "feature_layers=9", "-o", "out"), "--set feature_layers=last"
    )
    shell.works(*command, *advice.split(), "-o", "out")
    assert about("out")["feature_layers"] == "last"


@says("export only the hidden states: --encoder")
def test_an_export_of_two_vectors(shell: Shell, model: Path) -> None:
    rows = [(f"a good film {n}", "a film" if n % 2 else "a town", n % 2) for n in range(24)]
    data = table("pairs.csv", ("sentence1", "sentence2", "label"), *rows)
    shell.works(
        "finetune",
        data,
        "--model",
        model,
        "--method",
        "frozen",
        "--task",
        "classification",
        "-o",
        "pairs",
    )
    advice = shell.shows(
        shell.fails("export", "pairs", "-o", "out"), "export only the hidden states: --encoder"
    )
    shell.works("export", "pairs", "-o", "out", *re.findall("--encoder", advice))
    assert (Path("out") / "model.onnx").exists()
