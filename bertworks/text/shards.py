"""A folder of token ids on disk: written once, in parallel, then memory-mapped.

    tokens.bin       all ids of the corpus, laid end to end: uint16, or uint32 for more than 65,536
                     tokens
    sentences.npy    int64 [S+1]: sentence s is tokens[sentences[s]:sentences[s+1]]
    documents.npy    int64 [D+1]: document d is sentences documents[d]:documents[d+1]
    tokenizer/       the tokenizer that made the ids
    manifest.json    counts, settings, the sha256 of each file, the CRC-32 of each block of 1 MiB,
                     and its own sha256; written last: a folder without it is not finished

The ids are without special tokens. Every byte is the same for any number of workers. An interrupted
command resumes after the parts that it wrote.
"""

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertworks.config import NotNegative, Settings, build
from bertworks.errors import BertworksError, UsageError, check, quoted, require, some_names
from bertworks.io.arrays import CheckedArray, CheckedFile, file_sums, verify_files
from bertworks.io.atomic_write import (
    folder_lock,
    json_sha256,
    local_path,
    read_small,
    remove,
    remove_leftovers,
    write_json,
)
from bertworks.io.inputs import as_path
from bertworks.io.processes import in_processes
from bertworks.text.corpus import CorpusReader
from bertworks.text.file_groups import parts_of
from bertworks.text.shard_writer import DATA_FILES, join_parts, part_path, token_dtype
from bertworks.text.tokenizer import Tokenizer

FORMAT = 1  # of the folder and of the rules that make its bytes
PART_CHARACTERS = 1 << 20
_MAX_MANIFEST = 1 << 24  # bytes
_OUR_FILES = (*DATA_FILES, "preflight.json", "parts", "tokenizer", "plan.json", "manifest.json")
_HINT = (
    "copy the folder again; or make it again: repeat the `bertworks prepare` command with "
    "--overwrite, or delete this "
    "folder within a run and repeat the `bertworks pretrain` command"
)
_ENDED = "a worker process ended while it made part {number} ({how})"
_AGAIN = (
    "run the same command again: it resumes after the finished parts; fewer --workers need "
    "less memory"
)
# Of our files, in every format; other programs write a manifest.json too.
_KEYS = {
    "manifest.json": {"tokens", "tokenizer_sha256"},
    "plan.json": {"tokenizer", "files_sha256"},
}


