"""Large rows and compressed files that are larger than they look: bounded memory, and an error that
says the limit."""

import gzip
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
import transformers
from pyarrow import parquet

from bertworks.cli.main import main
from bertworks.datasets.reader import RowReader
from bertworks.errors import BertworksError
from bertworks.io import inputs, tables
from bertworks.io.options import ReadOptions
from bertworks.text.corpus import CorpusReader
from tests.support import fine

MB = 1 << 20
SMALL = ReadOptions(max_row_bytes="100")


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path


def error(path: Path, options: ReadOptions = SMALL) -> str:
    with pytest.raises(BertworksError) as caught:
        list(RowReader(path, options))
    return str(caught.value)


LARGE = "ä" * 60  # 120 bytes


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        (
            "a.jsonl",
            json.dumps({"text": "a"})
            + "\n"
            + json.dumps({"text": LARGE}, ensure_ascii=False)
            + "\n",
            2,
        ),
        ("a.json", json.dumps([{"text": "a"}, {"text": LARGE}]), 2),
        ("a.csv", f"text,label\na,b\n{LARGE},b\n", 3),
        ("a.tsv", f"text\tlabel\na\tb\n{LARGE}\tb\n", 3),
        ("a.csv", 'text,label\na,b\n"' + "a line\n" * 20 + '",b\n', 3),
        ("a.txt", f"a\n{LARGE}\n", 2),
        ("a.conll", f"word\tO\n\n{LARGE}\tO\n", 3),
        ("a.conll", "word\tO\n\n" + "word\tO\n" * 20, 3),
        ("a.csv.gz", f"text,label\na,b\n{LARGE},b\n", 3),
    ],
)
def test_a_large_row_needs_the_option(tmp_path: Path, name: str, content: str, line: int) -> None:
    path = write(tmp_path / name, content)
    found = error(path)
    assert f"{name}:{line}: a row has more than 100 bytes" in found
    assert "--max-row-bytes 200" in found
    assert len(list(RowReader(path, ReadOptions(max_row_bytes="200")))) > 0


def test_a_sentence_of_many_rows_needs_the_option(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "sentence,word,tag\n1,a,O\n" + "2,b,O\n" * 20)
    options = ReadOptions(max_row_bytes="100", sentence_column="sentence")
    assert "a.csv:3: a row has more than 100 bytes: all its words have one 'sentence'" in error(
        path, options
    )
    assert [
        len(row.values["word"]) for row in RowReader(path, replace(options, max_row_bytes="2k"))
    ] == [1, 20]


def test_a_text_alone_in_parquet_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [random.Random(0).randbytes(2 * MB).hex()]}), path)
    monkeypatch.setattr(
        parquet.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("it was read")
    )
    assert "a.parquet: a row has more than 100 bytes" in error(path)


def test_a_large_row_of_parquet_needs_the_option(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["a", LARGE, "b"], "label": ["a", None, "b"]}), path)
    assert "a.parquet:2: a row has more than 100 bytes" in error(path)
    assert len(list(RowReader(path))) == 3


def test_rows_of_many_sizes_are_complete(tmp_path: Path) -> None:
    texts = [
        "a" * size for size in (99, 100, 101, inputs.BLOCK_SIZE - 1, inputs.BLOCK_SIZE, 3 * MB, 5)
    ]
    path = write(tmp_path / "a.txt", "\n".join(texts))
    assert [row.values["text"] for row in RowReader(path)] == texts
    exact = write(tmp_path / "b.txt", "a\n" + "b" * 100)
    assert [len(row.values["text"]) for row in RowReader(exact, SMALL)] == [1, 100]
    assert "b.txt:2" in error(write(tmp_path / "b.txt", "a\n" + "b" * 101))


def test_a_quoted_cell_that_ends_nowhere_is_still_named(tmp_path: Path) -> None:
    assert "quotation mark is opened here and never closed" in error(
        write(tmp_path / "a.csv", 'a,b\n1,"2\n3,4\n')
    )


def test_one_json_value_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "LARGEST_LINE", 1000)
    monkeypatch.setattr(inputs, "BLOCK_SIZE", 1000)
    path = write(tmp_path / "a.json", json.dumps([{"text": "a", "label": "b"}] * 100, indent=1))
    assert "more than 1,000 bytes: it is one JSON value over many lines" in error(path)
    assert len(list(RowReader(path, ReadOptions(max_row_bytes="1m")))) == 100
    one_line = write(tmp_path / "b.json", json.dumps([{"text": "a", "label": "b"}] * 100))
    assert "b.json:1: a row has more than 1,000 bytes" in error(one_line)


