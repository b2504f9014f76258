"""Text <-> token ids, with offsets and word ids; Hugging Face tokenizer folders in and out.

- `Tokenizer`: one class over the `tokenizers` library, with the ids that transformers gives for the
  same folder.
- `Encoding`: a text, or a pair of texts, as the network reads it.
- `Template`: the special tokens around the texts.
- `truncated_lengths`: how much of a pair fits.

A tokenizer may have no vocabulary (`spelling_tokenizer`): then the id of a token is its spelling,
the first bytes of the word in UTF-8, and arrays of ids have the type SPELLED.

Text is not always trusted, so there are two ways in. `encode` and `encode_batch` do as transformers
does: "[MASK]" in the text is the mask token. `ids`, for corpora, reads the same characters as plain
characters, so that no document can put a separator or a mask into the training data.

WordPiece: a word longer than 100 characters becomes one [UNK], as in transformers
(google-research/bert: 200), and so does a word with a piece that is not in the vocabulary.

Memory: the library needs about 300 bytes for each token, so long texts are encoded in parts, cut
where this changes no token (`cut_points`). Where no such place is near:

- WordPiece: of a word that becomes [UNK], and of white space, only the ends are read (`long_runs`).
- Others: the parts overlap, and one ends where the next one has the same token (`overlapping`);
  else it stays whole.
"""

import json
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bertworks.errors import BertworksError, UsageError, expect, several
from bertworks.events import JsonObject
from bertworks.io.atomic_write import json_sha256, local_path, write_bytes, write_json, write_text
from bertworks.io.inputs import as_path, chunk_by_size
from bertworks.text import long_texts
from bertworks.text.long_texts import IntArray, ShortText, steps_of
from bertworks.text.marian import is_marian, read_marian
from bertworks.text.tokenizer_folder import (
    DEFAULT_LENGTH,
    LONGEST_WORD,
    NORMALIZER_SETTINGS,
    SPECIAL_TOKENS,
    SPELLING,
    check_description,
    count_cased,
    guarded,
    read_folder,
    read_plain,
    read_vocabulary,
    spell_special_tokens,
    spelling_pipeline,
)

# A larger fraction of [UNK] among the tokens of a text is a warning; published vocabularies have
# less than 0.001.
MANY_UNKNOWN = 0.01
# Bytes of a word that a network without a vocabulary reads (Peters et al. 2018: 50 characters, with
# the marks at both ends). A character may be cut.
SPELLING_BYTES = 48
SPELLED = np.dtype(f"S{SPELLING_BYTES}")
# Characters of a part of a long text.
_PART = 1 << 14
# Characters that the library encodes together; each takes about 100 bytes until its encoding is
# read.
CHARACTERS_AT_ONCE = 1 << 18
# Characters at the beginning of a long text that are encoded for each token that is needed.
_PER_TOKEN = 16
# Characters of the longest part without a place to cut; a longer one is read in overlapping parts.
_LONGEST = 1 << 16
# Characters in two overlapping parts; a quarter at each end is not compared.
_OVERLAP = 1 << 11


class Encoding(NamedTuple):
    """A text as the network reads it, with the special tokens of its template.

    All lists have one length.
    """

    ids: list[int]
    type_ids: list[int]  # BERT: 0 for the text and its [CLS] and [SEP], 1 for the pair
    # characters of the text or pair; (0, 0) for tokens of the template
    offsets: list[tuple[int, int]]
    # number of the word, from 0 in text and in pair; None for tokens of the template
    word_ids: list[int | None]
    special_tokens_mask: list[int]  # 1 for tokens of the template
    num_truncated: int  # tokens that did not fit and were cut off


class _Prefix(NamedTuple):
    """The beginning of a text as the library encodes it, without special tokens."""

    encoding: Any
    num_other_tokens: int  # of the rest of the text
    text: ShortText


class Template(NamedTuple):
    """The ids of the special tokens around the segments of a sequence.

    BERT's [CLS] A [SEP] B [SEP] is ([CLS],), ([SEP],), ([SEP],). RoBERTa has two </s> between,
    GPT-2 has no tokens.

    start: in front of a translation, from which its first token is predicted, where there is no
        prefix.
    last_type: the token type of the last token of a sequence, where it is that of no segment
        (XLNet: 2); 0: that of the segment before it.
    """

    prefix: tuple[int, ...]
    between: tuple[int, ...]
    suffix: tuple[int, ...]
    start: tuple[int, ...] = ()
    last_type: int = 0

    def num_special(self, segments: int = 1) -> int:
        """Return the number of special tokens in a sequence of `segments` segments."""
        return len(self.prefix) + (segments - 1) * len(self.between) + len(self.suffix)

    def inner(self, count: int) -> slice:
        """Return where the tokens of the only segment are, in a sequence of `count` tokens."""
        return slice(len(self.prefix), count - len(self.suffix))