@dataclass(frozen=True, kw_only=True)
class Manifest(Settings):
    """The content of manifest.json."""

    format: NotNegative
    documents: NotNegative
    sentences: NotNegative
    tokens: NotNegative
    characters: NotNegative  # of the input text
    unknown_tokens: NotNegative  # [UNK]
    empty_documents: NotNegative  # left out: without tokens
    empty_sentences: NotNegative  # left out: without tokens
    sections: bool  # the corpus is one document, which a pre-training cuts into sections
    dtype: str  # of tokens.bin
    vocab_size: NotNegative
    tokenizer_sha256: str
    unknown_words: dict[str, int]  # the most frequent in a sample of sentences with [UNK]
    files: dict[str, str]  # sha256 by path inside the folder
    corpus: dict[str, Any]  # the report of the reader
    settings: dict[str, Any]  # of the command; another command is refused
    crc32: dict[str, str]  # of the blocks of each file (`file_sums`)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read manifest.json.

        Raises:
            BertworksError: it is missing, damaged or of another format.
        """
        what = "not a shards folder: it has no manifest.json"
        hint = f"make them: bertworks prepare TEXT --tokenizer TOKENIZER -o {quoted(path.parent)}"
        if (path.parent / "plan.json").exists():
            what = "these shards are not finished"
            hint = "type the `bertworks prepare` command again: it resumes"
        require(path.exists(), what, path.parent, hint)
        try:
            content = json.loads(read_small(path, _MAX_MANIFEST))
            what = f"format {content['format']} of shards; this version reads {FORMAT}"
            require(content["format"] == FORMAT, what, path, _HINT)
            check(content["sha256"] == json_sha256(content), "its sha256 differs")
            m = build(cls, {f.name: content[f.name] for f in fields(cls)}, lambda _: "")
            names = m.files.keys()
            sums = (*m.files.values(), *m.crc32.values())
            check(m.dtype in ("<u2", "<u4"), f"dtype {m.dtype:.40}")
            check(names >= {*DATA_FILES} and m.crc32.keys() == names, "a file is missing")
            check(all(isinstance(text, str) for text in sums), "a checksum is no text")
            return m
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
            UsageError,
        ) as error:
            raise BertworksError(
                f"the manifest is damaged: {error}", where=str(path), hint=_HINT
            ) from None

    @property
    def identity(self) -> str:
        """The sha256 of the content of manifest.json."""
        return json_sha256(asdict(self))

    def save(self, path: Path) -> None:
        """Write the manifest."""
        content = asdict(self)
        write_json(path, content | {"sha256": json_sha256(content)})


@dataclass(frozen=True)
class TokenStore:
    """Token ids of documents of sentences."""

    tokens: NDArray[np.integer] | CheckedArray  # [N]
    sentences: NDArray[np.int64]  # [S+1]; sentence s is tokens[sentences[s]:sentences[s+1]]
    documents: NDArray[np.int64]  # [D+1]; document d is sentences documents[d]:documents[d+1]


@dataclass(frozen=True)
class Shards(TokenStore):
    """An open shards folder, see the top of this module.

    Its arrays are mapped.
    """

    folder: Path
    manifest: Manifest
    written_now: bool = False  # False: `write_shards` found a finished folder

    @classmethod
    def open(
        cls, folder: str | PathLike[str], *, verify: bool = False, written_now: bool = False
    ) -> Self:
        """Map the files of a finished folder and check their sizes.

        The CRC-32 of all sentences and documents is checked, too; that of a block of tokens when it
        is first read.

        Args:
            verify: also check the sha256 of every file, which reads all of them.

        Raises:
            BertworksError: not a shards folder, not finished, or damaged. Reading the tokens raises
                it for a damaged block.
        """
        folder = as_path(folder)
        manifest = Manifest.load(folder / "manifest.json")
        if verify:
            verify_files(folder, manifest.files, _HINT)
        counts = manifest.tokens, manifest.sentences + 1, manifest.documents + 1
        arrays = []
        for name, count in zip(DATA_FILES, counts, strict=True):
            header = 0 if name == "tokens.bin" else 128  # bytes, of an .npy file
            dtype = np.dtype("<i8" if header else manifest.dtype)
            path = folder / name
            size = path.stat().st_size if path.is_file() else 0
            expected = header + count * dtype.itemsize
            what = f"damaged: {size:,} bytes instead of {expected:,}"
            require(size == expected, what, path, _HINT)
            file = CheckedFile(path, manifest.crc32[name], _HINT)
            arrays.append(CheckedArray(file, file.content[header:].view(dtype), header))
        for name, borders, end in zip(
            DATA_FILES[1:], arrays[1:], (manifest.tokens, manifest.sentences)
        ):
            fits = borders[0] == 0 and borders[-1] == end
            require(fits, "damaged: its numbers do not match the manifest", folder / name, _HINT)
        return cls(arrays[0], arrays[1][:], arrays[2][:], folder, manifest, written_now)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer that made the ids.

        Raises:
            BertworksError: the tokenizer in the folder is another one, or damaged.
        """
        files = {
            name: digest for name, digest in self.manifest.files.items() if name not in DATA_FILES
        }
        verify_files(self.folder, files, _HINT)
        tokenizer = Tokenizer.load(self.folder / "tokenizer")
        is_same = tokenizer.sha256 == self.manifest.tokenizer_sha256
        require(
            is_same,
            "damaged: this is not the tokenizer that made these shards",
            self.folder / "tokenizer",
            _HINT,
        )
        return tokenizer


def holds_shards(folder: str | PathLike[str]) -> bool:
    """Return whether `write_shards` finished or began this folder, by the content of its files."""
    folder = as_path(folder)
    return all((folder / name).is_file() for name in DATA_FILES) or any(
        keys <= _read_object(folder / name).keys() for name, keys in _KEYS.items()
    )


def _read_object(path: Path) -> dict[str, Any]:
    """Return a JSON object; empty if there is no such file or if it holds something else."""
    with suppress(BertworksError, ValueError, TypeError, RecursionError):
        return dict(json.loads(read_small(path, _MAX_MANIFEST)))
    return {}


