"""Bulk work in portions: each once and in order, whatever is killed, and the output of one
process."""

import csv
import hashlib
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

import bertworks as bw
from bertworks.cli.main import main
from bertworks.datasets.reader import RowReader
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.embed_file import embed_file
from bertworks.inference.predictor import predict_file
from bertworks.io.file_job import (
    FileKind,
    RowFormat,
    create,
    format_of,
    join_portions,
    portion_maker,
    refuse_finished,
    row_portion,
    unpacked_values,
    write_rows,
)
from bertworks.io.inputs import IssueCounter
from bertworks.io.options import Bulk
from bertworks.runs.prepare import make_shards, make_vocabulary, read_text
from bertworks.text import corpus
from bertworks.text.tokenizer import Tokenizer
from tests.support import ROOT
from tests.support.bulk_jobs import run
from tests.support.fine import write_reviews
from tests.support.refusals import refusal
from tests.support.served import write_head
from tests.support.tiny import write_corpus

EXPECTED = b"".join(json.dumps([n * n, (n + 1) ** 2]).encode() for n in range(0, 80, 2))
BULK_JOBS = [sys.executable, "-m", "tests.support.bulk_jobs"]
KILLS = int(os.environ.get("BERTWORKS_KILLS", "6"))  # of the slow loop; 300 take an hour


def parts(order: list[int], of: int) -> Iterator[Bulk]:
    return (Bulk(part=f"{number}/{of}") for number in order)


