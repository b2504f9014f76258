"""Train WordPiece and BPE vocabularies: words with counts -> pieces, by merging neighbours.

A trained WordPiece vocabulary can be extended by new words.

While pieces are learned, each is one symbol (one character), so that a word is a string of symbols.
`forms` are the written forms of the symbols.
"""

import heapq
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from operator import add
from typing import NamedTuple

from tokenizers import models

from bertworks.errors import UsageError, expect
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.tokenizer_folder import LONGEST_WORD, word_piece_model
from bertworks.text.word_counts import AccentSplitter, WordCounts, count_words

Words = Sequence[tuple[str, int]]  # words and their counts
Progress = Callable[[int], None]


class MergeLearner:
    """Merges the most frequent pair of neighbouring symbols repeatedly (Sennrich et al. 2016).

    Counts are updated after each merge. Of equally frequent pairs, that of the older symbols is
    merged.

    Args:
        words: (word, count). All their characters are in the alphabet.
        alphabet: the written forms of the first symbols.
        prefix: of a symbol inside a word, such as `##`. Equal written forms are one symbol.
        min_frequency: less frequent pairs are not merged.
    """

    def __init__(self, words: Words, alphabet: list[str], prefix: str, *, min_frequency: int = 2):
        self.forms = list(alphabet)
        self.merges: list[tuple[str, str]] = []
        self._symbols = {form: chr(number) for number, form in enumerate(self.forms)}
        self._words = [
            "".join(map(self._symbols.__getitem__, characters_of(word, prefix)))
            for word, _ in words
        ]
        self._counts = [count for _, count in words]
        self._prefix = prefix
        self._min_frequency = min_frequency
        self._pair_counts = defaultdict[str, int](int)
        self._where = defaultdict[str, list[int]](list)
        for place, (word, count) in enumerate(zip(self._words, self._counts)):
            for pair in _pairs(word):
                self._pair_counts[pair] += count
                self._where[pair].append(place)
        self._heap = [
            (-count, pair) for pair, count in self._pair_counts.items() if count >= min_frequency
        ]
        heapq.heapify(self._heap)

    def merge_until(self, size: int, progress: Progress | None = None) -> None:
        """Merge until there are `size` symbols, or no pair is left.

        Args:
            progress: is called with the symbols so far.
        """
        while len(self.forms) < size and self._heap:
            score, pair = heapq.heappop(self._heap)
            count = self._pair_counts.get(pair, 0)
            if count >= max(self._min_frequency, -score):
                self._merge(pair)
                if progress and len(self.merges) % 1000 == 0:
                    progress(len(self.forms))
            elif count >= self._min_frequency:
                heapq.heappush(self._heap, (-count, pair))

    def _merge(self, pair: str) -> None:
        """Replace a pair by one symbol in all words."""
        first, second = (self.forms[ord(symbol)] for symbol in pair)
        self.merges.append((first, second))
        form = first + second.removeprefix(self._prefix)
        if form not in self._symbols:
            self._symbols[form] = chr(len(self.forms))
            self.forms.append(form)
        merged = self._symbols[form]
        changed: set[str] = set()
        pair_counts = self._pair_counts
        for place in self._where.pop(pair):
            word = self._words[place]
            count = self._counts[place]
            if pair not in word:
                continue
            self._words[place] = shorter = word.replace(pair, merged)
            start = max(word.find(pair) - 1, 0)  # only neighbours of the pair change
            rest = max(len(word) - word.rfind(pair) - 3, 0)
            for old in _pairs(word[start : len(word) - rest]):
                pair_counts[old] -= count
            for new in _pairs(shorter[start : len(shorter) - rest]):
                pair_counts[new] += count
                if merged in new:
                    self._where[new].append(place)
                    changed.add(new)
        del pair_counts[pair]
        for new in (pair for pair in changed if pair_counts[pair] >= self._min_frequency):
            heapq.heappush(self._heap, (-pair_counts[new], new))


def _pairs(word: str) -> Iterable[str]:
    """Return the pairs of neighbouring symbols of a word."""
    return map(add, word, word[1:])


