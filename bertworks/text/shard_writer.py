"""Write documents as the data files of a shards folder, in bounded memory.

Documents -> numbered parts -> a file of token ids per part -> the data files.

Parts make `shards` parallel and resumable. The content of a part depends on its documents only, not
on the number of workers, and the file of a part holds the sha256 of its text. A document is in one
part: `CorpusReader` limits its size.

The file of a part is an .npz file, sealed with the sha256 of the text and of the tokenizer:

    tokens     uint16 or uint32 [tokens]
    lengths    int32 [sentences]: tokens of each sentence; none is 0
    documents  int32 [documents]: sentences of each document; none is 0
    counts     JSON: figures for the manifest
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bertworks.io.arrays import open_npy
from bertworks.io.atomic_write import is_sealed, json_sha256, replacing, sealing
from bertworks.io.inputs import chunk_by_size
from bertworks.text.long_texts import steps_of
from bertworks.text.segmentation import split_sentences
from bertworks.text.tokenizer import Tokenizer

Arrays = tuple[NDArray[np.int32], NDArray[np.int64]]

_MARKS = ',.()"'  # frequent punctuation, split off, so that "word" and "word," are one entry
_MAX_ENTRIES = 1 << 18  # about 60 MB
_MAX_CHARACTERS = 1 << 23  # in scripts without spaces the pieces are whole sentences
_GROUP = 64  # new pieces encoded as one text: a call costs more than a word


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
        description: dict[str, Any] = json.loads(serialized)
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


DATA_FILES = ("tokens.bin", "sentences.npy", "documents.npy")
_BATCH_CHARACTERS = 1 << 19  # given to the tokenizer at a time
_SAMPLED_SENTENCES = 16  # per part: sentences with [UNK] whose unknown words are kept as examples
_SAMPLED_CHARACTERS = 1 << 12  # of such a sentence
_WORD_CHARACTERS = 40  # of a word kept as an example
_UNKNOWN_WORDS = 100  # of these, per part
_LISTED_UNKNOWN_WORDS = 1000  # in the manifest


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest of uint16 and uint32 that holds every id, little-endian on every machine."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def _most_frequent(words: Counter[str], number: int) -> dict[str, int]:
    return dict(sorted(words.items(), key=lambda item: (-item[1], item[0]))[:number])


class PartWriter:
    """Writes parts as files.

    One per process: it caches words.

    Args:
        tokenizer_folder: a folder written by `Tokenizer.save`.
        folder: of the part files.
    """

    def __init__(self, tokenizer_folder: str | Path, folder: str | Path):
        self.tokenizer = tokenizer = Tokenizer.load(tokenizer_folder)
        serialized = (Path(tokenizer_folder) / "tokenizer.json").read_text(encoding="utf-8")
        is_exact = WordCache.is_exact(serialized)
        self._encode = (
            WordCache(serialized).encode
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

    def encode(self, documents: list[str]) -> dict[str, Any]:
        """Split and encode the text of a part."""
        split = list(map(split_sentences, documents))
        sentences = list(chain.from_iterable(split))
        batches = [
            flat_arrays([]),
            *map(self._encode, chunk_by_size(sentences, _BATCH_CHARACTERS, len)),
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


def part_path(folder: Path, number: int) -> Path:
    """Return the file of a part.

    A folder holds a thousand, as larger folders are slow.
    """
    return folder / f"{number // 1000:04d}" / f"{number % 1000:03d}.part"


def join_parts(parts: Iterable[Any], folder: Path) -> dict[str, Any]:
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
