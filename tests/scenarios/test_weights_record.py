"""Weights that are not those which bertworks wrote into a folder are noticed when it is opened, in
whatever way; what another program saved is told apart, and accepted with the command of the
message."""

import json
import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import bertworks as bw
from bertworks.checkpoints import storage
from bertworks.checkpoints.model_folder import load_model
from bertworks.cli.main import main
from bertworks.errors import BertworksError
from bertworks.inference.predictor import Predictor
from bertworks.interop.convert import convert
from bertworks.interop.push import push
from bertworks.runs.finetune import finetune
from bertworks.runs.joint import finetune_joint
from bertworks.runs.pretrain import pretrain
from tests.support.fine import write_model, write_reviews
from tests.support.tiny import write_corpus, write_recipe

TEXTS = ["good film", "sad dogs"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fine-tuned run folder."""
    home = tmp_path_factory.mktemp("trained")
    data = write_reviews(home / "reviews.csv", 40)
    base = write_model(home / "base")
    finetune(data, model=base, output=home / "out", epochs=1, method="full", device="cpu")
    return home / "out"


@pytest.fixture
def out(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "out")


def zeroed(path: Path) -> None:
    """Write 8 kB of zeros into the middle of a file, as a bad disk does."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8192] = bytes(8192)
    path.write_bytes(content)


def message(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(BertworksError) as raised:
        call()
    return raised.value.what, str(raised.value.hint)


@pytest.mark.parametrize("record", ["weights.json", "result.json"])
def test_damaged_weights_are_refused_wherever_they_are_opened(
    record: str, out: Path, tmp_path: Path
):
    if record == "result.json":
        (out / "weights.json").unlink()  # as in folders of earlier versions
    before = Predictor(out, device="cpu").predict(TEXTS)
    assert before
    zeroed(out / "model.safetensors")
    data = write_reviews(tmp_path / "d.csv", 30)
    for call in (
        lambda: Predictor(out, device="cpu").predict(TEXTS),
        lambda: bw.embed(out, TEXTS, device="cpu"),
        lambda: bw.load(out, device="cpu").can,
        lambda: load_model(out),
        lambda: list(convert(out, tmp_path / "new")),
        lambda: list(push(out, "me/x", dry_run=True)),
        lambda: list(bw.export(out, tmp_path / "onnx")),
        lambda: finetune(data, model=out, output=tmp_path / "more", device="cpu"),
    ):
        what, hint = message(call)
        assert what == (
            "the weights are damaged, or were written by another program: its sha256 is not "
            f"that in {record}"
        )
        assert hint == (
            "get the folder again; if the change is meant: bertworks convert "
            f"{shlex.quote(str(out))} "
            "-o ANOTHER-FOLDER --accept-changes"
        )
    assert not (tmp_path / "new").exists()


def test_what_transformers_saved_over_a_folder_is_not_called_damaged(
    out: Path, tmp_path: Path, capsys
):
    network = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    with torch.no_grad():
        network.classifier.bias += torch.tensor([5.0, -5.0])
    network.save_pretrained(out)
    what, hint = message(lambda: Predictor(out, device="cpu").predict(TEXTS))
    assert what.startswith(
        "this folder was saved by another program: its weights are not those that bertworks wrote"
    )
    assert "damaged" not in what + hint
    command = hint.removeprefix("if this is meant: ").replace(
        "ANOTHER-FOLDER", shlex.quote(str(tmp_path / "new"))
    )
    assert main(shlex.split(command)[1:]) == 0
    (first, second) = network.config.id2label.values()
    names = network.config.id2label
    answers = Predictor(tmp_path / "new", device="cpu").predict(TEXTS)
    assert {answer["label"] for answer in answers} == {names[0]} == {first} != {second}


def test_what_is_saved_over_a_pretrained_folder(tmp_path: Path):
    folder = write_model(tmp_path / "m")
    network = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    # the same numbers: transformers writes the same tensors, or leaves the pooler out
    network.save_pretrained(folder)
    what, _ = message(lambda: bw.embed(folder, TEXTS, device="cpu"))
    assert what.startswith("this folder was saved by another program")
    changed_folder = write_model(tmp_path / "other")
    tensors = load_file(changed_folder / "model.safetensors")
    save_file(
        {name: value + 1 for name, value in tensors.items()}, changed_folder / "model.safetensors"
    )
    what, _ = message(lambda: load_model(changed_folder))
    assert what.startswith("the weights are damaged, or were written by another program")
    (changed_folder / "weights.json").write_text("{}")
    assert message(lambda: load_model(changed_folder))[0] == "not a record of weights"


def test_a_pretraining_records_its_weights(tmp_path: Path):
    corpus = write_corpus(tmp_path / "t.jsonl", 30)
    recipe = write_recipe(tmp_path / "r.toml")
    list(pretrain(corpus, tmp_path / "out", recipe=str(recipe), device="cpu"))
    fill = bw.load(tmp_path / "out", device="cpu").fill
    assert fill(["the [MASK] was here"])
    zeroed(tmp_path / "out" / "model.safetensors")
    fill = bw.load(tmp_path / "out", device="cpu").fill
    assert "damaged" in message(lambda: fill(["the [MASK] was here"]))[0]


def test_the_weights_of_each_task_of_a_joint_training(tmp_path: Path):
    data = {
        name: write_reviews(tmp_path / f"{name}.csv", 40, seed=seed)
        for seed, name in enumerate(("a", "b"))
    }
    base = write_model(tmp_path / "base")
    models = finetune_joint(data, model=base, output=tmp_path / "out", epochs=1, device="cpu")
    assert models["b"].predict(TEXTS)
    folder = tmp_path / "out/tasks/b"
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) == 2
    for shard in shards:
        whole = shard.read_bytes()
        shard.unlink()  # it may be a link to that of the other task
        shard.write_bytes(whole[:-8] + bytes([byte ^ 1 for byte in whole[-8:]]))
        assert "damaged" in message(lambda: Predictor(folder, device="cpu").predict(TEXTS))[0]
        shard.write_bytes(whole)
        assert Predictor(folder, device="cpu").predict(TEXTS)


@pytest.mark.parametrize("place", ["model.onnx", "onnx/model.onnx"])
def test_an_exported_model_in_both_places(place: str, trained: Path, tmp_path: Path):
    list(bw.export(trained, tmp_path / "e"))
    expected = Predictor(tmp_path / "e").predict(TEXTS)
    path = tmp_path / "e" / place
    path.parent.mkdir(exist_ok=True)
    (tmp_path / "e/model.onnx").rename(path)
    assert Predictor(tmp_path / "e").predict(TEXTS) == expected
    Predictor(tmp_path / "e").save(tmp_path / "copy")
    assert Predictor(tmp_path / "copy").predict(TEXTS) == expected
    zeroed(path)
    what, hint = message(lambda: Predictor(tmp_path / "e").predict(TEXTS))
    assert what == (
        "the ONNX file is damaged, or was written by another program: its sha256 is not that "
        "in export.json"
    )
    assert hint == "export the model again; or, if this is meant, delete export.json"
    (tmp_path / "e/export.json").unlink()
    assert Predictor(tmp_path / "e").predict(TEXTS) != expected


@pytest.mark.parametrize("record", ["weights.json", "result.json", "export.json"])
def test_a_deleted_description_of_the_task_is_noticed(record: str, out: Path, tmp_path: Path):
    folder = out
    if record == "export.json":
        list(bw.export(out, tmp_path / "e"))
        folder = tmp_path / "e"
    elif record == "result.json":
        (out / "weights.json").unlink()
    (folder / "task.json").rename(tmp_path / "task.json")
    what, hint = message(lambda: Predictor(folder, device="cpu"))
    assert (
        what == "task.json is missing: it says how the model reads texts and what its answers mean"
    )
    assert hint == f"put it back; {record} says that it belongs to this folder"
    shutil.copy(tmp_path / "task.json", folder)
    assert Predictor(folder, device="cpu").predict(TEXTS)


def test_a_training_that_goes_on_leaves_no_wrong_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Killed at any file that it writes, a folder opens, or says that it is incomplete, and is
    never called damaged."""
    folder = write_model(tmp_path / "m")
    config, state, tokenizer = load_model(folder)
    (folder / "result.json").write_text(
        json.dumps(json.loads((folder / "weights.json").read_text()))
    )
    state = {name: value + 1 for name, value in state.items()}
    from bertworks.checkpoints.model_folder import save_model
    from bertworks.io import atomic_write

    for number in range(12):
        copy = shutil.copytree(folder, tmp_path / f"copy-{number}")
        count = iter(range(number))
        write = atomic_write.flush_to_disk

        def killed(path: Path, count=count, write=write) -> None:
            if next(count, None) is None:
                raise KeyboardInterrupt
            write(path)

        with monkeypatch.context() as patched:
            patched.setattr(atomic_write, "flush_to_disk", killed)
            with suppress(KeyboardInterrupt):
                save_model(copy, state, config, tokenizer, card="")
        load_model(copy)


def test_a_file_is_hashed_once_for_each_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    hashed: list[Path] = []
    real = storage.sha256
    monkeypatch.setattr(storage, "sha256", lambda path: hashed.append(path) or real(path))
    monkeypatch.setattr(storage, "_known_hashes", {})
    monkeypatch.setattr(storage, "_TRUSTED_AGE", -1)
    folder = write_model(tmp_path / "m")
    hashed.clear()
    for _ in range(3):
        bw.embed(folder, TEXTS, device="cpu")
        assert bw.load(folder, device="cpu").can
    assert [path.name for path in hashed] == ["model.safetensors"]
    monkeypatch.setattr(storage, "_TRUSTED_AGE", 10**18)  # too new to be remembered
    path = tmp_path / "x"
    path.write_bytes(b"a")
    first = storage.file_sha256(path)
    path.write_bytes(b"b")
    assert storage.file_sha256(path) != first
