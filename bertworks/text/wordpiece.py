"""Trains WordPiece and BPE vocabularies: words with counts -> pieces, by merging neighbours.

Each symbol is a character of its own, so that a word is a string of symbols. `forms` are their written forms.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import add
from typing import Literal

from tokenizers import models

from bertworks.text.tokenizer_pipeline import word_piece_model

Score = Literal["likelihood", "frequency"]
Words = Sequence[tuple[str, int]]  # words and their counts
Progress = Callable[[int], None]
_DRIFT = 0.98  # scores are recomputed when the number of symbols has fallen to this fraction


class MergeLearner:
    """Merges the best pair of neighbouring symbols repeatedly and updates the counts.

    "frequency" merges the most frequent pair (BPE, Sennrich et al. 2016). "likelihood" merges the pair that raises the
    likelihood of the text under a unigram model most (WordPiece, Schuster and Nakajima 2012), to first order
    n_ab * log(n_ab * N / (n_a * n_b)) for counts n and N symbols. A merge changes n_a, n_b and N, and so the scores
    of other pairs; these are recomputed when N has fallen by 2 %. Of equal pairs, that of the older symbols is merged.

    Args:
        words: (word, count). All their characters are in the alphabet.
        alphabet: the written forms of the first symbols.
        prefix: of a symbol inside a word, such as `##`. Equal written forms are one symbol.
        score: the criterion.
        min_frequency: less frequent pairs are not merged.
    """

    def __init__(self, words: Words, alphabet: list[str], prefix: str, *, score: Score, min_frequency: int = 2):
        self.forms = list(alphabet)
        self.merges: list[tuple[str, str]] = []
        self._symbols = {form: chr(number) for number, form in enumerate(self.forms)}
        self._words = ["".join(map(self._symbols.__getitem__, characters_of(word, prefix))) for word, _ in words]
        self._counts = [count for _, count in words]
        self._prefix = prefix
        self._by_likelihood, self._min_frequency = score == "likelihood", min_frequency
        self._symbol_counts = defaultdict[str, int](int)
        self._pair_counts = defaultdict[str, int](int)
        self._where = defaultdict[str, list[int]](list)
        for place, (word, count) in enumerate(zip(self._words, self._counts)):
            for symbol in word:
                self._symbol_counts[symbol] += count
            for pair in _pairs(word):
                self._pair_counts[pair] += count
                self._where[pair].append(place)
        self._total = sum(self._symbol_counts.values())
        self._rebuild()

    def merge_until(self, size: int, progress: Progress | None = None) -> None:
        """Merge until there are `size` symbols, or no pair is left. progress: called with the symbols so far."""
        while len(self.forms) < size and self.step():
            if progress and len(self.merges) % 1000 == 0:
                progress(len(self.forms))

    def step(self) -> bool:
        """Merge the best pair; False if there is none."""
        if self._by_likelihood and self._total < _DRIFT * self._total_at_rebuild:
            self._rebuild()
        while self._heap:
            score, pair = heapq.heappop(self._heap)
            current = self._score(pair)
            if current is not None and current <= score:
                self._merge(pair)
                return True
            if current is not None:
                heapq.heappush(self._heap, (current, pair))
        return False

    def _score(self, pair: str) -> float | None:
        """Minus the gain of merging a pair; None if it must not be merged."""
        count = self._pair_counts.get(pair, 0)
        if count < self._min_frequency:
            return None
        if not self._by_likelihood:
            return -count
        expected = self._symbol_counts[pair[0]] * self._symbol_counts[pair[1]]
        gain = count * math.log(count * self._total / expected)
        return -gain if gain > 0 else None

    def _rebuild(self) -> None:
        scored = ((self._score(pair), pair) for pair in self._pair_counts)
        self._heap = [(score, pair) for score, pair in scored if score is not None]
        heapq.heapify(self._heap)
        self._total_at_rebuild = self._total

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
        pair_counts, replaced = self._pair_counts, 0
        for place in self._where.pop(pair):
            word, count = self._words[place], self._counts[place]
            if pair not in word:
                continue
            self._words[place] = shorter = word.replace(pair, merged)
            replaced += (len(word) - len(shorter)) * count
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
        self._symbol_counts[pair[0]] -= replaced
        self._symbol_counts[pair[1]] -= replaced
        self._symbol_counts[merged] += replaced
        self._total -= replaced
        for new in changed:
            if (score := self._score(new)) is not None:
                heapq.heappush(self._heap, (score, new))


def _pairs(word: str) -> Iterable[str]:
    return map(add, word, word[1:])


def train_word_pieces(
    words: Words, alphabet: list[str], size: int, *, score: Score, min_frequency: int, progress: Progress | None = None
) -> list[str]:
    """A WordPiece vocabulary without special tokens: the alphabet, then pieces in the order of their merges.

    A fifth more pieces than needed are merged. Then the pieces that the tokenizer, which takes the longest match, uses
    least are dropped: intermediate pieces ("##ewsp") make room for words.

    Args:
        words: (word, count), in a reproducible order.
        alphabet: characters, with `##` inside words. Words with other characters are not used.
        size: maximal number of tokens.
        progress: called with the number of pieces so far.
    """
    characters = set(alphabet)
    known = [(word, count) for word, count in words if characters.issuperset(characters_of(word))]
    learner = MergeLearner(known, alphabet, "##", score=score, min_frequency=min_frequency)
    learner.merge_until(size + (size - len(alphabet)) // 5, progress)
    kept = _most_used(known, set(learner.forms), characters, size)
    return [form for form in learner.forms if form in kept]


def characters_of(word: str, prefix: str = "##") -> list[str]:
    """A word in its smallest pieces: "abc" -> ["a", "##b", "##c"]."""
    return [word[0], *(prefix + character for character in word[1:])]


def _most_used(words: Words, pieces: set[str], alphabet: set[str], size: int) -> set[str]:
    """Drop the least used pieces, half of the excess at a time, because others are then used more often."""
    model = word_piece_model(list(pieces))
    cuts = [_longest_match(word, model) for word, _ in words]
    while (excess := len(pieces) - size) > 0:
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
    """The pieces of a word. All its characters are pieces of the model."""
    return [token.value for token in model.tokenize(word)]
