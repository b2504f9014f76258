"""Scores of sentences: as transformers gives them one token at a time, whatever is computed
together; and BLiMP."""

import gzip
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bertworks.checkpoints.model_folder import load_model, save_model
from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.evaluate import evaluate_blimp
from bertworks.inference.masked_lm import Score, is_better, score
from tests.support.fine import tokenizer, write_model

SENTENCES = [
    "the film was good",
    "the storytown was heardless .",
    "men",
    "a good film , last night ?",
    "dogs dogs dogs",
]


@pytest.fixture(scope="module")
def theirs(model: Path) -> transformers.BertForMaskedLM:
    return transformers.BertForMaskedLM.from_pretrained(model).eval()


def one_by_one(
    theirs: transformers.BertForMaskedLM, ids: list[int], within_word: bool = False
) -> list[float]:
    """Everything written out: a row for each token, and for each the whole vocabulary."""
    t, rows = tokenizer(), []
    for place in range(len(ids)):
        hidden = list(ids)
        hidden[place] = t.mask_id
        while (
            within_word
            and (place := place + 1) < len(ids)
            and t.tokens[ids[place]].startswith("##")
        ):
            hidden[place] = t.mask_id
        rows.append([t.cls_id, *hidden, t.sep_id])
    with torch.no_grad():
        logits = theirs(torch.tensor(rows)).logits
    return [float(logits[n, n + 1].log_softmax(-1)[wanted]) for n, wanted in enumerate(ids)]


@pytest.mark.parametrize("within_word", [False, True])
def test_the_same_as_transformers_one_token_at_a_time(
    within_word: bool, model: Path, theirs: transformers.BertForMaskedLM
):
    t, pieces = tokenizer(), 0
    for sentence, found in zip(
        SENTENCES, score(model, SENTENCES, within_word=within_word), strict=True
    ):
        ids = t.ids([sentence])[0]
        expected = one_by_one(theirs, ids, within_word)
        assert found["text"] == sentence
        assert found["tokens"] == [t.tokens[n] for n in ids]
        assert found["log_probabilities"] == pytest.approx(expected, abs=1e-4)
        assert found["score"] == pytest.approx(sum(expected), abs=1e-3)
        pieces += sum(token.startswith("##") for token in found["tokens"])
    assert pieces > 5, "no word of several pieces was tested"


def test_hiding_the_rest_of_a_word_changes_words_of_several_pieces_alone(model: Path):
    for plain, hidden in zip(
        score(model, SENTENCES), score(model, SENTENCES, within_word=True), strict=True
    ):
        same = [
            a == pytest.approx(b, abs=1e-5)
            for a, b in zip(plain["log_probabilities"], hidden["log_probabilities"])
        ]
        last = [not following.startswith("##") for following in [*plain["tokens"][1:], "."]]
        assert same == last


def test_neighbours_do_not_matter(model: Path):
    together = list(score(model, SENTENCES * 3))
    alone = [found for sentence in SENTENCES * 3 for found in score(model, [sentence])]
    for one, other in zip(together, alone, strict=True):
        assert one["tokens"] == other["tokens"]
        assert one["log_probabilities"] == pytest.approx(other["log_probabilities"], abs=1e-5)


def test_small_groups_are_the_same_as_large_ones(model: Path, monkeypatch: pytest.MonkeyPatch):
    expected = list(score(model, SENTENCES))
    monkeypatch.setattr("bertworks.inference.masked_lm.COPIES", 1)
    monkeypatch.setattr("bertworks.inference.masked_lm.AT_ONCE", 2)
    monkeypatch.setattr("bertworks.inference.engine.MAX_SCORES", 1)
    for one, other in zip(expected, score(model, iter(SENTENCES)), strict=True):
        assert one["log_probabilities"] == pytest.approx(other["log_probabilities"], abs=1e-5)


def test_a_sentence_longer_than_the_model_reads(model: Path, theirs: transformers.BertForMaskedLM):
    t = tokenizer()
    words = ("the men heard a story of good dogs in this town " * 10).split()
    (found,) = score(model, [" ".join(words)])
    ids = t.ids([" ".join(words)])[0]
    assert len(ids) > 64 == t.model_max_length
    assert len(found["log_probabilities"]) == len(ids)
    for place in (0, 40, len(ids) - 1):
        begin = min(max(0, place - 30), len(ids) - 62)
        part = ids[begin : begin + 62]
        assert found["log_probabilities"][place] == pytest.approx(
            one_by_one(theirs, part)[place - begin], abs=1e-4
        )


def test_text_is_only_text(model: Path):
    (found,) = score(model, ["the [MASK] [SEP]"])
    assert "[MASK]" not in found["tokens"]
    assert "[SEP]" not in found["tokens"]
    assert all(
        len(one["tokens"]) > 0 for one in score(model, ["日本", "🦊", "a \ud800", "e\u0301"])
    )


@pytest.mark.parametrize("empty", ["", " ", "\n", "\u200b"])
def test_nothing_to_score(empty: str, model: Path):
    with pytest.raises(BertworksError, match="sentence 2 has no tokens"):
        list(score(model, ["good", empty]))


def test_a_model_without_the_head(model: Path, tmp_path: Path):
    with pytest.raises(BertworksError, match="no lm_head"):
        list(score(headless(model, tmp_path / "body"), ["good"]))


def headless(model: Path, folder: Path) -> Path:
    config, state, t = load_model(model)
    body = {name: value for name, value in state.items() if name.startswith("encoder.")}
    save_model(folder, body, config, t, card="body")
    return folder