def write_shards(
    reader: CorpusReader,
    tokenizer: Tokenizer,
    folder: str | Path,
    *,
    workers: int | None = None,
    part_characters: int = PART_CHARACTERS,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
    parts: Iterable[Any] | None = None,
) -> Shards:
    """Turn a corpus into a shards folder, or resume an interrupted command.

    Returns at once when the folder is finished and inputs and tokenizer are the same. Inputs that
    were copied or moved count as the same if their content is.

    Args:
        workers: processes that split and encode; None: one per CPU; 1: this process only.
        part_characters: text that a worker gets at a time; an interruption loses at most this much
            per worker.
        overwrite: delete the shards of another command in the folder.
        progress: called with the characters done so far.
        parts: all parts, if other processes have computed them; the corpus is then not read.

    Raises:
        BertworksError: the folder holds something else or is in use, the disk is full, a worker
            died, input files changed meanwhile, or there is no text.
    """
    folder = local_path(folder)
    # what must be equal to resume a folder, or to find it finished
    settings = {"format": FORMAT, "tokenizer": tokenizer.sha256}
    settings |= {**reader.options, **reader.identity()}
    busy = "another process is writing to this folder"
    with folder_lock(folder, busy, "wait until it is done, or choose another folder with -o"):
        refuse_other_files(folder, overwrite)
        if overwrite:
            # those that identify the folder go last, so that the command can be repeated
            for name in _OUR_FILES:
                remove(folder / name)
        finished = (folder / "manifest.json").exists()
        if finished:
            _refuse_other(
                Manifest.load(folder / "manifest.json").settings, settings, reader, folder
            )
        else:
            if _visible(folder):
                # The text of each part is compared later, so the files themselves may be others.
                existing = _read_object(folder / "plan.json")
                existing["files_sha256"] = settings["files_sha256"]
                _refuse_other(existing, settings, reader, folder)
            write_json(folder / "plan.json", settings)
            tokenizer.save(folder / "tokenizer")
            for part_folder in (folder, *(folder / "parts").glob("*")):
                remove_leftovers(part_folder)
            number = 0
            texts = () if parts is not None else enumerate(parts_of(reader, part_characters))
            writer = (
                "bertworks.text.shard_writer:PartWriter",
                [str(folder / "tokenizer"), str(folder / "parts")],
            )
            with closing(
                in_processes(*writer, texts, workers, ended=_ENDED, hint=_AGAIN)
            ) as part_sizes:
                for done in accumulate(part_sizes):
                    number += 1
                    if progress:
                        progress(done)
            if parts is None:
                parts = [part_path(folder / "parts", index) for index in range(number)]
            _join(folder, parts, tokenizer, settings, reader).save(folder / "manifest.json")
        # Only an unfinished folder needs these.
        remove(folder / "plan.json")
        remove(folder / "parts")
    return Shards.open(folder, written_now=not finished)


def _join(
    folder: Path,
    parts: Iterable[Any],
    tokenizer: Tokenizer,
    settings: dict[str, Any],
    reader: CorpusReader,
) -> Manifest:
    """Join the parts into the data files.

    Returns their manifest.

    Raises:
        BertworksError: input files have changed since the beginning, or there is no text.
    """
    with ThreadPoolExecutor(1) as pool:  # both read files
        content = pool.submit(reader.content_sha256)
        joined = join_parts(parts, folder)
    settings = settings | {"content_sha256": content.result()}
    where = some_names(map(str, reader.files), 3)
    is_same = reader.identity()["files_sha256"] == settings["files_sha256"]
    hint = "run the same command again: parts of unchanged text are kept"
    require(is_same, "files of the corpus changed while they were read", where, hint)
    require(joined["tokens"], "there is no text in the corpus", where, "give files that hold text")
    files = [*(folder / name for name in DATA_FILES), *sorted((folder / "tokenizer").iterdir())]
    sums = {path.relative_to(folder).as_posix(): file_sums(path) for path in files}
    return Manifest(
        format=FORMAT,
        **joined,
        dtype=token_dtype(tokenizer.vocab_size).str,
        vocab_size=tokenizer.vocab_size,
        tokenizer_sha256=tokenizer.sha256,
        files={name: digest for name, (digest, _) in sums.items()},
        crc32={name: blocks for name, (_, blocks) in sums.items()},
        corpus=asdict(reader.report),
        settings=settings,
    )


def _refuse_other(
    existing: dict[str, Any], settings: dict[str, Any], reader: CorpusReader, folder: Path
) -> None:
    """Refuse a folder of other settings.

    Files that were copied, moved or touched are compared by content.
    """
    names = [name for name in settings if existing.get(name) != settings[name]]
    if names == ["files_sha256"]:
        _refuse_other(existing, {"content_sha256": reader.content_sha256()}, reader, folder)
    elif names:
        differences = "; ".join(
            f"{name}: {existing.get(name)!s:.12}, now {settings[name]!s:.12}" for name in names
        )
        what = f"this folder holds the shards of another command ({differences})"
        hint = "write to another folder with -o, or replace the shards with --overwrite"
        raise BertworksError(what, where=str(folder), hint=hint)


def _visible(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))


def refuse_other_files(folder: Path, overwrite: bool) -> None:
    """Raise BertworksError for a folder without shards that is not empty.

    Also before shards next to other files would be deleted. Nothing is changed before.
    """
    names = _visible(folder)
    foreign_names = [name for name in names if name not in _OUR_FILES]
    is_foreign = bool(names) and not holds_shards(folder)
    what = "is not empty and holds no shards" if is_foreign else "holds more than shards"
    what = f"this folder {what}: {', '.join((foreign_names or names)[:5])}"
    require(
        not is_foreign and not (overwrite and foreign_names),
        what,
        folder,
        "choose a new or empty folder with -o",
    )
