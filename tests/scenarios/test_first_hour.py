"""What people type in their first hour: plain options, texts instead of files, names that are
nearly right, Ctrl-C."""

import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

import bertworks as bw
from bertworks.checkpoints.resolve import resolve_model
from bertworks.cli import evaluation, inference, models, parser, training
from bertworks.cli.console import Training
from bertworks.cli.main import main
from bertworks.cli.parser import make_app
from bertworks.config import add_overrides, field_paths, near_field, option_of
from bertworks.errors import BertworksError, UsageError
from bertworks.events import Event
from bertworks.io.inputs import file_or_texts
from bertworks.io.options import STDIN
from bertworks.text.corpus import CorpusReader
from bertworks.training.recipe import FinetuneRecipe, Recipe, load_finetune_recipe
from tests.support.fine import write_model, write_reviews
from tests.support.served import write_head

COMMANDS = {
    name: value
    for module in (training, inference, models, evaluation)
    for name, value in vars(module).items()
    if inspect.isfunction(value)
    and value.__module__ == module.__name__
    and not name.startswith("_")
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def classifier() -> Path:
    return write_head(
        Path("classifier"), task="classification", text=("text",), labels=("neg", "pos")
    )


# Help


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_ends_with_two_examples_that_can_be_typed(
    name: str, capsys: pytest.CaptureFixture[str]
):
    words = ["evaluate"] * (COMMANDS[name].__module__ == evaluation.__name__) + [name.rstrip("_")]
    assert main([*words, "--help"]) == 0
    end = capsys.readouterr().out.split("Examples:\n")[1].strip()
    examples = end.partition("\n\n")[0].splitlines()
    assert len(examples) == 2
    for example in examples:
        typed = [
            STDIN if word == "-" else word for word in shlex.split(example.partition(" < ")[0])
        ]
        assert typed[: len(words) + 1] == ["bertworks", *words]
        command, *_ = make_app().parse_args(typed[1:], print_error=False, exit_on_error=False)
        assert inspect.unwrap(command) is COMMANDS[name]
        assert len(example) < 80


def test_every_command_is_in_one_group(capsys: pytest.CaptureFixture[str]):
    names = [
        name.rstrip("_")
        for name, value in COMMANDS.items()
        if value.__module__ != evaluation.__name__
    ]
    grouped = [name for members in parser.GROUPS.values() for name in members]
    assert Counter(grouped) == Counter([*names, "evaluate"])
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    places = [out.index(f"─ {title} ─") for title in (*parser.GROUPS, "Options")]
    assert places == sorted(places)


def test_the_packaged_model_is_called_by_its_name(capsys: pytest.CaptureFixture[str]):
    """Its folder is deep in the environment: no message or hint shows that path."""
    assert main(["fill", "minilm", "A [MASK]."]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: minilm: this model has no lm_head (it has encoder, pooler)")
    assert ": it cannot predict masked tokens\n  hint: use a model that has one, such as" in error
    assert main(["predict", "minilm", "A text"]) == 1
    assert (
        "hint: fine-tune it: bertworks finetune DATA --model minilm -o" in capsys.readouterr().err
    )


def test_a_cache_folder_of_nobody_is_an_error_of_ours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BERTWORKS_CACHE", "~nobody-of-this-name/x")
    assert main(["check", "nothing.csv"]) == 2
    assert "nothing.csv: there is no such file" in capsys.readouterr().err


# Texts that the model cannot read


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "classifier", "猫が好きです"],
        ["predict", "classifier", "cats.csv", "-o", "out.csv"],
        ["predict", "classifier", "cats.csv", "-o", "out.csv", "-q"],
        ["embed", "classifier", "cats.csv", "-o", "out.npy"],
        ["index", "cats.csv", "--model", "classifier", "-o", "idx"],
        ["evaluate", "classifier", "cats.csv"],
    ],
)
def test_texts_in_a_language_that_the_model_cannot_read(
    words: list[str], classifier: Path, capsys: pytest.CaptureFixture[str]
):
    """Its results for them look like all others: nothing else says that they mean nothing."""
    Path("cats.csv").write_text("text,label\n猫が好きです,pos\nこの猫は黒い,neg\n")
    assert main(words) == 0
    (line,) = [
        line for line in capsys.readouterr().err.splitlines() if "猫" in line and "warn" in line
    ]
    assert re.match(
        r"warning: the model does not know \d+% of the tokens of these texts, such as", line
    )
    Path("cats.csv").write_text("text,label\ngood film,pos\nbad film 猫,neg\n")
    words = [
        word.replace("猫が好きです", "good 猫 and bad film").replace("out", "other")
        for word in words
    ]
    assert main([word.replace("idx", "idx2") for word in words]) == 0
    assert "does not know" not in capsys.readouterr().err


