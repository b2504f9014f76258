"""Training over processes: where they wait, what is refused, scripts for clusters.
test_lost_processes has the kills."""

import multiprocessing
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest
import torch
import torch.distributed as dist
import yaml
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousTimeoutError

from bertworks.cli.parser import make_app
from bertworks.errors import BertworksError, UsageError
from bertworks.runs import launch, run_folder
from bertworks.runs.run_folder import LostProcessError, Processes, meet_in, training_processes
from tests.project.test_docs import blocks
from tests.support import ROOT
from tests.support.shell import Shell

SHELLCHECK = Path(sys.executable).with_name("shellcheck")
CLUSTER = ROOT / "docs" / "cluster.md"


def in_threads(count: int, work: Any) -> list[Any]:
    results: list[Any] = [None] * count
    threads = [
        threading.Thread(target=lambda n=n: results.__setitem__(n, work(n))) for n in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


def test_each_start_has_its_own_part_of_the_store() -> None:
    """Although another start has left its words there, and although one process comes late."""
    store, seen = dist.HashStore(), set()

    def start(rank: int) -> dist.Store:
        time.sleep(0.2 * (rank == late))
        return meet_in(store, rank, 3)

    for late in (0, 1, 2):
        first, second, third = in_threads(3, start)
        first.set("word", str(late))
        assert (second.get("word"), third.get("word")) == (str(late).encode(), str(late).encode())
        assert store.get("start") not in seen
        seen.add(store.get("start"))


def in_a_group(folder: Path, work: Callable[[Processes], None]) -> list[int]:
    """Run work in two processes of a training. Returns their exit statuses."""

    def start(rank: int) -> None:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        torch.set_num_threads(1)
        try:
            with training_processes(torch.device("cpu")) as group:
                group.meet(folder)
                work(group)
        except LostProcessError as error:
            (folder / f"error {rank}").write_text(error.what)
            os._exit(error.exit_code)
        os._exit(0)

    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    members = [fork.Process(target=start, args=(rank,)) for rank in range(2)]
    for member in members:
        member.start()
    for member in members:
        member.join(60)
    return [int(member.exitcode or 0) for member in members]


def step() -> None:
    """What all processes compute together."""
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2


@pytest.mark.slow
def test_others_wait_for_the_first_process_longer_than_for_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "STEP_SECONDS", 1.0)

    def work(group: Processes) -> None:
        for number in range(2):
            step()
            if group.first:
                time.sleep(2.5)  # it evaluates
            assert group.from_first(number if group.first else None) == number
            if group.first:
                time.sleep(1.5 * (number == 0))  # it prepares
            group.wait()
        step()
        (tmp_path / f"finished {group.rank}").touch()

    assert in_a_group(tmp_path, work) == [0, 0]
    assert len(list(tmp_path.glob("finished *"))) == 2


def test_a_step_that_a_process_does_not_finish_in_time_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "STEP_SECONDS", 1.0)

    def work(group: Processes) -> None:
        step()
        if not group.first:
            time.sleep(4)
            os._exit(0)
        step()

    assert in_a_group(tmp_path, work) == [75, 0]
    text = (tmp_path / "error 0").read_text()
    assert text == "another rank did not finish a step within 1 s"


def test_a_process_that_ends_ends_the_others(tmp_path: Path) -> None:
    def work(group: Processes) -> None:
        step()
        if not group.first:
            os._exit(9)
        step()

    assert in_a_group(tmp_path, work) == [75, 9]
    assert "another rank ended; see its error message" in (tmp_path / "error 0").read_text()


def test_several_processes_are_not_for_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(UsageError, match="cuda:1 is a single GPU"):
        Processes(torch.device("cuda:1"))


def test_options_of_the_group_are_taken_out() -> None:
    words = [
        "pretrain",
        "a",
        "--processes",
        "2",
        "--nodes=2",
        "-o",
        "--rendezvous",
        "n:1",
        "--restarts",
        "3",
        "b",
    ]
    assert launch.without(words) == ["pretrain", "a", "-o", "b"]


