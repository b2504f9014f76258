"""Tagging from file to file: schemes, CoNLL columns in and out, raw texts, documents; thresholds;
memory."""

import csv
import gzip
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from bertworks.datasets.annotations import ConllLayout, tag_scheme, with_tags
from bertworks.datasets.schema import Item
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.evaluate import evaluate_task
from bertworks.events import Event
from bertworks.inference.predictor import Predictor, predict_file
from bertworks.io.atomic_write import folder_lock
from bertworks.io.file_job import FileJob, Portion, compute_file, unpacked_values
from bertworks.io.options import Bulk, ReadOptions
from bertworks.runs.finetune import finetune_events, make_finetune_request
from tests.support.fine import (
    FILLER,
    PEOPLE,
    PLACES,
    tokenizer,
    write_conll,
    write_multilabel,
    write_reviews,
)
from tests.support.schemes import Scheme, convert_tags, tag_spans, tagging
from tests.support.tasks import featurizer

FAST = ("optimizer.learning_rate=2e-3", "epochs=8", "patience=0", "precision=fp32")
TAGS = ["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in ("person", "place"))]


@pytest.fixture(scope="module")
def tagger(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finds people and places, each one word."""
    folder = tmp_path_factory.mktemp("tagger")
    run(write_conll(folder / "names.conll"), folder / "out", model)
    return folder / "out"


def run(data: Path, output: Path, model: Path, *, overrides: tuple[str, ...] = FAST) -> Event:
    request = make_finetune_request(
        data, model=model, overrides=overrides, method="full", validation="split"
    )
    *_, last = finetune_events(output, request, device="cpu")
    return last


def predicted(tagger: Path, data: Path, output: Path, **options: object) -> tuple[list[str], Event]:
    *_, done = predict_file(tagger, data, output, device="cpu", **options)
    return output.read_text().split("\n"), done


# --- schemes
# --------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.sampled_from([*TAGS, "B", "I", "E", "S", "I-a-b"]), max_size=12))
def test_entities_are_those_of_seqeval_in_every_scheme(tags: list[str]) -> None:
    assert [(kind, start, end - 1) for start, end, kind in tag_spans(tags)] == get_entities(tags)


def test_parts_of_speech_are_no_entities() -> None:
    assert tag_scheme(tuple(TAGS))
    assert tag_scheme(("B", "I", "O"))
    assert tag_scheme(("O", "NOUN")) is None


def write_names(path: Path, scheme: Scheme, count: int = 150) -> list[list[str]]:
    """Sentences with entities of one word, of two, and two that touch."""
    draw = random.Random(7)
    found = []
    with path.open("w") as file:
        for _ in range(count):
            words = draw.choices(FILLER, k=4)
            tags = ["O"] * 4
            words += draw.choice(
                [[draw.choice(PEOPLE)], draw.sample(PEOPLE, 2), draw.sample(PLACES, 2)]
            )
            tags += (
                ["B-place", "B-place"]
                if words[-1] in PLACES
                else ["B-person", "I-person"][: len(words) - 4]
            )
            found.append(convert_tags([*tags, "O"], scheme))
            for word, tag in zip([*words, "in"], found[-1], strict=True):
                file.write(f"{word} NNP {tag}\n")
            file.write("\n")
    return found


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES", "BILOU", "BMES"])
def test_a_scheme_is_kept_and_scored_as_every_other(
    scheme: Scheme, model: Path, tmp_path: Path
) -> None:
    gold = write_names(tmp_path / "names.conll", scheme)
    done = run(tmp_path / "names.conll", tmp_path / "out", model)
    assert done.fields["score"] >= 0.9
    lines, _ = predicted(tmp_path / "out", tmp_path / "names.conll", tmp_path / "tagged.conll")
    sentences = [
        [line.split(" ")[3] for line in part.split("\n")]
        for part in "\n".join(lines).strip().split("\n\n")
    ]
    labels = {
        "IOB1": {"B-place", "I-place", "I-person"},
        "IOB2": {"B-place", "B-person", "I-person"},
        "BIOES": {"S-place", "S-person", "B-person", "E-person"},
        "BILOU": {"U-place", "U-person", "B-person", "L-person"},
        "BMES": {"S-place", "S-person", "B-person", "E-person"},
    }[scheme]
    assert {tag for tags in sentences for tag in tags} == {*labels, "O"}
    figures = tagging(gold, sentences)
    assert figures["f1"] >= 0.9
    others = [[convert_tags(tags, "IOB2") for tags in part] for part in (gold, sentences)]
    for name in ("precision", "recall", "f1"):
        assert tagging(*others)[name] == figures[name]
    (answer,) = Predictor(tmp_path / "out", device="cpu").predict(["the film was a Anna Boris in"])
    assert [(entity["type"], entity["text"]) for entity in answer["entities"]] == [
        ("person", "Anna Boris")
    ]


# --- CoNLL out
# --------------------------------------------------------------------------------------------------


def test_a_conll_file_gets_one_more_column_and_keeps_the_rest(tagger: Path, tmp_path: Path) -> None:
    text = (
        "-DOCSTART- -X- O\n\nAnna NNP B-person\nwas VBD O\n\n\nLima  NNP  B-place\r\n \n"
        "-DOCSTART- -X- O\n\nin IN O\nOslo NNP O"
    )
    (tmp_path / "a.conll").write_bytes(text.encode())
    *_, done = predict_file(tagger, tmp_path / "a.conll", tmp_path / "b.conll.gz", device="cpu")
    assert done.fields["rows"] == 3
    *_, _ = predict_file(
        tagger, tmp_path / "a.conll", tmp_path / "b.txt", device="cpu", kind="conll"
    )
    expected = (
        "-DOCSTART- -X- O O\n\nAnna NNP B-person B-person\nwas VBD O O\n\n\n"
        "Lima  NNP  B-place B-place\r\n \n"
        "-DOCSTART- -X- O O\n\nin IN O O\nOslo NNP O B-place\n"
    )
    assert (tmp_path / "b.txt").read_bytes().decode() == expected
    assert gzip.decompress((tmp_path / "b.conll.gz").read_bytes()).decode() == expected


def test_tabs_stay_tabs_and_words_alone_get_their_tags(tagger: Path, tmp_path: Path) -> None:
    lines = ["-DOCSTART-", "", "a b\tO", "\r", "c\tO\r"]
    assert list(with_tags(lines, ["X", "Y"], ConllLayout(2, 0, 1))) == [
        "-DOCSTART-",
        "",
        "a b\tO\tX",
        "\r",
        "c\tO\tY\r",
    ]
    (tmp_path / "words.conll").write_text("the\nfilm\n\nClara\n")
    lines, _ = predicted(tagger, tmp_path / "words.conll", tmp_path / "out.conll")
    assert lines == ["the O", "film O", "", "Clara B-person", ""]


def test_other_files_become_words_and_tags(tagger: Path, tmp_path: Path) -> None:
    rows = [{"tokens": ["Anna", "was", "in", "Lima"]}, {"tokens": []}, {"tokens": ["the", "film"]}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines, _ = predicted(tagger, tmp_path / "a.jsonl", tmp_path / "a.conll")
    assert lines == [
        "Anna\tB-person",
        "was\tO",
        "in\tO",
        "Lima\tB-place",
        "",
        "",
        "the\tO",
        "film\tO",
        "",
        "",
    ]
    (tmp_path / "b.jsonl").write_text(json.dumps({"tokens": ["a\tb"]}) + "\n")
    with pytest.raises(
        BertworksError,
        match=r"b\.jsonl:1(.|\n)*does not fit in a line|does not fit(.|\n)*b\.jsonl:1",
    ):
        predicted(tagger, tmp_path / "b.jsonl", tmp_path / "b.conll")
    assert not (tmp_path / "b.conll").exists()


def test_a_table_with_one_word_per_row_gets_a_tag_in_each_row(tagger: Path, tmp_path: Path) -> None:
    rows = [
        ["1", "Anna", "B-person"],
        ["", "was", "O"],
        ["", "in", "O"],
        ["2", "Kyoto", "B-place"],
        ["3", "the", "O"],
    ]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["Sentence #", "Word", "Tag"], *rows])
    read = ReadOptions(sentence_column="Sentence #")
    predicted(tagger, tmp_path / "a.csv", tmp_path / "b.csv", text=("Word",), read=read)
    with (tmp_path / "b.csv").open(newline="") as file:
        out = list(csv.DictReader(file))
    assert [[row[name] for name in ("Sentence #", "Word", "Tag")] for row in out] == rows
    assert [row["predicted_tags"] for row in out] == [tag for _, _, tag in rows]
    # in the first row of a sentence
    assert [row["truncated_tokens"] for row in out] == ["0", "", "", "0", "0"]
    predicted(tagger, tmp_path / "a.csv", tmp_path / "b.conll", text=("Word",), read=read)
    assert (
        tmp_path / "b.conll"
    ).read_text() == "Anna\tB-person\nwas\tO\nin\tO\n\nKyoto\tB-place\n\nthe\tO\n\n"
    figures = evaluate_task(
        tagger, tmp_path / "a.csv", text=("Word",), label="Tag", read=read, device="cpu"
    )
    assert (figures["rows"], figures["figures"]["f1"]) == (3, 1.0)


def test_only_tags_are_written_as_conll(model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "reviews.csv", 40)
    run(data, tmp_path / "out", model, overrides=(*FAST, "epochs=1"))
    with pytest.raises(UsageError, match="this model is for classification"):
        predicted(tmp_path / "out", data, tmp_path / "a.conll")
    # before anything is computed
    with pytest.raises(UsageError, match="unknown file format"):
        predicted(tmp_path / "out", data, tmp_path / "a.docx")
    assert not list(tmp_path.glob(".*portions"))


# --- raw texts
# --------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.text(alphabet="the film. Anna,é中\u200b\n(", max_size=30))
def test_words_are_pieces_of_the_text_in_order(text: str) -> None:
    (found,) = tokenizer_of_tests().words([text])
    pieces = [text[start:end] for start, end in found.tolist()]
    assert all(piece and not any(character.isspace() for character in piece) for piece in pieces)
    assert (np.diff(found.reshape(-1)) >= 0).all()
    rest = list(text)
    for start, end in found.tolist():
        rest[start:end] = [" "] * (end - start)
    assert not "".join(rest).replace("\u200b", "").strip()


_MADE = []


def tokenizer_of_tests():  # type: ignore[no-untyped-def]
    if not _MADE:
        _MADE.append(tokenizer())
    return _MADE[0]


def test_lines_of_text_become_words_and_entities_that_stand_where_they_say(
    tagger: Path, tmp_path: Path
) -> None:
    text = ["the film, with  Anna, was in Kyoto,in", "", "music", "  Boris\u00a0lives in Oslo"]
    (tmp_path / "a.txt").write_text("\n".join(text) + "\n")
    events = list(predict_file(tagger, tmp_path / "a.txt", tmp_path / "b.jsonl", device="cpu"))
    assert events[-1].fields["rows"] == 4
    assert any("a.txt:2" in event.text for event in events)
    rows = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == text
    assert rows[1]["predicted_tags"] is rows[1]["predicted_entities"] is None
    assert rows[0]["predicted_words"] == [
        "the",
        "film",
        ",",
        "with",
        "Anna",
        ",",
        "was",
        "in",
        "Kyoto",
        ",",
        "in",
    ]
    assert len(rows[0]["predicted_tags"]) == 11
    found = [[(e["text"], e["type"]) for e in rows[n]["predicted_entities"]] for n in (0, 2, 3)]
    assert found == [
        [("Anna", "person"), ("Kyoto", "place")],
        [],
        [("Boris", "person"), ("Oslo", "place")],
    ]
    for row in (rows[0], rows[3]):
        for entity in row["predicted_entities"]:
            assert row["text"][entity["start"] : entity["end"]] == entity["text"]
            assert 0.5 < entity["score"] <= 1
    lines, _ = predicted(tagger, tmp_path / "a.txt", tmp_path / "c.conll")
    assert lines[:5] == ["the\tO", "film\tO", ",\tO", "with\tO", "Anna\tB-person"]
    assert lines[11:14] == ["", "", "music\tO"]


def test_python_takes_strings_and_lists_of_words(tagger: Path) -> None:
    raw, words, long = Predictor(tagger, device="cpu").predict(
        ["Anna, the film", ["Anna", ",", "the", "film"], "the film " * 60 + "Clara"]
    )
    assert words == {"tags": raw["tags"]} == {"tags": ["B-person", "O", "O", "O"]}
    assert raw["words"] == ["Anna", ",", "the", "film"]
    assert [(e["start"], e["end"]) for e in raw["entities"]] == [(0, 4)]
    assert len(long["tags"]) == 121
    assert [(e["start"], e["text"]) for e in long["entities"]] == [(540, "Clara")]


def test_a_column_that_the_model_learned_words_from_holds_words(
    tagger: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(
        'id,tokens,remark\n1,"Anna, was",x\n2,"[""Lima"", ""in town""]",y\n'
    )
    predicted(tagger, tmp_path / "a.csv", tmp_path / "b.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert [len(row["predicted_tags"]) for row in rows] == [2, 2]
    assert "predicted_words" not in rows[0]
    predicted(tagger, tmp_path / "a.csv", tmp_path / "c.jsonl", text=["remark"])
    assert json.loads((tmp_path / "c.jsonl").read_text().splitlines()[0])["predicted_words"] == [
        "x"
    ]


def test_a_text_without_any_word_has_no_tags(tagger: Path) -> None:
    empty, other = Predictor(tagger, device="cpu").predict(["\u200b", "Anna"])
    assert empty == {"entities": [], "words": [], "tags": []}
    assert other["tags"] == ["B-person"]


# --- documents
# --------------------------------------------------------------------------------------------------


def sentences(*documents: Sequence[str]) -> list[Item]:
    return [
        Item(tuple(one.split()), None, f"a:{number}{n}", document=str(number))
        for number, document in enumerate(documents)
        for n, one in enumerate(document)
    ]


def test_a_sentence_is_read_with_its_document_around_it() -> None:
    read = featurizer(tokenizer(), "tagging", ("O",), 20, document_context=True)
    text = [
        "the film was good",
        "Anna heard music",
        "in this town",
        "with some dogs they heard music",
    ]
    rows = [encoded.unit[0] for encoded in read(sentences(text, ["the story"]))]
    whole = [token for one in text for token in rows_of(one)]
    for number, row in enumerate(rows[:4]):
        before = sum(len(rows_of(one)) for one in text[:number])
        requested = row.input_ids[row.target.positions].tolist()
        assert requested == rows_of(text[number])
        assert len(row.input_ids) == min(20, 2 + len(whole))
        start = before - int(row.target.positions[0]) + 1
        assert row.input_ids[1:-1].tolist() == whole[start : start + len(row.input_ids) - 2]
    assert rows[4].input_ids[1:-1].tolist() == rows_of("the story")  # of another document


def rows_of(text: str) -> list[int]:
    return tokenizer_of_tests().ids([text])[0]


def write_documents(path: Path, *documents: Sequence[str]) -> Path:
    """CoNLL columns; Anna is a person where a good film is told of, else a place."""
    lines = []
    for document in documents:
        mood = any("good" in sentence for sentence in document)
        lines += ["-DOCSTART- O", ""]
        for sentence in document:
            lines += [
                f"{word} {('B-x' if mood else 'B-y') if word == 'Anna' else 'O'}"
                for word in sentence.split()
            ]
            lines += [""]
    path.write_text("\n".join(lines))
    return path


def test_neighbours_decide_and_alone_is_as_without(model: Path, tmp_path: Path) -> None:
    draw = random.Random(0)
    filler = [" ".join(draw.choices(FILLER, k=3)) for _ in range(80)]
    documents = [
        [f"a {'good' if n % 2 else 'bad'} film", one, "with Anna"] for n, one in enumerate(filler)
    ]
    data = write_documents(tmp_path / "a.conll", *documents)
    longer = (*FAST, "epochs=16", "max_length=32")
    with_context = run(data, tmp_path / "with", model, overrides=(*longer, "document_context=true"))
    without = run(data, tmp_path / "without", model, overrides=longer)
    # which knows nothing of it
    assert with_context.fields["score"] > 0.9 > 0.75 > without.fields["score"]
    good, bad, alone = (
        ["a good film", filler[0], "with Anna"],
        ["a bad film", filler[0], "with Anna"],
        ["with Anna"],
    )
    requested = write_documents(tmp_path / "b.conll", good, bad, alone)
    lines, _ = predicted(tmp_path / "with", requested, tmp_path / "tagged.conll")
    assert [line.split()[2] for line in lines if line.startswith("Anna")][:2] == ["B-x", "B-y"]
    # The same network, reading the same sentence alone, whether or not it would read a document.
    task = json.loads((tmp_path / "with/task.json").read_text())
    predictor = Predictor(tmp_path / "with", device="cpu")
    (tmp_path / "with/task.json").write_text(json.dumps(task | {"document_context": False}))
    plain = Predictor(tmp_path / "with", device="cpu")
    scored = [
        [a["scores"] for _, a in one.answers(sentences(good, bad, alone))]
        for one in (predictor, plain)
    ]
    assert scored[0][6] == pytest.approx(scored[1][6], abs=1e-6)
    assert scored[1][2] == pytest.approx(scored[1][6], abs=1e-6)
    assert scored[0][2][1] != pytest.approx(scored[0][5][1], abs=1e-3)


def test_context_is_refused_where_no_document_is_known(model: Path, tmp_path: Path) -> None:
    sentence = "a O\nfilm O\nwith O\nAnna B-x\n\n"
    (tmp_path / "a.conll").write_text(sentence * 20)
    with pytest.raises(UsageError, match="which sentences belong to the same document"):
        run(
            tmp_path / "a.conll",
            tmp_path / "out",
            model,
            overrides=(*FAST, "document_context=true"),
        )
    (tmp_path / "a.csv").write_text("text,label\n" + "a good film,pos\na bad film,neg\n" * 10)
    with pytest.raises(
        UsageError, match="document_context is for tagging, and the data is for classification"
    ):
        run(tmp_path / "a.csv", tmp_path / "out", model, overrides=(*FAST, "document_context=true"))
    assert not (tmp_path / "out").exists()


def test_documents_are_not_divided_between_portions_nor_by_a_stop(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [
        [" ".join(FILLER[n : n + 4]), "the film with Anna", "in this town"] for n in range(9)
    ]
    data = write_documents(tmp_path / "a.conll", *documents, ["a good film with Anna"])
    run(data, tmp_path / "out", model, overrides=(*FAST, "epochs=1", "document_context=true"))
    predicted(tmp_path / "out", data, tmp_path / "whole.jsonl")
    monkeypatch.setattr("bertworks.io.file_job.ROWS_AT_ONCE", 4)
    counts = []
    for event in predict_file(tmp_path / "out", data, tmp_path / "parts.jsonl", device="cpu"):
        if event.kind == "stage":
            counts.append(event.fields["amount"])
            if len(counts) == 2:
                break
    assert counts == [6, 12]
    # of a portion that was interrupted
    (tmp_path / ".parts.jsonl.portions" / "incomplete").write_bytes(b"[{")
    events = list(predict_file(tmp_path / "out", data, tmp_path / "parts.jsonl", device="cpu"))
    assert next(e for e in events if "resumed_portions" in e.fields).fields["resumed_portions"] == 2
    assert (tmp_path / "parts.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()


def test_portions_are_those_of_the_same_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertworks.io.file_job.ROWS_AT_ONCE", 2)
    (tmp_path / "data.txt").write_text("a\nb\nc\nd\ne\n")
    output = tmp_path / "out.txt"

    def job(settings: str, stop: int = 9) -> tuple[list[int], list[dict]]:
        """The rows that are computed before the one at which the job is stopped, and the fields of
        all events."""
        computed: list[int] = []

        def compute(rows: list[int]) -> Portion:
            if stop in rows:
                raise KeyboardInterrupt
            computed.extend(rows)
            return len(rows), [f"{settings}{rows}".encode()]

        def write(files: Sequence[Path]) -> None:
            output.write_bytes(b"".join(chain.from_iterable(map(unpacked_values, files))))

        fields = []
        with suppress(KeyboardInterrupt):
            for event in compute_file(
                "embed",
                FileJob(output, Bulk(), {"x": settings}, "", ()),
                range(5),
                compute,
                write,
            ):
                fields.append(event.fields)
        return computed, fields

    assert job("a", stop=0) == ([], [])
    assert job("a", stop=3)[0] == [0, 1]
    assert job("other", stop=4)[0] == [0, 1, 2, 3], "with other settings nothing is reused"
    (tmp_path / ".out.txt.portions" / "incomplete").write_bytes(b"a[")
    with (
        folder_lock(tmp_path / ".out.txt.portions", "busy", ""),
        pytest.raises(BertworksError, match="another process is writing the same output"),
    ):
        job("a")
    assert not output.exists()
    computed, fields = job("a")
    assert computed == [2, 3, 4]
    assert output.read_text() == "a[0, 1]a[2, 3]a[4]"
    assert (fields[0], fields[-1]) == (
        {"resumed_portions": 1},
        {"output": str(output), "rows": 5, "truncated": 5},
    )
    assert not (tmp_path / ".out.txt.portions").exists()


# --- thresholds
# --------------------------------------------------------------------------------------------------


def test_a_threshold_decides_which_labels_are_given(model: Path, tmp_path: Path) -> None:
    data = write_multilabel(tmp_path / "topics.jsonl")
    run(data, tmp_path / "out", model, overrides=(*FAST, "epochs=1"))
    texts = ["Anna was in Lima", "the film", "Boris"]
    every = Predictor(tmp_path / "out", device="cpu").predict(texts, probabilities=True)
    for threshold in (0.0, 0.3, 0.5, 0.7, 1.0):
        given = Predictor(tmp_path / "out", device="cpu", threshold=threshold).predict(texts)
        for one, scored in zip(given, every, strict=True):
            assert set(one["labels"]) == {
                name for name, p in scored["scores"].items() if p >= threshold
            }
    *_, _ = predict_file(
        tmp_path / "out", data, tmp_path / "all.jsonl", threshold=0.0, device="cpu"
    )
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert all(sorted(row["predicted_labels"]) == ["person", "place"] for row in rows)
    with pytest.raises(UsageError, match="expected a probability"):
        Predictor(tmp_path / "out", threshold=1.5)


def test_a_model_without_threshold_says_so(tagger: Path) -> None:
    with pytest.raises(UsageError, match="a model for tagging has no threshold"):
        Predictor(tagger, threshold=0.5)


# --- memory
# --------------------------------------------------------------------------------------------------

_MEASURE = """
import sys, torch
from bertworks.inference.predictor import predict_file
torch.set_num_threads(1)
for _ in predict_file(*sys.argv[1:], device="cpu"):
    pass
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(model: Path, tmp_path: Path) -> None:
    run(
        write_reviews(tmp_path / "reviews.csv"),
        tmp_path / "out",
        model,
        overrides=(*FAST, "epochs=1"),
    )
    # oneDNN keeps a program for each size of product that it met: there are few, but some are met
    # late.
    quiet = os.environ | {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "0", "OMP_NUM_THREADS": "1"}
    peaks = []
    for count in (20_000, 60_000):
        data = write_reviews(tmp_path / f"{count}.csv", count, seed=count)
        words = [
            sys.executable,
            "-c",
            _MEASURE,
            str(tmp_path / "out"),
            str(data),
            str(tmp_path / "scored.csv"),
        ]
        done = subprocess.run(
            words, capture_output=True, text=True, check=True, timeout=600, env=quiet
        )
        peaks.append(int(done.stdout) / 1024)
    print(f"peak {peaks[0]:.0f} MiB with 20,000 rows, {peaks[1]:.0f} MiB with 60,000")
    # to hold 40,000 rows more, or their answers, would take twice as much
    assert peaks[1] - peaks[0] < 12