# Plain options


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests of fine-tunings, which do not start."""
    found: list[Any] = []
    monkeypatch.setattr(
        bw,
        "finetune_events",
        lambda _, request, **__: [found.append(request), Event("done", "")][1:],
    )
    return found


def test_plain_options_are_fields_of_the_recipe(requests: list[Any]):
    words = ["--epochs", "4", "--learning-rate", "2e-5", "--batch-size", "8", "--max-length", "64"]
    assert main(["finetune", "a.csv", "-o", "out", *words, "--set", "dropout=0.2"]) == 0
    recipe = load_finetune_recipe("stable", requests[0].overrides)
    assert (recipe.epochs, recipe.batch_size, recipe.max_length, recipe.dropout) == (4, 8, 64, 0.2)
    assert recipe.optimizer.learning_rate == 2e-5
    paths = {option_of(path): path for path in field_paths(FinetuneRecipe)}
    assert {option_of(field.name) for field in fields(Training)} <= paths.keys()


def test_method_and_validation_arrive(requests: list[Any]):
    assert (
        main(["finetune", "a.csv", "-o", "out", "--method", "frozen", "--validation", "folds"]) == 0
    )
    assert (requests[0].method, requests[0].validation) == ("frozen", "folds")


@pytest.mark.parametrize(
    ("option", "setting"),
    [
        ("--epochs=2", "epochs=3"),
        ("--learning-rate=1e-5", "optimizer.learning_rate=1e-4"),
        ("--batch-size=8", "batch_size=8"),
        ("--max-length=64", "max_length=65"),
        ("--seed=1", "seed=2"),
        ("--precision=fp32", "precision=bf16"),
    ],
)
def test_an_option_and_a_setting_of_one_field_contradict(
    option: str, setting: str, capsys, requests: list[Any]
):
    assert main(["finetune", "a.csv", "-o", "out", option, "--set", setting]) == 2
    assert f"{setting.split('=')[0]} is set twice" in capsys.readouterr().err
    assert main(["finetune", "a.csv", "-o", "out", "--set", setting]) == 0


def test_a_sweep_of_a_field_that_has_a_value_is_refused(capsys, requests: list[Any]):
    assert main(["finetune", "a.csv", "-o", "out", "--epochs", "2", "--sweep", "epochs=2,3"]) == 2
    assert "epochs is in the sweep" in capsys.readouterr().err


def test_the_learning_rate_of_a_pre_training(monkeypatch: pytest.MonkeyPatch):
    found: list[Any] = []
    monkeypatch.setattr(
        bw, "pretrain", lambda *_, **options: [found.append(options), Event("done", "")][1:]
    )
    assert (
        main(["pretrain", "a.txt", "-o", "out", "--learning-rate", "1e-3", "--set", "seed=1"]) == 0
    )
    assert list(found[0]["overrides"]) == ["seed=1", "optimizer.learning_rate=0.001"]
    assert (
        main(
            [
                "pretrain",
                "a.txt",
                "-o",
                "out",
                "--learning-rate=1",
                "--set",
                "optimizer.learning_rate=1",
            ]
        )
        == 2
    )


def test_values_that_are_not_given_set_nothing():
    assert add_overrides(["seed=1"], {"epochs": None}) == ("seed=1",)


# Names that are nearly right


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([Recipe, FinetuneRecipe]), st.data())
def test_a_field_in_another_table_is_suggested(kind: type, data: st.DataObject):
    paths = list(field_paths(kind))
    counts = Counter(path.rpartition(".")[2] for path in paths)
    path = data.draw(
        st.sampled_from([path for path in paths if counts[path.rpartition(".")[2]] == 1])
    )
    table = data.draw(st.sampled_from(["", "train.", "optimiser.", "nothing.like_it."]))
    assert near_field(kind, table + path.rpartition(".")[2]) == path


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("learning_rate=1e-4", "optimizer.learning_rate"),
        ("lr=1e-4", "optimizer.learning_rate"),
        ("optimiser.learning_rate=1", "optimizer.learning_rate"),
        ("optimizer.epochs=3", "epochs"),
        ("num_train_epochs=3", "epochs"),
        ("per_device_train_batch_size=8", "batch_size"),
        ("warmup_ratio=0.1", "optimizer.warmup"),
        ("optimizer.lerning_rate=1", "optimizer.learning_rate"),
    ],
)
def test_a_setting_that_is_nearly_right(setting: str, meant: str):
    with pytest.raises(UsageError) as error:
        load_finetune_recipe("stable", [setting])
    assert error.value.hint == f"did you mean {meant}?"
    load_finetune_recipe("stable", [f"{meant}=1"])


def test_the_model_is_an_option_of_every_command_that_begins_with_it(
    monkeypatch: pytest.MonkeyPatch,
):
    with_model = [
        name
        for name, value in COMMANDS.items()
        if next(iter(inspect.signature(value).parameters)) == "model"
    ]
    own = {name for name in with_model if COMMANDS[name].__module__ != evaluation.__name__}
    assert {*parser.MODEL_FIRST} == {*own, "evaluate"}
    of_evaluation = {name for name in COMMANDS if COMMANDS[name].__module__ == evaluation.__name__}
    assert of_evaluation - {"ablation"} <= {*with_model}  # that one trains its models
    found: list[Any] = []
    monkeypatch.setattr(
        bw, "fill", lambda *words, **options: found.append((*map(_plain, words), options)) or []
    )
    for words in (
        "m a b -k 2",
        "--model m a b --top-k 2",
        "a --model=m b --top-k 2",
        "a --top-k=2 b --model m",
    ):
        assert main(["fill", *words.split()]) == 0
    assert found == [("m", ["a", "b"], {"k": 2})] * 4


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else list(value)


def test_the_model_of_an_evaluation(monkeypatch: pytest.MonkeyPatch):
    found: list[Any] = []
    monkeypatch.setattr(
        bw, "evaluate_blimp", lambda *words, **_: [found.append(words), Event("done", "")][1:]
    )
    assert main(["evaluate", "blimp", "--data", "d", "--model", "m"]) == main(
        ["evaluate", "blimp", "m", "--data", "d"]
    )
    assert found == [("m", Path("d"))] * 2


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("t5-small", "t5"),
        ("gpt_neo", "gpt-neo"),
        ("Llama-2-7b", "llama"),
        ("funnel-small", "funnel"),
        ("opt-125m", "opt"),
    ],
)
def test_a_name_of_another_family(name: str, family: str):
    with pytest.raises(BertworksError, match=f"the family {family} is not supported yet"):
        resolve_model(name)
    Path(f"{name}-1").mkdir()  # a folder of nearly this name is meant
    with pytest.raises(BertworksError, match="no such model folder") as error:
        resolve_model(name)
    assert error.value.hint == f"did you mean {name}-1?"


@pytest.mark.parametrize("name", ["option", "bertha", "phillips", "gemmary"])
def test_other_names_are_of_no_family(name: str):
    with pytest.raises(BertworksError, match="no such model folder"):
        resolve_model(name)


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("roberta-base", "FacebookAI/roberta-base"),
        ("xlm-roberta-base", "FacebookAI/xlm-roberta-base"),
        ("camembert-base", "almanach/camembert-base"),
        ("gpt2", "openai-community/gpt2"),
        ("distilbert-base-uncased", "distilbert/distilbert-base-uncased"),
        ("xlnet-base-cased", "xlnet/xlnet-base-cased"),
    ],
)
def test_a_name_without_its_owner(name: str, whole: str):
    with pytest.raises(BertworksError) as error:
        resolve_model(name)
    assert error.value.hint == f"did you mean {whole}?"


def test_a_folder_of_another_family():
    folder = write_model(Path("neo"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "gpt_neo"}))
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(BertworksError, match="the family 'gpt_neo' is not supported yet"):
        bw.embed(folder, ["a text"])


# Files and texts


def test_words_that_are_files_and_words_that_are_texts():
    Path("my rows").mkdir()
    for name in ("a.csv", "no suffix", "my rows/b"):
        Path(name).write_text("text\na\n")
        assert file_or_texts([name], []) == name
    assert file_or_texts(["-"], []) == "-"
    for texts in (
        ["A good film."],
        ["What is this?", "It is a town."],
        ["good and/or bad"],
        ["x " * 5000],
    ):
        assert file_or_texts(texts, []) == texts
    assert file_or_texts([], ["a.csv"]) == ["a.csv"]
    assert file_or_texts(["a b"], ["c"]) == ["a b", "c"]


@pytest.mark.parametrize(
    "words",
    [
        ["猫が好きです"],
        ["猫が好きです", "고양이를 좋아해요", "I like cats"],
        ["좋아요", "싫어요"],
        ["はい。"],
        ["と/または"],
        ["schön"],
        ["Great!", "I liked it."],
    ],
)
def test_words_without_white_space_are_texts(words: list[str]):
    assert file_or_texts(words, []) == words


def test_a_word_that_is_read_as_a_text_is_named():
    notes: list[str] = []
    assert file_or_texts(["reviews"], [], notes.append) == ["reviews"]
    assert notes == ['text: "reviews" (no such file)']
    assert file_or_texts(["多謝", "two words"], [], notes.append) == ["多謝", "two words"]
    assert len(notes) == 1


def test_a_word_like_a_name_in_the_folder_is_refused_with_both_options():
    Path("reviews.csv").write_text("text\na\n")
    with pytest.raises(UsageError, match="no such file") as error:
        file_or_texts(["reviews"], [])
    assert "did you mean reviews.csv?" in str(error.value.hint)
    assert str(error.value.hint).endswith("if this is a text: -t reviews")


def test_several_words_may_be_one_text_without_quotes():
    with pytest.raises(UsageError, match="3 words without a space") as error:
        file_or_texts(["I", "like", "it"], [])
    assert error.value.hint == 'one text: "I like it"; several: -t I -t like -t it'


@pytest.mark.parametrize(
    "word",
    [
        "b.csv",
        "my rows.tsv",
        "./in here",
        "rows.jsonl.gz",
        "~/some text",
        "new.cvs",
        "데이터.csv",
        "data/rows",
        "a\\b",
        "What?",
        "*.csv",
        ".hidden",
        "~someone",
    ],
)
def test_what_may_be_a_missing_file_is_no_text(word: str):
    with pytest.raises(UsageError, match=r"no such file|the glob matches nothing") as error:
        file_or_texts([word], [])
    assert shlex.split(str(error.value.hint).rpartition("if this is a text: ")[2]) == ["-t", word]


@pytest.mark.parametrize("words", [["a.csv", "b.csv"], ["a.csv", "a text"], [], ["-", "a text"]])
def test_one_file_or_texts(words: list[str]):
    with pytest.raises(UsageError, match="expected one file"):
        file_or_texts(words, [])


def predictions(*words: object, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["predict", *map(str, words), "--json", "--device", "cpu"]) == 0
    return list(map(json.loads, capsys.readouterr().out.splitlines()))


def test_texts_are_predicted_as_rows_of_a_file(
    classifier: Path, capsys: pytest.CaptureFixture[str]
):
    texts = ["a good film", "a bad film, of the town", "one"]
    Path("a.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    expected = predictions(classifier, "a.jsonl", "--probabilities", capsys=capsys)
    assert (
        predictions(classifier, *texts[:2], "-t", "one", "--probabilities", capsys=capsys)
        == expected
    )
    assert [row["text"] for row in expected] == texts


def test_pairs_and_questions_are_two_texts(capsys: pytest.CaptureFixture[str]):
    pairs = write_head(
        Path("pairs"), task="classification", text=("first", "second"), labels=("no", "yes")
    )
    rows = predictions(pairs, "the old house", "a town", "the river", "-t", "dogs", capsys=capsys)
    assert [(row["first"], row["second"]) for row in rows] == [
        ("the old house", "a town"),
        ("the river", "dogs"),
    ][:2]
    assert main(["predict", str(pairs), "one text", "two texts", "three texts"]) == 2
    assert "reads rows of first and second, and 3 texts are given" in capsys.readouterr().err
    questions = write_head(Path("questions"), task="qa")
    (row,) = predictions(
        questions, "who built it ?", "the dogs of the town built it", capsys=capsys
    )
    (expected,) = bw.load(questions).predict([("who built it ?", "the dogs of the town built it")])
    assert row["predicted_answer"] == expected["answer"]


def test_texts_are_embedded(classifier: Path):
    texts = ["a good film", "the old house"]
    assert main(["embed", str(classifier), *texts, "-o", "v.npy", "--device", "cpu"]) == 0
    np.testing.assert_allclose(
        np.load("v.npy"), bw.embed(classifier, texts, device="cpu"), atol=1e-6
    )


@pytest.mark.parametrize("command", ["explain", "score", "fill"])
def test_the_name_of_a_file_is_no_text(
    command: str, model: Path, capsys: pytest.CaptureFixture[str]
):
    Path("old").write_text("a file")
    for name in ("rows.csv", "old"):
        assert main([command, str(model), name]) == 2
        assert f"{name}: expected a text, not the name of a file" in capsys.readouterr().err


# Files are not replaced


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["predict", "MODEL", "rows.csv", "-o"], "a.csv"),
        (["embed", "MODEL", "rows.csv", "-o"], "a.npy"),
        (["explain", "MODEL", "a text", "-o"], "a.html"),
        (["evaluate", "task", "MODEL", "rows.csv", "-o"], "a.csv"),
        (["evaluate", "blimp", "MODEL", "--data", "pairs.jsonl", "-o"], "a.json"),
        (["evaluate", "squad", "MODEL", "--data", "squad.json", "-o"], "a.json"),
        (["vocab", "text.txt", "--size", "50", "--workers", "1", "-o"], "tokenizer.json"),
    ],
)
def test_no_file_is_replaced_without_overwrite(
    words: list[str], output: str, capsys: pytest.CaptureFixture[str]
):
    Path("rows.csv").write_text("text,label\na good film,pos\na bad film,neg\n")
    Path("text.txt").write_text(
        "the old house stands by the river and the dogs know who built it\n" * 20
    )
    pair = {"sentence_good": "the dogs know", "sentence_bad": "the dogs knows", "UID": "agreement"}
    Path("pairs.jsonl").write_text(json.dumps(pair) + "\n")
    question = {"id": "1", "question": "who ?", "answers": [{"text": "dogs", "answer_start": 4}]}
    paragraphs = [{"context": "the dogs know", "qas": [question]}]
    Path("squad.json").write_text(
        json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})
    )
    if "squad" in words:
        made = write_head(Path("m"), task="qa")
    elif "blimp" in words:
        made = write_model(Path("m"))
    else:
        made = write_head(Path("m"), task="classification", text=("text",), labels=("neg", "pos"))
    words = [str(made) if word == "MODEL" else word for word in words] + [
        "." if "vocab" in words else output
    ]
    if "vocab" in words:
        words[-1] = "out"
        output = f"out/{output}"
        Path("out").mkdir()
    Path(output).write_text("mine")
    assert main(words) == 2
    assert f"{output}: this file already exists" in capsys.readouterr().err
    assert Path(output).read_text() == "mine"
    assert main([*words, "--overwrite"]) == 0
    assert Path(output).read_bytes() != b"mine"


# Ctrl-C


@pytest.mark.parametrize(
    ("words", "goes_on"),
    [
        (["finetune", "it's mine.csv", "-o", "out", "--overwrite", "--epochs", "3"], True),
        (["pretrain", "a.txt", "-o", "out", "--budget", "3m"], True),
        (["prepare", "a.txt", "--tokenizer", "t", "-o", "out"], True),
        (["predict", "m", "a.csv", "--output=out.csv", "--threads", "1"], True),
        (["evaluate", "glue", "--data", "d", "-o", "out"], True),
        (["evaluate", "mlm", "m", "a.txt", "-o", "a"], True),
        (["evaluate", "ablation", "table6", "a.txt", "-o", "out"], True),
        (["vocab", "a.txt", "-o", "out", "--on=local"], True),
        (["convert", "m", "-o", "out", "--static", "9", "--train", "a.txt"], True),
        (["demo"], True),
        (["predict", "m", "a.csv"], False),
        (["convert", "m", "-o", "out", "--static", "9", "--text", "a.txt"], False),
        (["predict", "m", "-", "-o", "out.csv"], False),
        (["pretrain", "a.txt", "-o", "out", "--estimate"], False),
        (["vocab", "a.txt", "-o", "out"], False),
        (["fill", "m", "a [MASK]"], False),
    ],
)
@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_an_interrupted_command_says_how_to_go_on(
    words: list[str], goes_on: bool, error: BaseException, code: int, capsys, monkeypatch
):
    def interrupt(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(parser, "make_app", lambda *_, **__: interrupt)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main(words) == code
    answer = capsys.readouterr().err
    assert answer.startswith("interrupted")
    command = re.search(r"Resume with:\n  bertworks (.*)", answer)
    assert bool(command) is goes_on
    if command:  # --overwrite would start again
        assert shlex.split(command[1]) == [word for word in words if word != "--overwrite"]
    elif "-o" in words:
        assert "nothing was saved" in answer


@pytest.mark.parametrize("command", ["finetune", pytest.param("predict", marks=pytest.mark.slow)])
def test_sigterm_ends_a_command_as_ctrl_c_does(command: str, model: Path, tmp_path: Path):
    write_reviews(tmp_path / "a.csv", 400)
    words = [
        "finetune",
        "a.csv",
        "-o",
        "out",
        "--model",
        str(model),
        "--method",
        "full",
        "--epochs",
        "5000",
    ]
    if command == "predict":
        bw.finetune(
            tmp_path / "a.csv", model=model, method="frozen", output=tmp_path / "m", device="cpu"
        )
        with (tmp_path / "b.csv").open("w") as file:
            file.write("text\n" + "a very good film with some music\n" * 300_000)
        words = ["predict", "m", "b.csv", "-o", "scored.csv"]
    program = [sys.executable, "-c", "from bertworks.cli.main import run; run()", *words]
    with subprocess.Popen(
        program, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        assert process.stderr
        lines = iter(process.stderr.readline, "")
        next(line for line in lines if re.search(r"step +\d|predicted|\d+ rows", line))
        process.send_signal(signal.SIGTERM)
        answer = process.stderr.read()
    assert process.returncode == 143
    assert (
        "interrupted; progress is saved. Resume with:\n  bertworks " + shlex.join(words) in answer
    )
    assert "Traceback" not in answer


# Titles

BODY = "The old house stands by the river.\nThe dogs of the town know who built it.\n"
TITLES = [f"The town number {n}" for n in range(119)]


def documents(path: Path, **options: Any) -> list[str]:
    return [document.text for document in CorpusReader([path], **options)]


@pytest.mark.parametrize("body", [BODY, BODY.replace("\n", " ") * 3 + "\n"])
def test_a_title_and_its_text_are_one_document(body: str):
    path = Path("news.txt")
    path.write_text("".join(f"{title}\n\n{body}\n\n" for title in TITLES))
    found = documents(path)
    assert found == [f"{title}\n{body.strip()}" for title in TITLES]
    assert len(documents(path, documents="blank_line")) == 238
    assert len(documents(path, documents="file")) == 1
    reader = CorpusReader([path])
    assert len(list(reader)) == 119
    assert "a title and its text are a document" in str(reader.report)


def test_documents_without_titles_are_as_before():
    path = Path("text.txt")
    path.write_text(f"{BODY}\n" * 20)
    assert documents(path) == [BODY.strip()] * 20
    # the original BERT's input, with short documents
    path.write_text(f"A sentence.\n\n{BODY}\n" * 20)
    assert len(documents(path)) == 40


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_the_title_of_a_row_comes_before_its_text(kind: str):
    rows = [
        {"id": str(n), "Title": title, "body": BODY.replace("\n", " ").strip()}
        for n, title in enumerate(TITLES)
    ]
    path = Path(f"news.{kind}")
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        path.write_text("id,Title,body\n" + "".join(",".join(row.values()) + "\n" for row in rows))
    assert documents(path) == [f"{row['Title']}\n{row['body']}" for row in rows]
    assert documents(path, text_column="body") == [row["body"] for row in rows]


def test_odd_titles(tmp_path: Path):
    rows = [
        {"title": None, "text": "A text of some length."},
        {"title": 1984, "text": "Another text of some length."},
        {"title": "Twice", "text": "Twice\nA text that begins with its title."},
        {"title": "Alone", "text": ""},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert documents(path) == [row["text"] for row in rows[:3]]
