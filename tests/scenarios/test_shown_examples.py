"""Two rows as the network reads them: shown before the work by every command that reads rows."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from bertworks.cli.main import main
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import Item
from bertworks.errors import BertworksError, printable
from bertworks.events import Event
from bertworks.inference.embed_file import embed_file
from bertworks.inference.embedder import Embedder
from bertworks.inference.predictor import predict_file
from bertworks.retrieval.index import index_file
from bertworks.runs.dataset_report import check_file
from bertworks.runs.finetune import finetune_events, make_finetune_request
from bertworks.tasks.settings import TaskType
from bertworks.tasks.task import SHOWN, Featurizer
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import VocabularyConfig, train_vocabulary
from tests.support.fine import tokenizer, write_conll, write_pairs, write_reviews, write_squad
from tests.support.tasks import featurizer


@pytest.fixture(scope="module")
def t() -> Tokenizer:
    return tokenizer()


def shown(reading: Featurizer, *items: Item) -> list[str]:
    notes = reading.examples(list(reading(items)))
    assert all(note.kind == "note" and "\n" not in note.text for note in notes)
    return [note.text.split("  ", 2)[2] for note in notes]


def examples(events: list[Event]) -> list[str]:
    return [event.text for event in events if "example" in event.fields]


@pytest.mark.parametrize(
    ("task", "labels", "texts", "label", "expected"),
    [
        (
            "classification",
            ("neg", "pos"),
            ("the film was bad",),
            "neg",
            "[CLS] the film was bad [SEP] -> neg",
        ),
        (
            "classification",
            ("0", "1"),
            ("the film", "was bad"),
            "1",
            "[CLS] the film [SEP] was bad [SEP] -> 1",
        ),
        (
            "classification",
            ("neg", "pos"),
            ("the film was bad",),
            None,
            "[CLS] the film was bad [SEP]",
        ),
        ("multilabel", ("a", "b", "c"), ("the film",), ("c", "a"), "[CLS] the film [SEP] -> a, c"),
        ("multilabel", ("a", "b", "c"), ("the film",), (), "[CLS] the film [SEP] -> no label"),
        ("regression", (), ("the film",), 2.5, "[CLS] the film [SEP] -> 2.5"),
        (
            "tagging",
            ("B-x", "I-x", "O"),
            ("the", "filmwas", "bad"),
            ("O", "B-x", "I-x"),
            "[CLS] the/O film ##w ##as/B-x bad/I-x [SEP]",
        ),
        (
            "tagging",
            ("B-x", "O"),
            ("bad", "filmwas"),
            ("O", "B-x"),
            "[CLS] bad/O film ##w ##as/B-x [SEP]",
        ),
        ("tagging", ("B-x", "O"), ("the", "film"), None, "[CLS] the film [SEP]"),
        (
            "spans",
            ("O", "B-x", "I-x"),
            ("the film was bad",),
            ((4, 12, "x"),),
            "[CLS] the/O film/B-x was/I-x bad/O [SEP]",
        ),
        (
            "qa",
            (),
            ("who ?", "the film was bad"),
            ((9, "was bad"),),
            "[CLS] who ? [SEP] the film was bad [SEP] -> was bad",
        ),
        (
            "qa",
            (),
            ("who ?", "the film was bad"),
            (),
            "[CLS] who ? [SEP] the film was bad [SEP] -> no answer",
        ),
        ("qa", (), ("who ?", "the film was bad"), None, "[CLS] who ? [SEP] the film was bad [SEP]"),
        (
            "choice",
            (),
            ("the film", "was bad", "was good"),
            1,
            "[CLS] the film [SEP] was bad [SEP] | [CLS] the film [SEP] was good [SEP] -> choice 2",
        ),
    ],
)
def test_each_task(
    t: Tokenizer,
    task: TaskType,
    labels: tuple[str, ...],
    texts: tuple[str, ...],
    label: object,
    expected: str,
):
    assert shown(featurizer(t, task, labels, 32), Item(texts, label, "folder/r.csv:2")) == [
        expected
    ]


def test_what_is_longer_than_a_line(t: Tokenizer):
    reading = featurizer(t, "classification", ("neg",), 64)
    (text,) = shown(reading, Item(("the film was bad " * 30,), "neg", "a.csv:1"))
    assert len(text) < SHOWN + 60
    assert re.fullmatch(
        r"\[CLS\] the film .* \.\.\. .* \[SEP\] -> neg  \(58 tokens cut off\)", text
    )
    # The window with the answer, not the first one.
    context = "the film was " * 30 + "bad"
    reading = featurizer(t, "qa", max_length=32, stride=8)
    (text,) = shown(reading, Item(("who ?", context), ((len(context) - 3, "bad"),), "a.json:1"))
    assert text.endswith(" bad [SEP] -> bad  (one of 9 windows)")
    reading = featurizer(t, "tagging", ("O",), max_length=16)
    (text,) = shown(reading, Item(("the",) * 30, ("O",) * 30, "a.conll:1"))
    assert text.startswith("[CLS] the/O the/O")
    assert text.endswith("(one of 4 windows)")


def test_nothing_in_a_text_commands_a_terminal(t: Tokenizer):
    item = Item(("the film",), "a\x1b[31m\nb\u202ec", "folder/x\x1b.csv:2")
    (note,) = featurizer(t, "classification", (item.label,)).examples(
        list(featurizer(t, "classification", (item.label,))([item]))
    )
    assert note.text == "example  x\\x1b.csv:2  [CLS] the film [SEP] -> a\\x1b[31m\\nb\\u202ec"
    assert printable("é映 \ud800") == "é映 \\ud800"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(max_size=40), min_size=1, max_size=4))
def test_tokens_are_those_of_the_network(t: Tokenizer, texts: list[str]):
    items = [Item((text,), None, "a:1") for text in texts]
    reading = featurizer(t, "classification")
    features = list(reading(items))
    for note, one in zip(reading.examples(features), features, strict=False):
        pieces = [t.tokens[number] for number in one.unit[0].input_ids]
        if len(" ".join(pieces)) <= SHOWN:
            assert note.text == "example  a:1  " + printable(" ".join(pieces))


def test_labels_of_the_two_differ(t: Tokenizer):
    rows = [("bad", "x"), ("sad", "x"), ("good", "y")]
    items = [Item((text,), label, f"a:{n}") for n, (text, label) in enumerate(rows)]
    reading = featurizer(t, "classification", ("x", "y"))
    assert shown(reading, *items) == ["[CLS] bad [SEP] -> x", "[CLS] good [SEP] -> y"]
    assert shown(reading, *items[:2]) == ["[CLS] bad [SEP] -> x", "[CLS] sad [SEP] -> x"]
    assert shown(reading) == []


def test_bytes_are_shown_as_characters():
    made, _ = train_vocabulary(
        ["café café thé 映画"] * 9, VocabularyConfig(size=300, algorithm="bpe", lowercase=False)
    )
    pieces = [made.piece(number) for number in made.ids(["café thé"])[0]]
    assert "".join(pieces).replace("Ġ", " ").strip() == "café thé"
    assert made.piece(made.ids(["\U0001f600"])[0][0])  # a byte that is no character


# --- commands
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classifier(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, list[Event]]:
    folder = tmp_path_factory.mktemp("classifier")
    data = write_reviews(folder / "reviews.csv", 40)
    request = make_finetune_request(data, model=model, overrides=("epochs=1", "precision=fp32"))
    events = list(finetune_events(folder / "out", request, device="cpu"))
    return folder / "out", data, events


def test_a_training_shows_what_it_learns(classifier: tuple[Path, Path, list[Event]], model: Path):
    _, data, events = classifier
    found = examples(events)
    assert len(found) == 2
    rows = data.read_text().splitlines()
    for line in found:
        number, text, label = re.fullmatch(
            r"example  reviews\.csv:(\d+)  \[CLS\] (.*) \[SEP\] -> (.*)", line
        ).groups()  # type: ignore[union-attr]
        assert rows[int(number) - 1].startswith(f"{text},{label},")
    assert [event.kind for event in events][:4] == ["note", "note", "note", "plan"]
    assert events[2].text.startswith(
        "a linear head on the embeddings of the frozen model: accuracy"
    )
    assert check_file(data, model=model).examples == found


def test_a_prediction_shows_what_it_reads(
    classifier: tuple[Path, Path, list[Event]], tmp_path: Path
):
    out, data, _ = classifier
    events = list(predict_file(out, data, tmp_path / "a.csv", device="cpu"))
    assert [line.partition("  [CLS]")[0] for line in examples(events)] == [
        "example  reviews.csv:2",
        "example  reviews.csv:3",
    ]
    assert not any("->" in line for line in examples(events))  # the label is not read
    notes = [event.text for event in events if event.kind == "note"]
    assert "task: classification (one label for a text)" in notes
    assert "text: 'text'" in notes
    (tmp_path / "b.csv").write_text("text\n\n \n")
    assert (
        examples(list(predict_file(out, tmp_path / "b.csv", tmp_path / "b.jsonl", device="cpu")))
        == []
    )


def test_rows_are_read_as_often_as_without_examples(
    classifier: tuple[Path, Path, list[Event]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out, data, _ = classifier
    passes: list[int] = []

    def counted(method: Callable[..., object]) -> Callable[..., object]:
        def call(self: object) -> object:
            passes.append(1)
            return method(self)

        return call

    monkeypatch.setattr(RowReader, "__iter__", counted(RowReader.__iter__))
    with_examples = []
    for shows in (True, False):
        if not shows:
            monkeypatch.setattr(Featurizer, "examples", lambda *_: [])
        passes.clear()
        list(predict_file(out, data, tmp_path / f"{shows}.csv", device="cpu"))
        list(embed_file(out, data, tmp_path / f"{shows}.npy", device="cpu"))
        list(index_file(data, tmp_path / f"{shows}", model=out, device="cpu"))
        with_examples.append(len(passes))
    assert with_examples[0] == with_examples[1]
    assert (tmp_path / "True.csv").read_bytes() == (tmp_path / "False.csv").read_bytes()
    np.testing.assert_array_equal(np.load(tmp_path / "True.npy"), np.load(tmp_path / "False.npy"))


def test_texts_are_shown_before_they_become_vectors(model: Path, tmp_path: Path):
    data = tmp_path / "t.txt"
    data.write_text("good film\n\nsad dogs\nbad men\n")
    expected = ["[CLS] good film [SEP]", "[CLS] sad dogs [SEP]"]
    events = list(embed_file(model, data, tmp_path / "v.npy", device="cpu"))
    assert [line.split("  ", 2)[2] for line in examples(events)] == expected
    events = list(index_file(data, tmp_path / "index", model=model, device="cpu"))
    assert [line.split("  ", 2)[1:] for line in examples(events)] == [
        ["t.txt:1", expected[0]],
        ["t.txt:3", expected[1]],
    ]
    (tmp_path / "t.jsonl").write_text('{"text": ""}\n')
    assert (
        examples(
            list(
                embed_file(
                    model, tmp_path / "t.jsonl", tmp_path / "w.npy", text=["text"], device="cpu"
                )
            )
        )
        == []
    )


def test_commands_print_examples_on_standard_error(
    classifier: tuple[Path, Path, list[Event]],
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    out, data, _ = classifier
    pairs, tagged = (
        write_pairs(tmp_path / "pairs.tsv", 20),
        write_conll(tmp_path / "names.conll", 20),
    )
    for words in (
        ["check", str(data), "--model", str(model)],
        ["evaluate", "task", str(out), str(data)],
        ["evaluate", "sts", str(model), str(pairs)],
        ["predict", str(out), str(data)],
        ["check", str(tagged), "--model", str(model), "--json"],
    ):
        assert main(words) == 0
        printed = capsys.readouterr()
        assert (
            len(re.findall(r"^example  \S+:\d+  \[CLS\] .* \[SEP\]", printed.err, re.MULTILINE))
            == 2
        )
        assert not re.search(r"^example ", printed.out, re.MULTILINE)
    assert len(json.loads(printed.out)["examples"]) == 2
    assert main(["predict", str(out), str(data), "-o", str(tmp_path / "a.csv"), "--json"]) == 0
    events = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert [event["kind"] for event in events if "example" in event] == ["note", "note"]
    assert main(["evaluate", "task", str(out), str(data)]) == 0
    assert "label: 'label'\n" in capsys.readouterr().err


def evaluation(
    kind: str, folder: Path, model: Path, classifier: Path
) -> tuple[list[str], str, list[str]]:
    """The words of a command `evaluate`, what it works with, and its examples."""
    if kind == "mlm":
        (folder / "t.txt").write_text("the film was good. the dogs were bad.\n\n" * 4)
        pattern = r"example  sequence \d  \[CLS\] .*\[MASK\].* \[SEP\] -> \S+.*"
        return (
            ["mlm", str(model), str(folder / "t.txt")],
            "bertworks.evaluation.masked_lm.FileJob.make",
            [pattern] * 2,
        )
    if kind == "blimp":
        rows = [
            {"sentence_good": f"a film {n}", "sentence_bad": "film a", "UID": "order"} for n in "ab"
        ]
        (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        pattern = r"example  order  \[CLS\] a film .* \[SEP\] \| \[CLS\] film a \[SEP\]"
        words = ["blimp", str(model), "--data", str(folder / "p.jsonl")]
        return words, "bertworks.evaluation.evaluate.score", [pattern] * 2
    if kind == "squad":
        data = write_squad(folder / "d.json", 4)
        ids = [
            entry["id"]
            for part in json.loads(data.read_text())["data"][0]["paragraphs"]
            for entry in part["qas"]
        ]
        (folder / "a.json").write_text(json.dumps(dict.fromkeys(ids[:1], "a\x1b[31m")))
        answers = [r"'a\\x1b\[31m'", "'no prediction'"]
        patterns = [
            rf"example  question {identity}  '.*' -> gold \[.*\], predicted {answer}"
            for identity, answer in zip(ids, answers, strict=False)
        ]
        words = ["squad", "--data", str(data), "--predictions", str(folder / "a.json")]
        return words, "bertworks.metrics.squad.evaluate_answers", patterns
    if kind == "sts":
        rows = ["sentence1,sentence2,score", "a film,the dogs,2.5", "sad men,good dogs,1.25"]
        (folder / "p.csv").write_text("\n".join(rows))
        texts = [
            r"a film \[SEP\] \| \[CLS\] the dogs \[SEP\] -> 2.5",
            r"sad .* dogs \[SEP\] -> 1.25",
        ]
        patterns = [rf"example  p.csv:{line}  \[CLS\] {text}" for line, text in enumerate(texts, 2)]
        return (
            ["sts", str(model), str(folder / "p.csv")],
            "bertworks.inference.embedder.Embedder.embed_and_count",
            patterns,
        )
    if kind == "task":
        data = write_reviews(folder / "r.csv", 20)
        pattern = r"example  r.csv:\d+  \[CLS\] .* \[SEP\] -> \w+"
        return (
            ["task", str(classifier), str(data)],
            "bertworks.inference.predictor.Predictor.answers",
            [pattern] * 2,
        )
    (folder / "qrels").mkdir()
    (folder / "corpus.jsonl").write_text('{"_id": "d1", "title": "men", "text": "a film"}\n')
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "good film"}\n')
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    patterns = [
        r"example  query q1  \[CLS\] good film \[SEP\]",
        r"example  document d1  \[CLS\] men a film \[SEP\]",
    ]
    return (
        ["retrieval", str(model), "--data", str(folder)],
        "bertworks.retrieval.index.Index.append",
        patterns,
    )


@pytest.mark.parametrize("kind", ["mlm", "blimp", "squad", "sts", "task", "retrieval"])
def test_an_evaluation_shows_two_examples_before_the_work(
    kind: str,
    classifier: tuple[Path, Path, list[Event]],
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    words, work, patterns = evaluation(kind, tmp_path, model, classifier[0])

    def stopped(*_: object, **__: object) -> object:
        raise BertworksError("the work began")

    monkeypatch.setattr(work, stopped)
    assert main(["evaluate", *words]) == 1
    printed = capsys.readouterr()
    assert "the work began" in printed.err
    lines = [line for line in printed.err.splitlines() if line.startswith("example ")]
    for pattern, line in zip(patterns, lines, strict=True):
        assert re.fullmatch(pattern, line)
    assert printed.out == ""


def test_a_query_and_a_document_are_shown_with_their_prompts(model: Path, tmp_path: Path):
    embedder = Embedder(model, device="cpu")
    embedder.settings = replace(embedder.settings, prompts={"query": "good ", "passage": "bad "})
    for prompt, expected in (("query", "good film"), ("passage", "bad film")):
        (note,) = embedder.examples([("a:1", "film")], prompt)
        assert note.text == f"example  a:1  [CLS] {expected} [SEP]"


def test_context_of_the_document_is_shown(t: Tokenizer):
    reading = featurizer(t, "tagging", ("O", "B-x"), 64, document_context=True)
    words = [
        ("film", "O", "1"),
        ("dogs", "O", "1"),
        ("men", "B-x", "2"),
        ("sad", "O", "2"),
        ("bad", "O", "3"),
    ]
    rows = [Item((word,), (tag,), f"a:{n}", document=d) for n, (word, tag, d) in enumerate(words)]
    assert reading.preview(rows) == reading.examples(list(reading(rows)))
    assert [note.fields["example"] for note in reading.preview(rows)] == ["a:0", "a:2"]
    assert reading.preview([]) == []
