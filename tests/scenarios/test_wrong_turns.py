"""The turns at which six kinds of new users went wrong in their first hour, typed again.

A turn is right if what was typed does what its user wanted. A refusal that names the way out costs
another try: it is a wrong turn as well. WRONG lists those that are left, with the way out.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertworks.text.corpus import CorpusReader
from tests.support.fine import write_model, write_reviews
from tests.support.served import Local, write_head
from tests.support.shell import Shell
from tests.support.tiny import write_corpus, write_pretrained
from tests.training.test_objectives import TINY

WRONG = {
    "a table has cells N/A in its label column": "hint: .*--missing",
    "masked tokens are predicted by an ELECTRA": "hint: its generator has one",
}
MOST_WRONG = 3
Turn = Callable[[Shell, pytest.MonkeyPatch], Any]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def classifier(text: str = "question") -> Path:
    """Return a tiny model for classification."""
    return write_head(Path("m"), task="classification", text=(text,), labels=("neg", "pos"))


# A data scientist with a table


def missing_cells(shell: Shell, _: pytest.MonkeyPatch) -> None:
    text = write_reviews(Path("tickets.csv"), 60).read_text()
    Path("tickets.csv").write_text(text.replace(",pos", ",N/A", 2))
    shell.works("check", "tickets.csv")


def evaluation_without_a_subcommand(shell: Shell, _: pytest.MonkeyPatch) -> None:
    write_reviews(Path("test.csv"), 20)
    assert "accuracy" in shell.works("evaluate", classifier("text"), "test.csv")


def short_name_of_the_port(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "bertworks.serve.server.serve", lambda *_, **options: served.append(options) or []
    )
    shell.works("serve", classifier(), "-p", "8080")
    assert served[0]["port"] == 8080


# The owner of a domain's text


def documents_between_blank_lines(_: Shell, __: pytest.MonkeyPatch) -> None:
    abstract = "A study of the flow of air around a thin wing at high speed, with new results. "
    Path("domain.txt").write_text("\n\n".join(f"{abstract * 12}{n}" for n in range(1300)) + "\n")
    assert len(list(CorpusReader([Path("domain.txt")]))) == 1300


def a_model_without_a_masked_lm_head(shell: Shell, _: pytest.MonkeyPatch) -> None:
    encoder = classifier()
    corpus = write_corpus(Path("text.jsonl"))
    answer = shell.works("pretrain", corpus, "-o", "adapted", "--init", encoder, "--budget", "20s")
    assert "Models that have one: " in answer


def judgments_beside_the_documents(shell: Shell, _: pytest.MonkeyPatch) -> None:
    folder = Path("abstracts")
    folder.mkdir()
    texts = {"d1": "the wing", "d2": "the boundary layer", "d3": "heat"}
    rows = [json.dumps({"_id": name, "text": text}) for name, text in texts.items()]
    (folder / "corpus.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "wing"}\n')
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    assert "ndcg@10" in shell.works(
        "evaluate", "retrieval", write_model(Path("m")), "--data", folder
    )


# A teacher


def a_budget_of_a_minute(recipe: str) -> Turn:
    def turn(shell: Shell, _: pytest.MonkeyPatch) -> None:
        words = ("--recipe", recipe, "--budget", "20s", "--device", "cpu")
        text = "".join(f"The {n}th text is about rivers and towns.\n\n" for n in range(900))
        Path("wiki.txt").write_text(text)
        shell.works("pretrain", "wiki.txt", "-o", "mymodel", *words, "--documents", "blank_line")
        assert (Path("mymodel") / "model.safetensors").exists()

    return turn


def masked_tokens_of_an_electra(shell: Shell, _: pytest.MonkeyPatch) -> None:
    Path("trained").mkdir()
    folder = write_pretrained(Path("trained"), *TINY)
    assert "%" in shell.works("fill", folder, "the [MASK] of a town")


# An integrator


def an_export_again(shell: Shell, _: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    model = classifier()
    for words in ((), ("--overwrite",)):
        shell.works("export", model, "-o", "onnx", *words)


def a_request_of_curl(_: Shell, __: pytest.MonkeyPatch) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    with Local(classifier()) as local:
        answer = local.send("POST", "/predict", content=b'{"inputs": "a film"}', headers=headers)
    assert answer.status_code == 200


def a_quiet_command(shell: Shell, _: pytest.MonkeyPatch) -> None:
    answer = shell.works("predict", classifier(), "a good film", "--quiet", "--device", "cpu")
    assert len(answer.splitlines()) == 1


# Users of Japanese and Korean


def embeddings_of_words_without_spaces(shell: Shell, _: pytest.MonkeyPatch) -> None:
    words = ("猫が好きです", "고양이를", "-o", "v.npy", "--device", "cpu")
    shell.works("embed", write_model(Path("m")), *words)
    assert len(np.load("v.npy")) == 2


def a_prediction_of_one_word(shell: Shell, _: pytest.MonkeyPatch) -> None:
    assert "%" in shell.works("predict", classifier(), "좋아요", "--device", "cpu")


def a_column_by_its_number(shell: Shell, _: pytest.MonkeyPatch) -> None:
    rows = [f"{n}\t{'나쁜' if n % 2 else '좋은'} 영화 {n}\t{n % 2}\n" for n in range(40)]
    Path("pn.tsv").write_text("".join(rows))
    words = ("--no-header", "--text", "2", "--label", "3", "--model", write_model(Path("m")))
    shell.works("check", "pn.tsv", *words)


def a_label_within_an_object(shell: Shell, _: pytest.MonkeyPatch) -> None:
    rows = [
        {"sentence1": f"a {n}", "sentence2": f"b {n}", "labels": {"label": n % 6 / 1.2, "n": 7}}
        for n in range(60)
    ]
    Path("sts.json").write_text(json.dumps(rows))
    words = ("--label", "labels.label", "--model", write_model(Path("m")))
    assert "regression" in shell.works("check", "sts.json", *words)


def comments_in_a_file_of_tags(shell: Shell, _: pytest.MonkeyPatch) -> None:
    sentence = "## a sentence of two words and more of them\nSeoul\tB-LC\nis\tO\nlarge\tO\n\n"
    Path("kner.tsv").write_text(sentence * 40)
    assert "tagging" in shell.works("check", "kner.tsv", "--model", write_model(Path("m")))


def a_vocabulary_larger_than_the_text(shell: Shell, _: pytest.MonkeyPatch) -> None:
    lines = [f"서울의 {n} 번째 문장은 강과 도시에 대한 것이다.\n" for n in range(200)]
    with gzip.open("ko.txt.gz", "wt") as file:
        file.write("".join(lines))
    shell.works("vocab", "ko.txt.gz", "-o", "t.json", "--size", "8000", "--workers", "1")
    assert Path("t.json").exists()


TURNS: dict[str, Turn] = {
    "a table has cells N/A in its label column": missing_cells,
    "a model is evaluated without a subcommand": evaluation_without_a_subcommand,
    "the port of a server is -p": short_name_of_the_port,
    "abstracts stand between blank lines": documents_between_blank_lines,
    "a domain is learned from a model without a masked LM head": a_model_without_a_masked_lm_head,
    "relevance judgments are beside the documents": judgments_beside_the_documents,
    "RoBERTa in a short budget": a_budget_of_a_minute("roberta"),
    "GPT-2 in a short budget": a_budget_of_a_minute("gpt2"),
    "ELECTRA in a short budget": a_budget_of_a_minute("electra"),
    "masked tokens are predicted by an ELECTRA": masked_tokens_of_an_electra,
    "an export is repeated": an_export_again,
    "curl sends a request": a_request_of_curl,
    "a command is quiet": a_quiet_command,
    "Japanese and Korean are embedded": embeddings_of_words_without_spaces,
    "a Korean word is classified": a_prediction_of_one_word,
    "a column is named by its number": a_column_by_its_number,
    "a label is within an object": a_label_within_an_object,
    "a file of tags has comments": comments_in_a_file_of_tags,
    "a vocabulary is larger than the text needs": a_vocabulary_larger_than_the_text,
}
SLOW = [name for name in TURNS if name.endswith("in a short budget") or "domain" in name]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in TURNS],
)
def test_a_turn_is_right_unless_it_is_known_to_be_wrong(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(capsys)
    if name not in WRONG:
        TURNS[name](shell, monkeypatch)
        return
    with pytest.raises(AssertionError, match=WRONG[name]):
        TURNS[name](shell, monkeypatch)


def test_few_turns_are_wrong() -> None:
    assert len(TURNS) == 19
    assert WRONG.keys() <= TURNS.keys()
    assert len(WRONG) <= MOST_WRONG