def train_word_pieces(
    words: Words,
    alphabet: list[str],
    size: int,
    *,
    min_frequency: int,
    progress: Progress | None = None,
) -> list[str]:
    """Return a WordPiece vocabulary without special tokens.

    It is the alphabet, then pieces in the order of their merges.

    A fifth more pieces than needed are merged. Then the pieces that the tokenizer, which takes the
    longest match, uses least are dropped: intermediate pieces ("##ewsp") make room for words.

    Args:
        words: (word, count), in a reproducible order.
        alphabet: characters, with `##` inside words. Words with other characters are not used.
        size: maximal number of tokens.
        progress: called with the number of pieces so far.
    """
    characters = set(alphabet)
    known = [(word, count) for word, count in words if characters.issuperset(characters_of(word))]
    learner = MergeLearner(known, alphabet, "##", min_frequency=min_frequency)
    learner.merge_until(size + (size - len(alphabet)) // 5, progress)
    pieces = _most_used(known, set(learner.forms), characters, size)
    return [form for form in learner.forms if form in pieces]


def characters_of(word: str, prefix: str = "##") -> list[str]:
    """Return a word in its smallest pieces: "abc" -> ["a", "##b", "##c"]."""
    return [word[0], *(prefix + character for character in word[1:])]


def _most_used(words: Words, pieces: set[str], alphabet: set[str], size: int) -> set[str]:
    """Return the `size` pieces that are used most.

    The least used ones are dropped half of the excess at a time, because the others are then used
    more often.
    """
    model = word_piece_model(list(pieces))
    cuts = [_longest_match(word, model) for word, _ in words]
    while len(pieces) > size:
        excess = len(pieces) - size
        uses = dict.fromkeys(pieces, 0)
        for cut, (_, count) in zip(cuts, words):
            for piece in cut:
                uses[piece] += count
        candidates = sorted((use, piece) for piece, use in uses.items() if piece not in alphabet)
        dropped = {piece for _, piece in candidates[: max(excess // 2, min(excess, 200))]}
        pieces = pieces - dropped
        model = word_piece_model(list(pieces))
        for place, cut in enumerate(cuts):
            if not dropped.isdisjoint(cut):
                cuts[place] = _longest_match(words[place][0], model)
    return pieces


def _longest_match(word: str, model: models.WordPiece) -> list[str]:
    """Return the pieces of a word whose characters are all pieces of the model."""
    return [token.value for token in model.tokenize(word)]


class NewWord(NamedTuple):
    """A word that extends a vocabulary."""

    word: str
    frequency: int  # in the text
    pieces: list[int]  # the ids that the tokenizer has for it so far


LEAST_COUNT = 2  # of a new word


def extend_vocabulary(
    documents: Iterable[str],
    tokenizer: Tokenizer,
    number: int,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[Tokenizer, list[NewWord]]:
    """Return the tokenizer with new whole words after its old ids, and these words.

    The words are in the order of their ids.

    Words are those of the normalizer and the pre-tokenizer. New ones occur at least LEAST_COUNT
    times, have a letter and no digit, and two pieces or more, none of which is [UNK]. Those come
    first that save most tokens: count times (pieces - 1); of equal ones the more frequent, then by
    code points. As WordPiece takes the longest piece first, longer words that begin with a new word
    get other pieces too.

    Args:
        progress: called with the number of characters counted so far.

    Raises:
        UsageError: the tokenizer is not WordPiece; the text has fewer such words.
    """
    make, (serialized,) = tokenizer.__reduce__()
    content = json.loads(serialized)
    kind = content["model"]["type"]
    if kind != "WordPiece":
        hint = (
            "leave --extend-vocabulary out: --init alone continues with the vocabulary of the model"
        )
        raise UsageError(
            f"a vocabulary of {kind} cannot be extended, only one of WordPiece", hint=hint
        )
    with closing(WordCounts(1 << 29)) as counts:
        count_words(
            documents,
            AccentSplitter(serialized, serialized, LONGEST_WORD),
            lambda new: counts.add(new.shared_words),
            workers=workers,
            progress=progress,
        )
        frequent = [
            (word, count) for word, count in counts if count >= LEAST_COUNT and _is_plain(word)
        ]
    pieces = tokenizer.ids([word for word, _ in frequent])
    words = [
        NewWord(word, count, ids)
        for (word, count), ids in zip(frequent, pieces)
        if len(ids) > 1 and tokenizer.unk_id not in ids
    ]
    what = f"the text has {len(words):,} words that a vocabulary can be extended by, not {number:,}"
    hint = f"--extend-vocabulary {len(words)} takes all of them (0: leave it out); and --overwrite"
    expect(len(words) >= number, what, hint=hint)
    # The words that save most tokens come first.
    words.sort(key=lambda w: (w.frequency * (1 - len(w.pieces)), -w.frequency, w.word))
    new_words = words[:number]
    content["model"]["vocab"] |= {
        new.word: tokenizer.vocab_size + n for n, new in enumerate(new_words)
    }
    return make(json.dumps(content)), new_words


def without_last(tokenizer: Tokenizer, number: int) -> Tokenizer:
    """Return the tokenizer before its vocabulary was extended by a number of words."""
    make, (serialized,) = tokenizer.__reduce__()
    content = json.loads(serialized)
    size = tokenizer.vocab_size - number
    content["model"]["vocab"] = {
        word: n for word, n in content["model"]["vocab"].items() if n < size
    }
    return make(json.dumps(content))


def _is_plain(word: str) -> bool:
    """Return whether a word has letters and no digits."""
    return any(map(str.isalpha, word)) and not any(map(str.isnumeric, word))