@pytest.mark.parametrize(
    ("codes", "left"),
    [
        ({0: -9}, 9),
        ({0: 75}, 9),
        ({0: 143, 1: -9}, 9),
        ({0: -15, 1: 75}, 9),
        ({0: 1}, 0),
        ({0: 2, 1: 75}, 0),
        ({0: 143, 1: 143}, 0),
    ],
)
def test_only_lost_processes_start_again(
    codes: dict[int, int], left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = {rank: SimpleNamespace(exitcode=code) for rank, code in codes.items()}
    lost = SimpleNamespace(is_failed=lambda: True, failures=failures)
    finished = SimpleNamespace(is_failed=lambda: False)
    starts, texts = [lost, finished], list[str]()
    monkeypatch.setattr(
        launch, "LocalElasticAgent", lambda *_, **__: SimpleNamespace(run=lambda: starts.pop(0))
    )
    result = launch._run(SimpleNamespace(), 9, texts.append)  # type: ignore[arg-type]
    assert result is (finished if left else lost)
    assert any(text.endswith("; restarts left: 8") for text in texts) == bool(left)
    assert any("restarting all ranks" in text for text in texts) == bool(left)
    assert any("killed by signal 9" in text for text in texts) == (-9 in codes.values())
    assert not any("signal 15" in text for text in texts)


def test_processes_start_again_as_often_as_is_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = SimpleNamespace(is_failed=lambda: True, failures={0: SimpleNamespace(exitcode=75)})
    starts, texts = list[int](), list[str]()

    def run() -> SimpleNamespace:
        starts.append(1)
        return lost

    monkeypatch.setattr(launch, "LocalElasticAgent", lambda *_, **__: SimpleNamespace(run=run))
    assert launch._run(SimpleNamespace(), 2, texts.append) is lost  # type: ignore[arg-type]
    assert len(starts) == 3
    assert [text[-16:] for text in texts] == ["restarts left: 1", "restarts left: 0"]


def test_what_went_wrong_between_machines_is_explained() -> None:
    for error, what in [
        (RendezvousTimeoutError(), "not enough machines"),
        (RendezvousClosedError(), "has ended"),
    ]:
        with pytest.raises(BertworksError, match=what), launch._explain("node1:29500"):
            raise error


def test_the_first_machine_may_be_late_or_unknown(
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "LocalElasticAgent", lambda *_, **__: pytest.fail("started"))
    words = [
        "pretrain",
        "text.txt",
        "-o",
        "out",
        "--processes",
        "1",
        "--nodes",
        "2",
        "--rendezvous",
    ]
    answer = shell.fails(*words, "nowhere.invalid:29500")
    shell.shows(
        answer, "--rendezvous HOST:PORT with a name that every machine resolves, or an IP address"
    )
    monkeypatch.setattr(launch, "ANSWER", 1)
    refused = "192.0.2.1:29500"  # of no machine (RFC 5737)
    monkeypatch.setattr(
        socket,
        "create_connection",
        lambda *_, **__: (_ for _ in ()).throw(ConnectionRefusedError()),
    )
    answer = shell.fails(*words, refused)
    assert "hint: start the same command on that machine" in answer
    assert f"no training process answers at {refused}" in answer
    said = list[str]()
    launch._wait_for("127.0.0.1:29500", said.append)  # this machine
    assert said == []
    monkeypatch.undo()
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(socket.socket, "bind", lambda *_: (_ for _ in ()).throw(OSError()))
        launch._wait_for(f"127.0.0.1:{server.getsockname()[1]}", said.append)
    assert said == []


def test_what_makes_no_sense_is_refused_before_a_process_starts(
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched = list[Any]()
    monkeypatch.setattr(
        launch,
        "LocalElasticAgent",
        lambda spec, *_, **__: launched.append(spec) or pytest.fail("started"),
    )
    words = ["pretrain", "text.txt", "-o", "out"]
    two = [*words, "--processes", "2"]
    for more, template in [
        (
            ["--overwrite"],
            "-o ANOTHER-FOLDER, or delete the folder first: each restart would start from scratch",
        ),
        (["--estimate"], "leave --processes out: an estimate needs one process"),
        (["--nodes", "2:1"], "--nodes 2, or --nodes 1:2 if one may be lost or join later"),
        (["--nodes", "2", "--rendezvous", "node1"], "--rendezvous node1:29500"),
        (["--nodes", "2"], "on each machine: --nodes 2 --rendezvous node1:29500"),
        (["--rendezvous", "node1:29500"], "on each machine: --nodes 2 --rendezvous node1:29500"),
    ]:
        shell.shows(shell.fails(*two, *more), template)
    answer = shell.fails(*words, "--nodes", "2")
    shell.shows(answer, "--nodes, --rendezvous and --restarts need --processes")
    shell.shows(answer, "give the number of processes on each machine: --processes 1")
    assert "save the text in a file" in shell.fails(
        "pretrain", "-", "-o", "out", "--processes", "2"
    )
    with pytest.raises(UsageError):
        launch.launch(["pretrain"], 1, nodes="0")
    assert launch._limits("1:2", "node1:29500") == (1, 2)
    assert launch._limits("2", "node1:29500") == (2, 2)
    assert not launched


def test_several_trainings_and_other_jobs_are_refused(shell: Shell) -> None:
    words = ["finetune", "data.csv", "-o", "out", "--processes", "2"]
    for more in (["--seeds", "2"], ["--folds", "3"], ["--sweep=paper"]):
        shell.shows(
            shell.fails(*words, *more), "leave --processes out: several trainings need one process"
        )
    advice = shell.shows(
        shell.fails("slurm", "embed", "x"), "bertworks slurm pretrain SHARDS -o MODEL"
    )
    assert "srun bertworks pretrain SHARDS" in shell.types(advice)
    assert "Did you mean --recipe" in shell.fails(
        "slurm", "pretrain", "x", "-o", "y", "--recpe", "z"
    )
    assert "is not a budget" in shell.fails("slurm", "pretrain", "x", "-o", "y", "--time", "soon")


def lint(script: str) -> None:
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    subprocess.run([SHELLCHECK, "--shell=bash", "-"], input=script, text=True, check=True)


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_batch_script(nodes: str, shell: Shell) -> None:
    words = ["pretrain", "it's", "-o", "my bert/b", "--recipe", "bert-base", "--restarts", "3"]
    script = shell.works("slurm", *words, "--nodes", nodes, "--gpus", "8", "--time", "1d2h30m")
    lint(script)
    assert "#SBATCH --job-name=b\n" in script
    assert "#SBATCH --time=1-02:30:00\n" in script
    assert "#SBATCH --gpus-per-node=8\n" in script
    command = script.split("srun bertworks ")[1].split("\nstatus")[0].replace("\\\n", "")
    assert shlex.split(command)[:10] == [*words, "--processes", "8"]
    assert ("--rendezvous" in command) == (nodes == "2")


def test_the_page_on_clusters_is_right(shell: Shell) -> None:
    """Scripts are linted, manifests are validated, commands are parsed, and what is printed is what
    is shown."""
    assert CLUSTER.read_text().count("\n") <= 120
    scripts, manifests = blocks(CLUSTER, "bash"), "\n---\n".join(blocks(CLUSTER, "yaml"))
    for script in scripts:
        lint(script)
    printed = next(
        line for line in CLUSTER.read_text().splitlines() if line.startswith("bertworks slurm")
    )
    assert shell.works(*shlex.split(printed.split(" > ")[0])[1:]) == scripts[0]
    kinds = []
    for manifest in yaml.safe_load_all(manifests):
        kinds.append(manifest["kind"])
        if manifest["kind"] == "RayJob":  # a kind of KubeRay; its pods are those of Kubernetes
            spec = manifest["spec"].pop("rayClusterSpec")
            assert set(manifest["spec"]) == {"entrypoint", "shutdownAfterJobFinishes"}
            for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
                pod = {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": "a"},
                    **group["template"],
                }
                kubernetes_validate.validate(pod, "1.31", strict=True)
        else:
            kubernetes_validate.validate(manifest, "1.31", strict=True)
    assert kinds == ["Job", "Service", "Job", "RayJob"]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(
            {"apiVersion": "batch/v1", "kind": "Job", "spec": {"complets": 1}}, "1.31", strict=True
        )


def test_commands_of_the_page_on_clusters_parse(shell: Shell) -> None:
    app, text = (
        make_app(),
        CLUSTER.read_text()
        .replace("\\\n", "")
        .replace("$((20000 + SLURM_JOB_ID % 20000))", "29500"),
    )
    commands = re.findall(r"(?<!slurm )bertworks ((?:pretrain|embed|prepare) [^`'\n]+)", text)
    commands = [command.replace('"', "").split("]")[0] for command in commands]
    assert len(commands) >= 8
    has_parts = "--part" in shell.works("embed", "--help")
    for command in (re.sub(r"\$\w+", "3", command) for command in commands):
        if has_parts or command.startswith("p"):
            app.parse_args(shlex.split(command))
