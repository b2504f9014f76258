"""A folder of token ids on disk: written once, in parallel, then memory-mapped.

    tokens.bin       every id of the corpus, end to end: uint16, or uint32 for more than 65,536 tokens
    sentences.npy    int64 [S+1]: sentence s is tokens[sentences[s]:sentences[s+1]]
    documents.npy    int64 [D+1]: document d is sentences documents[d]:documents[d+1]
    tokenizer/       the tokenizer that made the ids
    manifest.json    counts, settings and the sha256 of each file; written last, so that without it nothing is finished

It holds no special tokens, no examples and no masks: those are drawn from it during training (`data`). Every byte is
the same for any number of workers, and an interrupted run goes on with the parts that it had written.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import BertworksError
from bertworks.io.atomic_write import folder_lock, read_small, remove_leftovers, sha256, write_json, write_text
from bertworks.text.corpus import CorpusReader
from bertworks.text.shard_writer import PartCounts, cut_into_parts, join_parts, token_dtype, write_parts
from bertworks.text.tokenizer import Tokenizer

FORMAT = 1  # of the folder and of the rules that make its bytes: parts of another format are not continued
_AGAIN = "type the `bertworks prepare` command again: it goes on where it stopped"
_UNKNOWN_WORDS = 1000  # examples kept
_LARGEST_MANIFEST = 1 << 24  # bytes
_DATA = ("tokens.bin", "sentences.npy", "documents.npy")
_OURS = (*_DATA, "preflight.json", "parts", "tokenizer", "plan.json", "manifest.json")
_KEYS = {  # by which our files are told from those of other programs that have the same names; in every format
    "manifest.json": {"format", "tokens", "tokenizer_sha256", "files", "settings"},
    "plan.json": {"format", "tokenizer", "files_sha256"},
}


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a shards folder holds."""

    format: int
    documents: int
    sentences: int
    tokens: int
    characters: int  # of the text read
    unknown_tokens: int  # [UNK]
    empty_documents: int  # left out: without a single token
    empty_sentences: int  # left out, likewise
    sections: bool  # the corpus was one document, and its "documents" are sections of about 100 sentences
    dtype: str  # of tokens.bin
    vocab_size: int
    tokenizer_sha256: str
    unknown_words: dict[str, int]  # the most frequent in a sample of sentences with [UNK]
    files: dict[str, str]  # sha256 by path inside the folder
    corpus: dict[str, Any]  # the reader's report
    settings: dict[str, Any]  # of the command; another command is refused

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read manifest.json.

        Raises:
            BertworksError: it is missing or garbled, or of another format.
        """
        if not path.exists():
            if (path.parent / "plan.json").exists():
                raise BertworksError("these shards are not finished", where=str(path.parent), hint=_AGAIN)
            hint = f"make them: bertworks prepare TEXT --tokenizer TOKENIZER -o {path.parent}"
            raise BertworksError("not a shards folder: it has no manifest.json", where=str(path.parent), hint=hint)
        again = f"make the shards again: bertworks prepare ... -o {path.parent} --overwrite"
        try:
            content = json.loads(read_small(path, _LARGEST_MANIFEST))
            found = content["format"]
            if found != FORMAT:
                raise BertworksError(
                    f"format {found} of shards; this version reads {FORMAT}", where=str(path), hint=again
                )
            return cls(**{field.name: content[field.name] for field in fields(cls)})
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BertworksError(f"the manifest is garbled: {error!r}", where=str(path), hint=again) from None


@dataclass(frozen=True)
class Shards:
    """An open shards folder. Sentence s is tokens[sentences[s]:sentences[s+1]], see the top of this module."""

    folder: Path
    tokens: NDArray[Any]  # uint16 or uint32 [N], mapped
    sentences: NDArray[np.int64]  # [S+1], mapped
    documents: NDArray[np.int64]  # [D+1], mapped
    manifest: Manifest
    written_now: bool = False  # whether `write_shards` had anything to write

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = False, written_now: bool = False) -> Self:
        """Map the files of a finished folder; sizes and shapes are checked.

        Args:
            verify: also compare the sha256 of every file: reads all of them.

        Raises:
            BertworksError: not a shards folder, not finished, or damaged.
        """
        folder = Path(folder)
        manifest = Manifest.load(folder / "manifest.json")
        dtype = np.dtype(manifest.dtype)
        path = folder / "tokens.bin"
        size = path.stat().st_size if path.exists() else -1
        if size != manifest.tokens * dtype.itemsize:
            raise _damaged(path, f"{max(size, 0):,} bytes where {manifest.tokens * dtype.itemsize:,} belong")
        tokens = np.memmap(path, dtype, mode="r", shape=(manifest.tokens,))
        sentences = _open_index(folder / "sentences.npy", manifest.sentences, manifest.tokens)
        documents = _open_index(folder / "documents.npy", manifest.documents, manifest.sentences)
        for name, expected in manifest.files.items() if verify else ():
            if not (folder / name).exists() or sha256(folder / name) != expected:
                raise _damaged(folder / name, "its bytes are not those that were written (sha256 differs)")
        return cls(folder, tokens, sentences, documents, manifest, written_now)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids.

        Raises:
            BertworksError: the folder's tokenizer is another one, or damaged.
        """
        tokenizer = Tokenizer.load(self.folder / "tokenizer")
        if tokenizer.sha256 != self.manifest.tokenizer_sha256:
            raise _damaged(self.folder / "tokenizer", "this is not the tokenizer that made these shards")
        return tokenizer