def test_the_option_of_the_hint_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = fine.write_model(tmp_path / "model")
    data = write(tmp_path / "a.csv", f"text,label\n{'good film ' * 15},b\n")
    command = ["embed", str(model), str(data), "-o", str(tmp_path / "a.npy")]
    assert main([*command, "--max-row-bytes", "100"]) == 1
    hint = capsys.readouterr().err.split("allow it: ")[1].split()
    assert main([*command, *hint]) == 0


PROGRAM = """
import resource, sys
from pathlib import Path
import bertworks as bw
from bertworks.errors import BertworksError
from bertworks.datasets.reader import RowReader
def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
model, data, output, job = sys.argv[1:]
jobs = {
    "embed": lambda data: list(bw.embed_file(model, data, output + ".npy", text=["text"])),
    "predict": lambda data: list(bw.predict_file(model, data, output + ".jsonl", text=["text"])),
    "answer": lambda data: list(bw.predict_file(model, data, output + ".jsonl")),
    "check": lambda data: bw.check_file(data, model=model, text=["text"], label="label"),
    "read as": lambda data: bw.check_file(data, model=model),
    "learn": lambda data: bw.finetune(
        data, dev=small, model=model, method="full", epochs=1, batch_size=16
    ),
    "evaluate": lambda data: bw.finetune(
        train, dev=data, model=model, output=output, overwrite=True, epochs=1
    ),
    "read": lambda data: [None for row in RowReader(data)],
    "corpus": lambda data: [None for document in bw.CorpusReader([data])],
}
small = str(Path(data).with_name(f"small-{Path(data).name}"))
train = str(Path(data).with_name(f"train-{Path(data).name}"))
if job not in ("read", "corpus"):
    jobs[job](small)
before, found = memory(), ""  # after the imports and a first use
try:
    jobs[job](data)
except BertworksError as error:
    found = str(error)
print(memory() - before, found)
"""


def growth(job: str, data: Path, model: Path | str = "") -> tuple[int, str]:
    """The MB that a job needs more for this file than for a small one, and its error."""
    arguments = [str(model), str(data), str(data.with_name(f"out-{job}")), job]
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    number, found = result.stdout.split(" ", 1)
    return int(number), found.strip()


