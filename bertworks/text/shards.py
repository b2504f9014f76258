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

A part is a number of documents, and a document is in one part: `CorpusReader` limits its size. The
content of a part depends on its documents only, not on the number of workers. Its file is an .npz
file, sealed with the sha256 of the text and of the tokenizer:

    tokens     uint16 or uint32 [tokens]
    lengths    int32 [sentences]: tokens of each sentence; none is 0
    documents  int32 [documents]: sentences of each document; none is 0
    counts     JSON: figures for the manifest
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, fields
from itertools import accumulate, chain, count, islice
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bertworks.config import NotNegative, Settings, build
from bertworks.errors import BertworksError, UsageError, check, quoted, require, some_names
from bertworks.events import JsonObject
from bertworks.io.arrays import CheckedArray, CheckedFile, file_sums, open_npy, verify_files
from bertworks.io.atomic_write import (
    folder_lock,
    is_sealed,
    json_sha256,
    local_path,
    read_small,
    remove,
    remove_leftovers,
    replacing,
    sealing,
    write_json,
)
from bertworks.io.inputs import as_path, chunk_by_size
from bertworks.io.processes import in_processes
from bertworks.text.corpus import CorpusReader
from bertworks.text.long_texts import steps_of
from bertworks.text.segmentation import split_sentences
from bertworks.text.tokenizer import Tokenizer

