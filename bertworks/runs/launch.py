"""Run several processes for one training.

torchrun within this process, and the script that gives them to Slurm.
"""

import os
import re
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from torch.distributed import DistError
from torch.distributed.elastic import rendezvous as elastic
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from bertworks.errors import BertworksError, expect
from bertworks.io.options import STDIN
from bertworks.io.processes import available_cpus
from bertworks.runs.run_folder import LostProcessError
from bertworks.training.budget import seconds_of

MODULE = "bertworks.cli.main"
ANSWER = 60  # seconds in which the first machine starts
LAST_CALL = 10  # seconds in which machines may join a group that could start without them
SAVING = 45  # seconds that processes have to save and end, less than the notice of Slurm
NOTICE = 60  # seconds before the time limit of a job
MOST_MACHINES = 65_536
_OPTIONS = ("--processes", "--nodes", "--rendezvous", "--restarts")
_ONCE = {  # options for which a group of processes has no use, and what to type
    "--overwrite": (
        "-o ANOTHER-FOLDER, or delete the folder first: each restart would start from scratch"
    ),
    STDIN: "save the text in a file: every process reads it, again after each restart",
    "--estimate": "leave --processes out: an estimate needs one process",
    **dict.fromkeys(
        ("--seeds", "--folds", "--sweep"),
        "leave --processes out: several trainings need one process",
    ),
}


def _final(codes: Iterable[int]) -> int | None:
    """Return the exit status of processes that must not start again, or None.

    One that ends by SIGTERM is not to blame where another one was lost.
    """
    codes = list(codes)
    ended = (128 + signal.SIGTERM, 128 + signal.SIGINT)
    wrong = [
        code for code in codes if code > 0 and code not in (*ended, LostProcessError.exit_code)
    ]
    return wrong[0] if wrong else codes[0] if all(code in ended for code in codes) else None


def without(words: Sequence[str], options: Sequence[str] = _OPTIONS) -> list[str]:
    """Return the words of a command without these options and their values."""
    remaining = list[str]()
    skips = False
    for word in words:
        name, _, value = word.partition("=")
        if not skips and name not in options:
            remaining.append(word)
        skips = not skips and name in options and not value
    return remaining


def _limits(nodes: str, rendezvous: str | None) -> tuple[int, int]:
    """Return the least and the most machines."""
    match = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", nodes)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    expect(
        0 < least <= most,
        f"--nodes {nodes}: expected a number of machines, or the minimum and maximum",
        hint="--nodes 2, or --nodes 1:2 if one may be lost or join later",
    )
    expect(most <= MOST_MACHINES, f"--nodes {nodes}: expected at most {MOST_MACHINES:,} machines")
    is_place = not rendezvous or re.fullmatch(r"[^\s:]+:\d{1,5}", rendezvous)
    expect(
        is_place,
        f"--rendezvous {rendezvous}: expected a host name and a free port on that machine",
        hint="--rendezvous node1:29500",
    )
    expect(
        bool(rendezvous) == (nodes != "1"),
        "--nodes and --rendezvous belong together: the machines meet at one of them",
        hint="on each machine: --nodes 2 --rendezvous node1:29500",
    )
    return least, most


def _wait_for(rendezvous: str, say: Callable[[str], None]) -> None:
    """Wait until the first machine has started.

    torch would report each failure with a stack of frames.

    Raises:
        BertworksError: its name is unknown here, or it does not answer.
    """
    host, _, port = rendezvous.rpartition(":")
    try:
        families = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise BertworksError(
            f"cannot resolve the host name {host}: {error.strerror}",
            hint="--rendezvous HOST:PORT with a name that every machine resolves, or an IP address",
        ) from error
    with suppress(OSError), socket.socket(families[0][0], socket.SOCK_STREAM) as listening:
        listening.bind((host, 0))
        return  # it is this machine
    end = time.monotonic() + ANSWER
    waits = False
    while time.monotonic() < end:
        with suppress(OSError):
            socket.create_connection((host, int(port)), timeout=5).close()
            return
        if not waits:
            say(f"waiting up to {ANSWER} s for {rendezvous}")
        waits = True
        time.sleep(1)
    raise _unreachable(rendezvous)


def _unreachable(where: str) -> BertworksError:
    return BertworksError(
        f"no training process answers at {where}",
        hint="start the same command on that machine; this machine must be able to resolve its "
        "name and to connect to the port",
    )


def _refuse_single(words: Sequence[str]) -> None:
    for name in (word.partition("=")[0] for word in words):
        what = "standard input" if name == STDIN else name
        expect(name not in _ONCE, f"{what} works with a single process only", hint=_ONCE.get(name))