def digest(path: Path) -> dict[str, str]:
    """The sha256 of a file, or of the files of a folder."""
    files = (
        [path]
        if path.is_file()
        else sorted(p for p in path.rglob("*") if p.is_file() and p.name != ".lock")
    )
    return {str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


# --- portions


def test_local_processes_and_parts_give_the_same(tmp_path: Path) -> None:
    for name in ("local", "parts"):
        (tmp_path / name).mkdir()
    assert run(tmp_path / "local", Bulk(on="local", workers=2))[1] == EXPECTED
    for bulk in parts([2, 0, 2, 1], 3):
        events, _ = run(tmp_path / "parts", bulk)
        assert events[-1].fields["portions"] == 40
    made = sorted(path.name for path in (tmp_path / "parts" / "out.parts").glob("0*"))
    assert [int(name.split("-")[0]) for name in made] == list(range(40))
    logged = "".join(path.read_text() for path in (tmp_path / "parts").glob("log-*")).split()
    assert sorted(map(int, logged)) == list(range(80)), "the part that runs again makes nothing"
    assert run(tmp_path / "parts", Bulk(join=True))[1] == EXPECTED
    assert not (tmp_path / "parts" / "out.parts").exists()


def test_parts_that_run_twice_at_once(tmp_path: Path) -> None:
    jobs = [
        threading.Thread(target=run, args=(tmp_path, bulk, 40, 0.001))
        for bulk in parts([1, 0, 1, 0, 1], 2)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert len(list((tmp_path / "out.parts").glob("0*"))) == 40
    assert not list((tmp_path / "out.parts").glob(".0*"))
    assert run(tmp_path, Bulk(join=True))[1] == EXPECTED


def test_a_portion_that_exists_is_not_made_again(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}")
    name = create(tmp_path, "0123abcd", 7, 3, [b"one", b"", b"two"])
    before = (tmp_path / name).stat().st_ino
    values = iter([b"other"])
    assert name == create(tmp_path, "0123abcd", 7, 3, values) == "000007-0123abcd-3"
    assert next(values) == b"other"
    assert (tmp_path / name).stat().st_ino == before
    assert list(unpacked_values(tmp_path / name)) == [b"one", b"", b"two"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000007-0123abcd-3", "job.json"]


def test_a_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "kill-12").write_text("1\n2\n")
    (tmp_path / "kill-31").write_text("1\n")
    assert run(tmp_path, Bulk(on="local", workers=2))[1] == EXPECTED


def test_a_portion_that_kills_three_processes_is_named(tmp_path: Path) -> None:
    (tmp_path / "kill-12").write_text("1\n2\n3\n")
    with pytest.raises(
        BertworksError, match=r"died in each of 3 attempts at chunk 6 \(killed by signal 9"
    ):
        run(tmp_path, Bulk(on="local", workers=2))
    assert not (tmp_path / "out").exists()
    assert run(tmp_path, Bulk(on="local", workers=2))[1] == EXPECTED


def test_an_error_of_the_data_ends_the_job_with_its_line(tmp_path: Path) -> None:
    for bulk in (Bulk(on="local", workers=2), Bulk(part="0/1")):
        with pytest.raises(BertworksError, match=r"numbers\.txt:3: a number below zero"):
            run(tmp_path, bulk, numbers=[1, 2, -3, 4])


def test_a_driver_that_is_killed_goes_on(tmp_path: Path) -> None:
    command = [*BULK_JOBS, str(tmp_path), "local", "40", "0.02"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    driver = subprocess.Popen(command, env=environment, cwd=ROOT)
    while len(list((tmp_path / "out.parts").glob("0*"))) < 5:
        assert driver.poll() is None
        time.sleep(0.01)
    driver.kill()
    driver.wait()
    time.sleep(0.2)  # its workers end with it
    made = len(list((tmp_path / "out.parts").glob("0*")))
    events, content = run(tmp_path, Bulk(on="local", workers=2))
    assert content == EXPECTED
    assert made <= events[0].fields["resumed_portions"] < 40


def test_workers_of_a_killed_driver_end_without_a_word(tmp_path: Path) -> None:
    """They could not write to the pipe, and printed so into the terminal of the user, after the
    command had ended."""
    command = [*BULK_JOBS, str(tmp_path), "local", "40", "0.3"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    driver = subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    while len(list((tmp_path / "out.parts").glob("0*"))) < 3:
        assert driver.poll() is None
        time.sleep(0.01)
    driver.kill()
    # until the workers have ended too: they hold the other end
    said, _ = driver.communicate(timeout=60)
    assert said == b""


def test_a_damaged_portion_is_made_again(tmp_path: Path) -> None:
    run(tmp_path, Bulk(part="0/1"))
    second = sorted((tmp_path / "out.parts").glob("0*"))[1]
    second.write_bytes(b"x" + second.read_bytes()[1:])
    with pytest.raises(BertworksError, match="1 of 40 chunks are missing: 1"):
        run(tmp_path, Bulk(join=True))
    run(tmp_path, Bulk(part="0/1"))
    assert run(tmp_path, Bulk(join=True))[1] == EXPECTED


def test_portions_of_another_job_are_refused(tmp_path: Path) -> None:
    run(tmp_path, Bulk(part="0/2"), threads=1, device="CPU AVX2")
    with pytest.raises(
        BertworksError, match=r"another job \(threads: 1, here 2; device: CPU AVX2, here CPU AVX512"
    ) as e:
        run(tmp_path, Bulk(part="1/2"), threads=2, device="CPU AVX512")
    assert "rm -r" in str(e.value.hint)
    job = tmp_path / "out.parts" / "job.json"
    job.write_text(job.read_text().replace(bw.__version__, "0.0.1"))
    with pytest.raises(BertworksError, match=r"version: 0\.0\.1, here"):
        run(tmp_path, Bulk(join=True), threads=1, device="CPU AVX2")


def test_a_worker_that_would_give_other_results_is_refused(tmp_path: Path) -> None:
    """As the maker finds it in the process of the worker: another model, or another processor."""
    with pytest.raises(BertworksError, match="step: 2, here 1"):
        run(tmp_path, Bulk(on="local", workers=1), step=2)


def test_a_worker_that_does_not_see_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BertworksError, match="this folder is not visible on") as caught:
        create(tmp_path / "nowhere", "0123abcd", 0, 0, b"")
    assert "all machines share" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"on": "spark"}, "there is no engine 'spark'"),
        ({"on": "ray://head"}, "there is no engine"),
        ({"part": "3/3"}, "--part 3/3: there is no such part"),
        ({"part": "1"}, "no such part"),
        ({"part": "0/0"}, "no such part"),
        ({"part": "-1/3"}, "no such part"),
        ({"part": "0/3", "join": True}, "exclude each other"),
        ({"on": "local", "part": "0/1"}, "exclude each other"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        Bulk(**options)


# --- commands

Command = Callable[[Path, Bulk], None]


@pytest.fixture(scope="module")
def commands(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Command]:
    """The commands, each with several portions."""
    home = tmp_path_factory.mktemp("commands")
    rows = write_reviews(home / "rows.csv", 40)
    trained = write_head(
        home / "trained", task="classification", text=("text",), label=("label",), labels=("a", "b")
    )
    (home / "text").mkdir()
    for number in range(5):
        write_corpus(home / "text" / f"{number}.jsonl", 12, seed=number)
    text, options = [home / "text"], {"device": "cpu", "precision": "fp32"}
    tokenizer = Tokenizer.load(model)

    def vocab(output: Path, bulk: Bulk) -> None:
        config = bw.VocabularyConfig(size=150)
        list(make_vocabulary(read_text(text), output, config, bulk=bulk))

    return {
        "embed": lambda output, bulk: list(
            embed_file(model, rows, output, text="text", bulk=bulk, **options)
        ),
        "predict": lambda output, bulk: list(
            predict_file(trained, rows, output, kind="jsonl", bulk=bulk, **options)
        ),
        "index": lambda output, bulk: list(
            bw.index_file(rows, output, model=model, device="cpu", text=["text"], bulk=bulk)
        ),
        "prepare": lambda output, bulk: list(
            make_shards(read_text(text), output, tokenizer, workers=1, bulk=bulk)
        ),
        "vocab": vocab,
        "mlm": lambda output, bulk: bw.evaluate_mlm(
            model,
            [home / "text" / "0.jsonl"],
            device="cpu",
            output=output,
            bulk=bulk,
            on_note=lambda _: None,
        ),
    }  # type: ignore[dict-item]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertworks.io.file_job.ROWS_AT_ONCE", 7)
    monkeypatch.setattr(corpus, "_GROUP", 5000)
    monkeypatch.setattr("bertworks.evaluation.masked_lm._BATCHES", 1)


def fresh(name: str) -> str:
    return {"embed": "v.npy", "predict": "p.jsonl", "mlm": "m.json"}.get(name, name)


def whole_and_joined(name: str, command: Command, folder: Path) -> tuple[Path, Path]:
    """The output of one process, and a path for that of several."""
    for place in "ab":
        (folder / place).mkdir()
    whole, joined = folder / "a" / fresh(name), folder / "b" / fresh(name)
    command(whole, Bulk())
    return whole, joined


@pytest.mark.parametrize("name", ["embed", "predict", "index", "prepare", "vocab", "mlm"])
def test_parts_of_a_command_give_the_output_of_one_process(
    name: str, commands: dict[str, Command], tmp_path: Path, small: None
) -> None:
    whole, joined = whole_and_joined(name, commands[name], tmp_path)
    for bulk in parts([2, 0, 2], 3):
        commands[name](joined, bulk)
        assert not joined.is_file()
    with pytest.raises(BertworksError, match="chunks are missing: 1") as caught:
        commands[name](joined, Bulk(join=True))
    assert "--on local instead of --join" in str(caught.value.hint)
    commands[name](joined, Bulk(part="1/3"))
    commands[name](joined, Bulk(join=True))
    assert digest(whole) == digest(joined)
    assert not list(joined.parent.glob("*.parts"))


@pytest.mark.parametrize("name", ["prepare", pytest.param("embed", marks=pytest.mark.slow)])
def test_local_processes_give_the_output_of_one_process(
    name: str, commands: dict[str, Command], tmp_path: Path, small: None
) -> None:
    whole, joined = whole_and_joined(name, commands[name], tmp_path)
    commands[name](joined, Bulk(on="local", workers=1))
    assert digest(whole) == digest(joined)


def test_standard_output_and_input_are_refused(
    commands: dict[str, Command], model: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="needs a name") as caught:
        commands["embed"](Path("-"), Bulk(on="local"))
    assert caught.value.hint == "-o FILE"
    reader = read_text([{"text": "A film."}])
    with pytest.raises(UsageError, match="can be read by one process only"):
        list(make_shards(reader, tmp_path / "s", Tokenizer.load(model), bulk=Bulk(on="local")))


def test_an_unreachable_head_is_refused_at_once(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    rows, begin = write_reviews(tmp_path / "a.csv", 9), time.monotonic()
    command = [
        "embed",
        str(model),
        str(rows),
        "-o",
        str(tmp_path / "v.npy"),
        "--text",
        "text",
        "--device",
        "cpu",
    ]
    assert main([*command, "--on", "ray://127.0.0.1:9"]) == 2
    assert time.monotonic() - begin < 20
    assert "no Ray head answers" in (said := capsys.readouterr().err)
    assert "--on local" in said
    assert main([*command, "--on", "local", "--part", "0/3"]) == 2
    assert main([*command, "--part", "0/1"]) == 0
    assert main([*command, "--join"]) == 0


# --- Ray, and many kills


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    os.environ |= {
        "RAY_worker_niceness": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    ray = pytest.importorskip("ray")
    ray.init(
        "local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80 << 20,
        log_to_driver=False,
    )
    yield ray
    ray.shutdown()


def end_soon(path: Path, seconds: float) -> threading.Thread:
    """SIGKILL for a process that has written a log there, after a while."""

    def end() -> None:
        time.sleep(seconds)
        for log in list(path.glob("log-*"))[:1]:
            os.kill(int(log.name.removeprefix("log-")), signal.SIGKILL)

    thread = threading.Thread(target=end)
    thread.start()
    return thread


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)
def test_ray_gives_the_same_and_replaces_what_is_killed(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "kill-12").write_text("1\n")
    thread = end_soon(tmp_path, 1.5)
    assert run(tmp_path, Bulk(on="ray"), seconds=0.1)[1] == EXPECTED
    thread.join()
    with pytest.raises(BertworksError, match=r"numbers\.txt:3: a number below zero"):
        run(tmp_path, Bulk(on="ray"), numbers=[1, 2, -3, 4], other=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["gcs_server", "raylet", "ray::RuntimeEnvAgent", "ray::DashboardAgent"]
)
def test_a_killed_process_of_ray_gives_a_message(name: str, tmp_path: Path) -> None:
    """No portion is to blame; without the head, Ray itself says nothing for a minute and ends the
    process."""
    pytest.importorskip("ray")
    psutil = pytest.importorskip("psutil")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "RAY_worker_niceness": "0",
    }
    command = [*BULK_JOBS, str(tmp_path), "ray", "40", "0.2", "says"]
    driver = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    while len(list((tmp_path / "out.parts").glob("0*"))) < 3:
        assert driver.poll() is None
        time.sleep(0.05)
    processes = psutil.Process(driver.pid).children(recursive=True)
    next(one for one in processes if name in (one.name(), *one.cmdline()[:1])).kill()
    message, _ = driver.communicate(timeout=120)
    assert driver.returncode == 1
    assert "the connection to the Ray head was lost" in message
    assert "portion" not in message.partition("hint:")[0]
    events, content = run(tmp_path, Bulk(on="local", workers=2))
    assert content == EXPECTED
    assert events[0].fields["resumed_portions"] >= 3


@pytest.mark.slow
def test_a_node_that_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "RAY_worker_niceness": "0",
    }
    command = [*BULK_JOBS, str(tmp_path), "cluster"]
    subprocess.run(command, env=environment, cwd=ROOT, check=True, timeout=300)
    numbers = range(0, 120, 2)
    assert (tmp_path / "out").read_bytes() == b"".join(
        json.dumps([n * n, (n + 1) ** 2]).encode() for n in numbers
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_many_kills(tmp_path: Path) -> None:
    """Drivers and workers are killed at random; each number is there once, and the bytes are those
    of one process."""
    draw = random.Random(0)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    left, rounds = KILLS, 0
    while left > 0:
        folder, rounds = tmp_path / str(rounds), rounds + 1
        folder.mkdir()
        command = [*BULK_JOBS, str(folder), "local", "40", "0.05"]
        while not (folder / "out").exists():
            driver = subprocess.Popen(command, env=environment, cwd=ROOT)
            while left > 0 and driver.poll() is None:
                time.sleep(draw.uniform(0.3, 2.0))
                logs = list(folder.glob("log-*"))
                victim = (
                    driver.pid
                    if draw.random() < 0.3 or not logs
                    else int(draw.choice(logs).name[4:])
                )
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                left -= 1
            driver.wait()
        assert (folder / "out").read_bytes() == EXPECTED


# --- portions of a finished job


class _Killed(BaseException):
    """Stands for SIGKILL at a place where nothing is left to do but to delete the portions."""


@pytest.mark.parametrize("name", ["embed", "predict", "index", "prepare", "vocab"])
def test_portions_of_a_finished_job_go(
    name: str,
    commands: dict[str, Command],
    tmp_path: Path,
    small: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process was killed after the output was complete, before or while it deleted the
    portions."""
    whole, output = whole_and_joined(name, commands[name], tmp_path)
    folder = output.with_name(f"{output.name}.parts")

    def killed(_: Path) -> None:
        raise _Killed

    commands[name](output, Bulk(part="0/1"))
    with monkeypatch.context() as patch:
        patch.setattr("bertworks.io.file_job._remove_whole", killed)
        with pytest.raises(_Killed):
            commands[name](output, Bulk(join=True))
    assert list(folder.glob("0*"))
    assert digest(whole) == digest(output)
    if name in ("index", "prepare"):
        commands[name](output, Bulk(join=True))
    else:
        with pytest.raises(UsageError, match="this file already exists"):
            refuse_finished(output, False, "tokenizer.json" if name == "vocab" else "")
    assert not folder.exists()
    assert digest(whole) == digest(output)


def test_portions_for_an_output_that_will_be_replaced_stay(tmp_path: Path) -> None:
    run(tmp_path, Bulk(on="local", workers=1))
    list(tmp_path.glob("*"))
    run(tmp_path, Bulk(part="0/1"), other=1)
    with pytest.raises(UsageError, match="this file already exists"):
        refuse_finished(tmp_path / "out", False)
    refuse_finished(tmp_path / "out", True)
    assert len(list((tmp_path / "out.parts").glob("0*"))) == 40
    assert run(tmp_path, Bulk(join=True), other=1)[1] == EXPECTED
    assert not (tmp_path / "out.parts").exists()


def test_deleting_that_is_interrupted_is_completed(tmp_path: Path) -> None:
    left = tmp_path / f".out.parts@{socket.gethostname()}.999999999-1.0.tmp"
    left.mkdir()
    (left / "000001-0123456789abcdef-1").write_text("x")
    run(tmp_path, Bulk(on="local", workers=1))
    assert not left.exists()


def test_a_portion_is_made_for_its_job_only(tmp_path: Path) -> None:
    run(tmp_path, Bulk(part="0/2"))
    folder = str(tmp_path / "out.parts")
    maker = ("tests.support.bulk_jobs:maker", [str(tmp_path), 0.0])
    with refusal("not visible on", "start the job in a shared folder"):
        portion_maker(folder, str(tmp_path / "nowhere"), "", *maker)
    with refusal("the job has changed", "run the same command again"):
        portion_maker(folder, str(Path.cwd()), "0123", *maker)


ROWS = [
    {"n": 1, "text": 'She said "no", and left.'},
    {"n": 2, "text": "two\nlines"},
    {"n": 3, "text": "=SUM(A1)"},
    {"n": None, "text": ""},
]
KINDS: tuple[FileKind, ...] = ("csv", "tsv", "jsonl", "json")


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_the_file(kind: FileKind, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    assert write_rows(path, ["n", "text"], ROWS) == 4
    row_format = format_of(path, ["n", "text"])
    for cut in range(5):
        blocks = [row_format.block(ROWS[:cut]), row_format.block(ROWS[cut:], cut + 1)]
        row_format.join(tmp_path / "b", lambda: blocks)  # noqa: B023
        assert (tmp_path / "b").read_bytes() == path.read_bytes()


def test_a_table_as_the_library_of_python_reads_it() -> None:
    row_format = RowFormat(name="a.csv", kind="csv", columns=["n", "text"])
    rows = list(csv.reader(io.StringIO(row_format.block(ROWS).decode(), newline="")))
    assert rows == [[str(row["n"] or ""), row["text"]] for row in ROWS]


@pytest.mark.parametrize("rows", [[], ROWS[:1], ROWS])
def test_an_array_of_json(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    write_rows(tmp_path / "a.json", ["n", "text"], rows)
    assert json.loads((tmp_path / "a.json").read_text()) == rows


def test_types_of_blocks_of_parquet_are_joined(tmp_path: Path) -> None:
    row_format = format_of(tmp_path / "a.parquet", ["x", "y"])
    blocks = [
        row_format.block([{"x": 1, "y": None}]),
        row_format.block([{"x": 2.5, "y": ["a"]}, {"x": None}], 2),
    ]
    row_format.join(tmp_path / "a.parquet", lambda: blocks)
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.to_pydict() == {"x": [1.0, 2.5, None], "y": [None, ["a"], None]}
    text_blocks = [blocks[0], row_format.block([{"x": "a"}], 2)]
    with pytest.raises(BertworksError, match="rows 2 to 2 cannot be written as Parquet"):
        row_format.join(tmp_path / "b.parquet", lambda: text_blocks)
    assert not (tmp_path / "b.parquet").exists()


def test_formulas_are_counted_at_their_rows_and_guarded() -> None:
    formulas = IssueCounter()
    row_format = RowFormat(name="a.csv", kind="csv", columns=["text"], guard_formulas=True)
    block = row_format.block([{"text": "=1"}, {"text": "-1"}, {"text": "@a"}], 11, formulas)
    assert block == b"'=1\n-1\n'@a\n"
    assert formulas.places == ["row 11, column 'text'", "row 13, column 'text'"]


def test_a_field_that_is_no_column_is_named_with_its_row() -> None:
    row_format = RowFormat(name="a.csv", kind="csv", columns=["text"])
    with pytest.raises(BertworksError, match="row 8 has the field 'more'") as caught:
        row_format.block([{"text": "a"}, {"more": "b"}], 7)
    assert "jsonl" in str(caught.value.hint)


def test_portions_are_joined_with_what_they_counted(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "job.json").write_text("{}")
    row_format = format_of(tmp_path / "a.csv", ["=x"])
    names = [
        create(folder, "0123456789abcdef", number, 0, row_portion(row_format, [row], number + 1))
        for number, row in enumerate([{"=x": "+a"}, {"=x": "b"}])
    ]
    note = join_portions(row_format, tmp_path / "a.csv", [folder / name for name in names])
    assert (tmp_path / "a.csv").read_text() == "=x\n+a\nb\n"
    assert note is not None
    assert "2 (header, column '=x', row 1, column '=x')" in note


def test_compression_and_kinds(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.csv.gz", ["text"], [{"text": "one"}, {"text": "two"}])
    assert [row.values["text"] for row in RowReader(tmp_path / "a.csv.gz")] == ["one", "two"]
    for kind, message in (("conll", "words and tags"), ("parquet", "to a stream")):
        with pytest.raises(UsageError, match=message):
            format_of("-", ["text"], kind=kind)  # type: ignore[arg-type]