DATA_FILES = ("tokens.bin", "sentences.npy", "documents.npy")
FORMAT = 1  # of the folder and of the rules that make its bytes
PART_CHARACTERS = 1 << 20
_MAX_MANIFEST = 1 << 24  # bytes
_OUR_FILES = (*DATA_FILES, "preflight.json", "parts", "tokenizer", "plan.json", "manifest.json")
_HINT = (
    "copy the folder again; or make it again: repeat the `bertworks prepare` command with "
    "--overwrite, or delete this folder within a run and repeat the `bertworks pretrain` command"
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

_MARKS = ',.()"'  # frequent punctuation, split off, so that "word" and "word," are one entry
_MAX_ENTRIES = 1 << 18  # about 60 MB
_MAX_CHARACTERS = 1 << 23  # in scripts without spaces the pieces are whole sentences
_GROUP = 64  # new pieces encoded as one text: a call costs more than a word
_BATCH_CHARACTERS = 1 << 19  # given to the tokenizer at a time
_SAMPLED_SENTENCES = 16  # with [UNK], per part: their unknown words are kept as examples
_SAMPLED_CHARACTERS = 1 << 12  # of such a sentence
_WORD_CHARACTERS = 40  # of a word kept as an example
_UNKNOWN_WORDS = 100  # of these, per part
_LISTED_UNKNOWN_WORDS = 1000  # in the manifest

Arrays = tuple[NDArray[np.int32], NDArray[np.int64]]


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
    corpus: JsonObject  # the report of the reader
    settings: JsonObject  # of the command; another command is refused
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
            require(
                content["format"] == FORMAT,
                f"format {content['format']} of shards; this version reads {FORMAT}",
                path,
                _HINT,
            )
            check(content["sha256"] == json_sha256(content), "its sha256 differs")
            m = build(cls, {f.name: content[f.name] for f in fields(cls)}, "")
            names = m.files.keys()
            sums = (*m.files.values(), *m.crc32.values())
            check(m.dtype in ("<u2", "<u4"), f"dtype {m.dtype:.40}")
            check(names >= {*DATA_FILES} and m.crc32.keys() == names, "a file is missing")
            check(all(isinstance(text, str) for text in sums), "a checksum is not text")
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
                f"the manifest is damaged: {error}", where=path, hint=_HINT
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
        for name, length in zip(DATA_FILES, counts, strict=True):
            header = 0 if name == "tokens.bin" else 128  # bytes, of an .npy file
            dtype = np.dtype("<i8" if header else manifest.dtype)
            path = folder / name
            size = path.stat().st_size if path.is_file() else 0
            expected = header + length * dtype.itemsize
            require(
                size == expected, f"damaged: {size:,} bytes instead of {expected:,}", path, _HINT
            )
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


def _read_object(path: Path) -> JsonObject:
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
            texts = () if parts is not None else enumerate(reader.parts(part_characters))
            writer = (
                "bertworks.text.shards:PartWriter",
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
    settings: JsonObject,
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
    require(
        is_same,
        "files of the corpus changed while they were read",
        where,
        "run the same command again: parts of unchanged text are kept",
    )
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
    existing: JsonObject, settings: JsonObject, reader: CorpusReader, folder: Path
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
        raise BertworksError(
            f"this folder holds the shards of another command ({differences})",
            where=folder,
            hint="write to another folder with -o, or replace the shards with --overwrite",
        )


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
    require(
        not is_foreign and not (overwrite and foreign_names),
        f"this folder {what}: {', '.join((foreign_names or names)[:5])}",
        folder,
        "choose a new or empty folder with -o",
    )


class WordCache:
    """Sentences -> one flat array of ids.

    Each distinct piece between spaces is encoded once, which is faster than the tokenizer alone.
    The cache is emptied when it is too large.

    It never changes an id. BERT's pre-tokenizer splits at white space and around every ASCII
    punctuation mark, its normalizer looks at one character at a time (lower case, NFC, NFD and
    clean-up do not reach across a space or one of the marks that are split off here), and WordPiece
    sees one word at a time. So the ids of a sentence are the ids of its pieces between spaces, end
    to end. Only U+0020 separates: the clean-up deletes other white space, such as U+000B, and joins
    the characters around it.

    Args:
        serialized: the text of a tokenizer.json for which `is_exact` holds. Special tokens written
            in the texts are not recognized: they are text, as in `Tokenizer.ids`.
    """

    def __init__(self, serialized: str):
        self._library = tokenizers.Tokenizer.from_str(serialized)
        self._library.encode_special_tokens = True
        # No piece has a newline: as a token of its own, it separates pieces that are encoded as one
        # text.
        self._library.add_tokens([tokenizers.AddedToken("\n", normalized=False)])
        self._newline = self._library.token_to_id("\n")
        self._clear()

    @staticmethod
    def is_exact(serialized: str) -> bool:
        """Return whether the ids of a text are those of its pieces between spaces.

        It is so for this tokenizer.json, or not.
        """
        description: JsonObject = json.loads(serialized)
        types = [(description[part] or {}).get("type") for part in ("pre_tokenizer", "model")]
        normalizers = [step["type"] for step in steps_of(description["normalizer"])]
        plain = all(token["special"] for token in description["added_tokens"])
        has_bert_normalizer = normalizers in (["BertNormalizer"], ["NFC", "BertNormalizer"])
        return plain and has_bert_normalizer and types == ["BertPreTokenizer", "WordPiece"]

    def encode(self, sentences: Sequence[str]) -> Arrays:
        """Return all ids end to end [sum of lengths] and the number of ids of each sentence.

        The latter is [len(sentences)].
        """
        if len(self._numbers) > _MAX_ENTRIES or self._characters > _MAX_CHARACTERS:
            self._clear()
        if not sentences:
            return flat_arrays([])
        joined = "\n".join(sentence.replace("\n", " ") for sentence in sentences)
        for mark in "\n" + _MARKS:
            joined = joined.replace(mark, f" {mark} ")
        pieces = joined.split(" ")
        numbers = np.fromiter(map(self._numbers.__getitem__, pieces), np.int64, len(pieces))
        self._encode_new()
        lengths = self._lengths[numbers]
        ends = np.cumsum(lengths)
        shifts = self._starts[numbers] - (ends - lengths)
        ids = self._ids[np.repeat(shifts, lengths) + np.arange(ends[-1])]
        # piece 0 is the newline
        borders = np.append(np.flatnonzero(numbers == 0), len(numbers) - 1)
        return ids, np.diff(ends[borders], prepend=0)

    def _clear(self) -> None:
        # from 0, in the order of the first occurrence
        self._numbers = defaultdict[str, int](count().__next__)
        _ = self._numbers["\n"]
        self._characters = 0
        self._ids = np.zeros(0, np.int32)
        self._starts = np.zeros(1, np.int64)
        self._lengths = np.zeros(1, np.int64)

    def _encode_new(self) -> None:
        """Encode the pieces that have a number, but no ids yet."""
        pieces = list(islice(reversed(self._numbers), len(self._numbers) - len(self._lengths)))[
            ::-1
        ]
        groups = ["\n".join([*pieces[i : i + _GROUP], ""]) for i in range(0, len(pieces), _GROUP)]
        encodings = self._library.encode_batch_fast(groups, add_special_tokens=False)
        ids, _ = flat_arrays([encoding.ids for encoding in encodings])
        ends = np.flatnonzero(ids == self._newline)
        self._characters += sum(map(len, pieces))
        self._ids = np.concatenate([self._ids, np.delete(ids, ends)])
        self._lengths = np.concatenate([self._lengths, np.diff(ends, prepend=-1) - 1])
        self._starts = np.cumsum(self._lengths) - self._lengths


def flat_arrays(ids: list[list[int]]) -> Arrays:
    """Lists of ids -> all ids end to end, and the length of each list."""
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum())), lengths


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest of uint16 and uint32 that holds every id, little-endian on every machine."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def _most_frequent(words: Counter[str], number: int) -> dict[str, int]:
    return dict(sorted(words.items(), key=lambda item: (-item[1], item[0]))[:number])


# In front of a text of the second side, for a tokenizer that reads both sides differently.
TARGET_MARK = "\x02"  # no white space, which readers remove


