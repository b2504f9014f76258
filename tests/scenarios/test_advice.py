"""Advice that is no error: warnings about data and vocabularies, budgets, and what comes next."""

import importlib.metadata
import importlib.util
import json
import re
import shlex
import shutil
import tomllib
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import bertworks
from bertworks.checkpoints.model_folder import save_model
from bertworks.config import override
from bertworks.demo.tour import _next_steps
from bertworks.diagnostics import doctor
from bertworks.errors import BertworksError
from bertworks.events import Event
from bertworks.models.config import EncoderConfig
from bertworks.text.vocabulary import train_vocabulary
from bertworks.training.budget import Measurement, fit_steps
from bertworks.training.objectives import PretrainingModel
from bertworks.training.recipe import load_recipe
from tests.support import ROOT
from tests.support.fine import write_reviews
from tests.support.served import write_head
from tests.support.shell import Shell
from tests.support.tables import (
    FAST,
    SENTENCE,
    read_table as answers,
    write_table as table,
    write_text,
)


@pytest.fixture
def text(shell: Shell) -> Path:
    return write_text(Path("my text.txt"))


@pytest.fixture
def tokenizer(shell: Shell, text: Path) -> Path:
    shell.works("vocab", text, "-o", "my tokenizer", "--size", "200", "--workers", "1")
    return Path("my tokenizer")


@pytest.fixture
def classifier(shell: Shell) -> Path:
    return write_head(
        Path("my classifier"), task="classification", text=("text",), labels=("neg", "pos")
    )


def test_texts_that_are_formulas(shell: Shell, classifier: Path) -> None:
    data = table("a.csv", ("text",), ('=HYPERLINK("http://a.example")',), ("a good film",))
    answer = shell.works("predict", classifier, data, "-o", "out.csv")
    option = shell.shows(answer, "--guard-formulas prefixes them with '").split()[0]
    assert answers("out.csv")[0]["text"] == answers(data)[0]["text"]
    assert option not in shell.works("predict", classifier, data, "-o", "safe.csv", option)
    assert [row["text"] for row in answers("safe.csv")] == [
        '\'=HYPERLINK("http://a.example")',
        "a good film",
    ]