def holds_shards(folder: str | Path) -> bool:
    """Is this a folder that `write_shards` finished or began? Told by what is in the files: other programs write a
    manifest.json too."""
    folder = Path(folder)
    return all((folder / name).is_file() for name in _DATA) or any(
        keys <= _names_in(folder / name) for name, keys in _KEYS.items()
    )


def _names_in(path: Path) -> set[str]:
    """The names of a JSON object; none where there is no such file, or another content."""
    try:
        return set(dict(json.loads(read_small(path, _LARGEST_MANIFEST))))
    except (BertworksError, ValueError, TypeError, RecursionError):
        return set()


def write_shards(
    reader: CorpusReader,
    tokenizer: Tokenizer,
    folder: str | Path,
    *,
    workers: int | None = None,
    part_characters: int = 1 << 20,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Shards:
    """Turn a corpus into a shards folder, or finish one that an interrupted run began.

    Returns at once when the folder is finished and inputs and tokenizer are the same. The inputs may have been copied
    or moved together: what is in the files counts.

    Args:
        workers: processes that split and encode; None: one per processor; 1: none but this one.
        part_characters: text that a worker gets at once, and what an interruption can cost.
        overwrite: drop what the folder holds of another command's shards.
        progress: told the characters done so far.

    Raises:
        BertworksError: the folder belongs to something else, is in use, the disk is full, a worker died, files were
            changed meanwhile, or there is no text.
    """
    folder = Path(folder)
    settings = _settings(reader, tokenizer)
    busy = "another process is writing to this folder"
    with folder_lock(folder, busy, "wait until it is done, or choose another folder with -o"):
        _refuse_strangers(folder, overwrite)
        if overwrite:
            _clear(folder)
        if (folder / "manifest.json").exists():
            _refuse_other(Manifest.load(folder / "manifest.json").settings, settings, reader, folder)
            _tidy(folder)
            return Shards.open(folder)
        _begin(folder, settings, reader, tokenizer)
        counts: list[PartCounts] = []
        unknown_words: Counter[str] = Counter()
        done = 0
        parts = cut_into_parts((document.text for document in reader), part_characters)
        made = write_parts(parts, folder / "tokenizer", folder / "parts", workers)
        with closing(made):
            for part in made:
                unknown_words.update(part.unknown_words)
                part.unknown_words = {}
                counts.append(part)
                done += part.characters
                if progress:
                    progress(done)
        if not sum(part.tokens for part in counts):
            raise BertworksError(
                "there is no text in the corpus", where=_names(reader), hint="give files that hold text"
            )
        manifest = _assemble(folder, counts, tokenizer, _with_content(settings, reader), reader, unknown_words)
        write_json(folder / "manifest.json", asdict(manifest))
        _tidy(folder)
    return Shards.open(folder, written_now=True)


def _assemble(
    folder: Path,
    counts: list[PartCounts],
    tokenizer: Tokenizer,
    settings: dict[str, Any],
    reader: CorpusReader,
    unknown_words: Counter[str],
) -> Manifest:
    """Join the parts; return the manifest that vouches for the files."""
    dtype = token_dtype(tokenizer.vocab_size)
    joined = join_parts(folder / "parts", counts, dtype, folder)
    for path in sorted((folder / "tokenizer").iterdir()):
        joined["files"][f"tokenizer/{path.name}"] = sha256(path)
    summed = ("sentences", "tokens", "characters", "unknown_tokens", "empty_sentences")
    return Manifest(
        format=FORMAT,
        **{name: sum(getattr(part, name) for part in counts) for name in summed},
        **joined,
        dtype=dtype.str,
        vocab_size=tokenizer.vocab_size,
        tokenizer_sha256=tokenizer.sha256,
        unknown_words=dict(sorted(unknown_words.items(), key=lambda item: (-item[1], item[0]))[:_UNKNOWN_WORDS]),
        corpus=asdict(reader.report),
        settings=settings,
    )


def _open_index(path: Path, count: int, end: int) -> NDArray[np.int64]:
    try:
        index = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, str(error)) from None
    if index.shape != (count + 1,) or index.dtype != np.int64 or index[0] != 0 or index[-1] != end:
        raise _damaged(path, f"its {len(index):,} numbers do not fit to the manifest")
    return index  # type: ignore[no-any-return]