class PartWriter:
    """Writes parts as files.

    One per process: it caches words.

    A tokenizer of two sides (`Tokenizer.target`) encodes the sides of translations: a document is a
    side and one sentence, and those of the second side begin with TARGET_MARK.

    Args:
        tokenizer_folder: a folder written by `Tokenizer.save`.
        folder: of the part files.
    """

    def __init__(self, tokenizer_folder: str | Path, folder: str | Path):
        self.tokenizer = tokenizer = Tokenizer.load(tokenizer_folder)
        is_exact = WordCache.is_exact(tokenizer.serialized)
        self._encode = (
            WordCache(tokenizer.serialized).encode
            if is_exact
            else lambda texts: flat_arrays(tokenizer.ids(texts))
        )
        self._folder = Path(folder)

    def __call__(self, part: tuple[int, list[str]]) -> int:
        """Write a part unless a complete file exists.

        Returns its characters.

        Args:
            part: its number, its documents: in order, with a minimum of characters together.
        """
        number, documents = part
        path = part_path(self._folder, number)
        key = self.key(documents)
        if not is_sealed(path, key):
            arrays = self.encode(documents)
            with sealing(path, key) as temporary, temporary.open("wb") as file:
                np.savez(file, **arrays)
        return sum(map(len, documents))

    def key(self, documents: list[str]) -> str:
        """Return a hash of what the ids depend on: the tokenizer and the documents."""
        return json_sha256({"tokenizer": self.tokenizer.sha256, "documents": documents})

    def encode(self, documents: list[str]) -> JsonObject:
        """Split and encode the text of a part."""
        has_sides = self.tokenizer.target is not self.tokenizer
        split = (
            [[text] for text in documents] if has_sides else list(map(split_sentences, documents))
        )
        sentences = list(chain.from_iterable(split))
        encode = self._encode_sides if has_sides else self._encode
        batches = [
            flat_arrays([]),
            *map(encode, chunk_by_size(sentences, _BATCH_CHARACTERS, len)),
        ]
        tokens, lengths = (np.concatenate(arrays) for arrays in zip(*batches))
        unknown = np.flatnonzero(tokens == self.tokenizer.unk_id)
        with_unknown = np.unique(np.searchsorted(np.cumsum(lengths), unknown, side="right"))[
            :_SAMPLED_SENTENCES
        ]
        sample = self.tokenizer.unknown(
            [sentences[row][:_SAMPLED_CHARACTERS] for row in with_unknown]
        )
        unknown_words = Counter(word[:_WORD_CHARACTERS] for word in sample)
        # A sentence of control characters only has no tokens and is left out.
        sizes = np.bincount(
            np.repeat(np.arange(len(split)), list(map(len, split)))[lengths > 0],
            minlength=len(split),
        )
        counts = {
            "documents": int(np.count_nonzero(sizes)),
            "sentences": int(sizes.sum()),
            "tokens": len(tokens),
            "characters": sum(map(len, documents)),
            "unknown_tokens": len(unknown),
            "empty_documents": int(np.count_nonzero(sizes == 0)),
            "empty_sentences": int(np.count_nonzero(lengths == 0)),
            "unknown_words": _most_frequent(unknown_words, _UNKNOWN_WORDS),
        }
        return {
            "tokens": tokens.astype(token_dtype(self.tokenizer.vocab_size)),
            "lengths": lengths[lengths > 0].astype("<i4"),
            "documents": sizes[sizes > 0].astype("<i4"),
            "counts": np.array(json.dumps(counts)),
        }

    def _encode_sides(self, texts: list[str]) -> Arrays:
        """Return the tokens of texts, each by the tokenizer of its side, and their numbers."""
        ids = self.tokenizer.ids(texts)
        is_target = [number for number, text in enumerate(texts) if text.startswith(TARGET_MARK)]
        target_texts = [texts[number].removeprefix(TARGET_MARK) for number in is_target]
        for number, target_ids in zip(
            is_target, self.tokenizer.target.ids(target_texts), strict=True
        ):
            ids[number] = target_ids
        return flat_arrays(ids)


def part_path(folder: Path, number: int) -> Path:
    """Return the file of a part.

    A folder holds a thousand, as larger folders are slow.
    """
    return folder / f"{number // 1000:04d}" / f"{number % 1000:03d}.part"


def join_parts(parts: Iterable[Any], folder: Path) -> JsonObject:
    """Write the data files into `folder`, each atomically.

    Returns the counts of a manifest.

    Args:
        parts: all parts, in order: each a path or an open file.
    """
    totals: Counter[str] = Counter()
    unknown_words: Counter[str] = Counter()
    with ExitStack() as stack:
        temporary = stack.enter_context(replacing(folder / "tokens.bin"))
        tokens = stack.enter_context(temporary.open("wb"))
        appends = [stack.enter_context(open_npy(folder / name)) for name in DATA_FILES[1:]]
        ends = [np.zeros(1, "<i8"), np.zeros(1, "<i8")]
        for append, end in zip(appends, ends):
            append(end)
        for file in parts:
            with np.load(file) as part:
                figures = json.loads(str(part["counts"]))
                unknown_words.update(figures.pop("unknown_words"))
                totals.update(figures)
                tokens.write(part["tokens"].tobytes())
                for number, name in enumerate(("lengths", "documents")):
                    if len(sizes := part[name]):
                        ends[number] = ends[number][-1:] + np.cumsum(sizes, dtype="<i8")
                        appends[number](ends[number])
    words = _most_frequent(unknown_words, _LISTED_UNKNOWN_WORDS)
    return {**totals, "sections": totals["documents"] == 1, "unknown_words": words}
