"""Training over processes: signs of life, what is refused, scripts for clusters.
test_lost_processes has the kills."""

import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest
import torch
import torch.distributed as dist
import yaml
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousTimeoutError

from bertworks.cli.parser import make_app
from bertworks.errors import BertworksError, UsageError
from bertworks.runs import launch
from bertworks.runs.processes import SHORTEST_LIMIT, SILENT, Heartbeat, Processes, meet_in
from tests.project.test_docs import blocks
from tests.project.test_hints import says, shell  # noqa: F401 - a fixture
from tests.support import ROOT
from tests.support.hints import Shell

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


@pytest.fixture
def heartbeat() -> Any:
    """That of rank 0 of three, which hears nothing by itself."""
    one = Heartbeat(dist.HashStore(), 0, 3)
    one.stop()
    one._where = {rank: f"process 10{rank} on node{rank}" for rank in range(3)}
    return one


def test_a_silent_process_is_named(heartbeat: Any) -> None:
    now = time.monotonic()
    heartbeat._heard = {0: now, 1: now - SILENT - 1, 2: now - SILENT + 1}
    assert heartbeat.problem(now) == (
        [1],
        "rank 1 (process 101 on node1) of this training sent no sign of life for 45 s",
    )
    heartbeat._heard = dict.fromkeys(range(3), now - SILENT - 1)
    blamed, what = heartbeat.problem(now)
    assert blamed == []
    assert "where the processes of this training meet" in what


def test_a_step_has_a_limit_by_the_steps_before_it(heartbeat: Any) -> None:
    assert heartbeat.limit == float("inf")  # nothing is known of the first one
    heartbeat._seconds.extend([1, 2, 300])
    assert heartbeat.limit == SHORTEST_LIMIT
    heartbeat._seconds.extend([10, 10, 10])
    assert heartbeat.limit == 200
    now = time.monotonic()
    heartbeat._moved = now - 201
    heartbeat._heard = dict.fromkeys(range(3), now)
    for moves, blamed, what in [
        (
            (9, 7, 9),
            [1],
            "rank 1 (process 101 on node1) of this training did not finish a step for 200 s",
        ),
        ((9, 9, 9), [], "a process of this training did not finish a step for 200 s"),
        ((8, 9, 9), [], ""),  # the first one evaluates or saves
    ]:
        heartbeat._moves = dict(enumerate(moves))
        assert heartbeat.problem(now) == (blamed, what)
    heartbeat._moves = dict.fromkeys(range(3), 9)
    heartbeat._moved = now - 199
    assert heartbeat.problem(now) == ([], "")


def test_processes_hear_each_other_and_count_steps() -> None:
    store = dist.HashStore()
    hearts = [Heartbeat(store, rank, 2) for rank in range(2)]
    with hearts[1].step():
        assert hearts[1]._own_moves == 1
    end = time.monotonic() + 15
    while any(len(heart._where) < 2 for heart in hearts) and time.monotonic() < end:
        time.sleep(0.1)
    for heart in hearts:
        heart.stop()
    assert {text.split(" on ")[0] for heart in hearts for text in heart._where.values()} == {
        f"process {os.getpid()}"
    }
    assert (hearts[1]._own_moves, len(hearts[1]._seconds)) == (2, 1)


def test_several_processes_are_not_for_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(UsageError, match="cuda:1 is one GPU"):
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
    result = SimpleNamespace(is_failed=lambda: True, failures=failures)
    monkeypatch.setattr(LocalElasticAgent, "_monitor_workers", lambda *_: result)
    agent, texts = launch._Agent.__new__(launch._Agent), list[str]()
    agent.say, agent._remaining_restarts = texts.append, 9
    assert agent._monitor_workers(SimpleNamespace()) is result  # type: ignore[arg-type]
    assert agent._remaining_restarts == left
    assert any("starting all processes again" in text for text in texts) == bool(left)
    assert any("killed by signal 9" in text for text in texts) == (-9 in codes.values())
    assert not any("signal 15" in text for text in texts)


def test_what_went_wrong_between_machines_is_explained() -> None:
    for error, what in [
        (RendezvousTimeoutError(), "too few machines"),
        (RendezvousClosedError(), "has ended"),
    ]:
        with pytest.raises(BertworksError, match=what), launch._explain("node1:29500"):
            raise error


