"""A model reads longer texts when its table of positions gets more rows."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bertworks as bw
from bertworks.checkpoints.model_folder import load_model
from bertworks.cli.main import main
from bertworks.errors import UsageError
from bertworks.inference.embedder import Embedder
from bertworks.interop.convert import convert
from tests.scenarios.test_families_end_to_end import write_modernbert, write_roberta
from tests.support import fine
from tests.support.refusals import refusal
from tests.support.tiny import leftovers

TABLE = "encoder.embeddings.position.weight"
TEXT = "good bad " * 8


def lengthened(tmp_path: Path, positions: int) -> tuple[Path, Path, list[str]]:
    """A model of 24 positions, the longer one, and the notes about it."""
    model = fine.write_model(tmp_path / "model", length=24, noise=0.1)
    *notes, _ = convert(model, tmp_path / "long", positions=positions)
    return model, tmp_path / "long", [note.text for note in notes]


@pytest.mark.parametrize("positions", [25, 47, 48, 100])
def test_the_rows_repeat_from_the_second_one_on(tmp_path: Path, positions: int) -> None:
    model, longer, _ = lengthened(tmp_path, positions)
    before, after = (load_model(folder).state for folder in (model, longer))
    expected = [row if row < 24 else (row - 24) % 23 + 1 for row in range(positions)]
    assert torch.equal(after[TABLE], before[TABLE][expected])
    assert all(torch.equal(after[name], before[name]) for name in before if name != TABLE)


def test_old_texts_have_the_same_vectors_and_longer_ones_are_read(tmp_path: Path) -> None:
    model, longer, notes = lengthened(tmp_path, 96)
    short, long = Embedder(model, pooling="mean"), Embedder(longer, pooling="mean")
    assert np.array_equal(short.embed([TEXT]), long.embed([TEXT]))
    texts = [TEXT * 3, TEXT * 3 + "bad"]
    first, second = long.embed(texts)
    assert not np.allclose(first, second, atol=1e-4)  # the last word was read
    first, second = short.embed(texts)
    assert np.array_equal(first, second)
    assert "reads texts of 96 tokens now; it read 24" in notes[0]
    assert "positions from 25 on have the rows of those from 2 to 24" in notes[1]
    settings = json.loads((longer / "config.json").read_text())
    assert settings["max_position_embeddings"] == 96
    assert json.loads((longer / "tokenizer_config.json").read_text())["model_max_length"] == 96


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_transformers_reads_the_longer_model(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    if kind == "bert":
        lengthened(tmp_path, 160)
    else:  # the table has two rows in front of the first position
        write_roberta(tmp_path / "model")
        list(convert(tmp_path / "model", tmp_path / "long", positions=160))
        settings = json.loads((tmp_path / "long" / "config.json").read_text())
        assert settings["max_position_embeddings"] == 162
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "long").eval()
    ours = Embedder(tmp_path / "long", pooling="cls", normalize=False, precision="fp32")
    ids = ours.tokenizer.encode(TEXT * 4).ids
    assert 64 < len(ids) <= 160
    with torch.inference_mode():
        states = theirs(input_ids=torch.tensor([ids])).last_hidden_state
    np.testing.assert_allclose(ours.embed([TEXT * 4])[0], states[0, 0], atol=2e-5)


def test_sines_and_cosines_need_no_rows(tmp_path: Path) -> None:
    model = fine.write_translator(tmp_path / "model", length=24)
    *notes, _ = convert(model, tmp_path / "long", positions=64)
    before, after = (load_model(folder) for folder in (model, tmp_path / "long"))
    assert after.config.max_position_embeddings == 64
    assert before.state.keys() == after.state.keys()
    assert all(torch.equal(after.state[name], before.state[name]) for name in before.state)
    assert after.tokenizer.model_max_length == before.tokenizer.model_max_length
    assert ["reads texts of 64 tokens now" in note.text for note in notes].count(True) == 1


def test_limits_that_stay_are_named_and_longer_training_works(tmp_path: Path) -> None:
    _, longer, _ = lengthened(tmp_path, 96)
    table = tmp_path / "rows.csv"
    rows = [f"{TEXT * 4}{word},{label}" for word, label in (("good", "a"), ("bad", "b")) * 8]
    table.write_text("text,label\n" + "\n".join(rows) + "\n")
    task = tmp_path / "task"
    request = bw.make_finetune_request(
        table,
        model=longer,
        overrides=["epochs=1", "max_length=80"],
        method="full",
        validation="split",
    )
    list(bw.finetune_events(task, request))
    assert json.loads((task / "task.json").read_text())["max_length"] == 80
    *notes, _ = convert(task, tmp_path / "longer", positions=128)
    assert any("cuts texts at 80 tokens, as it was trained" in note.text for note in notes)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (24, "reads texts of 24 tokens already"),
        (2_000_000, "expected at most 1,048,576"),
    ],
)
def test_what_cannot_be_made_longer_is_refused(
    tmp_path: Path, positions: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as refusal:
        lengthened(tmp_path, positions)
    assert refusal.value.hint
    assert not (tmp_path / "long").exists()
    assert not leftovers(tmp_path)


def test_other_files_are_converted_in_two_steps(tmp_path: Path) -> None:
    (tmp_path / "bert_model.ckpt.index").write_bytes(b"")
    with refusal("not that of a checkpoint", "-o LONG --positions 64"):
        list(convert(tmp_path / "bert_model.ckpt", tmp_path / "long", positions=64))
    model = fine.write_model(tmp_path / "model", length=24)
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    with refusal("--positions reads no pickles", "-o MODEL --trust-pickle"):
        list(convert(model, tmp_path / "long", positions=64, trust_pickle=True))


def test_rotations_have_no_table(tmp_path: Path) -> None:
    write_modernbert(tmp_path / "model")
    with pytest.raises(UsageError, match="are rotations in its layers"):
        list(convert(tmp_path / "model", tmp_path / "long", positions=4096))


def test_static_vectors_have_no_positions(tmp_path: Path) -> None:
    model = fine.write_model(tmp_path / "model", length=24)
    with pytest.raises(UsageError, match="vectors without positions"):
        list(convert(model, tmp_path / "long", positions=48, static=8))
    list(convert(model, tmp_path / "static", static=8))
    with pytest.raises(UsageError, match="has no positions, so it has no table"):
        list(convert(tmp_path / "static", tmp_path / "long", positions=48))


def test_the_command_line_says_what_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = fine.write_model(tmp_path / "model", length=24)
    assert main(["convert", str(model), "-o", str(tmp_path / "long"), "--positions", "48"]) == 0
    assert "reads texts of 48 tokens now" in "".join(capsys.readouterr())