def launch(
    words: Sequence[str],
    processes: int,
    *,
    nodes: str = "1",
    rendezvous: str | None = None,
    restarts: int = 10,
    say: Callable[[str], None] = print,
) -> None:
    """Run a command of bertworks in several processes, as torchrun does.

    They are started again where one is lost.

    Args:
        words: the command without "bertworks"; options of the group are left out.
        processes: on this machine. nodes: machines, or the least and the most. rendezvous: where
            machines meet.
        restarts: the most.

    Raises:
        UsageError: options that contradict each other.
        BertworksError: the other machines cannot be reached.
        SystemExit: with the status of the process that failed.
    """
    least, most = _limits(nodes, rendezvous)
    _refuse_single(words)
    run_id = re.sub(r"\W", "-", rendezvous or str(os.getpid()))
    words = without(words)
    if "OMP_NUM_THREADS" not in os.environ and "BERTWORKS_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(max(1, available_cpus() // processes))
    if rendezvous:  # with a shared store torch 2.13 gives machines that come later no address
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    names = ("OMP_NUM_THREADS", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")
    before = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    where = [
        "--nnodes",
        nodes,
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        rendezvous,
        "--rdzv-id",
        run_id,
    ]
    typed = ["--nproc-per-node", str(processes), *(where if rendezvous else ["--standalone"])]
    typed += ["--max-restarts", str(restarts), "-m", MODULE, *words]
    say(f"same as: {shlex.join([*before, 'torchrun', *map(str, typed)])}")
    if rendezvous:
        _wait_for(rendezvous, say)
    with _explain(rendezvous or "localhost"):
        place = rendezvous or "localhost:0"
        meeting = elastic.RendezvousParameters(
            "c10d", place, run_id, least, most, last_call_timeout=LAST_CALL
        )
        spec = WorkerSpec(
            "training",
            processes,
            get_rendezvous_handler(meeting),
            entrypoint=sys.executable,
            args=("-u", "-m", MODULE, *words),
            max_restarts=0,
        )
        try:
            result = _run(spec, restarts, say)
        except SignalException as error:  # the other machines go on without this one
            raise SystemExit(128 + error.sigval) from None
        finally:
            spec.rdzv_handler.shutdown()
    if result.is_failed():
        codes = list(_exit_codes(result).values())
        raise SystemExit(
            _final(codes) or next((128 - code for code in codes if code < 0), codes[0])
        )


def _run(spec: WorkerSpec, restarts: int, say: Callable[[str], None]) -> RunResult:
    """Run the processes of this machine, again after a failure where that can help.

    torch restarts them only if other machines come: it would also restart after errors of the data
    or of the command.
    """
    while True:
        agent = LocalElasticAgent(spec, DefaultLogsSpecs(), shutdown_timeout=SAVING)
        result: RunResult = agent.run()
        codes = _exit_codes(result) if result.is_failed() else {}
        if not codes or _final(codes.values()) is not None:
            return result
        for rank, code in codes.items():
            # torch itself ends the others by SIGTERM
            if code < 0 and code != -signal.SIGTERM:
                say(f"rank {rank} was killed by signal {-code} (possibly out of memory)")
        if restarts == 0:
            return result
        restarts -= 1
        say(f"restarting all ranks from the last checkpoint; restarts left: {restarts}")


def _exit_codes(result: RunResult) -> dict[int, int]:
    """Return the exit status of each process that failed; negative: the signal that killed it."""
    return {rank: failure.exitcode for rank, failure in result.failures.items()}


@contextmanager
def _explain(where: str) -> Iterator[None]:
    try:
        yield
    except (elastic.RendezvousConnectionError, DistError) as error:
        raise _unreachable(where) from error
    except elastic.RendezvousTimeoutError as error:
        raise BertworksError(
            f"not enough machines joined the training at {where}",
            hint="start the same command on each machine, or allow fewer: --nodes 1:2",
        ) from error
    except elastic.RendezvousClosedError as error:
        raise BertworksError(
            f"the training at {where} has ended", hint="see the messages of the other machines"
        ) from error


def batch_script(
    words: Sequence[str], *, nodes: int, processes: int, gpus: int, cpus: int, time: str
) -> str:
    """Return a script for Slurm's sbatch that runs a training on several machines.

    Args:
        words: the command without "bertworks". processes, gpus, cpus: on each machine. time: as 8h.

    Slurm starts one torchrun per machine. It sends SIGTERM a minute before the time limit: the
    training saves, and the job is put into the queue again. So it is where a machine fails.
    """
    _refuse_single(words)
    seconds = int(seconds_of(time))
    limit = (
        f"{seconds // 86400}-{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    )
    output = next(
        (value for name, value in pairwise(words) if name in ("-o", "--output")), "bertworks"
    )
    options = [
        f"job-name={re.sub(r'[^A-Za-z0-9._-]', '-', Path(output).name) or 'bertworks'}",
        f"nodes={nodes}",
        "ntasks-per-node=1",
        f"cpus-per-task={cpus}",
        *([f"gpus-per-node={gpus}"] if gpus else []),
        f"time={limit}",
        "requeue",
        f"signal=TERM@{NOTICE}",
        "output=%x-%j.log",
        "open-mode=append",
    ]
    group = f"--processes {processes}"
    if nodes > 1:
        group += ' --nodes "$SLURM_NNODES" --rendezvous "$head:$((20000 + SLURM_JOB_ID % 20000))"'
    script = (Path(__file__).parent / "slurm.sh").read_text(encoding="utf-8")
    command = f"{shlex.join(without(words, ['--rendezvous']))} \\\n  {group}"
    return script.format(
        options="\n".join(f"#SBATCH --{option}" for option in options), command=command
    )