def _damaged(path: Path, how: str) -> BertworksError:
    return BertworksError(
        f"damaged: {how}",
        where=str(path),
        hint="copy the folder again from where it was whole, or make it again: bertworks prepare ... --overwrite",
    )


def _settings(reader: CorpusReader, tokenizer: Tokenizer) -> dict[str, Any]:
    """What must be the same for a folder to be continued, or to be called done."""
    files, size, stamp = reader.identity()
    return {
        "format": FORMAT,
        "tokenizer": tokenizer.sha256,
        "text_column": reader.text_column,
        "documents": reader.documents,
        "files": files,
        "bytes": size,
        "files_sha256": stamp,
    }


def _with_content(settings: dict[str, Any], reader: CorpusReader) -> dict[str, Any]:
    """The settings of a finished folder; BertworksError if the files are no longer those that were read."""
    content = reader.content_sha256()
    if reader.identity().stamp != settings["files_sha256"]:
        raise BertworksError(
            "files of the corpus were changed while they were read",
            where=_names(reader),
            hint="type the same again: what was made of unchanged text is kept",
        )
    return settings | {"content_sha256": content}


def _refuse_other(there: dict[str, Any], asked: dict[str, Any], reader: CorpusReader, folder: Path) -> None:
    names = [name for name in asked if there.get(name) != asked[name]]
    if names == ["files_sha256"]:  # copied, moved or touched: what is in the files decides
        asked = {"content_sha256": reader.content_sha256()}
        names = [name for name in asked if there.get(name) != asked[name]]
    if names:
        shown = "; ".join(f"{name}: {_short(there.get(name))} there, {_short(asked[name])} asked" for name in names)
        raise BertworksError(
            f"this folder holds the shards of another command ({shown})",
            where=str(folder),
            hint="write to another folder with -o, or replace what is there with --overwrite",
        )


def _short(value: Any) -> str:
    return str(value) if len(str(value)) <= 12 else f"{str(value)[:12]}..."


def _begin(folder: Path, settings: dict[str, Any], reader: CorpusReader, tokenizer: Tokenizer) -> None:
    """Take possession of the folder, or of what an interrupted run of the same command left in it."""
    plan = folder / "plan.json"
    if _visible(folder):
        try:
            there = dict(json.loads(plan.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            there = {}
        there["files_sha256"] = settings["files_sha256"]  # of every part that is there the text is compared
        _refuse_other(there, settings, reader, folder)
    write_text(plan, json.dumps(settings, indent=2) + "\n")
    tokenizer.save(folder / "tokenizer")
    for parts in (folder / "parts").glob("*"):
        remove_leftovers(parts)
    remove_leftovers(folder)


def _tidy(folder: Path) -> None:
    """Remove what only an unfinished folder needs."""
    (folder / "plan.json").unlink(missing_ok=True)
    shutil.rmtree(folder / "parts", ignore_errors=True)


def _visible(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))


def _refuse_strangers(folder: Path, overwrite: bool) -> None:
    """Raises BertworksError, before anything is touched, for a folder of other things, and for shards that are to be
    deleted and have other things beside them."""
    there = _visible(folder)
    strange = [name for name in there if name not in _OURS]
    if there and not holds_shards(folder):
        what = f"this folder is not empty and holds no shards: {', '.join((strange or there)[:5])}"
    elif overwrite and strange:
        what = f"this folder holds more than shards: {', '.join(strange[:5])}"
    else:
        return
    raise BertworksError(what, where=str(folder), hint="choose a new or empty folder with -o")


def _clear(folder: Path) -> None:
    """Remove shards. What tells that they are ours goes last: after a kill in between, the same can be typed again."""
    for name in _OURS:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _names(reader: CorpusReader) -> str:
    names = [str(file) for file in reader.files]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
