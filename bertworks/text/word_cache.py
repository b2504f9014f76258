"""Sentences -> one flat array of ids. Each distinct piece between spaces is encoded once, which is faster than the
tokenizer alone.

The cache never changes an id. BERT's pre-tokenizer splits at white space and around every ASCII punctuation mark, its
normalizer looks at one character at a time (lower case, NFD and clean-up do not reach across a space), and WordPiece
sees one word at a time. So the ids of a sentence are the ids of its pieces between spaces, end to end. Only U+0020
separates: the clean-up deletes other white space, such as U+000B, and joins the characters around it.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, count, islice
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

Arrays = tuple[NDArray[np.int32], NDArray[np.int64]]

_MARKS = ',.()"'  # frequent punctuation, split off, so that "word" and "word," are one entry
_MAX_ENTRIES = 1 << 18  # about 60 MB
_MAX_CHARACTERS = 1 << 23  # in scripts without spaces the pieces are whole sentences
_GROUP = 64  # new pieces encoded as one text: a call costs more than a word


class WordCache:
    """A cache of the ids of pieces of text, emptied when it is too large.

    Args:
        serialized: the text of a tokenizer.json for which `is_exact` holds. Special tokens written in the texts are not
            recognized: they are text, as in `Tokenizer.ids`.
    """

    def __init__(self, serialized: str):
        self._library = tokenizers.Tokenizer.from_str(serialized)
        self._library.encode_special_tokens = True
        # No piece has a newline: as a token of its own, it separates pieces that are encoded as one text.
        self._library.add_tokens([tokenizers.AddedToken("\n", normalized=False)])
        self._newline = self._library.token_to_id("\n")
        self._clear()

    @staticmethod
    def is_exact(serialized: str) -> bool:
        """Whether the ids of a text are those of its pieces between spaces, for this tokenizer.json."""
        description: dict[str, Any] = json.loads(serialized)
        types = [(description[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
        plain = all(token["special"] for token in description["added_tokens"])
        return plain and types == ["BertNormalizer", "BertPreTokenizer", "WordPiece"]

    def encode(self, sentences: Sequence[str]) -> Arrays:
        """All ids end to end [sum of lengths] and the number of ids of each sentence [len(sentences)]."""
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
        borders = np.append(np.flatnonzero(numbers == 0), len(numbers) - 1)  # piece 0 is the newline
        return ids, np.diff(ends[borders], prepend=0)

    def _clear(self) -> None:
        self._numbers = defaultdict[str, int](count().__next__)  # from 0, in the order of the first occurrence
        _ = self._numbers["\n"]
        self._characters = 0
        self._ids = np.zeros(0, np.int32)
        self._starts = np.zeros(1, np.int64)
        self._lengths = np.zeros(1, np.int64)

    def _encode_new(self) -> None:
        """Encode the pieces that have a number, but no ids yet."""
        pieces = list(islice(reversed(self._numbers), len(self._numbers) - len(self._lengths)))[::-1]
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
