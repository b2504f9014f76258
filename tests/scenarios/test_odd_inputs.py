"""Inputs that are unusual, and real: what other programs write, what two processes do at once."""

import csv
import json
import os
import shutil
import sys
from io import TextIOWrapper
from itertools import permutations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import bertworks as bw
from bertworks.checkpoints.model_folder import ModelFolder
from bertworks.checkpoints.task_config import save_task
from bertworks.cli.main import main
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import Item
from bertworks.datasets.values import answers_of, list_of, sorted_labels
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.evaluate import evaluate_sts
from bertworks.evaluation.retrieval import read_collection
from bertworks.inference.embed_file import embed_file
from bertworks.inference.embedder import Moments
from bertworks.inference.predictor import Predictor, predict_file
from bertworks.io.file_job import write_rows
from bertworks.io.inputs import IssueCounter
from bertworks.metrics.squad import SquadQuestion, evaluate_answers
from bertworks.retrieval.index import Index
from bertworks.runs.dataset_report import make_dataset_report
from bertworks.runs.finetune import finetune_events, make_finetune_request
from bertworks.runs.report import write_errors
from bertworks.tasks.registry import task_of
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import Mistake
from bertworks.text.long_texts import with_marks
from tests.support.fine import read_data, tokenizer, write_pairs, write_reviews, write_squad
from tests.support.tasks import featurizer

FAST = ("optimizer.learning_rate=2e-3", "epochs=1", "patience=0", "precision=fp32")


def train(data: Path, output: Path, model: Path) -> Path:
    list(
        finetune_events(
            output, make_finetune_request(data, model=model, overrides=FAST), device="cpu"
        )
    )
    return output


# --- names and cells
# --------------------------------------------------------------------------------------------------

REVIEWS = [
    {"text": text, "label": "=pos"}
    for text in ("=1+2 good", "-5", "-1.5e-3", "@x", "- bad", "a=1", "+49 30 1", "＝1")
]


