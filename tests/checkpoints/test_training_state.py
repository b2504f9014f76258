"""Whatever happens to a checkpoint being saved or lying on the disk, the loader returns a complete
one, old or new."""

import errno
import io
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from bertworks.checkpoints import training_state as module
from bertworks.checkpoints.training_state import latest_checkpoint, save_checkpoint
from bertworks.errors import BertworksError


def state(step):
    generator = torch.Generator().manual_seed(step)
    return {
        "parameters.word": torch.randn(7, 5, generator=generator),
        "moments.word": torch.randn(7, 5, generator=generator).bfloat16(),
        "counter": torch.tensor(step),
        "nothing": torch.zeros(0, 3),
    }


def facts(step):
    return {
        "tokens": step * 1000,
        "loss": 1 / (step + 1),
        "name": "かな",
        "phases": [1, None, {"a": True}],
    }


def save(folder, step, **options):
    return save_checkpoint(folder, step, state(step), facts(step), **options)


def is_complete(checkpoint):
    expected = state(checkpoint.step)
    same = all(torch.equal(checkpoint.tensors[name], value) for name, value in expected.items())
    return (
        same
        and checkpoint.tensors.keys() == expected.keys()
        and checkpoint.facts == facts(checkpoint.step)
    )


def steps_in(folder):
    return sorted(int(path.name[5:]) for path in folder.iterdir() if path.name[5:].isdigit())


def test_what_is_saved_is_what_is_read(tmp_path):
    path = save(tmp_path / "run", 123)
    assert path == tmp_path / "run" / "step-00000123"
    assert sorted(file.name for file in path.iterdir()) == ["checkpoint.json", "state.safetensors"]
    found, notes = latest_checkpoint(tmp_path / "run")
    assert found.step == 123
    assert found.path == path
    assert is_complete(found)
    assert notes == {}
    assert {name: value.dtype for name, value in found.tensors.items()} == {
        name: value.dtype for name, value in state(123).items()
    }


def test_a_folder_without_checkpoints_has_none(tmp_path):
    assert latest_checkpoint(tmp_path) == (None, {})
    assert latest_checkpoint(tmp_path / "absent") == (None, {})


def test_tensors_of_every_kind_come_back_bit_for_bit(tmp_path):
    tensors = {
        str(kind): torch.arange(6).reshape(2, 3).to(kind)
        for kind in (
            torch.float64,
            torch.float32,
            torch.float16,
            torch.bfloat16,
            torch.int64,
            torch.int32,
            torch.int16,
            torch.int8,
            torch.uint8,
            torch.bool,
        )
    }
    tensors["transposed"] = torch.randn(3, 4).t()
    save_checkpoint(tmp_path, 1, tensors, {})
    found, _ = latest_checkpoint(tmp_path)
    assert all(torch.equal(found.tensors[name], value) for name, value in tensors.items())


def test_facts_come_back_exactly(tmp_path):
    numbers = {"third": 1 / 3, "tiny": 5e-324, "large": 2**63, "negative": -0.1}
    save_checkpoint(tmp_path, 1, state(1), numbers)
    found, _ = latest_checkpoint(tmp_path)
    assert found.facts == numbers


def test_the_newest_stay_and_the_best(tmp_path):
    for step in range(10, 80, 10):
        save(tmp_path, step, keep=2, best=20 if step >= 20 else None)
    assert steps_in(tmp_path) == [20, 60, 70]
    save(tmp_path, 80, keep=1, best=80)
    assert steps_in(tmp_path) == [80]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000080"]


def test_the_one_just_saved_is_never_deleted(tmp_path):
    for step in (100, 200, 50):
        save(tmp_path, step, keep=2)
    assert steps_in(tmp_path) == [50, 100, 200]


def test_the_same_step_is_replaced(tmp_path):
    save_checkpoint(tmp_path, 5, {"other": torch.ones(2)}, {})
    save(tmp_path, 5)
    found, _ = latest_checkpoint(tmp_path)
    assert is_complete(found)


