"""Files and folders under s3://, gs://, hf:// and memory://, as local copies.

The rest of the package knows only paths (`io.inputs`).

- `fetched`: what a URL names, a file, a folder or a glob, is copied to a cache, once per version
  and machine
- `published`: an output is written to a local working copy, then uploaded; checkpoints are uploaded
  while a run trains

The last object of a folder is upload.json: names, sizes and sha256 of all others. Without it the
folder is not finished and is not read. URL.upload, next to an output, names the process that writes
it, and changes every few seconds.
"""

import hashlib
import json
import math
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from threading import Event, Thread
from typing import Any

from filelock import FileLock

from bertworks.errors import BertworksError, UsageError, optional_import, require
from bertworks.events import JsonObject, no_notes
from bertworks.io import atomic_write
from bertworks.io.atomic_write import SCHEMES, local_path, remove, sha256

MANIFEST = "upload.json"
CLAIM = ".upload"
WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before an operation that failed is tried again
# seconds between two signs of life of a writer; without one for so long, it is dead
BEAT = 5.0
SILENT = 20.0
# files of models, shards and indexes
_MADE = (".safetensors", ".bin", ".json", ".npy", ".onnx", ".toml")
_COMPLETE = re.compile(
    r"(?P<run>.*/)?(checkpoints/step-(?P<step>\d+)/checkpoint|finished|figures)\.json"
)
_KEYS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (s3), GOOGLE_APPLICATION_CREDENTIALS "
    "(gs) or HF_TOKEN (hf)"
)
_MISSING = "there is no such bucket, folder or file"
_SPELLING = "check the spelling; a bucket must exist before"
_BUSY = "another process writes to this URL"
_TAKEN = "another process has written to this URL meanwhile"
_ELSEWHERE = "wait for it, stop it, or choose another URL"


