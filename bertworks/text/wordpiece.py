"""Trains WordPiece and BPE vocabularies: words with counts -> pieces, by merging neighbours.

Symbols are numbers with a written form. The caller defines how two forms are joined.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

Score = Literal["likelihood", "frequency"]
_DRIFT = 0.98  # scores are recomputed when the number of symbols has fallen to this fraction


class MergeLearner:
    """Merges the best pair of neighbouring symbols repeatedly and updates the counts.

    "frequency" merges the most frequent pair (BPE, Sennrich et al. 2016). "likelihood" merges the pair that raises the
    likelihood of the text under a unigram model most (WordPiece, Schuster and Nakajima 2012), to first order
    n_ab * log(n_ab * N / (n_a * n_b)) for counts n and N symbols. A merge changes n_a, n_b and N, and so the scores
    of other pairs; these are recomputed when N has fallen by 2 %. Of equal pairs, that of the older symbols is merged.

    Args:
        words: the symbols of each word.
        counts: of each word.
        forms: the written form of each symbol.
        join: the written form of two merged symbols; equal forms are one symbol.
        score: the criterion.
        min_frequency: less frequent pairs are not merged.
    """

    def __init__(
        self,
        words: list[list[int]],
        counts: Sequence[int],
        forms: Sequence[str],
        join: Callable[[str, str], str],
        *,
        score: Score,
        min_frequency: int = 2,
    ):
        self.forms = list(forms)
        self.merges: list[tuple[str, str]] = []
        self._numbers = {form: number for number, form in enumerate(self.forms)}
        self._words, self._counts, self._join = words, counts, join
        self._by_likelihood, self._min_frequency = score == "likelihood", max(1, min_frequency)
        self._symbol_counts = [0] * len(self.forms)
        self._pair_counts: dict[tuple[int, int], int] = {}
        self._where: dict[tuple[int, int], list[int]] = {}
        for place, (word, count) in enumerate(zip(words, counts)):
            for symbol in word:
                self._symbol_counts[symbol] += count
            for pair in pairwise(word):
                self._pair_counts[pair] = self._pair_counts.get(pair, 0) + count
                self._where.setdefault(pair, []).append(place)
        self._total = sum(self._symbol_counts)
        self._rebuild()

    def step(self) -> bool:
        """Merge the best pair; False if there is none."""
        if self._by_likelihood and self._total < _DRIFT * self._total_at_rebuild:
            self._rebuild()
        while self._heap:
            score, pair = self._heap[0]
            current = self._score(pair)
            if current is not None and current <= score:
                heapq.heappop(self._heap)
                self._merge(pair)
                return True
            if current is None:
                heapq.heappop(self._heap)
            else:
                heapq.heapreplace(self._heap, (current, pair))
        return False

    def _score(self, pair: tuple[int, int]) -> float | None:
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

    def _merge(self, pair: tuple[int, int]) -> None:
        """Replace a pair by one symbol in all words."""
        first, second = pair
        form = self._join(self.forms[first], self.forms[second])
        merged = self._numbers.setdefault(form, len(self.forms))
        if merged == len(self.forms):
            self.forms.append(form)
            self._symbol_counts.append(0)
        self.merges.append((self.forms[first], self.forms[second]))
        new_pairs: set[tuple[int, int]] = set()
        replaced = 0
        for place in self._where.pop(pair):
            replaced += self._merge_in_word(place, first, second, merged, new_pairs)
        del self._pair_counts[pair]
        self._symbol_counts[first] -= replaced
        self._symbol_counts[second] -= replaced
        self._symbol_counts[merged] += replaced
        self._total -= replaced
        for new_pair in new_pairs:
            if (score := self._score(new_pair)) is not None:
                heapq.heappush(self._heap, (score, new_pair))

    def _merge_in_word(self, place: int, first: int, second: int, merged: int, new_pairs: set[tuple[int, int]]) -> int:
        """Replace a pair in one word and collect the new pairs. Returns the count of replaced pairs."""
        word, count = self._words[place], self._counts[place]
        pair_counts = self._pair_counts
        replaced, position = 0, -1
        while True:
            try:
                position = word.index(first, position + 1)
            except ValueError:
                return replaced
            if position + 1 == len(word) or word[position + 1] != second:
                continue
            neighbours = []
            if position > 0:
                left = word[position - 1]
                pair_counts[left, first] -= count
                neighbours.append((left, merged))
            if position + 2 < len(word):
                right = word[position + 2]
                pair_counts[second, right] -= count
                neighbours.append((merged, right))
            for pair in neighbours:
                pair_counts[pair] = pair_counts.get(pair, 0) + count
                self._where.setdefault(pair, []).append(place)
                new_pairs.add(pair)
            word[position : position + 2] = [merged]
            replaced += count


def train_word_pieces(
    words: Sequence[tuple[str, int]],
    alphabet: Sequence[str],
    size: int,
    *,
    score: Score,
    min_frequency: int,
    progress: Callable[[int], None] | None = None,
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
    numbers = {form: number for number, form in enumerate(alphabet)}
    known = [(word, count) for word, count in words if all(form in numbers for form in characters_of(word))]
    learner = MergeLearner(
        [[numbers[form] for form in characters_of(word)] for word, _ in known],
        [count for _, count in known],
        alphabet,
        lambda left, right: left + right.removeprefix("##"),
        score=score,
        min_frequency=min_frequency,
    )
    _merge_until(learner, size + (size - len(alphabet)) // 5, progress)
    kept = _most_used(known, set(learner.forms), set(alphabet), size)
    return [form for form in learner.forms if form in kept]


def train_byte_pairs(
    words: Sequence[tuple[str, int]],
    alphabet: Sequence[str],
    size: int,
    *,
    min_frequency: int,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[str], list[tuple[str, str]]]:
    """A BPE vocabulary without special tokens, and its merges in order. Arguments as for `train_word_pieces`."""
    numbers = {form: number for number, form in enumerate(alphabet)}
    learner = MergeLearner(
        [[numbers[character] for character in word] for word, _ in words],
        [count for _, count in words],
        alphabet,
        lambda left, right: left + right,
        score="frequency",
        min_frequency=min_frequency,
    )
    _merge_until(learner, size, progress)
    return learner.forms, learner.merges


def characters_of(word: str) -> list[str]:
    """A word in its smallest pieces: "abc" -> ["a", "##b", "##c"]."""
    return [word[0], *("##" + character for character in word[1:])]


def _merge_until(learner: MergeLearner, size: int, progress: Callable[[int], None] | None) -> None:
    while len(learner.forms) < size and learner.step():
        if progress and len(learner.merges) % 1000 == 0:
            progress(len(learner.forms))


def _most_used(words: Sequence[tuple[str, int]], pieces: set[str], alphabet: set[str], size: int) -> set[str]:
    """Drop the least used pieces, half of the excess at a time, because others are then used more often."""
    cuts = [_longest_match(word, pieces) for word, _ in words]
    while (excess := len(pieces) - size) > 0:
        uses = dict.fromkeys(pieces, 0)
        for cut, (_, count) in zip(cuts, words):
            for piece in cut:
                uses[piece] += count
        candidates = sorted((use, piece) for piece, use in uses.items() if piece not in alphabet)
        dropped = {piece for _, piece in candidates[: max(excess // 2, min(excess, 200))]}
        pieces = pieces - dropped
        for place, cut in enumerate(cuts):
            if not dropped.isdisjoint(cut):
                cuts[place] = _longest_match(words[place][0], pieces)
    return pieces


def _longest_match(word: str, pieces: set[str]) -> list[str]:
    """The pieces of a word by longest match. All its characters are pieces."""
    cut, begin, prefix = [], 0, ""
    while begin < len(word):
        end = len(word)
        while (piece := prefix + word[begin:end]) not in pieces:
            end -= 1
        cut.append(piece)
        begin, prefix = end, "##"
    return cut