def test_numbers_that_are_not_finite_are_never_saved(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(BertworksError, match=r"NaN or infinite numbers in parameters\.word"):
        save_checkpoint(
            tmp_path, 2, state(2) | {"parameters.word": torch.tensor([1.0, float("nan")])}, {}
        )
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_checkpoint(tmp_path, 2, state(2), {"loss": float("nan")})
    with pytest.raises(TypeError):
        save_checkpoint(tmp_path, 2, state(2), {"path": tmp_path})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


# --- damage to files that lie on the disk


def damage_at_every_place(content):
    """Cuts and single flipped bits, all over a small file."""
    places = sorted({*range(0, len(content), max(len(content) // 40, 1)), len(content) - 1})
    yield from (content[:place] for place in places)
    yield from (
        content[:place] + bytes([content[place] ^ (1 << place % 8)]) + content[place + 1 :]
        for place in places
    )
    yield content + b"\0"


@pytest.mark.parametrize("file", ["state.safetensors", "checkpoint.json"])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_read(tmp_path, file):
    for step in (1, 2):
        save(tmp_path / "sound", step)
    content = (tmp_path / "sound" / "step-00000002" / file).read_bytes()
    for number, damaged in enumerate(damage_at_every_place(content)):
        run = tmp_path / str(number)
        shutil.copytree(tmp_path / "sound", run)
        (run / "step-00000002" / file).write_bytes(damaged)
        found, notes = latest_checkpoint(run)
        assert is_complete(found)
        if found.step == 2:  # only white space was hit
            assert json.loads(damaged) == json.loads(content)
            continue
        ((path, why),) = notes.items()
        assert path.name == "step-00000002.corrupt"
        assert path.is_dir()
        assert ("bytes instead of" in why) == (
            file == "state.safetensors" and len(damaged) != len(content)
        )
        assert latest_checkpoint(run)[1] == {}
        save(run, 2)
        assert latest_checkpoint(run)[0].step == 2
        shutil.rmtree(run)


def test_all_damaged_is_none_with_the_reasons(tmp_path):
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / "step-00000001" / "state.safetensors").unlink()
    (tmp_path / "step-00000002" / "checkpoint.json").unlink()
    found, notes = latest_checkpoint(tmp_path)
    assert found is None
    assert [path.name for path in notes] == ["step-00000002.corrupt", "step-00000001.corrupt"]
    assert all("No such file" in why for why in notes.values())


def test_a_disk_that_is_away_for_a_moment_damages_nothing(tmp_path, monkeypatch):
    for step in (1, 2):
        save(tmp_path, step)

    def away(path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("bertworks.checkpoints.training_state.sha256", away)
        with pytest.raises(BertworksError, match="Input/output error") as error:
            latest_checkpoint(tmp_path)
    assert "try again" in error.value.hint
    assert latest_checkpoint(tmp_path)[0].step == 2


def test_a_second_damaged_checkpoint_of_the_same_step_does_not_replace_the_first(tmp_path):
    for _ in range(2):
        path = save(tmp_path, 1)
        (path / "checkpoint.json").write_bytes(b"{")
        latest_checkpoint(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000001.corrupt",
        "step-00000001.corrupt2",
    ]


def test_a_renamed_checkpoint_is_not_taken_for_another_step(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2).rename(tmp_path / "step-00000009")
    found, notes = latest_checkpoint(tmp_path)
    assert found.step == 1
    (why,) = notes.values()
    assert "step 2" in why


def test_a_checkpoint_of_a_later_version_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FORMAT", 2)
    path = save(tmp_path, 3)
    monkeypatch.setattr(module, "FORMAT", 1)
    save(tmp_path, 1)
    manifest = json.loads((path / "checkpoint.json").read_text())
    assert manifest["format"] == 2
    with pytest.raises(BertworksError, match="format 2"):
        latest_checkpoint(tmp_path)
    assert path.is_dir()


# --- the process dies, or the disk refuses, at every single call


class DeathError(BaseException):
    """The process is gone: nothing after it runs, not even the tidying up."""


class Faults:
    """Counts calls to the operating system and fails at one of them."""

    def __init__(self, monkeypatch, fault):
        self.calls, self.fault = 0, fault
        targets = [
            (os, name)
            for name in ("open", "fsync", "rename", "replace", "unlink", "rmdir", "mkdir")
        ]
        for owner, name in [
            *targets,
            (module, "write_tensors"),
            (Path, "open"),
            (Path, "write_bytes"),
        ]:
            monkeypatch.setattr(owner, name, self.watched(getattr(owner, name)))
        from bertworks.io import atomic_write

        monkeypatch.setattr(
            atomic_write, "exchange_names", self.watched(atomic_write.exchange_names)
        )

    def watched(self, function):
        def call(*arguments, **options):
            self.calls += 1
            return self.fault(self.calls, lambda: function(*arguments, **options), arguments)

        return call


def dies_before(k):
    def fault(number, run, arguments):
        if number >= k:
            raise DeathError
        return run()

    return fault


def dies_after(k):
    def fault(number, run, arguments):
        if number > k:
            raise DeathError
        result = run()
        if number == k:
            if isinstance(result, io.IOBase):  # a dead process has closed its files
                result.close()
            raise DeathError
        return result

    return fault


def dies_while_writing(k):
    """As before, but what is being written is half there."""

    def fault(number, run, arguments):
        if number > k:
            raise DeathError
        result = run()
        if number == k and isinstance(arguments[0], Path) and arguments[0].is_file():
            os.truncate(arguments[0], arguments[0].stat().st_size // 2)
        if number == k:
            if isinstance(result, io.IOBase):
                result.close()
            raise DeathError
        return result

    return fault


def attempt(tmp_path, fault, before=(1, 2), saved=3):
    """Save one more checkpoint while calls fail; the folder, what was raised, and how many calls
    there were."""
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    for step in before:
        save(run, step)
    with pytest.MonkeyPatch.context() as patch:
        faults = Faults(patch, fault)
        try:
            save(run, saved)
            raised = None
        except (DeathError, BertworksError) as error:
            raised = error
        calls = faults.calls
    return run, raised, calls


@pytest.mark.parametrize("deadly", [dies_before, dies_after, dies_while_writing])
@pytest.mark.parametrize("saved", [3, 2], ids=["new step", "same step"])
def test_death_at_every_call_leaves_the_old_or_the_new_one(tmp_path, deadly, saved):
    total = attempt(tmp_path, lambda number, run, arguments: run(), saved=saved)[2]
    assert total >= 12
    outcomes = set()
    for k in range(1, total + 1):
        run, raised, _ = attempt(tmp_path, deadly(k), saved=saved)
        assert isinstance(raised, DeathError), k
        found, notes = latest_checkpoint(run)
        assert is_complete(found), k
        assert found.step in (2, saved)
        assert notes == {}, k
        outcomes.add(found.step)
        for step in steps_in(run):  # those that were to be deleted are whole, or gone
            assert is_complete(module._read(run / f"step-{step:08d}", step)), k
        # a new process: the dead one's number is nobody's
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bertworks.io.atomic_write._is_running", lambda process, start: False)
            save(run, 4)
        assert latest_checkpoint(run)[0].step == 4
        assert [path.name for path in run.iterdir() if path.name[5:].isdigit() is False] == [], k
    assert outcomes == {2, saved}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_disk_that_refuses_at_any_call_costs_nothing_that_was_saved(tmp_path, number):
    total = attempt(tmp_path, lambda number, run, arguments: run())[2]
    failures = 0
    for k in range(1, total + 1):

        def refuse(call, run, arguments, k=k):
            if call == k:
                path = next((str(a) for a in arguments if isinstance(a, str | Path)), None)
                raise OSError(number, os.strerror(number), path)
            return run()

        run, raised, _ = attempt(tmp_path, refuse)
        found, notes = latest_checkpoint(run)
        assert is_complete(found)
        assert notes == {}
        failures += raised is not None
        if number == errno.ENOSPC and raised is not None and found.step == 2:
            assert "the disk is full" in str(raised)
            assert steps_in(run) == [1, 2]
            assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []
    assert failures >= total // 2


def test_everything_is_on_the_disk_before_its_name_is(tmp_path, put_on_disk):
    path = save(tmp_path, 1)
    renamed = put_on_disk.index(("rename", path))
    before = {(kind, place.name) for kind, place in put_on_disk[:renamed]}
    assert {("fsync", "state.safetensors"), ("fsync", "checkpoint.json")} <= before
    assert len(before) == 3  # and the folder that holds them
    assert put_on_disk[renamed + 1 :] == [("fsync", tmp_path)]


# --- one writer