def write_rows(path: Path, texts: list[str]) -> Path:
    rows = [{"text": text, "label": "ab"[number % 2]} for number, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def write_long(folder: Path, task: str, size: int) -> Path:
    """Rows of a task, of several windows each. The fifth has so many bytes."""
    words, count = (
        "the film was a story of men and dogs in this town, with music that they heard. ",
        24,
    )
    path = folder / f"{task}-{size}.{'conll' if task == 'tagging' else 'json'}"
    texts = [
        f"Anna lives in Paris and saw {number} films "
        + words * (max(4000, size * (number == 4)) // len(words))
        for number in range(count)
    ]
    if task == "tagging":
        lines = [
            [f"{word}\t{'B-person' if word == 'Anna' else 'O'}\n" for word in text.split()]
            for text in texts
        ]
        lines[4] = lines[4][: len(lines[4]) // 2]  # each word has a tag and a line
        path.write_text("\n".join(map("".join, lines)))
    elif task == "spans":
        spans = [{"start": 0, "end": 4, "type": "person"}]
        path.write_text(json.dumps([{"text": text, "entities": spans} for text in texts]))
    else:
        requested = {
            "question": "where lives Anna ?",
            "answers": [{"text": "Paris", "answer_start": 14}],
        }
        parts = [
            {"context": text, "qas": [{"id": str(n), **requested}]} for n, text in enumerate(texts)
        ]
        path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": parts}]}))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("job", "size"), [("read as", 8), ("answer", 8), ("learn", 2)])
@pytest.mark.parametrize("task", ["tagging", "spans", "qa"])
def test_a_row_that_is_read_in_windows(tmp_path: Path, job: str, size: int, task: str) -> None:
    model = fine.write_model(tmp_path / "model", length=512, hidden_size=16)
    path = write_long(tmp_path, task, size * MB - 5000)
    small = write_long(tmp_path, task, 0).rename(tmp_path / f"small-{path.name}")
    if job == "answer":
        arguments = [
            "--model",
            str(model),
            "--epochs",
            "1",
            "--method",
            "full",
            "-o",
            str(tmp_path / "fitted"),
        ]
        assert main(["finetune", str(small), "--dev", str(small), *arguments]) == 0
        model = tmp_path / "fitted"
    used, found = growth(job, path, model)
    assert not found
    assert used < 4 * size + 200


@pytest.mark.slow
def test_a_dev_row_with_many_entities(tmp_path: Path) -> None:
    """All simple methods answer it, and each of its mistakes has a line in errors.csv."""
    tags, rng, size = (
        {"Anna": "B-person", "Paris": "B-place", "saw": "O", "films": "O", "in": "O"},
        random.Random(0),
        2,
    )
    for name, first, count in (
        ("train-", 12, 200),
        ("small-", 1000, 30),
        ("", size * MB // 16, 30),
    ):
        rows = [rng.choices([*tags], k=first if number == 0 else 12) for number in range(count)]
        lines = [json.dumps({"tokens": row, "tags": [tags[word] for word in row]}) for row in rows]
        write(tmp_path / f"{name}rows.jsonl", "\n".join(lines))
    path, model = (
        tmp_path / "rows.jsonl",
        fine.write_model(tmp_path / "model", length=512, hidden_size=16),
    )
    used, found = growth("evaluate", path, model)
    assert not found
    assert used < 4 * path.stat().st_size / MB + 200
    assert (tmp_path / "out-evaluate" / "errors.csv").stat().st_size < 20 * path.stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("job", ["embed", "predict", "check"])
@pytest.mark.parametrize("text", ["good films, ", "東京中国"])
def test_rows_of_a_megabyte(tmp_path: Path, job: str, text: str) -> None:
    model = write_classifier(tmp_path / "model")
    rows, size = 12, MB // 3
    texts = [(text * size)[:size] + str(number) for number in range(rows)]
    path = write_rows(tmp_path / "rows.jsonl", texts)
    write_rows(tmp_path / "small-rows.jsonl", ["good films"] * rows)
    used, found = growth(job, path, model)
    assert not found
    assert used < 200 + 4 * rows * size / MB * len(text[0].encode())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "suffix", "most"),
    [("read", "jsonl", 200), ("read", "json", 1600), ("corpus", "jsonl", 1600)],
)
def test_a_line_that_decompresses_without_end(
    tmp_path: Path, job: str, suffix: str, most: int
) -> None:
    path = tmp_path / f"bomb.{suffix}.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"text": "')
        for _ in range(2000):
            file.write(b"a" * MB)
        file.write(b'"}\n')
    used, found = growth(job, path)
    assert f"{path}:1: a row has more than" in found
    assert used < most


def write_classifier(folder: Path) -> Path:
    """A classifier with random weights."""
    tokenizer = fine.tokenizer()
    config = transformers.BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        id2label={0: "a", 1: "b"},
        label2id={"a": 0, "b": 1},
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


# --- little that becomes much
# -----------------------------------------------------------------------------------------


def write_dictionary(path: Path, text: str, rows: int, *, typed: bool) -> Path:
    """One text in all rows, stored once; typed: the file says so to Arrow."""
    column = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * rows, pyarrow.int32()), pyarrow.array([text])
    )
    table = pyarrow.table({"text": column, "label": ["a", "b"] * (rows // 2)})
    parquet.write_table(table, path, store_schema=typed, dictionary_pagesize_limit=1 << 30)
    return path


@pytest.mark.parametrize("typed", [False, True])
def test_a_text_that_is_stored_once_is_read_in_small_parts(
    typed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "good films " * 100
    path = write_dictionary(tmp_path / "a.parquet", text, 500, typed=typed)
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(tables, "_PARQUET_BYTES", 10 * len(text))
    with tables.open_parquet(path, "a") as file:
        sizes = [len(batch) for batch in tables.batches_of(file)]
    assert sum(sizes) == 500
    assert max(sizes) <= 10
    rows = [row.values for row in RowReader(path)]
    assert rows == [{"text": text, "label": "ab"[number % 2]} for number in range(500)]
    assert [document.text for document in CorpusReader([path])] == [text.strip()] * 500
    assert "a.parquet:1: a row has more than 100 bytes" in error(path)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["read", "corpus"])
def test_a_file_of_a_kilobyte_with_gigabytes_of_text(job: str, tmp_path: Path) -> None:
    used, found = growth(
        job, write_dictionary(tmp_path / "a.parquet", "good film " * (MB // 2), 400, typed=False)
    )
    assert not found
    assert used < 4 * 5 + 200


@pytest.mark.parametrize(
    ("name", "before", "content"),
    [
        ("a.json", "", '{"text": ' + "[" * 200_000 + "]" * 200_000 + "}"),
        (
            "a.jsonl",
            '{"text": "a"}\n',
            '{"text": ' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}\n",
        ),
        ("a.json", "", "[" * 300_000),
        ("a.jsonl.gz", '{"text": "a"}\n', '{"text": ' + "[" * 200_000 + "]" * 200_000 + "}\n"),
    ],
)
def test_lists_within_lists_without_end(
    name: str, before: str, content: str, tmp_path: Path
) -> None:
    found = error(write(tmp_path / name, before + content), ReadOptions())
    assert (
        f"{name}:{2 if before else 1}: this JSON has too many lists or objects within others"
        in found
    )
