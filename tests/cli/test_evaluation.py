"""Commands that evaluate: what they refuse, and what they print."""

import math
from pathlib import Path

import pytest

from tests.support.fine import write_squad
from tests.support.served import write_head
from tests.support.shell import Shell
from tests.support.tables import write_table


@pytest.fixture
def classifier(shell: Shell) -> Path:
    return write_head(
        Path("classifier"), task="classification", text=("text",), labels=("ham", "junk mail")
    )


def test_answers_of_a_model_without_questions(classifier: Path, shell: Shell):
    data = write_squad(Path("d.json"), 12)
    shell.refuses(
        ["evaluate", "squad", "--data", data, "--model", classifier],
        "this model was fine-tuned for classification, not for answering questions",
        "fine-tune one: bertworks finetune TRAIN.json --dev DEV.json -o FOLDER",
    )
    shell.refuses(
        ["evaluate", "squad", "--data", data],
        "expected either a file of answers or a model",
        "give --predictions or --model",
    )


def test_the_class_whose_f1_is_reported(classifier: Path, shell: Shell):
    data = write_table(
        "mail.csv", ("text", "label"), ("a film", "ham"), ("a bad film", "junk mail")
    )
    words = ["evaluate", "task", classifier, data]
    assert "F1 of 'junk mail'" in shell.works(*words)
    assert "F1 of 'ham'" in shell.works(*words, "--positive", "ham")
    shell.refuses(
        [*words, "--positive", "spam"], "spam", "--positive ham or --positive 'junk mail'"
    )


def test_what_an_evaluation_leaves_out_is_said(classifier: Path, shell: Shell):
    data = write_table(
        "mail.csv", ("text", "label"), ("a film " * 100, "ham"), (" ", "ham"), ("bad", "junk mail")
    )
    answer = shell.works("evaluate", "task", classifier, data)
    assert "the scores are for the truncated texts" in answer
    assert "rows without text, left out: 1" in answer
    assert "2 rows: " in answer


def test_figures_of_a_masked_lm_are_a_table(model: Path, shell: Shell):
    Path("text.txt").write_text("a good film\nthe dogs are sad\n" * 20)
    answer = shell.works("evaluate", "mlm", model, "text.txt")
    rows = dict(line.split() for line in answer.splitlines() if len(line.split()) == 2)
    assert math.log(float(rows["masked_lm_perplexity"])) == pytest.approx(
        float(rows["masked_lm_loss"]), abs=1e-3
    )
