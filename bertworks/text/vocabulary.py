"""Documents -> a vocabulary as a Tokenizer: WordPiece, byte-level BPE or unigram.

The result is the same to the byte for any order of the documents, number of processes or machine: words are counted
exactly and sorted, and ties are broken by code points.
"""

import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from tokenizers import pre_tokenizers

from bertworks.errors import BertworksError, UsageError, optional_import
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.tokenizer_folder import LONGEST_WORD, SPECIAL_TOKENS, bert_pipeline, word_piece_model
from bertworks.text.word_counts import (
    Sample,
    Splitter,
    WordCounts,
    WordStatistics,
    count_words,
    script_share,
    strip_accents,
)
from bertworks.text.wordpiece import Score, learn_byte_pairs, learn_word_pieces

Algorithm = Literal["wordpiece", "bpe", "unigram"]
_SPECIALS = list(SPECIAL_TOKENS.values())  # [PAD]=0 [UNK]=1 [CLS]=2 [SEP]=3 [MASK]=4
_SCRIPT_SHARE = 0.001  # of all characters: from here on a corpus counts as one with kana or Hangul
_MUCH_LEFT_OUT = 0.01  # of the text, because its words are too long: from here on it is said
_LONGEST_UNBROKEN = 1000  # characters; the same for BPE and unigram, whose words may be whole sentences


@dataclass(frozen=True, kw_only=True)
class VocabularyConfig:
    """What vocabulary is wanted.

    Raises:
        UsageError: a value that makes no sense.
    """

    size: int = 30000  # tokens, special ones included
    algorithm: Algorithm = "wordpiece"
    lowercase: bool = True
    strip_accents: bool | None = None  # None: as `lowercase`, but kept where the text has kana or Hangul
    min_frequency: int = 2  # a merge must come so often
    score: Score = "frequency"  # wordpiece: what merges are best (`wordpiece.MergeLearner`)
    character_coverage: float = 0.9995  # share of all characters that the alphabet must hold
    unused: int = 0  # [unused0] .. tokens after the special ones, for words of one's own
    model_max_length: int = 512  # tokens that the network will read

    def __post_init__(self) -> None:
        if self.algorithm not in get_args(Algorithm):
            raise UsageError(f"algorithm {self.algorithm!r}: one of {', '.join(get_args(Algorithm))} is expected")
        if self.score not in get_args(Score):
            raise UsageError(f"score {self.score!r}: one of {', '.join(get_args(Score))} is expected")
        if not len(_SPECIALS) < self.size <= 500_000:  # larger files are not read
            raise UsageError(f"a vocabulary of {self.size} tokens makes no sense", hint="choose a size like 30000")
        if not 0 <= self.unused < self.size:
            raise UsageError(f"unused {self.unused}: a number below the size is expected")
        if not 0 < self.character_coverage <= 1:
            raise UsageError(f"character_coverage {self.character_coverage}: a share like 0.9995 is expected")
        if self.min_frequency < 1 or self.model_max_length < 3:
            raise UsageError("min_frequency must be at least 1 and model_max_length at least 3")


@dataclass(frozen=True)
class VocabularyReport:
    """What was made. Rates are of a sample that was not learned from, where there was enough text for one."""

    size: int
    algorithm: str
    words: int  # of the text that was learned from
    unique_words: int
    alphabet_size: int  # characters (bytes for BPE), in all their forms
    character_coverage: float  # share of the characters of the text that the alphabet holds
    tokens_per_word: float
    unknown_rate: float  # share of tokens that are [UNK]
    seconds: float
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.size:,} tokens ({self.algorithm}) from {self.words:,} words ({self.unique_words:,} different) in "
            f"{self.seconds:.1f} s",
            f"alphabet of {self.alphabet_size:,}: {self.character_coverage:.4%} of all characters",
            f"{self.tokens_per_word:.3f} tokens per word, {self.unknown_rate:.4%} of tokens are [UNK]",
        ]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])