@says("--rendezvous with a name that each machine knows, or an IP address")
def test_the_first_machine_may_be_late_or_unknown(
    shell: Shell,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "_Agent", lambda *_, **__: pytest.fail("started"))
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
    shell.shows(answer, "--rendezvous with a name that each machine knows, or an IP address")
    monkeypatch.setattr(launch, "ANSWER", 1)
    refused = "192.0.2.1:29500"  # of no machine (RFC 5737)
    monkeypatch.setattr(
        socket,
        "create_connection",
        lambda *_, **__: (_ for _ in ()).throw(ConnectionRefusedError()),
    )
    answer = shell.fails(*words, refused)
    assert "hint: start the same command on that machine" in answer
    assert f"no process of the training answers at {refused}" in answer
    said = list[str]()
    launch._wait_for("127.0.0.1:29500", said.append)  # this machine
    assert said == []
    monkeypatch.undo()
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(socket.socket, "bind", lambda *_: (_ for _ in ()).throw(OSError()))
        launch._wait_for(f"127.0.0.1:{server.getsockname()[1]}", said.append)
    assert said == []


@says(
    "-o ANOTHER-FOLDER, or delete the folder first: each restart would overwrite what is done",
    "leave --processes out: an estimate needs one process",
    "--nodes 2, or --nodes 1:2 if one may be lost or come later",
    "--rendezvous node1:29500",
    "on each machine: --nodes 2 --rendezvous node1:29500",
    "--nodes, --rendezvous and --restarts are for several processes",
    "give their number on each machine: --processes 1",
)
def test_what_makes_no_sense_is_refused_before_a_process_starts(
    shell: Shell,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched = list[Any]()
    monkeypatch.setattr(
        launch, "_Agent", lambda spec, *_, **__: launched.append(spec) or pytest.fail("started")
    )
    words = ["pretrain", "text.txt", "-o", "out"]
    two = [*words, "--processes", "2"]
    for more, template in [
        (
            ["--overwrite"],
            "-o ANOTHER-FOLDER, or delete the folder first: each restart would overwrite what is "
            "done",
        ),
        (["--estimate"], "leave --processes out: an estimate needs one process"),
        (["--nodes", "2:1"], "--nodes 2, or --nodes 1:2 if one may be lost or come later"),
        (["--nodes", "2", "--rendezvous", "node1"], "--rendezvous node1:29500"),
        (["--nodes", "2"], "on each machine: --nodes 2 --rendezvous node1:29500"),
        (["--rendezvous", "node1:29500"], "on each machine: --nodes 2 --rendezvous node1:29500"),
    ]:
        shell.shows(shell.fails(*two, *more), template)
    answer = shell.fails(*words, "--nodes", "2")
    shell.shows(answer, "--nodes, --rendezvous and --restarts are for several processes")
    shell.shows(answer, "give their number on each machine: --processes 1")
    assert "write the text into a file" in shell.fails(
        "pretrain", "-", "-o", "out", "--processes", "2"
    )
    with pytest.raises(UsageError):
        launch.launch(["pretrain"], 1, nodes="0")
    assert launch._limits("1:2", "node1:29500") == (1, 2)
    assert launch._limits("2", "node1:29500") == (2, 2)
    assert not launched


@says(
    "leave --processes out: several trainings need one process",
    "bertworks slurm pretrain SHARDS -o MODEL",
)
def test_several_trainings_and_other_jobs_are_refused(shell: Shell) -> None:  # noqa: F811
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
def test_a_batch_script(nodes: str, shell: Shell) -> None:  # noqa: F811
    words = ["pretrain", "it's", "-o", "my bert/b", "--recipe", "bert-base", "--restarts", "3"]
    script = shell.works("slurm", *words, "--nodes", nodes, "--gpus", "8", "--time", "1d2h30m")
    lint(script)
    assert "#SBATCH --job-name=b\n" in script
    assert "#SBATCH --time=1-02:30:00\n" in script
    assert "#SBATCH --gpus-per-node=8\n" in script
    command = script.split("srun bertworks ")[1].split("\nstatus")[0].replace("\\\n", "")
    assert shlex.split(command)[:10] == [*words, "--processes", "8"]
    assert ("--rendezvous" in command) == (nodes == "2")


def test_the_page_on_clusters_is_right(shell: Shell) -> None:  # noqa: F811
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


def test_commands_of_the_page_on_clusters_parse(shell: Shell) -> None:  # noqa: F811
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
