"""Text <-> token ids, with offsets and word ids; Hugging Face tokenizer folders in and out.

It is one class over the `tokenizers` library and gives the ids that transformers' BertTokenizerFast gives for the same
folder. It is not a trainer: `vocabulary` makes the vocabulary.

Two ways in, because text is not always trusted. `encode` and `encode_batch` do as transformers does: "[MASK]" typed in
the text is the mask. `ids`, for corpora, reads the same characters as mere characters, so that no document can smuggle
a separator or a mask into the training data.

A word longer than 100 characters becomes one [UNK], as in transformers (google-research/bert draws the line at 200);
so does a word of which a single piece is missing.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bertworks.errors import BertworksError, UsageError
from bertworks.io.atomic_write import write_json, write_text
from bertworks.text.tokenizer_folder import (
    DEFAULT_LENGTH,
    SPECIAL_TOKENS,
    TokenizerFolder,
    count_cased,
    read_folder,
    read_vocabulary,
)

Result = TypeVar("Result")


class Encoding(NamedTuple):
    """A text as the network reads it: [CLS] text [SEP], or [CLS] text [SEP] pair [SEP]. All lists have one length."""

    ids: list[int]
    type_ids: list[int]  # 0 for the text and its [CLS] and [SEP], 1 for the pair
    offsets: list[tuple[int, int]]  # characters of the text (or pair) it comes from; (0, 0) for [CLS] and [SEP]
    word_ids: list[int | None]  # running number of its word, from 0 in text and pair; None for [CLS] and [SEP]
    special_tokens_mask: list[int]  # 1 for [CLS] and [SEP]
    num_truncated: int  # tokens that did not fit and were cut off


class Template(NamedTuple):
    """The special tokens around the segments of a sequence, as ids: BERT's [CLS] A [SEP] B [SEP] is ([CLS],), ([SEP],),
    ([SEP],); RoBERTa has two </s> between, GPT-2 has none at all."""

    prefix: tuple[int, ...]
    between: tuple[int, ...]
    suffix: tuple[int, ...]

    def num_special(self, segments: int = 1) -> int:
        """Special tokens of a sequence with this number of segments."""
        return len(self.prefix) + (segments - 1) * len(self.between) + len(self.suffix)

    def inner(self, count: int) -> slice:
        """The tokens of the only segment, in a sequence of `count` tokens."""
        return slice(len(self.prefix), count - len(self.suffix))


class Tokenizer:
    """An immutable tokenizer. Make one with `Tokenizer.load` or with `bertworks.text.vocabulary.train_vocabulary`.

    Args:
        serialized: the text of a tokenizer.json; truncation and padding in it are dropped.
        special_tokens: pad_token, unk_token, cls_token, sep_token, mask_token: how they are written here.
        model_max_length: tokens that the network can read, written into the saved folder.
        notes: what a person should know about how it was read (a guess, a doubt).

    Raises:
        BertworksError: not a tokenizer, a WordPiece one without the five special tokens, or ids that are not 0..n-1.
    """

    def __init__(
        self,
        serialized: str,
        *,
        special_tokens: dict[str, str] | None = None,
        model_max_length: int = DEFAULT_LENGTH,
        notes: Iterable[str] = (),
    ):
        self.special_tokens = dict(special_tokens or SPECIAL_TOKENS)
        self.model_max_length = model_max_length
        self.notes = tuple(notes)
        self._library = _guarded(lambda: tokenizers.Tokenizer.from_str(serialized), "not a tokenizer")
        # First of all: the library counts up to the greatest id when it writes itself down.
        self.tokens = _tokens_in_order(self._library.get_vocab(with_added_tokens=True))
        self.vocab_size = len(self.tokens)
        self._library.no_truncation()
        self._library.no_padding()
        # The same without the finish that puts special tokens around (and must be done once, after cutting).
        self._unfinished = tokenizers.Tokenizer.from_str(self._library.to_str())
        self._unfinished.post_processor = None
        # The same without recognising special tokens in the text: what a corpus says is only text.
        self._literal = tokenizers.Tokenizer.from_str(self._library.to_str())
        self._literal.encode_special_tokens = True
        self._description: dict[str, Any] = json.loads(self._library.to_str())
        numbers = {token: number for number, token in enumerate(self.tokens)}
        missing = [token for token in self.special_tokens.values() if token not in numbers]
        if missing and self._description["model"]["type"] == "WordPiece":
            raise BertworksError(f"the vocabulary lacks {', '.join(missing)}", hint="add it, one token per line")
        # Other kinds may lack any of them: what needs a token that is not there is refused then. -1: none.
        self.special_tokens = {name: token for name, token in self.special_tokens.items() if token in numbers}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            numbers.get(self.special_tokens.get(name, ""), -1) for name in SPECIAL_TOKENS
        )
        added = self._description["added_tokens"]
        special = {token["content"] for token in added if token["special"]} | set(self.special_tokens.values())
        self.special_ids = frozenset(numbers[token] for token in special)
        _guarded(lambda: self._library.encode("a", "b"), "the tokenizer cannot encode a pair of texts")

    @cached_property
    def template(self) -> Template:
        """The special tokens around one text and between two, as the tokenizer itself puts them."""
        for text in ("a", "1", "あ", ".", "é"):
            first, second = self._run(self._unfinished.encode_batch, [text, text])
            if first.ids:
                break
        else:
            raise BertworksError("the tokenizer has no token for a simple text, so its special tokens are not known")
        pair = self._library.post_process(first, second)
        places = [[n for n, of in enumerate(pair.sequence_ids) if of == number] for number in (0, 1)]
        ids = pair.ids
        return Template(
            tuple(ids[: places[0][0]]), tuple(ids[places[0][-1] + 1 : places[1][0]]), tuple(ids[places[1][-1] + 1 :])
        )

    def __reduce__(self) -> tuple[Callable[..., "Tokenizer"], tuple[Any, ...]]:
        make = partial(Tokenizer, special_tokens=self.special_tokens, model_max_length=self.model_max_length)
        return partial(make, notes=self.notes), (self._library.to_str(),)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a Hugging Face tokenizer folder: tokenizer.json, or vocab.txt with or without tokenizer_config.json.

        With vocab.txt alone the casing is guessed from the vocabulary, and `notes` says so.

        Raises:
            BertworksError: no such files, or files that are damaged; `where` is the file and, where known, the line.
        """
        return cls._of(read_folder(Path(folder)))

    @classmethod
    def from_vocabulary(
        cls, path: str | Path, *, lowercase: bool | None = None, model_max_length: int = DEFAULT_LENGTH
    ) -> Self:
        """Read a vocab.txt alone, one WordPiece token per line. lowercase: None: guessed, and `notes` says so.

        Raises:
            BertworksError: as `load`.
        """
        return cls._of(read_vocabulary(Path(path), lowercase=lowercase, model_max_length=model_max_length))

    @classmethod
    def _of(cls, found: TokenizerFolder) -> Self:
        try:
            made = cls(
                found.serialized,
                special_tokens=found.special_tokens,
                model_max_length=found.model_max_length,
                notes=found.notes,
            )
        except BertworksError as error:
            line = re.search(r"at line (\d+)", error.what)
            where = f"{found.path}:{line[1]}" if line else str(found.path)
            raise BertworksError(error.what, where=where, hint=error.hint) from None
        doubt = _casing_doubt(made)
        made.notes += (doubt,) if doubt else ()
        return made

    def save(self, folder: str | Path, *, has_types: bool = True) -> None:
        """Write the whole Hugging Face tokenizer folder: transformers 4 and 5 open it with AutoTokenizer.

        Writes tokenizer.json (nothing about truncation or padding), tokenizer_config.json, special_tokens_map.json and,
        for WordPiece, vocab.txt. Each file is replaced atomically; other files in the folder stay.

        Raises:
            BertworksError: the folder cannot be written, or the disk is full.
        """
        folder = Path(folder)
        word_piece = self._description["model"]["type"] == "WordPiece"
        normalizer = _bert_normalizer(self._description["normalizer"])
        config: dict[str, Any] = {"tokenizer_class": "BertTokenizer" if word_piece else "PreTrainedTokenizerFast"}
        special = [self.tokens[number] for number in sorted(self.special_ids)]
        others = [token for token in special if token not in self.special_tokens.values()]
        named: dict[str, Any] = self.special_tokens | ({"additional_special_tokens": others} if others else {})
        config |= named | {"model_max_length": self.model_max_length}
        inputs = ["input_ids", "token_type_ids", "attention_mask"]
        config |= {"model_input_names": inputs if has_types else ["input_ids", "attention_mask"]}
        if normalizer:
            config |= {
                "do_lower_case": normalizer["lowercase"],
                "strip_accents": normalizer["strip_accents"],
                "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
            }
        if word_piece:
            write_text(folder / "vocab.txt", "".join(f"{token}\n" for token in self.tokens))
        write_json(folder / "special_tokens_map.json", named)
        write_json(folder / "tokenizer_config.json", config)
        write_text(folder / "tokenizer.json", self._library.to_str(pretty=True) + "\n")

    @cached_property
    def sha256(self) -> str:
        """Hash of what decides the ids (normaliser, pre-tokeniser, model, special tokens), not of how files look."""
        deciding = {name: self._description[name] for name in ("normalizer", "pre_tokenizer", "model", "added_tokens")}
        deciding["post_processor"] = self._description["post_processor"]
        canonical = json.dumps(deciding, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()

    @cached_property
    def lowercase(self) -> bool:
        """Whether text is lower-cased before it is cut into tokens."""
        found = json.dumps(self._description["normalizer"])
        return '"lowercase": true' in found or '"type": "Lowercase"' in found

    @cached_property
    def starts_word(self) -> NDArray[np.bool_]:
        """bool [vocab_size]: whether the token begins a word.

        WordPiece: every token but the `##` ones. Byte-level BPE and unigram: those that carry the mark of a space.
        Special tokens do.
        """
        model = self._description["model"]
        if model["type"] == "WordPiece":
            prefix = model["continuing_subword_prefix"]
            begins = [not token.startswith(prefix) for token in self.tokens]
        else:
            begins = [token.startswith(("Ġ", "▁")) for token in self.tokens]
        flags = np.array(begins, dtype=np.bool_)
        flags[sorted(self.special_ids)] = True
        return flags

    def encode(self, text: str, pair: str | None = None, *, max_length: int | None = None) -> Encoding:
        """The text, or text and pair, with [CLS] and [SEP]. Special tokens written in the text are recognised.

        Args:
            max_length: tokens at most, [CLS] and [SEP] included; what is too long loses its end, of a pair the longer
                one first (the second, when equal), as in fine-tuning by google-research/bert. None: nothing is cut.

        Raises:
            UsageError: `max_length` leaves no room for the special tokens.
        """
        first = self._run(self._unfinished.encode_batch, [text])[0]
        second = None if pair is None else self._run(self._unfinished.encode_batch, [pair])[0]
        return self._finish(first, second, max_length)

    def encode_batch(self, texts: Sequence[str], *, max_length: int | None = None) -> list[Encoding]:
        """`encode` for many texts at once, on all threads that TOKENIZERS_PARALLELISM and RAYON_NUM_THREADS allow."""
        return [self._finish(first, None, max_length) for first in self._run(self._unfinished.encode_batch, texts)]

    def words(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """int64 [n, 2] for each text: the characters where its words begin and end, as the tokenizer itself parts them
        before it cuts them into tokens. What it drops, such as white space, is in no word."""
        return [_words(text, found) for text, found in zip(texts, self._run(self._literal.encode_batch, texts))]

    def unknown(self, texts: Sequence[str]) -> list[str]:
        """What becomes [UNK], in the order of the texts and as it is written there, as often as it is there."""
        found = zip(texts, self._run(self._literal.encode_batch, texts))
        return [
            text[slice(*place)]
            for text, encoding in found
            for number, place in zip(encoding.ids, encoding.offsets, strict=True)
            if number == self.unk_id
        ]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text without [CLS] and [SEP] and without offsets: the fast path for corpora.

        Special tokens written in the texts are NOT recognised: "[SEP]" in a document is a bracket, a word, a bracket.
        """
        return [encoding.ids for encoding in self._run(self._literal.encode_batch_fast, texts)]

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids, as near as the vocabulary allows (case and accents may be gone).

        Raises:
            UsageError: an id outside the vocabulary.
        """
        numbers = [int(number) for number in ids]
        for number in numbers:
            if not 0 <= number < self.vocab_size:
                raise UsageError(f"token id {number} is outside the vocabulary (0..{self.vocab_size - 1})")
        return str(self._library.decode(numbers, skip_special_tokens=skip_special_tokens))

    def _run(self, encode: Callable[..., list[Any]], texts: Sequence[str]) -> list[Any]:
        """Encode texts one by one without special tokens around them; a lone surrogate counts as U+FFFD."""
        texts = list(texts)
        try:
            return _guarded(lambda: encode(texts, add_special_tokens=False), "the text cannot be encoded")
        except BertworksError:
            if wrong := [text for text in texts if not isinstance(text, str)]:
                raise UsageError(f"{wrong[0]!r:.60} is no text", hint="give a string") from None
            valid = [re.sub("[\ud800-\udfff]", "\ufffd", text) for text in texts]
            if valid == texts:
                raise
            return _guarded(lambda: encode(valid, add_special_tokens=False), "the text cannot be encoded")

    def _finish(self, first: Any, second: Any, max_length: int | None) -> Encoding:
        """Cut to `max_length` and put the special tokens around."""
        cut = 0
        if max_length is not None:
            room = max_length - self._library.num_special_tokens_to_add(second is not None)
            if room < 0:
                raise UsageError(f"max_length {max_length} leaves no room for the special tokens")
            lengths = len(first.ids), 0 if second is None else len(second.ids)
            # The longer loses tokens until both fit or are equal; from then on the second first, in turn.
            keep_first = min(lengths[0], max(room - lengths[1], (room + 1) // 2))
            keep_second = min(lengths[1], room - keep_first)
            cut = sum(lengths) - keep_first - keep_second
            if cut:
                first.truncate(keep_first)
                if second is not None:
                    second.truncate(keep_second)
        whole = self._library.post_process(first, second)
        return Encoding(whole.ids, whole.type_ids, whole.offsets, whole.word_ids, whole.special_tokens_mask, cut)


def with_marks(text: str, end: int) -> int:
    """The end of a stretch of text, behind the marks that belong to its last character: accents, vowel signs and
    variation selectors, which a tokenizer that takes them away counts to no token."""
    while end < len(text) and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return end


def _words(text: str, encoding: Any) -> NDArray[np.int64]:
    found: list[list[int]] = []
    before = None
    for word, (start, end) in zip(encoding.word_ids, encoding.offsets):
        if word == before and found:
            found[-1][1] = end
        else:
            found.append([start, end])
        before = word
    for span in found:  # some tokenizers count the space before a word as its own
        span[0] += len(text[span[0] : span[1]]) - len(text[span[0] : span[1]].lstrip())
        span[1] = with_marks(text, span[1]) if span[0] < span[1] else span[1]
    return np.array([span for span in found if span[0] < span[1]], np.int64).reshape(-1, 2)


def _guarded(call: Callable[[], Result], what: str) -> Result:
    """Call the library; its panics, which are no `Exception`, become errors like all others."""
    try:
        return call()
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise BertworksError(f"{what}: {str(error)[:200]}") from None


def _tokens_in_order(ids: dict[str, int]) -> list[str]:
    tokens = sorted(ids, key=ids.__getitem__)
    for number, token in enumerate(tokens):
        if ids[token] != number:
            what = f"ids of the vocabulary are not 0..{len(ids) - 1}: token {token!r} has id {ids[token]}"
            raise BertworksError(what)
    return tokens


def _bert_normalizer(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """The BertNormalizer of a tokenizer, alone or first in a sequence; None where there is none."""
    parts = (normalizer or {}).get("normalizers", [normalizer])
    return next((part for part in parts if part and part["type"] == "BertNormalizer"), None)


def _casing_doubt(tokenizer: Tokenizer) -> str | None:
    """A word about a vocabulary with capitals that lower-cased text can never reach, or None."""
    cased = count_cased(tokenizer.tokens)
    if tokenizer.lowercase and cased > tokenizer.vocab_size // 20:
        return f"text is lower-cased, but {cased} of {tokenizer.vocab_size} tokens have capitals: is it a cased model?"
    return None