def test_the_command(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stdin", io.StringIO("the film was good\nmen\u2028dogs\n"))
    assert main(["score", str(model), "-", "a good film", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.strip().split("\n")]
    assert [line["text"] for line in lines] == ["the film was good", "men\u2028dogs", "a good film"]
    assert main(["score", str(model), "the film was good", "men"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].split()[0] == f"{next(score(model, ['the film was good']))['score']:.2f}"
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO(b"men \xff dogs\r\n"), encoding="ascii")
    )
    assert main(["score", str(model), "-", "a \udcff man", "--json"]) == 0
    lines = capsys.readouterr().out.strip().split("\n")
    assert [json.loads(line)["text"] for line in lines] == ["men \ufffd dogs", "a ? man"]
    assert main(["score", str(model), ""]) == 1
    assert "no tokens" in capsys.readouterr().err


# --- BLiMP

PAIRS = [
    ("dogs heard men", "men heard dogs"),
    ("the film was good", "the good was film"),
    ("a man", "man a"),
    ("in this town", "this in town"),
]


def write_pairs(path: Path, copies: int = 1, paradigms: int = 2) -> Path:
    rows = [
        {
            "sentence_good": good,
            "sentence_bad": bad,
            "UID": f"p{number % paradigms}",
            "linguistics_term": "order",
        }
        for number, (good, bad) in enumerate(PAIRS * copies)
    ]
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def result(*arguments: Any, **options: Any) -> dict[str, Any]:
    *_, last = evaluate_blimp(*arguments, **options)
    assert last.kind == "done"
    return last.fields


def constant(model: Path, folder: Path) -> Path:
    """A model that finds every word equally likely."""
    config, state, t = load_model(model)
    save_model(
        folder,
        {name: torch.zeros_like(value) for name, value in state.items()},
        config,
        t,
        card="nothing",
    )
    return folder


def test_the_figures_are_those_of_the_scores(model: Path, tmp_path: Path):
    found = result(model, write_pairs(tmp_path / "b.jsonl.gz"), output=tmp_path / "r.json")
    flat = [s["score"] for s in score(model, [sentence for pair in PAIRS for sentence in pair])]
    right = [good > bad for good, bad in zip(flat[::2], flat[1::2], strict=True)]
    assert found["paradigms"]["p0"] == {
        "accuracy": (right[0] + right[2]) / 2,
        "pairs": 2,
        "phenomenon": "order",
    }
    assert found["paradigms"]["p1"]["accuracy"] == (right[1] + right[3]) / 2
    assert found["mean"] == found["phenomena"]["order"] == sum(right) / 4
    assert found == json.loads((tmp_path / "r.json").read_text())


def test_a_constant_model_scores_nothing(model: Path, tmp_path: Path):
    data = write_pairs(tmp_path / "b.jsonl", copies=40)
    assert result(constant(model, tmp_path / "zero"), data)["mean"] == 0


def test_what_is_the_same_to_the_model_is_a_tie():
    one = Score(text="a", score=-1.0, tokens=["x"], log_probabilities=[-1.0])
    assert not is_better(one, {**one, "text": "b", "score": -1.0000001})
    assert not is_better(one, {**one, "tokens": ["y"]})
    assert is_better(one, {**one, "tokens": ["y"], "score": -1.1})


def test_a_sample_is_always_the_same_and_part_of_a_larger_one(
    model: Path, tmp_path: Path, monkeypatch
):
    data = write_pairs(tmp_path / "b.jsonl", copies=20)
    seen: list[list[str]] = []

    def scored(_: Any, sentences: Any, **__: Any) -> Any:
        seen.append(list(sentences))
        return iter([Score(text=s, score=0.0, tokens=[s], log_probabilities=[]) for s in seen[-1]])

    monkeypatch.setattr("bertworks.evaluation.evaluate.score", scored)
    for sample, pairs in ((3, 6), (3, 6), (5, 10), (0, 80), (1000, 80)):
        found = result(model, data, sample=sample)
        assert (found["pairs"], found["mean"]) == (pairs, 0)
        assert len(seen[-1]) == 2 * pairs
    assert seen[0] == seen[1]
    assert seen[0][:6] == seen[2][:6]


def test_a_folder_of_files_as_blimp_is_published(model: Path, tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(
            json.dumps({"sentence_good": "a man", "sentence_bad": "man a", "UID": name}) + "\n"
        )
    assert set(result(model, tmp_path)["paradigms"]) == {"a", "b"}


def test_bad_pairs(model: Path, tmp_path: Path):
    (tmp_path / "b.jsonl").write_text('{"sentence_good": "a", "UID": "x"}\n')
    with pytest.raises(BertworksError, match="sentence_bad") as raised:
        result(model, tmp_path / "b.jsonl")
    assert "b.jsonl:1" in str(raised.value)
    with pytest.raises(UsageError, match="-1"):
        result(model, tmp_path / "b.jsonl", sample=-1)
    (tmp_path / "none").mkdir()
    with pytest.raises(BertworksError, match="no pairs"):
        result(model, tmp_path / "none")


def test_the_table(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = write_pairs(tmp_path / "b.jsonl.gz")
    assert (
        main(["evaluate", "blimp", str(model), "--data", str(data), "-o", str(tmp_path / "r.json")])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["order", "p0", "p1", "mean"]
    assert json.loads((tmp_path / "r.json").read_text())["pairs"] == 4


def test_the_real_pairs(data_folder: Path, tmp_path: Path):
    """One pair of each of the 67 paradigms. Their files name 13 terms; the paper counts s-selection
    with argument structure."""
    model = write_model(tmp_path / "tiny")
    found = result(model, data_folder / "blimp" / "blimp.jsonl.gz", sample=1)
    assert (len(found["paradigms"]), len(found["phenomena"]), found["pairs"]) == (67, 13, 67)
    shutil.rmtree(model)