def test_labels_in_two_spellings(shell: Shell, model: Path) -> None:
    rows = [(f"a film {n}", ("pos", "neg", "Pos", "pos")[n % 4]) for n in range(60)]
    data = table("d.csv", ("text", "label"), *rows)
    answer = shell.works("check", data, "--model", model)
    warning = (
        "labels that differ only in case, width or spaces are different classes: {}; to "
        "merge them: --join-labels"
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


def test_warnings_about_data(shell: Shell, model: Path) -> None:
    rows = [
        ("text", "label"),
        *((f"ein Zug fährt {n}", "ja" if n % 9 else "nein") for n in range(90)),
    ]
    data = table("d.csv", *rows)
    answer = shell.works("check", data, "--model", model)
    advice = shell.shows(
        answer,
        "{} is {} times as frequent as {}: a model that always predicts {} has an accuracy of {}; "
        "look at macro F1, and try --set class_weights=balanced",
    )
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
    shell.shows(answer, "the model's vocabulary does not fit these texts ({} tokens per word,")
    write_german(Path("german"), [row[0] for row in rows])
    assert "does not fit these texts" not in shell.works("check", data, "--model", "german")


def test_a_model_that_drops_vowel_signs(shell: Shell) -> None:
    sentence = "\u0939\u093f\u0928\u094d\u0926\u0940 \u0906\u091c"
    data = table(
        "d.csv",
        ("text", "label"),
        *((f"{sentence} {n}", "ja" if n % 2 else "nein") for n in range(90)),
    )
    texts = [f"{sentence} {' '.join(map(str, range(90)))}"]
    write_german(Path("stripping"), texts, strip_accents=True)
    answer = shell.works("check", data, "--model", "stripping")
    shell.shows(
        answer,
        "the model reads {} as {}: it drops diacritics that distinguish letters in this language",
    )
    write_german(Path("keeping"), texts)
    assert "drops diacritics" not in shell.works("check", data, "--model", "keeping")


def test_a_vocabulary_that_lacks_words(shell: Shell) -> None:
    Path("t.txt").write_text("\n\n".join([f"the cat sat on {'abc' * 40}"] * 40))
    answer = shell.works("vocab", "t.txt", "-o", "words", "--size", "300")
    shell.shows(
        answer, "characters that the vocabulary lacks; --algorithm bpe has no unknown tokens"
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


def test_after_the_demo(
    shell: Shell, model: Path, text: Path, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = Path("it's a demo")
    shutil.copytree(model, str(demo / "model"))
    shutil.copytree(classifier, str(demo / "classifier"))
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
    assert json.loads(Path("mine/task.json").read_text())["labels"] == ["neg", "pos"]


def test_warnings_about_a_vocabulary(shell: Shell, tokenizer: Path, text: Path) -> None:
    lines = [
        f"das große Haus überquert täglich zwölf Brücken {word}."
        for word in ("süß", "schön", "grün", "größer")
    ]
    Path("german.txt").write_text("\n\n".join(lines * 20))
    backwards = " ".join(word[::-1] for word in SENTENCE.split())
    Path("backwards.txt").write_text("\n\n".join([f"{backwards}. {backwards}."] * 20))
    for name, end in (
        ("german.txt", "build one from it with `bertworks vocab`"),
        ("backwards.txt", "build one with `bertworks vocab`"),
    ):
        answer = shell.works(
            "prepare", name, "--tokenizer", tokenizer, "--workers", 1, "-o", f"shards of {name}"
        )
        assert end in " ".join(answer.split())
    shell.works("vocab", "german.txt", "-o", "german", "--size", "300")
    answer = shell.works(
        "prepare", "german.txt", "--tokenizer", "german", "--workers", 1, "-o", "shards 2"
    )
    assert "bertworks vocab" not in answer


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
        advice = shell.shows(answer, "{}. Suggested: --budget {}m ({} steps){}")
        longer = re.search(r"--budget \d+m", advice)[0].split()  # type: ignore[index]
        assert "allows only" not in shell.works(*words, "--recipe", recipe, *longer)
        family = re.search(r"--recipe \w+", shell.shows(answer, smaller))[0].split()  # type: ignore[index]
        answer = shell.works(*words, *family, "--budget", "60m")
        assert title in answer
        assert "allows only" not in answer
    # A budget does not choose the size of a network with a memory.
    answer = shell.works(*words, "--recipe", "transformer-xl-base", "--budget", "3m")
    assert "; or --recipe transformer-xl-small: a smaller model\n" in answer
    answer = shell.works(*words, "--recipe", "transformer-xl-small", "--budget", "3m")
    assert "allows only" in answer
    assert "; or --recipe" not in answer


def extras() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return dict(project["optional-dependencies"])


def test_packages_that_are_missing(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    version, needed = importlib.metadata.version, next(doctor()).fields

    def missing(name: str) -> str:
        if name in needed:
            return version(name)
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    looked_for = tomllib.loads((ROOT / "bertworks/diagnostics.toml").read_text())["extras"]
    checks = list(islice(doctor(), 1, 1 + len(looked_for)))
    for check, name in zip(checks, looked_for, strict=True):
        advice = shell.shows(
            check.text, '{} is not installed; {} need it: pip install "bertworks[{}]"'
        )
        assert any(
            requirement.startswith(name)
            for requirement in extras()[re.search(r"\[(\w+)\]", advice)[1]]
        )  # type: ignore[index]
    code = "\n".join(path.read_text() for path in (ROOT / "bertworks").rglob("*.py"))
    assert set(re.findall(r"bertworks\[(\w+)\]", code)) <= set(extras())


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