def train_vocabulary(
    documents: Iterable[str],
    config: VocabularyConfig,
    *,
    max_memory: int = 1 << 30,
    workers: int | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> tuple[Tokenizer, VocabularyReport]:
    """Make a vocabulary from documents, which are read once.

    Args:
        max_memory: bytes for words. Counts that do not fit go through temporary files and stay exact; of the words, the
            most frequent that fit (at least 100,000) are learned from.
        workers: processes that count; None: one per core. They change nothing but the time.
        progress: called with ("counting", characters so far) and ("merging", tokens so far).

    Raises:
        BertworksError: there is no text, or none but words too long to learn from.
        UsageError: the size does not even hold the alphabet; the message names the least size that does.
    """
    started = time.perf_counter()
    notes: list[str] = []
    sample = Sample(documents)
    report_to = progress or (lambda stage, done: None)
    survey, config = _look_at(sample, config, max_memory, workers, partial(report_to, "counting"), notes)
    serialized, alphabet = _learn(survey, config, partial(report_to, "merging"))
    tokenizer = Tokenizer(json.dumps(serialized), model_max_length=config.model_max_length)
    if tokenizer.vocab_size < config.size:
        notes.append(f"the text gives only {tokenizer.vocab_size:,} tokens, not {config.size:,}")
    if not sample.enough:
        notes.append("there is too little text to hold some back: the rates are of the text that was learned from")
    words, tokens, unknown = _measure(tokenizer, _splitter(config), sample.texts, notes)
    report = VocabularyReport(
        size=tokenizer.vocab_size,
        algorithm=config.algorithm,
        words=survey.num_words,
        unique_words=survey.num_unique,
        alphabet_size=len(alphabet),
        character_coverage=1.0 if config.algorithm == "bpe" else survey.coverage(alphabet),
        tokens_per_word=tokens / max(words, 1),
        unknown_rate=unknown / max(tokens, 1),
        seconds=time.perf_counter() - started,
        notes=tuple(notes),
    )
    return tokenizer, report


def _look_at(
    sample: Sample,
    config: VocabularyConfig,
    max_memory: int,
    workers: int | None,
    progress: Callable[[int], None],
    notes: list[str],
) -> tuple[WordStatistics, VocabularyConfig]:
    """Count the words and decide about accents; the config returned has `strip_accents` decided."""
    as_bytes = config.algorithm == "bpe"
    # As long as the script of the text is unknown, accents are counted.
    undecided = replace(config, strip_accents=config.strip_accents is True)
    splitter = _splitter(undecided)
    with WordCounts(max_memory // 2) as counts, WordCounts(max_memory // 4) as stripped:
        count_words(sample, splitter, counts, workers=workers, progress=progress)
        if not counts:  # all of a tiny corpus may have been drawn for the sample
            counts.add(splitter.count(sample.texts))
        if not counts:
            raise _nothing_to_learn(sample, splitter)
        share = script_share(counts, as_bytes=as_bytes)
        decided = replace(config, strip_accents=_decide_accents(config, share, notes))
        if decided.strip_accents and not undecided.strip_accents:
            strip_accents(counts, stripped, as_bytes=as_bytes)
            return WordStatistics.of(stripped, max_memory, notes), decided
        return WordStatistics.of(counts, max_memory, notes), decided


def _nothing_to_learn(sample: Sample, splitter: Splitter) -> BertworksError:
    if _of_any_length(splitter).count(sample.texts):
        what = f"there are only words of more than {splitter.longest:,} characters"
        return BertworksError(what, hint=_ways_out(splitter))
    what = "there is no text, only white space" if sample.documents else "there are no documents"
    return BertworksError(what, hint="name files with text in them")


def _of_any_length(splitter: Splitter) -> Splitter:
    return replace(splitter, longest=sys.maxsize)


def _ways_out(splitter: Splitter) -> str:
    """What to do with text of long words, as of a language or a notation without spaces."""
    hint = "cut the text into words, with spaces between them"
    if splitter.longest < _LONGEST_UNBROKEN:
        hint += f"; or --algorithm bpe, or unigram, which learn from words of up to {_LONGEST_UNBROKEN:,} characters"
    return hint


def _decide_accents(config: VocabularyConfig, share: float, notes: list[str]) -> bool:
    """Whether accents go: as told; else as `lowercase`, unless that would break kana or Hangul."""
    strip = config.lowercase if config.strip_accents is None else config.strip_accents
    if not strip or share < _SCRIPT_SHARE:
        return strip
    found = f"{share:.1%} of the characters are kana or Hangul"
    if config.strip_accents is None:
        notes.append(f"{found}: accents are kept (strip_accents=false), or \u304c would become \u304b")
        return False
    notes.append(f"{found}, and stripping accents takes them apart: strip_accents=false is better")
    return True


def _learn(
    survey: WordStatistics, config: VocabularyConfig, progress: Callable[[int], None]
) -> tuple[dict[str, Any], list[str]]:
    """The content of a tokenizer.json, and the alphabet."""
    first = _SPECIALS + [f"[unused{number}]" for number in range(config.unused)]
    room = config.size - len(first)
    if config.algorithm == "bpe":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    else:
        alphabet = survey.alphabet(config.character_coverage, config.size, marked=config.algorithm == "wordpiece")
    if len(alphabet) > room:
        raise UsageError(
            f"a size of {config.size:,} does not hold the alphabet of this text",
            hint=f"choose a size of at least {len(first) + len(alphabet):,}, better several times that",
        )
    model: dict[str, Any]
    if config.algorithm == "wordpiece":
        pieces = learn_word_pieces(
            survey.words, alphabet, room, score=config.score, min_frequency=config.min_frequency, progress=progress
        )
        model = word_piece_model(first + pieces)
        ids = model["vocab"]
    elif config.algorithm == "bpe":
        pieces, merges = learn_byte_pairs(
            survey.words, alphabet, room, min_frequency=config.min_frequency, progress=progress
        )
        ids = {token: number for number, token in enumerate(first + pieces)}
        model = {"type": "BPE", "unk_token": "[UNK]", "vocab": ids, "merges": [list(pair) for pair in merges]}
    else:
        scored = [(token, 0.0) for token in first] + _unigram_pieces(survey.words, alphabet, room)
        ids = {token: number for number, (token, _) in enumerate(scored)}
        model = {"type": "Unigram", "unk_id": ids["[UNK]"], "vocab": scored, "byte_fallback": False}
    return _pipeline(config, model, ids), alphabet


def _unigram_pieces(words: list[tuple[str, int]], alphabet: list[str], size: int) -> list[tuple[str, float]]:
    """Pieces with their log probabilities (Kudo 2018), learned by sentencepiece in one thread."""
    with optional_import("a unigram vocabulary", "sentencepiece"):
        import sentencepiece
    known = set(alphabet)
    model = io.BytesIO()
    with tempfile.TemporaryDirectory(prefix="bertworks-unigram-") as folder:
        path = Path(folder) / "words.tsv"
        lines = [f"{word}\t{count}\n" for word, count in words if known.issuperset(word)]
        path.write_text("".join(lines), encoding="utf-8", newline="")
        try:
            sentencepiece.SentencePieceTrainer.train(
                input=str(path), input_format="tsv", model_writer=model, model_type="unigram", vocab_size=size + 1,
                hard_vocab_limit=False, character_coverage=1.0, normalization_rule_name="identity",
                add_dummy_prefix=False, remove_extra_whitespaces=False, max_sentence_length=1 << 20,
                unk_id=0, bos_id=-1, eos_id=-1, pad_id=-1, num_threads=1, minloglevel=2,
            )  # fmt: skip
        except RuntimeError as error:
            raise BertworksError(
                f"sentencepiece cannot learn from this text: {error}", hint="choose another size"
            ) from None
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [(processor.id_to_piece(number), processor.get_score(number)) for number in range(1, len(processor))]


def _pipeline(config: VocabularyConfig, model: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    """A tokenizer.json around a model: BERT's own for WordPiece; the others keep the spaces that begin words."""
    whole = bert_pipeline(
        model,
        ids,
        SPECIAL_TOKENS,
        lowercase=config.lowercase,
        strip_accents=config.strip_accents,
        chinese_characters=config.algorithm == "wordpiece",
    )
    if config.algorithm == "wordpiece":
        return whole
    one_space = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    whole["normalizer"] = {"type": "Sequence", "normalizers": [whole["normalizer"], one_space, strip]}
    if config.algorithm == "bpe":
        bytes_of = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        whole["pre_tokenizer"] = bytes_of
        first_space = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        whole["decoder"] = {"type": "Sequence", "decoders": [bytes_of, first_space]}
        whole["post_processor"] = {"type": "Sequence", "processors": [bytes_of, whole["post_processor"]]}
    else:
        spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
        marks = {"type": "Punctuation", "behavior": "Isolated"}  # so that no special token comes out of a text
        whole["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [spaces, marks]}
        whole["decoder"] = spaces
    return whole


def _splitter(config: VocabularyConfig) -> Splitter:
    """The normaliser and pre-tokeniser that the tokenizer will have."""
    parts = _pipeline(config, {}, dict.fromkeys(_SPECIALS, 0))
    word_piece = config.algorithm == "wordpiece"
    return Splitter(
        normalizer=json.dumps(parts["normalizer"]),
        pre_tokenizer=json.dumps(parts["pre_tokenizer"]),
        longest=LONGEST_WORD if word_piece else _LONGEST_UNBROKEN,
        plain=("lower-cased" if config.lowercase else "as it is") if word_piece else None,
    )


def _measure(tokenizer: Tokenizer, splitter: Splitter, texts: list[str], notes: list[str]) -> tuple[int, int, int]:
    """Words, tokens, and tokens that are [UNK], of texts; a note if much of them was too long to learn from."""
    counts = _of_any_length(splitter).count(texts)
    characters = sum(len(word) * number for word, number in counts.items())
    left_out = sum(len(word) * number for word, number in counts.items() if len(word) > splitter.longest)
    if left_out > _MUCH_LEFT_OUT * characters:
        notes.append(
            f"{left_out / characters:.0%} of the text measured on is words of more than {splitter.longest:,} "
            f"characters, from which nothing is learned: {_ways_out(splitter)}"
        )
    words, ids = sum(counts.values()), tokenizer.ids(texts)
    return words, sum(map(len, ids)), sum(text.count(tokenizer.unk_id) for text in ids)
