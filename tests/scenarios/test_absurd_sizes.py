"""Absurd sizes are refused before anything is parsed or computed."""

import json
from pathlib import Path
from typing import Any

import pytest

import bertworks
from bertworks.checkpoints.storage import read_tensors
from bertworks.cli.main import main
from bertworks.datasets.reader import RowReader
from bertworks.errors import BertworksError, UsageError
from bertworks.runs.finetune import make_finetune_request
from bertworks.runs.trials import plan_trials
from bertworks.text.corpus import CorpusReader
from bertworks.training.recipe import load_finetune_recipe, load_recipe


def write_empty_tensors(path: Path, count: int) -> Path:
    header = {f"{n:x}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for n in range(count)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    return path


def test_tens_of_thousands_of_empty_tensors(tmp_path: Path) -> None:
    with pytest.raises(
        BertworksError, match="60,000 tensors: more than any model or checkpoint has"
    ):
        read_tensors(write_empty_tensors(tmp_path / "many.safetensors", 60_000))
    assert len(read_tensors(write_empty_tensors(tmp_path / "few.safetensors", 5_000))) == 5_000


@pytest.mark.parametrize("part", ["[]", "{}"])
def test_millions_of_empty_lists(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hollow = "[" + f"{part}," * 3_000_000 + "[]]"
    good = '{"text": "A film.", "label": "a"}\n' * 200
    rows = f'[{{"text": "A", "label": "a"}}, {{"text": "B", "z": {hollow}}}]'
    whole = json.loads

    def loads(text: str, **options: Any) -> Any:
        assert len(text) < 1_000_000, "it is parsed"
        return whole(text, **options)

    monkeypatch.setattr("json.loads", loads)
    for name, content in {
        "a.jsonl": f'{good}{{"text": {hollow}}}\n',
        "b.json": hollow,
        "c.json": f'{{"data": {hollow}}}',
        "d.json": rows,
        "e.jsonl": f'{{"text": {hollow}, "label": "a"}}\n{good}',
    }.items():
        path = tmp_path / name
        path.write_text(content)
        with pytest.raises(BertworksError, match="empty lists or objects are not data"):
            list(RowReader(path))
    reader = CorpusReader([tmp_path / "a.jsonl"])
    assert len(list(reader)) == 200
    assert any("malformed" in issue for issue in reader.report.issues())


def test_many_short_rows_in_one_json_value_are_data(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[" + ",".join(f'{{"t":{n}}}' for n in range(301_000)) + "]")
    assert sum(1 for _ in RowReader(path)) == 301_000


@pytest.mark.parametrize("option", ["batch_size", "epochs"])
def test_absurd_numbers_of_a_training(option: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"{option} is 1000000000000: expected [01] to 1,048,576"):
        load_finetune_recipe("stable", [f"{option}=1000000000000"])
    with pytest.raises(UsageError, match=r"batch_size is 1000000000000: expected 1 to 1,048,576"):
        load_recipe("bert-tiny", ["train.phases.0.batch_size=1000000000000"])


@pytest.mark.parametrize("size", [10**12, 10**30])
@pytest.mark.parametrize(
    "option",
    [
        "train.phases.0.num_steps",
        "train.phases.0.sequence_length",
        "train.micro_batch_tokens",
        "train.held_out_sequences",
        "train.evaluate_every",
        "train.save_every",
        "sampling.copies",
        "masking.max_predictions",
    ],
)
def test_absurd_numbers_of_a_pretraining(option: str, size: int) -> None:
    if option == "train.micro_batch_tokens":
        size *= 10
    with pytest.raises(
        UsageError, match=rf"{option.rpartition('.')[2]} is {size}: expected [015] to [0-9,]+"
    ):
        load_recipe("bert-tiny", [f"{option}={size}"])


@pytest.mark.parametrize(
    "option",
    ["max_length", "evaluations", "patience", "cloze_steps", "micro_batch_tokens", "save_every"],
)
def test_absurd_numbers_of_a_finetuning(option: str) -> None:
    size = 10**13
    with pytest.raises(UsageError, match=rf"{option} is {size}: expected [018] to [0-9,]+"):
        load_finetune_recipe("stable", [f"{option}={size}"])


def test_numbers_that_people_use_stay_allowed() -> None:
    options = [
        "train.phases.0.num_steps=1000000000",
        "train.micro_batch_tokens=100000000000",
        "sampling.copies=40",
    ]
    recipe = load_recipe("bert-tiny", options)
    assert recipe.train.phases[0].num_steps == 10**9
    assert (
        load_finetune_recipe("stable", ["save_every=1000000", "patience=1000000"]).patience == 10**6
    )


@pytest.mark.parametrize(
    "options", [{"seeds": 10**12}, {"folds": 10**12}, {"seeds": 200, "folds": 100}]
)
def test_absurdly_many_trainings(options: dict[str, int], tmp_path: Path) -> None:
    request = make_finetune_request(tmp_path / "a.csv")
    with pytest.raises(UsageError, match=r"fine-tunings .* expected at most 10,000"):
        plan_trials(request, **options)
    assert len(plan_trials(request, seeds=100, folds=10)) == 1000


@pytest.mark.parametrize(
    "words",
    [
        "pretrain a.txt -o run --processes",
        "finetune a.csv -o run --processes",
        "slurm finetune a.csv -o run --nodes",
        "slurm finetune a.csv -o run --gpus",
        "slurm finetune a.csv -o run --processes",
        "slurm finetune a.csv -o run --cpus",
    ],
)
def test_absurdly_many_processes(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), str(10**12)]) == 2
    assert "Must be <= 65536" in capsys.readouterr().err


def test_absurdly_many_machines(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"pretrain a.txt -o run --processes 1 --nodes 1:{10**12} --rendezvous node1:29500"
    assert main(words.split()) == 2
    assert "expected at most 65,536 machines" in capsys.readouterr().err


def test_absurdly_many_trainings_of_an_evaluation(tmp_path: Path) -> None:
    task = tmp_path / "CoLA"
    task.mkdir()
    (task / "train.tsv").write_text("a\t1\t\tA sentence.\n")
    with pytest.raises(
        UsageError, match="1,000,000,000,000 trainings of each task: expected at most 10,000"
    ):
        list(bertworks.evaluate_glue(tmp_path, tmp_path / "output", seeds=10**12))
    with pytest.raises(
        UsageError, match=r"trainings \(arms times seeds\): expected at most 10,000"
    ):
        list(
            bertworks.evaluate_ablation(
                "nsp-sop", ["a.txt"], output=tmp_path / "output", seeds=10**12
            )
        )
    with pytest.raises(
        UsageError,
        match="times the steps or the time of the ablation: expected less than 1,000,000",
    ):
        list(
            bertworks.evaluate_ablation(
                "nsp-sop", ["a.txt"], output=tmp_path / "output", steps=10**12
            )
        )
    for option in ("seeds", "epochs"):
        with pytest.raises(
            UsageError, match=f"{option} is 1,000,000,000,000: expected at most 10,000"
        ):
            list(bertworks.evaluate_probe("minilm", tmp_path, **{option: 10**12}))
    assert not (tmp_path / "output").exists()