def truncated_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of each of two segments remain, so that together they fill `room`.

    The longer segment loses tokens from its end; of two equal ones the second loses them
    (google-research/bert, `_truncate_seq_pair`).
    """
    length = min(first, max(room - second, (room + 1) // 2))
    return length, min(second, room - length)


class Tokenizer:
    """An immutable tokenizer.

    Make one with `Tokenizer.load` or with `bertworks.text.vocabulary.train_vocabulary`.

    Args:
        serialized: the text of a tokenizer.json; truncation and padding in it are dropped.
        special_tokens: the spelling of pad_token, unk_token, cls_token, sep_token, mask_token. The
            usual spellings are recognised without it.
        model_max_length: the largest number of tokens of a text, for the saved folder.
        notes: assumptions and doubts that users should know.
        files: further files of the saved folder, such as spiece.model.
        vocabulary: the tokens in the order of their ids, of the translators of
            `bertworks.text.marian`; None: those of the tokenizer.json.
        target: the tokenizer of the texts into which a translator translates; None: this one.
        needs_special_tokens: whether WordPiece needs all five special tokens. A network that reads
            texts without any needs none.

    Raises:
        BertworksError: not a tokenizer, a WordPiece one without the five special tokens that it
            needs, or ids that are not 0..n-1.
    """

    def __init__(
        self,
        serialized: str,
        *,
        special_tokens: dict[str, str] | None = None,
        model_max_length: int = DEFAULT_LENGTH,
        notes: Iterable[str] = (),
        files: Mapping[str, bytes] | None = None,
        vocabulary: Sequence[str] | None = None,
        target: "Tokenizer | None" = None,
        needs_special_tokens: bool = True,
    ):
        self.characters_at_once = CHARACTERS_AT_ONCE
        self.model_max_length = model_max_length
        self.notes = tuple(notes)
        self.files = dict(files or {})
        self._vocabulary = vocabulary
        self._target = target
        self._needs_special_tokens = needs_special_tokens
        description = guarded(lambda: check_description(serialized), "not a tokenizer")
        self._library = guarded(
            lambda: tokenizers.Tokenizer.from_str(serialized), "not a tokenizer"
        )
        # Comes first: to_str() of the library counts up to the largest id.
        ids = self._library.get_vocab(with_added_tokens=True)
        self.tokens = sorted(ids, key=ids.__getitem__)
        for number, token in enumerate(self.tokens):
            if ids[token] != number:
                raise BertworksError(
                    f"ids of the vocabulary are not 0..{len(ids) - 1}: {token!r} has id "
                    f"{ids[token]}"
                )
        if vocabulary is not None:
            self.tokens = list(vocabulary)
        # whether there is no vocabulary
        self.spells_words = self.tokens == [SPELLING]
        self.vocab_size = len(self.tokens)
        for token in description.get("added_tokens") or ():
            if self._library.token_to_id(token["content"]) != token["id"]:
                raise BertworksError(
                    f"the added token {token['content']!r:.60} cannot have the id {token['id']}"
                )
        self._library.no_truncation()
        self._library.no_padding()
        content = self._library.to_str()
        # The same without the template, which is applied once, after truncation.
        self._plain = tokenizers.Tokenizer.from_str(content)
        self._plain.post_processor = None
        # The same without special tokens in the text: a corpus is only text.
        self._literal = tokenizers.Tokenizer.from_str(content)
        self._literal.encode_special_tokens = True
        self._description: JsonObject = json.loads(content)
        self._is_bpe = (
            self._description["model"]["type"] == "BPE"
            and not self._description["model"]["dropout"]
        )
        self._numbers = numbers = {token: number for number, token in enumerate(self.tokens)}
        names = special_tokens or {}
        self.special_tokens = spell_special_tokens(names, numbers)
        missing = [
            token
            for name, token in (SPECIAL_TOKENS | names).items()
            if name not in self.special_tokens
        ]
        is_word_piece = self._description["model"]["type"] == "WordPiece"
        if missing and is_word_piece and needs_special_tokens:
            raise BertworksError(
                f"the vocabulary lacks {', '.join(missing)}", hint="add it, one token per line"
            )
        # Other kinds may lack any of them (-1). What needs such a token is refused.
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            numbers.get(self.special_tokens.get(name, ""), -1) for name in SPECIAL_TOKENS
        )
        added = self._description["added_tokens"]
        special = {token["content"] for token in added if token["special"]} | set(
            self.special_tokens.values()
        )
        self.special_ids = frozenset(numbers[token] for token in special)
        guarded(
            lambda: self._library.encode("a", "b"), "the tokenizer cannot encode a pair of texts"
        )

    @property
    def start_id(self) -> int:
        """The token from which a decoder predicts the first one of a text.

        It is the token that the template puts before a text, else padding, as in Marian; -1: there
        is neither.
        """
        return (*self.template.prefix, self.pad_id)[0]

    @cached_property
    def _cuts(self) -> re.Pattern[str] | None:
        return long_texts.cut_points(self._description)

    @cached_property
    def _long_runs(self) -> re.Pattern[str] | None:
        return long_texts.long_runs(self._description)

    @cached_property
    def template(self) -> Template:
        """The special tokens around one text and between two, as the post-processor puts them."""
        pairs = (
            self._run(self._plain.encode_batch, [text, text]) for text in ("a", "1", "あ", ".", "é")
        )
        first, second = next((pair for pair in pairs if pair[0].ids), (None, None))
        if first is None:
            raise BertworksError(
                "the tokenizer has no token for a simple text, so its special tokens are not known"
            )
        pair = self._library.post_process(first, second)
        ids = tuple(self._ids_of(pair))
        a, b = (
            [n for n, sequence in enumerate(pair.sequence_ids) if sequence == number]
            for number in (0, 1)
        )
        parts = ids[: a[0]], ids[a[-1] + 1 : b[0]], ids[b[-1] + 1 :]
        last_type = pair.type_ids[-1]
        # the second segment has the type 0 or 1
        return Template(*parts, last_type=last_type if last_type > 1 else 0)

    def __reduce__(self) -> tuple[Callable[..., "Tokenizer"], tuple[Any, ...]]:
        names = ("special_tokens", "model_max_length", "notes", "files")
        arguments = {name: getattr(self, name) for name in names}
        arguments |= {
            "vocabulary": self._vocabulary,
            "target": self._target,
            "needs_special_tokens": self._needs_special_tokens,
        }
        return partial(Tokenizer, **arguments), (self.serialized,)

    @property
    def serialized(self) -> str:
        """The text of a tokenizer.json, without truncation and padding."""
        return str(self._library.to_str())

    @property
    def target(self) -> "Tokenizer":
        """The tokenizer of the texts into which a translator translates.

        A translator of Marian splits source and target texts with different files, into tokens of
        one vocabulary. All other tokenizers serve both sides, and return themselves.
        """
        return self if self._target is None else self._target

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a Hugging Face tokenizer folder.

        It holds tokenizer.json, vocab.txt (WordPiece), vocab.json and merges.txt (byte-level BPE),
        a SentencePiece file, or the two of a Marian translator. With vocab.txt alone the casing is
        inferred from the vocabulary, and `notes` says so.

        Raises:
            BertworksError: no such files, or files that are damaged; `where` is the file and, where
                known, the line.
        """
        folder = as_path(folder)
        if not is_marian(folder):
            return cls._checked(*read_folder(folder))
        (source, of_source), (target, of_target) = read_marian(folder).items()
        of_source["target"] = cls._checked(target, of_target)
        return cls._checked(source, of_source)

    @classmethod
    def from_vocabulary(
        cls,
        path: str | Path,
        *,
        lowercase: bool | None = None,
        model_max_length: int = DEFAULT_LENGTH,
    ) -> Self:
        """Read a vocab.txt alone, one WordPiece token per line.

        Args:
            lowercase: None infers it from the vocabulary, and `notes` says so.

        Raises:
            BertworksError: as `load`.
        """
        path = as_path(path)
        arguments = read_vocabulary(path, lowercase)
        return cls._checked(path, arguments | {"model_max_length": model_max_length})

    @classmethod
    def load_plain(cls, path: str | Path, *, model_max_length: int = DEFAULT_LENGTH) -> Self:
        """Read a tokenizer.json alone, for a network that reads texts without special tokens.

        The template in it is left out, and other files of the folder are not read.

        Raises:
            BertworksError: as `load`.
        """
        path = as_path(path)
        return cls._checked(path, read_plain(path) | {"model_max_length": model_max_length})

    def without_template(self, model_max_length: int) -> "Tokenizer":
        """Return the same tokenizer for a network that reads texts without special tokens.

        Its only file is tokenizer.json.
        """
        content = json.loads(self.serialized) | {"post_processor": None}
        return Tokenizer(
            json.dumps(content, ensure_ascii=False),
            special_tokens=self.special_tokens,
            model_max_length=model_max_length,
            needs_special_tokens=False,
        )

    @classmethod
    def _checked(cls, path: Path, arguments: JsonObject) -> Self:
        """Return a tokenizer from what a file says.

        Errors name the file and, where known, the line.
        """
        try:
            tokenizer = cls(**arguments)
        except BertworksError as error:
            line = re.search(r"at line (\d+)", error.what)
            where = f"{path}:{line[1]}" if line else str(path)
            raise BertworksError(error.what, where=where, hint=error.hint) from None
        num_cased = count_cased(tokenizer.tokens)
        if tokenizer.lowercase and num_cased > tokenizer.vocab_size // 20:
            counts = f"{num_cased} of {tokenizer.vocab_size} tokens have capitals"
            tokenizer.notes += (f"text is lower-cased, but {counts}: is it a cased model?",)
        return tokenizer

    def save(
        self, folder: str | Path, *, has_types: bool = True, max_length: int | None = None
    ) -> None:
        """Write a Hugging Face tokenizer folder, which AutoTokenizer of transformers 4 and 5 opens.

        The files are tokenizer.json (without truncation and padding), tokenizer_config.json,
        special_tokens_map.json, for WordPiece vocab.txt, and copies of vocab.json, merges.txt and
        SentencePiece files that it was read with. A translator of Marian has only the files that it
        was read with, as MarianTokenizer of transformers takes ids from any tokenizer.json. Each
        file is replaced atomically; other files in the folder stay.

        Args:
            has_types: whether the network reads types of tokens.
            max_length: tokens to which other programs cut a text; None: `model_max_length`.

        Raises:
            BertworksError: the folder cannot be written, or the disk is full.
        """
        folder = local_path(folder)
        is_word_piece = self._description["model"]["type"] == "WordPiece"
        special = [self.tokens[number] for number in sorted(self.special_ids)]
        additional_tokens = [
            token for token in special if token not in self.special_tokens.values()
        ]
        special_tokens_map: JsonObject = dict(self.special_tokens)
        if additional_tokens:
            special_tokens_map["additional_special_tokens"] = additional_tokens
        steps = steps_of(self._description["normalizer"])
        normalizer: Mapping[str, Any] = next(
            (step for step in steps if step["type"] == "BertNormalizer"), {}
        )
        inputs = ["input_ids", "token_type_ids", "attention_mask"]
        if not has_types:
            inputs.remove("token_type_ids")
        generic_class = "PreTrainedTokenizerFast"
        config = {
            "tokenizer_class": "BertTokenizer" if self.is_bert_tokenizer else generic_class,
            **special_tokens_map,
            **({"padding_side": "left"} if self.ends_with_cls else {}),
            "model_max_length": max_length or self.model_max_length,
            "model_input_names": inputs,
            **{
                key: normalizer[name]
                for key, name in NORMALIZER_SETTINGS.items()
                if name in normalizer
            },
        }
        if is_word_piece:
            write_text(folder / "vocab.txt", "".join(f"{token}\n" for token in self.tokens))
        for name, content in self.files.items():
            write_bytes(folder / name, content)
        if self._vocabulary is not None:
            return
        write_json(folder / "special_tokens_map.json", special_tokens_map)
        write_json(folder / "tokenizer_config.json", config)
        write_text(folder / "tokenizer.json", self._library.to_str(pretty=True) + "\n")

    @cached_property
    def ends_with_cls(self) -> bool:
        """Whether the token that stands for a text is its last one (XLNet).

        Classes of transformers for such texts read the last place of a row: padding has to stand in
        front.
        """
        return not self.template.prefix and self.template.suffix[-1:] == (self.cls_id,)

    @cached_property
    def composes_text(self) -> bool:
        """Whether it is WordPiece and composes text (Unicode NFC) first.

        Then composed and decomposed characters have the same tokens.
        """
        steps = steps_of(self._description["normalizer"])
        return self._description["model"]["type"] == "WordPiece" and any(
            step["type"] == "NFC" for step in steps
        )

    @cached_property
    def is_bert_tokenizer(self) -> bool:
        """Whether the class BertTokenizer of transformers has the same rules.

        transformers 5 builds them anew from tokenizer_config.json and the vocabulary. It drops any
        other normalizer, pre-tokenizer, template or limit of a word in tokenizer.json without a
        word.
        """
        model = self._description["model"]
        normalizer = self._description["normalizer"] or {}
        pre_tokenizer = self._description["pre_tokenizer"] or {}
        if model["type"] != "WordPiece":
            return False
        pair = self._library.encode("a", "a")
        template = [self.cls_id, *self._plain.encode("a").ids, self.sep_id]
        return (
            model["continuing_subword_prefix"] == "##"
            and model["max_input_chars_per_word"] == LONGEST_WORD
            and normalizer.get("type") == "BertNormalizer"
            and normalizer["clean_text"]
            and pre_tokenizer.get("type") == "BertPreTokenizer"
            # [CLS] A [SEP] for a text, [CLS] A [SEP] B [SEP] for a pair, with type 1 from B on
            and self._library.encode("a").ids == template
            and pair.ids == template + template[1:]
            and pair.type_ids == [0, 0, 0, 1, 1]
        )

    @cached_property
    def sha256(self) -> str:
        """The hash of everything that decides the ids.

        That is the normalizer, the pre-tokenizer, the model, the special tokens and the template,
        not names of files or white space.
        """
        names = ("normalizer", "pre_tokenizer", "model", "added_tokens", "post_processor")
        content = {name: self._description[name] for name in names}
        if self._vocabulary is not None:
            content |= {
                "vocabulary": self._vocabulary,
                "target": self._target and self._target.sha256,
            }
        return json_sha256(content)

    @cached_property
    def lowercase(self) -> bool:
        """Whether text is lower-cased before it is split into tokens."""
        normalizer = json.dumps(self._description["normalizer"])
        return '"lowercase": true' in normalizer or '"type": "Lowercase"' in normalizer

    @property
    def has_whole_words(self) -> bool:
        """Whether each token is a whole word, and all other words are unknown."""
        return bool(self._description["model"]["type"] == "WordLevel")

    @cached_property
    def starts_word(self) -> NDArray[np.bool_]:
        """Whether each token begins a word: bool [vocab_size].

        Whole words: all tokens. WordPiece: those without `##`. Byte-level BPE and SentencePiece:
        those that begin with the sign of a space. Special tokens always do.
        """
        model = self._description["model"]
        if self.has_whole_words:
            return np.ones(len(self.tokens), np.bool_)
        is_word_piece = model["type"] == "WordPiece"
        signs = model["continuing_subword_prefix"] if is_word_piece else ("Ġ", "▁")
        flags = np.array(
            [token.startswith(signs) != is_word_piece for token in self.tokens], dtype=np.bool_
        )
        flags[sorted(self.special_ids)] = True
        return flags

    @cached_property
    def has_spelled_words(self) -> bool:
        """Whether its tokens are words as the tokenizer without a vocabulary splits them.

        Then a network that reads spellings can be trained with it. The first token is the unknown
        word.
        """
        names = ("normalizer", "pre_tokenizer", "post_processor")
        spelling = json.loads(spelling_pipeline().to_str())
        is_split_so = all(self._description[name] == spelling[name] for name in names)
        return self.has_whole_words and is_split_so and self.unk_id == 0

    def require_vocabulary(self) -> None:
        """Raise UsageError for a tokenizer without a vocabulary, of which no token has a number."""
        expect(
            not self.spells_words,
            "this tokenizer has no vocabulary: its tokens are spelled words, which shards and a "
            "pre-training cannot hold",
            hint="make a vocabulary: bertworks vocab TEXT -o TOKENIZER",
        )

    def array(self, ids: Sequence[int]) -> NDArray[Any]:
        """Return ids as an array: int64 [n]; without a vocabulary SPELLED [n]."""
        return np.array(ids, SPELLED if self.spells_words else np.int64)

    def begins_words(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which tokens of an array of ids begin a word: bool [n]. See `starts_word`."""
        return np.ones(len(ids), np.bool_) if self.spells_words else self.starts_word[ids]

    def spelled(self, words: Iterable[str]) -> list[int]:
        """Return the ids of whole words, of a tokenizer without a vocabulary.

        A lone surrogate counts as U+FFFD, as in texts.

        Raises:
            UsageError: an empty word, which has no spelling.
        """
        ids: list[Any] = []
        for number, word in enumerate(words, 1):
            try:
                spelling = word.encode()
            except UnicodeEncodeError:
                spelling = long_texts.SURROGATES.sub("\ufffd", word).encode()
            spelling = spelling.replace(b"\0", b"")
            expect(
                spelling,
                f"word {number} is {word!r}: an empty word has no spelling",
                hint="remove the word and its label",
            )
            ids.append(spelling[:SPELLING_BYTES])
        return ids

    def encode(
        self, text: str, pair: str | None = None, *, max_length: int | None = None
    ) -> Encoding:
        """Return the text, or text and pair, with the special tokens of the template.

        Special tokens in texts are recognised.

        Args:
            max_length: up to this number of tokens, special tokens included; the end is cut off, of
                a pair as in `truncated_lengths`. None: nothing is cut off.

        Raises:
            UsageError: `max_length` leaves no room for the special tokens.
        """
        texts = [text] if pair is None else [text, pair]
        return self._truncated(list(self._prefixes(texts, max_length)), max_length)

    def encode_batch(
        self, texts: Sequence[str], *, max_length: int | None = None
    ) -> list[Encoding]:
        """Return the encoding of each text, as `encode` does.

        It uses all threads that TOKENIZERS_PARALLELISM and RAYON_NUM_THREADS allow.
        """
        return list(self.encode_each(texts, max_length=max_length))

    def encode_each(
        self, texts: Sequence[str], *, max_length: int | None = None
    ) -> Iterator[Encoding]:
        """Yield the results of `encode_batch` one at a time.

        Memory does not grow with the number of texts.
        """
        prefixes = self._prefixes(texts, max_length)
        return (self._truncated([prefix], max_length) for prefix in prefixes)

    def leading_ids(self, texts: Sequence[str], limit: int) -> Iterator[tuple[list[int], int]]:
        """Yield the first `limit` ids of each text as in `encode`, and the number of all its ids.

        They are without the template. Memory does not grow with the number of texts.
        """
        for prefix in self._prefixes(texts, limit):
            ids = self._ids_of(prefix.encoding)
            yield ids[:limit], len(ids) + prefix.num_other_tokens

    def arrays(
        self, texts: Sequence[str], *, limit: int | None = None
    ) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield the ids [n] and offsets [n, 2] of each text, as in `encode` without the template.

        They need a twentieth of the memory of an `Encoding`. Without a vocabulary ids are SPELLED
        [n].

        Args:
            limit: reading ends as soon as the texts have more ids than this: the last text may lack
                its end, and later texts are left out.
        """
        short = self._shortened(texts)
        dtype = SPELLED if self.spells_words else np.dtype(np.int32)
        for number, parts in groupby(self._parts(self._plain, short, limit=limit), itemgetter(0)):
            ids = list[IntArray]()
            offsets = list[IntArray]()
            for _, start, skipped, part in parts:
                whole = self._library.post_process(part)
                inner = self.template.inner(len(whole))
                ids.append(np.array(self._ids_of(whole)[inner][skipped:], dtype))
                places = np.array(whole.offsets[inner][skipped:], np.int32).reshape(-1, 2)
                offsets.append(short[number].places(places + start))
            all_ids = np.concatenate(ids)
            all_offsets = np.concatenate(offsets)
            ids.clear()
            offsets.clear()
            yield all_ids, all_offsets

    def words(self, texts: Sequence[str]) -> list[IntArray]:
        """Return where the words of each text begin and end, in characters: int32 [n, 2].

        The words are those of the pre-tokenizer. White space and other characters that it removes
        are in no word.
        """
        short = self._shortened(texts)
        words = list[IntArray]()
        for number, parts in groupby(self._parts(self._literal, short), itemgetter(0)):
            spans = array("i")  # where each word begins and ends
            for _, begin, skipped, part in parts:
                # The text may be cut within a word, which then continues that of the part before.
                previous = part.word_ids[skipped - 1] if skipped else -1
                tokens = zip(part.word_ids[skipped:], part.offsets[skipped:], strict=True)
                for word, (start, end) in tokens:
                    if word != previous:
                        spans.extend((begin + start, begin + end))
                    spans[-1] = begin + end
                    previous = word
            words.append(short[number].places(long_texts.trimmed(short[number].text, spans)))
        return words

    def unknown(self, texts: Sequence[str]) -> list[str]:
        """Return the parts of the texts that become [UNK], in order, with repetitions."""
        short = self._shortened(texts)
        return [
            texts[text][slice(*short[text].places(np.array(span) + begin))]
            for text, begin, skipped, part in self._parts(self._literal, short)
            for number, span in list(zip(self._ids_of(part), part.offsets, strict=True))[skipped:]
            if number == self.unk_id
        ]

    def ids(
        self,
        texts: Sequence[str],
        *,
        limit: int | None = None,
        reads_special_tokens: bool = False,
    ) -> list[list[int]]:
        """Return the ids of each text without template and offsets: the fast way for corpora.

        Special tokens in the texts are NOT recognised: "[SEP]" in a document is a bracket, a word
        and a bracket.

        Args:
            limit: as in `arrays`.
            reads_special_tokens: recognise them, as `encode` does.
        """
        ids_of_texts = list[list[int]]()
        short = self._shortened(texts)
        library = self._plain if reads_special_tokens else self._literal
        parts = self._parts(library, short, is_fast=True, limit=limit)
        for number, _, skipped, part in parts:
            if number == len(ids_of_texts):
                ids_of_texts.append([])
            ids_of_texts[number] += self._ids_of(part)[skipped:]
        return ids_of_texts

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids, as exact as the vocabulary allows (case and accents may be lost).

        Raises:
            UsageError: an id outside the vocabulary.
        """
        if self.spells_words:
            return " ".join(map(self.piece, ids))
        numbers = [int(number) for number in several(ids, "give a list of token ids", "id")]
        wrong = [number for number in numbers if not 0 <= number < self.vocab_size]
        if wrong:
            raise UsageError(
                f"token id {wrong[0]} is outside the vocabulary (0..{self.vocab_size - 1})"
            )
        if self._vocabulary is None:
            return str(self._library.decode(numbers, skip_special_tokens=skip_special_tokens))
        if skip_special_tokens:
            numbers = [number for number in numbers if number not in self.special_ids]
        return str(self._library.decode(numbers)).strip()

    def piece(self, number: int) -> str:
        """Return a token as the vocabulary writes it.

        A token of byte-level BPE is returned as the characters that its bytes encode, if they
        encode any.
        """
        if self.spells_words:
            spelling: Any = number
            return str(spelling.decode(errors="replace"))
        token = self.tokens[number]
        if token.isascii() or token.startswith("▁"):
            return token
        text = self.decode([number], skip_special_tokens=False)
        if not text.strip() or "\ufffd" in text:
            return token
        sign = "Ġ" if token.startswith("Ġ") else ""
        return sign + text.strip()

    def _next_cut(self, text: str, position: int) -> int:
        """Return the first place from `position` on where a text can be cut, else its end."""
        if len(text) <= position + _PART or self._cuts is None:
            return len(text)
        match = self._cuts.search(text, position)
        return match.start() if match else len(text)

    def _shortened(self, texts: Sequence[str]) -> list[ShortText]:
        """Return the texts without the inside of long runs."""
        texts = list(several(texts, "give [text]"))
        for text in texts:
            if not isinstance(text, str):
                raise UsageError(f"{text!r:.60} is not a text", hint="give a string")
        return [
            ShortText.of(text, self._long_runs) if len(text) > _PART else ShortText(text)
            for text in texts
        ]

    def _prefixes(self, texts: Sequence[str], num_tokens: int | None) -> Iterator[_Prefix]:
        """Yield a prefix of each text that has at least its first `num_tokens` tokens.

        With None a prefix is the whole text.
        """
        num_tokens = sys.maxsize if num_tokens is None else num_tokens
        longest = max(_LONGEST, 2 * _PER_TOKEN * num_tokens)
        ends = (
            (short, self._next_cut(short.text, _PER_TOKEN * num_tokens))
            for short in self._shortened(texts)
        )
        for group in chunk_by_size(
            ends, self.characters_at_once, lambda pair: min(pair[1], longest)
        ):
            beginnings = [short.text[:end] for short, end in group if end <= longest]
            encodings = iter(self._run(self._plain.encode_batch, beginnings))
            for short, end in group:
                encoding = next(encodings) if end <= longest else None
                is_whole = end >= len(short.text)
                if encoding is None or (not is_whole and len(encoding) < num_tokens):
                    yield self._prefix_without_cut(short, num_tokens)
                    continue
                rest = () if is_whole else self._parts(self._plain, [short], end - 1, is_fast=True)
                num_other_tokens = sum(len(part) - skipped for *_, skipped, part in rest)
                yield _Prefix(encoding, num_other_tokens, short)

    def _prefix_without_cut(self, short: ShortText, num_tokens: int) -> _Prefix:
        """Return a prefix of a text that cannot be cut near its beginning."""
        longest = max(_LONGEST, _PER_TOKEN * num_tokens)
        while True:
            parts = self._overlapping(self._plain, short.text, longest)
            _, _, encoding = next(parts)
            if len(encoding) >= num_tokens or longest >= len(short.text):
                num_other_tokens = sum(len(part) - skipped for _, skipped, part in parts)
                return _Prefix(encoding, num_other_tokens, short)
            longest *= 2

    def _parts(
        self,
        library: tokenizers.Tokenizer,
        texts: Sequence[ShortText],
        begin: int = 0,
        *,
        is_fast: bool = False,
        limit: int | None = None,
    ) -> Iterator[tuple[int, int, int, Any]]:
        """Yield the parts of the texts, in order.

        Of each part: the number of its text, where it begins, how many of its tokens belong to the
        part before, and its encoding.

        Args:
            begin: where the texts are cut, less 1.
            is_fast: encode without offsets.
            limit: the last part is the one with which all parts together have more tokens than
                this.
        """
        room = sys.maxsize if limit is None else limit
        # The fast way leaves out the characters, which `_ids_of` needs of a translator and of
        # spellings.
        is_fast &= self._vocabulary is None and not self.spells_words
        encode = library.encode_batch_fast if is_fast else library.encode_batch

        def parts() -> Iterator[tuple[int, str, int, int]]:
            for number, (text, *_) in enumerate(texts):
                start = begin
                end = -1
                while end < len(text):
                    end = self._next_cut(text, max(start, end) + _PART)
                    yield number, text, start, end
                    start = end - 1

        for group in chunk_by_size(
            parts(), self.characters_at_once, lambda part: part[3] - part[2]
        ):
            encodings = iter(
                self._run(encode, [text[a:b] for _, text, a, b in group if b - a <= _LONGEST])
            )
            for number, text, start, end in group:
                before = len(self._run(encode, [text[start]])[0]) if start else 0
                if end - start <= _LONGEST:
                    pieces = iter([(0, before, next(encodings))])
                else:
                    pieces = self._overlapping(library, text[start:end], _LONGEST)
                for at, skipped, encoding in pieces:
                    skipped = skipped or before
                    yield number, start + at, skipped, encoding
                    room -= len(encoding) - skipped
                    if room < 0:
                        return

    def _overlapping(
        self, library: tokenizers.Tokenizer, text: str, longest: int
    ) -> Iterator[tuple[int, int, Any]]:
        """Yield overlapping parts of a text: see `long_texts.overlapping`."""
        longest = longest if self._cuts else len(text)
        unfit = self.unk_id if self._is_bpe else None
        return long_texts.overlapping(
            lambda part: self._run(library.encode_batch, [part])[0], text, longest, _OVERLAP, unfit
        )

    def _run(self, encode: Callable[..., list[Any]], texts: list[str]) -> list[Any]:
        """Return the encoding of each text without the template.

        A lone surrogate counts as U+FFFD.
        """
        what = "the text cannot be encoded"
        try:
            return guarded(lambda: encode(texts, add_special_tokens=False), what)
        except BertworksError:
            valid = [long_texts.SURROGATES.sub("\ufffd", text) for text in texts]
            return guarded(lambda: encode(valid, add_special_tokens=False), what)

    def _ids_of(self, encoding: Any) -> list[int]:
        """Return the ids of the tokens of an encoding in the vocabulary."""
        ids: list[int] = encoding.ids
        if self.spells_words:
            return self.spelled(encoding.tokens)
        if self._vocabulary is None:
            return ids
        return [
            number
            if number < self.vocab_size and number != self.unk_id
            else self._id_behind(number, token)
            for number, token in zip(ids, encoding.tokens, strict=True)
        ]

    def _id_behind(self, number: int, token: str) -> int:
        """Return the id of a piece behind the vocabulary, or of a run of unknown characters."""
        number_of_token = self._numbers.get(token, self.unk_id)
        is_run = number == self.unk_id  # which is text, even where it spells a special token
        is_special = number_of_token in self.special_ids
        return self.unk_id if is_run and is_special else number_of_token

    def _truncated(self, prefixes: list[_Prefix], max_length: int | None) -> Encoding:
        """Return one or two texts, truncated to `max_length`, with the special tokens."""
        num_truncated = 0
        if max_length is not None:
            room = max_length - self._library.num_special_tokens_to_add(len(prefixes) == 2)
            expect(room >= 0, f"max_length {max_length} leaves no room for the special tokens")
            totals = [len(prefix.encoding) + prefix.num_other_tokens for prefix in prefixes]
            lengths = truncated_lengths(totals[0], sum(totals[1:]), room)
            num_truncated = sum(totals) - sum(lengths)
            for prefix, length in zip(prefixes, lengths):
                prefix.encoding.truncate(length)
        e = self._library.post_process(*(prefix.encoding for prefix in prefixes))
        offsets = e.offsets
        if any(len(prefix.text.cuts) for prefix in prefixes):
            places = (
                prefixes[number or 0].text.places(np.array(pair))
                for number, pair in zip(e.sequence_ids, offsets)
            )
            offsets = [(int(start), int(end)) for start, end in places]
        return Encoding(
            self._ids_of(e), e.type_ids, offsets, e.word_ids, e.special_tokens_mask, num_truncated
        )


def spelling_tokenizer(model_max_length: int) -> Tokenizer:
    """Return the tokenizer of a network that reads whole words by their spelling.

    It has no vocabulary. Words are what stands between white space, with most signs apart; text
    that is in words already is best given as such.
    """
    return Tokenizer(
        spelling_pipeline().to_str(),
        special_tokens={"unk_token": SPELLING},
        model_max_length=model_max_length,
    )