def test_any_name_works_everywhere(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that is not UTF-8 and as long as a file system allows: of models, inputs, outputs,
    indexes, run folders, exports. Each command reads and writes it."""
    for stream in (sys.stdout, sys.stderr):  # as in `run`
        assert isinstance(stream, TextIOWrapper)
        stream.reconfigure(errors="backslashreplace")
    name = os.fsdecode(b"caf\xe9 \xff" + b"x" * 239)
    folder = tmp_path / name
    folder.mkdir()
    mine = shutil.copytree(model, folder / name)
    table = pa.table({"text": ["good film", "bad film"] * 12, "label": ["pos", "neg"] * 12})
    with (folder / f"{name}.parquet").open("wb") as file:
        pq.write_table(table, file)
    data, head, fast = (
        str(folder / f"{name}.parquet"),
        str(folder / "head"),
        [f"--set={word}" for word in FAST],
    )
    commands = [
        ["check", data],
        *([["finetune", data, "--model", str(mine), "-o", head, "--device", "cpu", *fast]] * 2),
        *(
            ["predict", head, data, "-o", str(folder / f"{name}{end}")]
            for end in (".csv", ".tsv.gz", ".p.parquet")
        ),
        ["predict", head, data, "-o", str(folder / f"{name}.jsonl")],
        ["embed", str(mine), data, "-o", str(folder / f"{name}.npy")],
        ["index", data, "-o", str(folder / "index"), "--model", str(mine)],
        ["search", str(folder / "index"), "film"],
        *([["export", head, "-o", str(folder / f"{name}.onnx")]] * 2),
        ["predict", str(folder / f"{name}.onnx"), data, "-o", str(folder / "of_export.csv")],
        ["fill", str(mine), "a [MASK] film"],
        ["convert", str(mine), "-o", str(folder / "clean" / name)],
        ["push", str(folder / "clean" / name), "me/model", "--dry-run"],
    ]
    for words in commands:
        assert main(words) == 0, (words[0], capsys.readouterr().err)
        capsys.readouterr()
    assert np.load(folder / f"{name}.npy").shape[0] == 24
    assert [row.values["text"] for row in RowReader(folder / f"{name}.p.parquet")] == table[
        "text"
    ].to_pylist()
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("guard", [False, True])
def test_formulas_are_named_and_guarded_where_that_is_chosen(guard: bool, tmp_path: Path) -> None:
    formulas = IssueCounter()
    write_rows(
        tmp_path / "a.csv", ["text", "label"], REVIEWS, formulas=formulas, guard_formulas=guard
    )
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    mark = "'" if guard else ""
    is_formula = [True, False, False, True, True, False, True, True]
    assert [row["text"] for row in rows] == [
        (mark if bad else "") + row["text"] for bad, row in zip(is_formula, REVIEWS, strict=True)
    ]
    assert {row["label"] for row in rows} == {f"{mark}=pos"}
    assert formulas.count == sum(is_formula) + len(REVIEWS)
    assert formulas.places[0] == "row 1, column 'text'"
    write_rows(
        tmp_path / "a.jsonl", ["text", "label"], REVIEWS, formulas=formulas, guard_formulas=guard
    )
    assert [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()] == REVIEWS


def test_a_note_names_the_option_that_guards_formulas(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d.csv").write_text('"=A1"\n"=HYPERLINK(""x"")"\ngood\n')
    words = [
        "embed",
        str(model),
        str(tmp_path / "d.csv"),
        "--header",
        "-o",
        str(tmp_path / "o.csv"),
    ]
    assert main(words) == 0
    said = capsys.readouterr().err
    assert (
        "formulas: 2 (header, column '=A1', row 1, column '=A1'); --guard-formulas prefixes them "
        "with '"
    ) in said
    assert (tmp_path / "o.csv").read_text().startswith('=A1,embedding\n"=HYPERLINK(""x"")",')
    assert main([*words, "--guard-formulas", "--overwrite"]) == 0
    assert "prefixed with '" in capsys.readouterr().err
    assert (tmp_path / "o.csv").read_text().startswith("'=A1,embedding\n\"'=HYPERLINK(")


def test_mistakes_are_listed_without_formulas(tmp_path: Path) -> None:
    wrong = [Mistake("=x.csv:2", (row["text"],), row["label"], "-1", -0.5, 1.0) for row in REVIEWS]
    description = TaskConfig(
        task="classification", text=("=text",), label=("label",), labels=("-1", "=pos")
    )
    write_errors(tmp_path / "errors.csv", description, wrong)
    with (tmp_path / "errors.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["where", "'=text", "gold", "predicted", "score"]
    texts = ["'=1+2 good", "-5", "-1.5e-3", "'@x", "'- bad", "a=1", "'+49 30 1", "'＝1"]
    assert rows == [["'=x.csv:2", text, "'=pos", "-1", "-0.5"] for text in texts]
    write_errors(tmp_path / "errors.jsonl", description, wrong)
    found = [json.loads(line) for line in (tmp_path / "errors.jsonl").read_text().splitlines()]
    assert [row["=text"] for row in found] == [row["text"] for row in REVIEWS]


# --- rows
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "tags", "what"),
    [
        ("['EU', 'rejects']", "['B-ORG', 'O']", "'tokens' holds .*, not words"),
        ("['EU' 'rejects']", "['B-ORG' 'O']", "'tokens' holds .*, not words"),
        ("EU rejects", "['B-ORG' 'O']", "the label in 'tags' holds"),
    ],
)
def test_lists_as_python_and_numpy_print_them_are_no_words(
    words: str, tags: str, what: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("tokens,tags\n" + f'"{words}","{tags}"\n' * 20)
    with pytest.raises(BertworksError, match=rf"a\.csv:2: {what}"):
        read_data(path, task="tagging", text=["tokens"], label="tags")


def test_words_that_look_like_lists_are_words(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("tokens\ttags\n" + "[ Music ]\tO B-x O\n" * 20)
    data = read_data(path, task="tagging", text=["tokens"], label="tags")
    assert data.train[0].texts == ("[", "Music", "]")


def test_a_header_among_tags_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("word\tlabel\n" + "EU\tB-ORG\nrejects\tO\ncalls\tO\n\n" * 30)
    with pytest.raises(BertworksError, match=r"a\.tsv:1.*'label' is not known"):
        read_data(path)
    path = tmp_path / "a.conll"
    # without letters before them: all are tags
    path.write_text("EU\tORG\nrejects\tO\nParis\tLOC\n\n" * 30)
    assert read_data(path).schema.labels == ("LOC", "O", "ORG")


def test_words_of_white_space_are_tagged(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "a.conll"
    data.write_text("Anna\tB-x\n\u3000\tO\nfilm\tO\n\n" * 20)
    out = train(data, tmp_path / "out", model)
    list(predict_file(out, data, tmp_path / "tagged.conll", device="cpu"))
    lines = (tmp_path / "tagged.conll").read_text().split("\n")
    assert [len(line.split("\t")) for line in lines[:4]] == [3, 3, 3, 1]


@pytest.mark.parametrize(
    "answers", [[{"text": "", "answer_start": -1}], [{"text": "film", "answer_start": 4}]]
)
def test_impossible_questions_have_no_answer(
    answers: list[dict[str, object]], tmp_path: Path
) -> None:
    requested = [
        {"id": str(n), "question": "who?", "answers": answers, "is_impossible": True}
        for n in range(20)
    ]
    paragraphs = [{"context": f"the film {n}", "qas": [one]} for n, one in enumerate(requested)]
    (tmp_path / "a.json").write_text(
        json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]})
    )
    data = read_data(tmp_path / "a.json")
    assert {item.label for item in (*data.train, *data.dev)} == {()}


def test_questions_of_a_context_stay_together_in_groups_too(tmp_path: Path) -> None:
    rows = [
        {
            "question": f"who {n}?",
            "context": f"Anna saw film {n // 4}",
            "group": str(n % 3),
            "answers": [{"text": "Anna", "answer_start": 0}],
        }
        for n in range(40)
    ]
    rows += [row | {"context": row["context"] + " twice", "group": ""} for row in rows]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = read_data(tmp_path / "a.jsonl", group="group")
    train_contexts, dev_contexts = (
        {item.texts[1] for item in part} for part in (data.train, data.dev)
    )
    assert dev_contexts
    assert not train_contexts & dev_contexts


def test_missing_ids_are_not_one_id(tmp_path: Path) -> None:
    lines = write_reviews(tmp_path / "a.csv").read_text().splitlines()
    numbered = [f"{'id' if n == 0 else n if n % 20 else ''},{line}" for n, line in enumerate(lines)]
    (tmp_path / "a.csv").write_text("\n".join(numbered) + "\n")
    data = read_data(tmp_path / "a.csv")
    assert len(data.train) + len(data.dev) == 200


def test_a_text_in_brackets_is_a_text(tmp_path: Path) -> None:
    lines = write_reviews(tmp_path / "a.csv").read_text().splitlines()
    lines[7] = "[deleted],pos,1"
    (tmp_path / "a.csv").write_text("\n".join(["selftext,flair,who", *lines[1:]]) + "\n")
    assert read_data(tmp_path / "a.csv", label="flair").schema.text == ("selftext",)


def test_labels_in_another_order_contradict_nothing(model: Path, tmp_path: Path) -> None:
    rows = [
        {"text": f"a film {n // 2}", "labels": ["a", "b"] if n % 2 else ["b", "a"]}
        for n in range(60)
    ]
    rows.append({"text": "no label is true of every row", "labels": []})
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    from bertworks.runs.finetune_job import FinetuneJob, prepare_finetuning

    job = FinetuneJob(
        prepare_finetuning(
            make_finetune_request(tmp_path / "a.jsonl", model=model, overrides=FAST), _cpu()
        )
    )
    found = make_dataset_report(job.data, job.train, job.dev, job.model.tokenizer, 64)
    assert found.copies.count
    assert not found.conflicts.count


def _cpu():
    import torch

    return torch.device("cpu")


def test_other_files_in_the_folder_change_no_request(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    write_reviews(folder / "train.csv")
    write_reviews(folder / "dev.csv", 40, seed=1)
    request = make_finetune_request(folder, model=model)
    before = request.content()
    (folder / "test.csv").write_text("text\na film\n")
    (folder / ".DS_Store").write_bytes(b"x")
    assert request.content() == before
    write_reviews(folder / "dev.csv", 40, seed=2)
    assert request.content() != before


def test_settings_that_mean_nothing_are_refused(model: Path, tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "pairs.tsv")
    for setting in ("class_weights=balanced", "label_smoothing=0.1"):
        request = make_finetune_request(data, model=model, overrides=(*FAST, setting))
        with pytest.raises(
            UsageError,
            match="is for classification, tagging, spans, and the data is for regression",
        ):
            list(finetune_events(tmp_path / "out", request, device="cpu"))


def test_marks_belong_to_what_they_stand_on() -> None:
    """An uncased tokenizer takes accents away, and counts them to no token."""
    text = "with Anna\u0301 film"
    labels = ("O", "B-x", "I-x")
    (encoded,) = featurizer(tokenizer(), "spans", labels, 64)([Item((text,), None, "a:1")])
    logits = np.zeros((len(encoded.offsets), 3), np.float32)
    logits[:, 0] = 1
    logits[1] = (0, 9, 0)
    (entity,) = task_of(TaskConfig(task="spans", labels=labels)).decode(encoded, logits)["entities"]
    assert (entity["text"], entity["start"], entity["end"]) == ("Anna\u0301", 5, 10)
    (tagged,) = featurizer(tokenizer(), "tagging", labels, 64)(
        [Item((text,), None, "a:1", raw=True)]
    )
    assert [text[a:b] for a, b in tagged.offsets.tolist()] == ["with", "Anna\u0301", "film"]


# --- figures
# --------------------------------------------------------------------------------------------------


def test_a_question_that_is_surely_without_answer_is_left_without() -> None:
    """As `--na-prob-thresh` of evaluate-v2.0.py, which is 1."""
    questions = [SquadQuestion("a", ("Anna",)), SquadQuestion("b", ())]
    predictions = {"a": "Anna", "b": "Boris"}
    figures, _ = evaluate_answers(
        questions, predictions, version="2.0", no_answer_probabilities={"a": -3.0, "b": 2.0}
    )
    assert (figures["exact"], figures["HasAns_exact"], figures["NoAns_exact"]) == (
        100.0,
        100.0,
        100.0,
    )
    figures, _ = evaluate_answers(
        questions, predictions, version="2.0", no_answer_probabilities={"a": 1.5, "b": 0.5}
    )
    assert (figures["exact"], figures["best_exact"]) == (0.0, 50.0)


def test_whitening_needs_more_vectors_than_dimensions(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BertworksError, match="4 vectors of 4 dimensions"):
        Moments(4, [np.eye(4, dtype=np.float32)]).whitener("whiten")
    pairs = write_pairs(tmp_path / "pairs.tsv", 12)
    with pytest.raises(BertworksError, match="more vectors than dimensions: 12 vectors of 32"):
        list(
            embed_file(
                model,
                pairs,
                tmp_path / "v.npy",
                text=["sentence1"],
                whitening="whiten",
                device="cpu",
            )
        )
    assert not (tmp_path / "v.npy").exists()
    truncation = {"truncated", "truncated_tokens", "truncated_share"}
    assert {*evaluate_sts(model, pairs, device="cpu")} - truncation == {
        "rows",
        "notes",
        "none",
        "center",
    }


def test_rows_without_text_are_no_part_of_the_centre(model: Path, tmp_path: Path) -> None:
    texts = ["a good film", "a bad film", "dogs in this town"]
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in [*texts, "", ""])
    )
    (tmp_path / "b.txt").write_text("\n\n".join(texts) + "\n")
    centred = []
    for learn_from in (None, tmp_path / "b.txt"):
        out = tmp_path / "v.npy"
        list(
            embed_file(
                model,
                tmp_path / "a.jsonl",
                out,
                whitening="center",
                learn_from=learn_from,
                device="cpu",
            )
        )
        centred.append(np.load(out))
    np.testing.assert_allclose(centred[0][:3].sum(0), 0, atol=1e-5)
    np.testing.assert_allclose(centred[0], centred[1], atol=1e-6)


# --- files that are written
# -------------------------------------------------------------------------------------------


def test_vectors_stand_beside_the_rows_as_they_were(model: Path, tmp_path: Path) -> None:
    rows = [{"text": "Anna saw it", "labels": [[0, 4, "person"]]} for _ in range(3)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    list(embed_file(model, tmp_path / "a.jsonl", tmp_path / "v.jsonl", text=["text"], device="cpu"))
    written = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [{name: row[name] for name in ("text", "labels")} for row in written] == rows


def test_vectors_replace_no_field_of_a_row(model: Path, tmp_path: Path) -> None:
    rows = [{"text": "Anna saw it"}] * 150 + [{"text": "Anna", "embedding": 3}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UsageError, match="has a column 'embedding' already") as caught:
        list(embed_file(model, tmp_path / "a.jsonl", tmp_path / "v.jsonl", device="cpu"))
    assert str(caught.value.where).endswith("a.jsonl:151")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"], (
        "nothing is left where nothing is computed"
    )
    list(embed_file(model, tmp_path / "a.jsonl", tmp_path / "v.npy", device="cpu"))


def test_models_that_read_next_to_nothing_are_refused(model: Path, tmp_path: Path) -> None:
    out = train(write_squad(tmp_path / "squad.json"), tmp_path / "out", model)
    with pytest.raises(UsageError, match="max_length is 5: the model reads from 8 to 64 tokens"):
        Predictor(out, device="cpu", max_length=5)
    assert Predictor(out, device="cpu", max_length=8).predict(
        [("who saw the film in this town?", "Anna saw it")]
    )


def test_the_output_is_not_the_file_that_is_read(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_reviews(tmp_path / "a.csv")
    out = train(data, tmp_path / "out", model)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match="this is the input file"):
        list(predict_file(out, "~/a.csv", "~/a.csv", device="cpu"))
    list(predict_file(out, "~/a.csv", "~/b.csv", device="cpu"))
    assert (tmp_path / "b.csv").exists()
    assert not list(tmp_path.glob(".*portions"))


def test_an_index_that_another_process_made_meanwhile_stays(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bertworks.retrieval.index as module

    embedder = module.Embedder

    def slow(*arguments: object, **named: object) -> object:
        monkeypatch.setattr(module, "Embedder", embedder)
        Index.create(tmp_path / "idx", model, device="cpu").add(["a good film"])
        return embedder(*arguments, **named)

    monkeypatch.setattr(module, "Embedder", slow)
    with pytest.raises(UsageError, match="there is an index already"):
        Index.create(tmp_path / "idx", model, device="cpu")
    assert len(Index(tmp_path / "idx", device="cpu")) == 1


def test_documents_in_pieces_and_without_numbers(tmp_path: Path) -> None:
    (tmp_path / "queries").write_text("<top><num>1</num><title>films</title></top>\n")
    (tmp_path / "qrels").write_text("1 0 a 1\n")
    good = "<doc><docno>a</docno><text>one</text><text>two</text></doc>\n"
    (tmp_path / "docs").write_text(good)
    assert read_collection(tmp_path).documents == {"a": "one two"}
    (tmp_path / "docs").write_text(good + good)
    with pytest.raises(BertworksError, match="the docno 'a' occurs twice"):
        read_collection(tmp_path)
    (tmp_path / "docs").write_text(good + "<doc><text>three</text></doc>\n")
    with pytest.raises(BertworksError, match="a document has no docno: 'three'"):
        read_collection(tmp_path)


def test_a_file_whose_first_entities_come_late(tmp_path: Path) -> None:
    nothing = [{"text": f"Nobody sang {n}.", "entities": []} for n in range(150)]
    somebody = [{"text": "Anna sang.", "entities": [{"start": 0, "end": 4, "label": "person"}]}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in nothing + somebody))
    reader = RowReader(path)
    assert reader.kind == "spans"
    *_, last = reader
    assert last.values["entities"] == [{"start": 0, "end": 4, "type": "person"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in nothing))
    assert RowReader(path).kind == "json"


def test_vowel_signs_and_keycaps_belong_to_what_is_before_them() -> None:
    assert with_marks("कि x", 1) == 2
    assert with_marks("1\ufe0f\u20e3 x", 1) == 3


@pytest.mark.parametrize("names", [("NAN", "0", "1", "2"), ("10", "9", "x"), ("10", "9", "1e1")])
def test_labels_have_one_order_whatever_the_order_in_which_they_come(
    names: tuple[str, ...],
) -> None:
    assert len({sorted_labels(order) for order in permutations(names)}) == 1


def test_empty_lists_and_answers_hold_nothing() -> None:
    assert (list_of("[]"), list_of("[ ]"), list_of('["a"]'), list_of("a [b]")) == (
        [],
        [],
        ["a"],
        ["a", "[b]"],
    )
    assert answers_of([{"text": "", "answer_start": -1}]) == []
    assert answers_of({"text": [""], "answer_start": [-1]}) == []


def test_topics_of_one_number_do_not_take_each_others_place(tmp_path: Path) -> None:
    (tmp_path / "docs").write_text("<doc><docno>a</docno><text>one</text></doc>\n")
    (tmp_path / "judged").write_text("1 0 a 1\n")
    (tmp_path / "topics").write_text(
        "<top><num>1</num><title>x</title></top>\n<top><num>1</num><title>y</title></top>\n"
    )
    with pytest.raises(BertworksError, match="the num '1' occurs twice"):
        read_collection(tmp_path)


def test_windows_that_never_advance_are_refused(tmp_path: Path) -> None:
    save_task(TaskConfig(task="qa"), tmp_path)
    described = json.loads((tmp_path / "task.json").read_text()) | {"stride": 0}
    (tmp_path / "task.json").write_text(json.dumps(described))
    with pytest.raises(BertworksError, match="was not written by a fine-tuning"):
        _ = ModelFolder(tmp_path).task_config


def test_a_text_that_is_nan_is_left_out_and_named(tmp_path: Path) -> None:
    rows = [f"a film with {'good' if n % 2 else 'bad'} actors {n},{'yn'[n % 2]}" for n in range(30)]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *rows, "nan,y", "NaN,n", ""]))
    data = read_data(tmp_path / "reviews.csv")
    (note,) = [note for note in data.notes if "without text" in note]
    assert note.count("has 'nan'") == 2
    assert "reviews.csv:32 has 'nan'" in note


@pytest.mark.parametrize(
    "command",
    [
        ["check", "{}/a.csv"],
        ["check", "{here}/rows.csv", "--dev", "{}/d.csv"],
        ["finetune", "{}/a.csv", "-o", "out"],
        ["finetune", "{here}/rows.csv", "-o", "out", "--recipe", "{}/r.toml"],
        ["finetune", "{here}/rows.csv", "-o", "{}/out"],
        ["pretrain", "{}/a.txt", "-o", "out"],
        ["vocab", "{}/a.txt", "-o", "out"],
        ["index", "{}/a.csv", "-o", "out"],
        ["convert", "minilm", "-o", "{}/out"],
        ["evaluate", "mlm", "{}/model", "{here}/rows.csv"],
        ["evaluate", "probe", "minilm", "{}/treebank"],
        ["embed", "minilm", "-t", "hello", "-o", "{}/a.npy"],
    ],
)
def test_a_home_of_nobody_is_refused_everywhere(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text("text,label\na,x\nb,y\n")
    home = "~nobody-of-this-name"
    words = [word.replace("{here}", str(tmp_path)).replace("{}", home) for word in command]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert f"begins with {home}, and this machine has no such user" in error
    assert "hint: write the whole path; if a folder has this name: " in error


def test_functions_know_the_home_folder(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As input, as output, as model and as the folder of local copies; nobody's is refused."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_reviews(tmp_path / "reviews.csv", 20)
    shutil.copytree(model, tmp_path / "model")
    bw.finetune("~/reviews.csv", output="~/out", model="~/model", overrides=["epochs=1"])
    bw.Embedder("~/model", device="cpu").save("~/saved")
    bw.Index.create("~/idx", "~/model", device="cpu").add(["a good film"])
    assert bw.load("~/out", device="cpu").predict(["a good film"])
    for folder in ("out", "saved", "idx"):
        assert any((tmp_path / folder).iterdir()), folder
    assert not Path("~").exists()
    bw.evaluate_mlm("~/model", ["~/reviews.csv"], output="~/figures.json", device="cpu")
    assert json.loads((tmp_path / "figures.json").read_text())
    home = "~nobody-of-this-name"
    nobody = f"begins with {home}, and this machine has no such user"
    with pytest.raises(UsageError, match=nobody):
        bw.evaluate_mlm("~/model", ["~/reviews.csv"], output=f"{home}/x.json", device="cpu")
    with pytest.raises(UsageError, match=nobody):
        bw.Embedder("~/model", device="cpu").save(f"{home}/saved")
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe("/homes/text.txt", b"a good film\n")
    monkeypatch.setenv("BERTWORKS_CACHE", f"{home}/copies")
    with pytest.raises(UsageError, match=rf"this cache folder \(BERTWORKS_CACHE\) {nobody}"):
        bw.evaluate_mlm("~/model", ["memory://homes/text.txt"], device="cpu")
