"""Train vocabularies from documents: WordPiece, byte-level BPE, unigram, or whole words.

The result is the same to the byte for any order of the documents, number of processes and machine:
words are counted exactly and sorted, and ties are broken by code points.

- `train_vocabulary`: documents -> `Tokenizer`
- `extend_vocabulary`: new words for a trained WordPiece vocabulary
- `MergeLearner`, `train_word_pieces`: words with counts -> pieces, by merging neighbours. While
  pieces are learned, each is one symbol (one character), so that a word is a string of symbols.
  `forms` are the written forms of the symbols.
"""

import heapq
import io
import json
import re
import sys
import time
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import add
from typing import Any, Literal, NamedTuple, get_args

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from bertworks.config import packaged_table
from bertworks.errors import BertworksError, UsageError, expect, optional_import, several
from bertworks.text.tokenizer import MANY_UNKNOWN, Tokenizer
from bertworks.text.tokenizer_folder import (
    LONGEST_WORD,
    SPECIAL_TOKENS,
    bert_pipeline,
    byte_level_pipeline,
    spelling_pipeline,
    word_piece_model,
)
from bertworks.text.whole_words import UNKNOWN, word_splitter
from bertworks.text.word_counts import (
    REPLACEMENT,
    AccentCounts,
    AccentSplitter,
    Sample,
    Splitter,
    WordCounts,
    WordStatistics,
    count_words,
)

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
    pieces = set(learner.forms)
    model = word_piece_model(list(pieces))
    cuts = [_longest_match(word, model) for word, _ in known]
    # Half of the excess is dropped at a time, because the other pieces are then used more often.
    while len(pieces) > size:
        excess = len(pieces) - size
        uses = dict.fromkeys(pieces, 0)
        for cut, (_, count) in zip(cuts, known):
            for piece in cut:
                uses[piece] += count
        candidates = sorted((use, piece) for piece, use in uses.items() if piece not in characters)
        dropped = {piece for _, piece in candidates[: max(excess // 2, min(excess, 200))]}
        pieces -= dropped
        model = word_piece_model(list(pieces))
        for place, cut in enumerate(cuts):
            if not dropped.isdisjoint(cut):
                cuts[place] = _longest_match(known[place][0], model)
    return [form for form in learner.forms if form in pieces]


def characters_of(word: str, prefix: str = "##") -> list[str]:
    """Return a word in its smallest pieces: "abc" -> ["a", "##b", "##c"]."""
    return [word[0], *(prefix + character for character in word[1:])]


def _longest_match(word: str, model: models.WordPiece) -> list[str]:
    """Return the pieces of a word by longest match.

    Each character of the word has to be a piece of the model.
    """
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
        raise UsageError(
            f"a vocabulary of {kind} cannot be extended, only one of WordPiece",
            hint="leave --extend-vocabulary out: --init alone continues with the vocabulary "
            "of the model",
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
            (word, count)
            for word, count in counts
            if count >= LEAST_COUNT
            and any(map(str.isalpha, word))
            and not any(map(str.isnumeric, word))
        ]
    pieces = tokenizer.ids([word for word, _ in frequent])
    words = [
        NewWord(word, count, ids)
        for (word, count), ids in zip(frequent, pieces)
        if len(ids) > 1 and tokenizer.unk_id not in ids
    ]
    expect(
        len(words) >= number,
        f"the text has {len(words):,} words that a vocabulary can be extended by, not {number:,}",
        hint=f"--extend-vocabulary {len(words)} takes all of them (0: leave it out); and "
        "--overwrite",
    )
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


Algorithm = Literal["wordpiece", "bpe", "unigram", "words", "spelled_words"]
_OF_WHOLE_WORDS = ("words", "spelled_words")
Counted = Callable[[Sample], Iterable[AccentCounts]]
SpecialTokens = Literal["bert", "roberta", "xlm", "modernbert", "xlnet", "gpt2"]
_SPECIALS = list(SPECIAL_TOKENS.values())  # [PAD]=0 [UNK]=1 [CLS]=2 [SEP]=3 [MASK]=4
_TOKENS_OF_STYLE: dict[SpecialTokens, dict[str, Any]] = packaged_table(__file__, "pipelines.toml")[
    "special_tokens"
]
# Characters of an unknown word that a message shows.
_SHOWN_CHARACTERS = 40
# A larger fraction of the text in words that are too long is reported.
_MUCH_LEFT_OUT = 0.01
# of all characters: a text with fewer marks that are letters, or kana, is of another language
LETTER_FRACTION = 0.001
# Marks that can be removed without changing the letters of a word: accents, the points of Hebrew
# and Arabic, and marks that belong to no script, such as the variation selectors of emoji.
_ACCENTS_AND_POINTS = re.compile(
    r"[\u0300-\u036f\u0590-\u06ff\u0870-\u08ff\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufb1e\ufe00-\ufe0f\ufe20-\ufe2f"
    r"\U00010ec0-\U00010eff\U000e0100-\U000e01ef]"
)
# Characters of the longest word for BPE and unigram, where words may be whole sentences.
_LONGEST_UNBROKEN = 1000


@dataclass(frozen=True, kw_only=True)
class VocabularyConfig:
    """Settings of a vocabulary.

    size: tokens, with the special ones.
    algorithm: how words become tokens. "words": the most frequent words are tokens, all others are
        unknown. Words stand between white space and punctuation, which has no tokens; for static
        vectors. "spelled_words": the same with words as ELMo reads them: signs are words, too, and
        case and accents stay.
    lowercase: whether the tokenizer turns text into lower case.
    strip_accents: whether the tokenizer removes accents. None stands for the value of `lowercase`,
        but false for text with kana, Hangul or marks that are letters (as in Hindi or Thai). Text
        that keeps its accents is composed (NFC) first.
    min_frequency: of a pair to be merged; of words that are tokens, of a word.
    character_coverage: fraction of all characters that the alphabet covers.
    special_tokens: "bert": [CLS] A [SEP] B [SEP]. With byte-level BPE of the text as it is, white
        space included: "roberta": <s> A </s></s> B </s> (Liu et al. 2019); "xlm": the same with
        </s> in place of <s>; "modernbert": [CLS] A [SEP] B [SEP], accents composed (Warner et al.
        2024); "xlnet": A <sep> B <sep> <cls> (Yang et al. 2019); "gpt2": <|endoftext|> between
        documents (Radford et al. 2019).
    unused: number of tokens [unused0], ... after the special ones, for later additions.
    model_max_length: the largest number of tokens of a text, written into the tokenizer.

    Raises:
        UsageError: a value is out of range.
    """

    size: int = 30000
    algorithm: Algorithm = "wordpiece"
    lowercase: bool = True
    strip_accents: bool | None = None
    min_frequency: int = 2
    character_coverage: float = 0.9995
    special_tokens: SpecialTokens = "bert"
    unused: int = 0
    model_max_length: int = 512

    def __post_init__(self) -> None:
        for value, choices in (
            (self.algorithm, get_args(Algorithm)),
            (self.special_tokens, get_args(SpecialTokens)),
        ):
            expect(value in choices, f"{value!r}: one of {', '.join(choices)} is expected")
        as_it_is = self.algorithm == "bpe" and not (self.lowercase or self.strip_accents)
        expect(
            self.special_tokens == "bert" or as_it_is,
            f"special tokens {self.special_tokens!r} are for byte-level BPE of the text as it is",
            hint="give --algorithm bpe --cased; or --special-tokens bert",
        )
        expect(
            self.algorithm != "spelled_words" or not (self.lowercase or self.strip_accents),
            "words that are read by their spelling keep their case and their accents",
            hint="give --algorithm spelled_words --cased",
        )
        # The largest size is that of the largest files that are read.
        expect(
            len(_SPECIALS) < self.size <= 500_000,
            f"a vocabulary of {self.size} tokens makes no sense",
            hint="choose a size like 30000",
        )
        expect(
            0 <= self.unused < self.size,
            f"unused {self.unused}: a number below the size is expected",
        )
        coverage = self.character_coverage
        expect(
            0 < coverage <= 1, f"character_coverage {coverage}: a fraction like 0.9995 is expected"
        )
        expect(
            self.min_frequency >= 1 and self.model_max_length >= 3,
            "min_frequency must be at least 1 and model_max_length at least 3",
        )

    @property
    def pad_id(self) -> int:
        """The id of the padding token, or -1 if there is none."""
        first = _TOKENS_OF_STYLE[self.special_tokens]["first"]
        return next(
            (number for number, token in enumerate(first) if token in ("<pad>", "[PAD]")), -1
        )


@dataclass(frozen=True)
class VocabularyReport:
    """Figures of a vocabulary.

    Rates are of a held-out sample, if there is enough text for one.
    """

    size: int
    algorithm: str
    words: int  # of the training text
    unique_words: int
    alphabet_size: int  # characters (bytes for BPE), in all their forms
    character_coverage: float  # fraction of the characters of the text
    tokens_per_word: float
    unknown_rate: float  # fraction of tokens that are [UNK]
    seconds: float
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    def described(self, *, with_rates: bool = True) -> str:
        """Return the report in words.

        with_rates: False: without the tokens for each word, which the report of a corpus counts in
            all of the text.
        """
        lines = [
            f"{self.size:,} tokens ({self.algorithm}) from {self.words:,} words "
            f"({self.unique_words:,} different) in {self.seconds:.1f} s",
            f"alphabet of {self.alphabet_size:,}: {self.character_coverage:.4%} of all characters",
        ]
        if with_rates:
            unknown = f"{self.unknown_rate:.4%} of tokens are [UNK]"
            lines.append(f"{self.tokens_per_word:.3f} tokens per word, {unknown}")
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.described()


def train_vocabulary(
    documents: Iterable[str],
    config: VocabularyConfig,
    *,
    max_memory: int = 1 << 30,
    workers: int | None = None,
    progress: Callable[[str, int], None] | None = None,
    counted: Counted | None = None,
) -> tuple[Tokenizer, VocabularyReport]:
    """Train a vocabulary on documents, which are read once.

    Args:
        max_memory: bytes for words. Counts that do not fit go through temporary files and stay
            exact. Training uses the most frequent words that fit, at least 100,000.
        workers: processes that count; None: one per CPU. The result is the same for any number.
        progress: called with ("counting", characters so far) and ("merging", tokens so far).
        counted: gives counts of words that other processes have counted, and fills the sample; the
            documents are then not read.

    Raises:
        BertworksError: there is no text, or every word is too long.
        UsageError: the alphabet is larger than the size; the message names the least size.
    """
    start = time.perf_counter()
    notes: list[str] = []
    sample = Sample(several(documents, "give [document]", "document"))
    report_progress = progress or (lambda stage, done: None)
    splitter = splitter_of(config)
    as_bytes = config.algorithm == "bpe"
    with ExitStack() as stack:
        totals = [
            stack.enter_context(closing(WordCounts(max_memory // part, as_bytes=as_bytes)))
            for part in (2, 8, 8)
        ]
        shared_words, accented_words, stripped_words = totals

        def add(counts: AccentCounts) -> None:
            for total, new in zip(totals, counts):
                total.add(new)

        if counted is None:
            counting = partial(report_progress, "counting")
            count_words(sample, splitter, add, workers=workers, progress=counting)
        else:
            for counts in counted(sample):
                add(counts)
        if not (shared_words or accented_words):  # all of a tiny corpus may be held out
            add(splitter.count(sample.texts))
        if not (shared_words or accented_words):
            raise _no_words(sample, splitter)
        strips = _decide_accents(config, shared_words, accented_words, notes)
        config = replace(config, strip_accents=strips)
        for word, number in stripped_words if strips else accented_words:
            shared_words.add({word: number})
        statistics = WordStatistics(shared_words, max_memory, notes)
    library, alphabet = _train(statistics, config, partial(report_progress, "merging"))
    tokenizer = Tokenizer(library.to_str(), model_max_length=config.model_max_length)
    if tokenizer.vocab_size < config.size:
        notes.append(f"the text gives only {tokenizer.vocab_size:,} tokens, not {config.size:,}")
    if not sample.is_large:
        notes.append(
            "there is too little text to hold some out: the rates are of the training text"
        )
    words, tokens, unknown = _measure(tokenizer, splitter_of(config), sample.texts, notes)
    warnings: list[str] = []
    if config.algorithm in _OF_WHOLE_WORDS:
        least = config.min_frequency
        reason = f"occur fewer than {least} times" if least > 1 else "are not in the counted text"
        notes.append(
            f"{unknown / max(1, tokens):.1%} of the words are not in the vocabulary, because they "
            f"{reason} or others are more frequent"
        )
    elif unknown > MANY_UNKNOWN * tokens:
        unknown_words = Counter(tokenizer.unknown(sample.texts)).most_common(2)
        examples = " and ".join(repr(word[:_SHOWN_CHARACTERS]) for word, _ in unknown_words)
        such_as = f" (such as {examples})" if unknown_words else ""
        reason = (
            "bytes that are not text"
            if config.algorithm == "bpe"
            else "words that are too long, or have characters that the vocabulary lacks; "
            "--algorithm bpe has no unknown tokens"
        )
        warnings.append(f"{unknown / tokens:.1%} of the tokens are [UNK]{such_as}: {reason}")
    report = VocabularyReport(
        size=tokenizer.vocab_size,
        algorithm=config.algorithm,
        words=statistics.num_words,
        unique_words=statistics.num_unique,
        alphabet_size=len(alphabet),
        character_coverage=1.0 if config.algorithm == "bpe" else statistics.coverage(alphabet),
        tokens_per_word=tokens / max(words, 1),
        unknown_rate=unknown / max(tokens, 1),
        seconds=time.perf_counter() - start,
        notes=tuple(notes),
        warnings=tuple(warnings),
    )
    return tokenizer, report


def _no_words(sample: Sample, splitter: AccentSplitter) -> BertworksError:
    """Return the error for documents without a word that can be counted."""
    if len(_words_of_any_length(splitter, sample.texts).keys() - {REPLACEMENT}) > 0:
        return BertworksError(
            f"there are only words of more than {splitter.max_length:,} characters",
            hint=_long_word_hint(splitter),
        )
    return BertworksError(
        "there is no text, only white space or bytes that are not text"
        if sample.texts
        else "there are no documents",
        hint="name files with text in them",
    )


def _words_of_any_length(splitter: AccentSplitter, texts: list[str]) -> dict[str, int]:
    """Return the counts of all words of texts, also of those that are too long."""
    counts = replace(splitter, max_length=sys.maxsize).count(texts)
    return Counter(counts.shared_words) + Counter(counts.accented_words)


def _long_word_hint(splitter: AccentSplitter) -> str:
    """Return what to do with long words, as in a language or a notation without spaces."""
    hint = "cut the text into words, with spaces between them"
    if splitter.max_length < _LONGEST_UNBROKEN:
        hint += (
            f"; or --algorithm bpe or unigram, which use words of up to {_LONGEST_UNBROKEN:,} "
            "characters"
        )
    return hint


def is_letter_mark(character: str) -> bool:
    """Return whether a character is a mark that is a letter of its script.

    It is a vowel sign, a virama or a tone mark, as in Hindi or Thai. A text without these marks has
    other words.
    """
    return unicodedata.category(character).startswith("M") and not _ACCENTS_AND_POINTS.match(
        character
    )


def is_kana_or_hangul(character: str) -> bool:
    """Return whether a character is kana or a Hangul syllable.

    NFD separates the dakuten of kana, and takes Hangul syllables apart.
    """
    return "\u3040" <= character <= "\u30ff" or "\uac00" <= character <= "\ud7a3"


def _decide_accents(
    config: VocabularyConfig, shared_words: WordCounts, accented_words: WordCounts, notes: list[str]
) -> bool:
    """Return whether to strip accents.

    The configuration decides it; without its decision they are stripped with `lowercase`, but not
    where letters would be lost.

    Args:
        shared_words: the words that are the same with and without accents.
        accented_words: the other words, with their accents.
    """
    strip = config.lowercase if config.strip_accents is None else config.strip_accents
    if not strip:
        return False
    characters = shared_words.character_counts() + accented_words.character_counts()
    total = max(characters.total(), 1)
    reasons = []
    for is_letter, name in (
        (is_kana_or_hangul, "kana or Hangul"),
        (is_letter_mark, "marks that are letters of their script"),
    ):
        count = sum(number for character, number in characters.items() if is_letter(character))
        if count >= LETTER_FRACTION * total:
            reasons.append(f"{count / total:.1%} of the characters are {name}")
    if not reasons:
        return True
    reason = " and ".join(reasons)
    if config.strip_accents:
        notes.append(
            f"{reason}, and stripping accents takes them apart: strip_accents=false is better"
        )
        return True
    note = f"{reason}: accents are kept (strip_accents=false)"
    examples = _changed_words(config, accented_words)
    if examples:
        note += f", or {examples}"
    notes.append(note)
    return False


def _changed_words(config: VocabularyConfig, accented_words: WordCounts) -> str:
    """Return examples of how stripping accents changes words, as a text.

    They are the two most frequent words that look different without their marks.
    """
    stripping = Splitter(splitter_of(config).stripping)
    examples: list[str] = []
    for word, _ in accented_words:
        text = accented_words.text_of(word).strip()
        plain_text = " ".join(
            accented_words.text_of(part).strip() for part in stripping.words(text)
        )
        has_letters = any(
            is_kana_or_hangul(character) or is_letter_mark(character) for character in text
        )
        if has_letters and unicodedata.normalize("NFC", plain_text) != text:
            examples.append(f"{text!r} would become {plain_text!r}")
        if len(examples) == 2:
            break
    return " and ".join(examples)


def _train(
    statistics: WordStatistics, config: VocabularyConfig, progress: Progress
) -> tuple[tokenizers.Tokenizer, list[str]]:
    """Return the tokenizer, and the alphabet."""
    unused = [f"[unused{number}]" for number in range(config.unused)]
    special = _TOKENS_OF_STYLE[config.special_tokens]
    first = [UNKNOWN] if config.algorithm == "spelled_words" else special["first"]
    reserved = first + unused
    last = special["last"]
    room = config.size - len(reserved) - len(last)
    words = statistics.words
    least = config.min_frequency
    if config.algorithm in _OF_WHOLE_WORDS:
        return _most_frequent(statistics, config, reserved, room)
    if config.algorithm == "bpe":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    else:
        alphabet = statistics.alphabet(
            config.character_coverage, config.size, marked=config.algorithm == "wordpiece"
        )
    expect(
        len(alphabet) <= room,
        f"a size of {config.size:,} does not hold the alphabet of this text",
        hint=f"choose a size of at least {len(reserved) + len(alphabet):,}, better several "
        "times that",
    )
    model: models.Model
    if config.algorithm == "wordpiece":
        pieces = train_word_pieces(words, alphabet, room, min_frequency=least, progress=progress)
        model = word_piece_model(reserved + pieces)
    elif config.algorithm == "bpe":
        learner = MergeLearner(words, alphabet, "", min_frequency=least)
        learner.merge_until(room, progress)
        ids = {token: number for number, token in enumerate(reserved + learner.forms + last)}
        model = models.BPE(ids, learner.merges, unk_token=None if last else "[UNK]")
    else:
        scored = [(token, 0.0) for token in reserved] + _unigram_pieces(words, alphabet, room)
        model = models.Unigram(scored, reserved.index("[UNK]"), byte_fallback=False)
    return _pipeline(config, model), alphabet


def _most_frequent(
    statistics: WordStatistics, config: VocabularyConfig, reserved: list[str], room: int
) -> tuple[tokenizers.Tokenizer, list[str]]:
    """Return a tokenizer with at most `room` whole words as tokens, and their characters.

    Raises:
        UsageError: no word is frequent enough.
    """
    words = [word for word, count in statistics.words[:room] if count >= config.min_frequency]
    expect(
        len(words) > 0,
        f"no word of the text occurs {config.min_frequency} times",
        hint="give more text; or --set vocabulary.min_frequency=1",
    )
    ids = {token: number for number, token in enumerate(reserved + words)}
    return _pipeline(config, models.WordLevel(ids, unk_token=UNKNOWN)), sorted({*"".join(words)})


def _unigram_pieces(
    words: list[tuple[str, int]], alphabet: list[str], size: int
) -> list[tuple[str, float]]:
    """Return pieces with their log probabilities (Kudo 2018).

    sentencepiece trains them in one thread.

    It begins with substrings that occur in two different words. Words are counted without the
    punctuation that follows them, so a frequent one would have no piece of its own: it is given a
    second time, with a mark at its end.
    """
    with optional_import("a unigram vocabulary", "sentencepiece"):
        import sentencepiece
    known = set(alphabet)
    model = io.BytesIO()
    # a private character, never in a piece
    mark = next(chr(n) for n in range(0xE000, 0xF900) if chr(n) not in known)
    again = ((f"{word}{mark}", 1) for word, count in words if count > 1)
    whole = ((word, max(1, count - 1)) for word, count in words)
    lines = (
        f"{word}\t{count}"
        for word, count in chain(whole, again)
        if known.issuperset(word.removesuffix(mark))
    )
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines,
            input_format="tsv",
            model_writer=model,
            model_type="unigram",
            vocab_size=size + 2,
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            max_sentence_length=1 << 20,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise BertworksError(
            f"sentencepiece cannot be trained on this text: {error}", hint="choose another size"
        ) from None
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [
        (processor.id_to_piece(number), processor.get_score(number))
        for number in range(1, len(processor))
    ]
    return [(piece, score) for piece, score in pieces if mark not in piece]


def _pipeline(config: VocabularyConfig, model: models.Model) -> tokenizers.Tokenizer:
    """Return the tokenizer around a model.

    For WordPiece it is that of BERT; the others keep spaces at the starts of words.
    """
    if config.special_tokens != "bert":
        special = _TOKENS_OF_STYLE[config.special_tokens]
        first = special["first"]
        library = byte_level_pipeline(
            model,
            special["around"],
            bool(first),
            patterns=special.get("template", ()),
            composes=special.get("composes", False),
        )
        # A mask replaces a word together with the space before it.
        masks = ("<mask>", SPECIAL_TOKENS["mask_token"])
        library.add_special_tokens(
            [*first, *(AddedToken(token, lstrip=token in masks) for token in special["last"])]
        )
        return library
    if config.algorithm == "spelled_words":
        library = spelling_pipeline(model)
        library.add_special_tokens([UNKNOWN])
        return library
    has_words = config.algorithm in ("wordpiece", "words")
    library = bert_pipeline(
        model,
        SPECIAL_TOKENS,
        lowercase=config.lowercase,
        strip_accents=config.strip_accents,
        handle_chinese_chars=has_words,
    )
    steps = [library.normalizer]
    # Where accents are stripped, composed and decomposed text has the same tokens anyway.
    if not config.strip_accents:
        steps.insert(0, normalizers.NFC())
    if not has_words:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    library.normalizer = normalizers.Sequence(steps) if len(steps) > 1 else steps[0]
    if config.algorithm == "words":
        library.pre_tokenizer = word_splitter()
    if has_words:
        return library
    if config.algorithm == "bpe":
        library.pre_tokenizer = pre_tokenizers.ByteLevel()
        library.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
        trim_offsets = processors.ByteLevel(
            add_prefix_space=True, trim_offsets=True, use_regex=True
        )
        library.post_processor = processors.Sequence([trim_offsets, library.post_processor])
    else:
        marks = pre_tokenizers.Punctuation()  # so that text never becomes a special token
        library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), marks])
        library.decoder = decoders.Metaspace()
    return library


def splitter_of(config: VocabularyConfig) -> AccentSplitter:
    """Return the normalizers and pre-tokenizers of the tokenizer, with and without accents.

    Both are the same if the configuration decides about accents.
    """
    has_words = config.algorithm in ("wordpiece", "words")
    longest = LONGEST_WORD if has_words else _LONGEST_UNBROKEN
    if config.special_tokens != "bert":  # the text as it is
        library = tokenizers.Tokenizer(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if _TOKENS_OF_STYLE[config.special_tokens].get("composes"):
            library.normalizer = normalizers.NFC()
        serialized = library.to_str()
        return AccentSplitter(serialized, serialized, longest, reads_white_space=True)
    model = word_piece_model(_SPECIALS)
    choices = [False, config.lowercase] if config.strip_accents is None else [config.strip_accents]
    serialized_choices = [
        _pipeline(replace(config, strip_accents=strips), model).to_str() for strips in choices
    ]
    return AccentSplitter(serialized_choices[0], serialized_choices[-1], longest)


def _measure(
    tokenizer: Tokenizer, splitter: AccentSplitter, texts: list[str], notes: list[str]
) -> tuple[int, int, int]:
    """Return the numbers of words, tokens and [UNK] tokens of texts.

    A note is added if many words are too long to be used.
    """
    counts = _words_of_any_length(splitter, texts)
    characters = sum(len(word) * number for word, number in counts.items())
    left_out = sum(
        len(word) * number for word, number in counts.items() if len(word) > splitter.max_length
    )
    if left_out > _MUCH_LEFT_OUT * characters:
        notes.append(
            f"{left_out / characters:.0%} of the text is words of more than "
            f"{splitter.max_length:,} characters, which are not used: {_long_word_hint(splitter)}"
        )
    num_words = sum(counts.values())
    ids = tokenizer.ids(texts)
    num_broken = counts.get(REPLACEMENT, 0)  # words with bytes that are not text are unknown
    num_tokens = sum(map(len, ids)) + num_broken
    num_unknown = sum(text.count(tokenizer.unk_id) for text in ids) + num_broken
    return num_words, num_tokens, num_unknown