def cache_folder() -> Path:
    """Where local copies are: BERTWORKS_CACHE, else bertworks in XDG_CACHE_HOME or ~/.cache."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "bertworks")
    folder = os.environ.get("BERTWORKS_CACHE") or usual
    return local_path(folder, "cache folder (BERTWORKS_CACHE)").absolute()


def shown(text: str) -> str:
    """Return a text with URLs in place of their local copies."""
    try:
        folder = str(cache_folder())
    except UsageError:  # which has no copies
        return text
    return re.sub(
        rf"{re.escape(folder)}/(?:[0-9a-f]{{32}}|work)/({'|'.join(SCHEMES)})/",
        r"\1://",
        text,
    )


class Storage:
    """A file or folder under a URL.

    Raises:
        BertworksError: the package for this kind of storage is missing; later: the bucket does not
            exist, the access is refused, the storage does not answer.
    """

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        (self.scheme, _, path) = url.rstrip("/").partition("://")
        require(
            ".." not in path.split("/"), "a URL with ..", url, "write the whole name, without .."
        )
        # `tried` repeats
        options = {"s3": {"config_kwargs": {"retries": {"total_max_attempts": 1}}}}
        with optional_import(f"{self.scheme}://", "'bertworks[remote]'"):
            import fsspec

            self.fs = fsspec.filesystem(
                self.scheme, use_listings_cache=False, **options.get(self.scheme, {})
            )
        self.key = self.fs._strip_protocol(self.url).rstrip("/")
        self.path = Path(self.scheme, path)  # of the local copy, within a folder of the cache

    def tried(
        self, work: Callable[[], Any], name: str = "", *, gone: bool = False, failed: int = 0
    ) -> Any:
        """What an operation returns.

        One that fails for a while is tried again, with growing waits. FileExistsError is for the
        caller. name: of the file in messages. gone: give None if it does not exist. failed:
        attempts so far.
        """
        try:
            return work()
        except Exception as error:  # each storage has its own classes
            if gone and isinstance(error, FileNotFoundError):
                return None
            if (
                isinstance(error, FileExistsError)
                or getattr(error, "errno", None) in atomic_write.DISK_FULL
            ):
                raise
            reason = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            what = f"the storage fails, {failed + 1} times: {reason}"
            hint = "run the same command again later"
            if isinstance(error, PermissionError) or re.search(
                "Credential|Forbidden|Unauthorized", reason
            ):
                what = f"the access is refused: {reason}"
                hint = _KEYS
            elif isinstance(error, FileNotFoundError):
                what = _MISSING
                hint = _SPELLING
            elif failed < len(WAITS) and not isinstance(error, ValueError | TypeError):
                # those that failed together return at other times
                time.sleep(WAITS[failed] * random.uniform(0.5, 1))
                return self.tried(work, name, gone=gone, failed=failed + 1)
            raise BertworksError(what, where=f"{self.url}/{name}".rstrip("/"), hint=hint) from error

    def at(self, name: str) -> str:
        """Return the key of a file in this folder."""
        return f"{self.key}/{name}" if name else self.key

    def files(self) -> dict[str, Mapping[str, Any]]:
        """Return what the storage says about the files, by their names within this folder.

        The name of a file itself is "".
        """
        facts_by_key = self.tried(lambda: self.fs.find(self.key, detail=True), gone=True) or {}
        return {
            key[len(self.key) :].lstrip("/"): facts for key, facts in sorted(facts_by_key.items())
        }

    def copy(
        self, how: Callable[[str, Path], None], files: Mapping[str, Path], gone: bool = False
    ) -> None:
        """Copy files in several threads, and try each again if the storage fails."""
        with ThreadPoolExecutor(8) as pool:
            list(
                pool.map(
                    lambda name: self.tried(
                        lambda: how(self.at(name), files[name]), name, gone=gone
                    ),
                    files,
                )
            )

    def put(
        self, files: Mapping[str, Path], mode: str = "overwrite", *, gone: bool = False
    ) -> None:
        """Copies files from paths. gone: leave out those that do not exist any more.

        Raises:
            FileExistsError: `mode` is "create", and there is one.
        """
        self.copy(lambda key, path: self.fs.put_file(str(path), key, mode=mode), files, gone)

    def fill(self, folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
        """Copies files, and checks their sizes and, if they are given, their sha256."""
        strange = [name for name in files if ".." in Path(name).parts or Path(name).is_absolute()]
        require(
            not strange,
            f"names that lead out of the folder: {strange[:3]}",
            self.url,
            "copy the files yourself",
        )
        paths = {name: folder / name for name in files}
        for path in paths.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        self.copy(lambda key, path: self.fs.get_file(key, str(path)), paths)
        for name, facts in files.items():
            size = facts.get("bytes", facts.get("size"))
            digest = facts.get("sha256")
            holds = paths[name].stat().st_size == size and digest in (None, sha256(paths[name]))
            require(
                holds,
                "damaged, or replaced at this moment: not as it was written",
                f"{self.url}/{name}",
                "run the same command again; if it stays so, write the folder again",
            )

    def delete(self, names: Iterable[str]) -> None:
        """Delete files of this folder."""
        self.copy(lambda key, _: self.fs.rm_file(key), dict.fromkeys(names, Path()), gone=True)

    def manifest(self) -> JsonObject | None:
        """Sizes and sha256 of the files of a finished folder; None: there is no upload.json."""
        content = self.tried(lambda: self.fs.cat_file(self.at(MANIFEST)), gone=True)
        return content and dict(atomic_write.parse_json(content, Path(self.url, MANIFEST))["files"])

    def create(self, name: str, path: Path, overwrite: bool = False) -> bool:
        """Copies a file from a path unless there is one; False: there is one with other content.

        An answer may be lost, so that the repetition finds what the first attempt wrote.
        """
        try:
            self.put({name: path}, "overwrite" if overwrite else "create")
        except FileExistsError:
            with self.tried(lambda: self.fs.open(self.at(name), "rb")) as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == sha256(path)
        return True


def fetched(url: str) -> Path:
    """Return the local copy of a file, of a folder, or of the files of a glob.

    Of a glob, the path is a glob too. A version is copied once per machine; processes that need it
    at the same time wait for the first.

    Raises:
        BertworksError: there is nothing; a folder is not finished or damaged; see `Storage`.
    """
    store = Storage(url)
    pattern = ""
    is_data = store.scheme != "hf" or url.startswith("hf://datasets/")
    require(
        is_data,
        "this is not a file of a data set",
        url,
        "of a model give OWNER/NAME, without hf://",
    )
    files = store.files()
    if not files and (start := re.search(r"/[^/]*[*?[]", store.url)):
        matches = store.tried(lambda: store.fs.glob(store.key, detail=True))
        pattern = store.url[start.start() + 1 :]
        store = Storage(store.url[: start.start()])
        files = {
            name[len(store.key) + 1 :]: facts
            for name, facts in matches.items()
            if facts["type"] == "file"
        }
    require(files, _MISSING, url, _SPELLING)
    manifest = store.manifest() if files.pop(MANIFEST, None) and not pattern else None
    # only texts that others have put there?
    if not (manifest or pattern or "" in files or store.scheme == "hf"):
        claimed = "/" in store.key and store.tried(lambda: store.fs.exists(store.key + CLAIM))
        require(
            not claimed and not any(name.endswith(_MADE) for name in files),
            f"the folder is not finished: it has no {MANIFEST}, which is uploaded last",
            url,
            "run the command that writes it again; or copy the folder to this machine and check it",
        )
    version = json.dumps([store.url, manifest or files], sort_keys=True, default=str)
    target = cache_folder() / hashlib.sha256(version.encode()).hexdigest()[:32]
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock := target.with_suffix(".lock")):
        if not target.exists():
            with atomic_write.replacing_folder(target) as temporary:
                store.fill(temporary / store.path, manifest or files)
        lock.unlink(missing_ok=True)  # the target is there: who still waits finds it
    return target / store.path / pattern


def _progress(names: Iterable[str]) -> tuple[int, int]:
    """Return how many runs are finished, and the steps of their newest complete checkpoints."""
    matches = [match for match in map(_COMPLETE.fullmatch, names) if match]
    steps = {
        match["run"]: int(match["step"]) + 1
        for match in sorted(matches, key=itemgetter(0))
        if match["step"]
    }
    return sum(not match["step"] for match in matches), sum(steps.values())


class _Upload:
    """The upload of a working copy.

    In the block, threads give signs of life and upload what is complete.

    Raises:
        BertworksError: another process writes to the URL, or has done so meanwhile.
    """

    def __init__(self, store: Storage, local: Path, state: Path, note: Callable[[str], None]):
        self.store = store
        self.local = local
        self.note = note
        self.state = state
        self.claim = Storage(store.url + CLAIM)
        self.over = Event()
        self.writer = os.urandom(16).hex().encode()
        self.lost = False  # whether another process has taken over
        # The progress of the last snapshot. Before `restore`, the URL may hold newer checkpoints:
        # no snapshot is made.
        self.saved = (math.inf, 0.0)
        self.sent: dict[str, tuple[int, int]] = {}  # sizes and times of change of uploaded files
        self.threads = [
            Thread(target=self._repeat, args=(act,), daemon=True)
            for act in (self._beat, self.snapshot)
        ]

    def __enter__(self) -> "_Upload":
        self._take()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()
        if kind is not None:
            self._attempt(self.snapshot)  # the last checkpoint of an interrupted run
        if not self.lost:
            self._attempt(lambda: self.claim.delete([""]))
        remove(self.state)

    def _take(self) -> None:
        """Claims the URL, also that of a writer without signs of life."""
        before = b""
        while True:
            with suppress(FileExistsError):
                self.claim.tried(
                    lambda: self.claim.fs.pipe_file(self.claim.key, self.writer, mode="create")
                )
                return
            now = self._claimed()
            if now == self.writer:  # the answer was lost
                return
            require(not before or not now or now == before, _BUSY, self.store.url, _ELSEWHERE)
            if now == before:
                self.claim.delete([""])
            else:
                self.note(
                    f"{self.store.url}: waiting {SILENT:.0f} s for signs of life of its last writer"
                )
                time.sleep(SILENT)
            before = now

    def _claimed(self) -> bytes:
        """What the last writer wrote."""
        return self.claim.tried(lambda: self.claim.fs.cat_file(self.claim.key), gone=True) or b""

    def _beat(self) -> None:
        self.lost = not (self._claimed() or self.writer).startswith(self.writer)
        if not self.lost:
            self.claim.tried(
                lambda: self.claim.fs.pipe_file(
                    self.claim.key, self.writer + b" %d" % time.time_ns()
                )
            )

    def _repeat(self, act: Callable[[], None]) -> None:
        while not self.over.wait(BEAT) and not self.lost:
            self._attempt(act)

    def _attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        # the work continues; the next time is another attempt
        except (BertworksError, OSError) as error:
            self.note(f"not uploaded yet: {error}")

    def files(self) -> dict[str, Path]:
        """Return the files of the working copy, by name.

        Plans are made again.
        """
        paths = {
            path.relative_to(self.local).as_posix(): path
            for path in self.local.rglob("*")
            if path.is_file()
        }
        return {
            name: path
            for name, path in sorted(paths.items())
            if not re.match(r"(.*/)?(\.|plans/)", name)
        }

    def send(self, files: Mapping[str, Path], *, gone: bool = False) -> None:
        """Uploads the files that have changed."""
        states = {
            name: ((state := path.stat()).st_size, state.st_mtime_ns)
            for name, path in files.items()
        }
        self.store.put(
            {n: path for n, path in files.items() if self.sent.get(n) != states[n]}, gone=gone
        )
        self.sent |= states

    def snapshot(self) -> None:
        """Uploads a run if it has a new checkpoint, or another of its trainings is finished.

        The file that says so is the last one.
        """
        # deleted by the run meanwhile: the next attempt has newer ones
        with suppress(FileNotFoundError):
            files = self.files()
            now = _progress(files)
            if self.lost or now <= self.saved:
                return
            last = {name: path for name, path in files.items() if _COMPLETE.fullmatch(name)}
            old = [name for name in self.store.files() if name not in files]
            self.store.delete([MANIFEST])
            self.store.delete(old)  # the last but one is complete until the new one is
            self.send({name: path for name, path in files.items() if name not in last}, gone=True)
            self.send(last, gone=True)
            self.saved = now

    def restore(self, overwrite: bool) -> None:
        """Make the working copy what the URL holds.

        A newer one that an interrupted command left stays.
        """
        files = self.store.files()
        if "" in files:
            atomic_write.refuse_replacing(self.store.url, overwrite)
        if overwrite or self.local.is_file():
            remove(self.local)
        saved = (0, 0) if overwrite else _progress(files)
        if not overwrite:
            manifest = self.store.manifest()
            if manifest or saved > _progress(self.files()):
                with atomic_write.replacing_folder(self.local) as temporary:
                    self.store.fill(temporary, manifest or files)
        self.saved = saved

    def finish(self, overwrite: bool) -> None:
        """Uploads the output, and deletes the working copy."""
        self.over.set()
        self.threads[1].join()
        files = {"": self.local} if self.local.is_file() else self.files()
        require(not self.lost, _TAKEN, self.store.url, _ELSEWHERE)
        if "" in files:
            require(
                self.store.create("", self.local, overwrite), _TAKEN, self.store.url, _ELSEWHERE
            )
        elif files:
            facts = {n: {"bytes": p.stat().st_size, "sha256": sha256(p)} for n, p in files.items()}
            old = self.store.manifest()
            if old != facts:
                self.store.delete([MANIFEST])
                self.send(
                    {
                        name: path
                        for name, path in files.items()
                        if (old or {}).get(name) != facts[name]
                    }
                )
                self.store.delete(name for name in self.store.files() if name not in files)
                atomic_write.write_json(
                    path := self.state / MANIFEST, {"format": 1, "files": facts}
                )
                require(self.store.create(MANIFEST, path), _TAKEN, self.store.url, _ELSEWHERE)
        remove(self.local)
        self.note(f"{self.store.url}: uploaded")


@contextmanager
def published(
    url: str, *, overwrite: bool = False, note: Callable[[str], None] = no_notes
) -> Iterator[Path]:
    """Yield a path to write a file or folder to, which then is uploaded.

    If the URL holds a folder, or checkpoints of an interrupted run, the path holds them already. Of
    several processes of a training the first uploads.

    Args:
        overwrite: replace what the URL holds.
        note: is called with what a person should know.

    Raises:
        UsageError: the URL holds a file.
        BertworksError: another process writes to it; nothing can be written to such URLs; see
            `Storage`.
    """
    store = Storage(url)
    require(
        store.scheme != "hf", "nothing is written to hf://", url, "write to a folder, and push that"
    )
    require(
        "/" in store.key.lstrip("/"),
        "this is a whole bucket, no file or folder in it",
        url,
        f"{store.url}/NAME",
    )
    local = cache_folder() / "work" / store.path
    if os.environ.get("RANK", "0") != "0":
        yield local
        return
    state = atomic_write.hidden_sibling(local, CLAIM)
    busy = "process {process} of this machine writes to this URL"
    with (
        atomic_write.folder_lock(state, busy, _ELSEWHERE),
        _Upload(store, local, state, note) as upload,
    ):
        upload.restore(overwrite)
        yield local
        upload.finish(overwrite)
