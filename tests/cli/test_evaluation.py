"""Commands that evaluate: what they refuse, and what they print."""

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
