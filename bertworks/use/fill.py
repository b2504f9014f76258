"""What a model would write in the place of [MASK]."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from bertworks.data.batch import collate
from bertworks.data.labelled import packed_numbers
from bertworks.data.masking import Example
from bertworks.data.sampling import Ids, Special, frame
from bertworks.errors import BertworksError, UsageError
from bertworks.files.opened import Opened, opened
from bertworks.learn.inference import TOKENS
from bertworks.learn.objectives import PretrainingModel
from bertworks.text.tokenizer import Encoding, Tokenizer


class Filling(TypedDict):
    """One answer, in the field names and values of Hugging Face's fill-mask pipeline, and one more for people."""

    score: float  # probability
    token: int
    token_str: str
    sequence: str  # decoded: a space between all words, also in languages that write none
    text: str  # as it was given, the token in the place of its mask


def load_masked_lm(model: str | Path | Opened, device: str = "auto") -> tuple[PretrainingModel, Tokenizer]:
    """A model that says what is behind masks, in evaluation mode.

    Raises:
        BertworksError: no such model, or one without this head.
    """
    source = opened(model, device)
    return source.network(partial(PretrainingModel, next_sentence=False), "encoder", "masked_lm"), source.tokenizer


class Blanks(NamedTuple):
    """A text with masks, as the network reads it."""

    text: str
    ids: Ids  # without [CLS] and [SEP]
    masks: Ids  # their places in `ids`
    encoding: Encoding
    # Tokens that are read at once, and places of the masks that are asked there: one; or, where the text is too long,
    # one around each mask. They are views, for there may be as many of them as tokens.
    windows: list[tuple[Ids, Ids]]

    @property
    def costs(self) -> list[int]:
        """Of each window. A mask is compared with the whole vocabulary, which costs about as much as some tokens."""
        return [len(tokens) + 2 + 8 * len(asked) for tokens, asked in self.windows]


class Filler:
    """A loaded model that fills masks. The model is a folder, also an exported one, or a name as `files.names` knows
    them; or one that is open, which stays where it is."""

    def __init__(self, model: str | Path | Opened, device: str = "cpu"):
        source = opened(model, device)
        self.tokenizer, self.longest = source.tokenizer, source.config.max_position_embeddings
        if source.exported:
            exported = source.session("fp32", gives=("logits", source.config.vocab_size))
            self._scores, self._device = exported.logits, torch.device("cpu")
        else:
            self.model, _ = load_masked_lm(source)
            self._scores, self._device = self.model.scores, next(self.model.parameters()).device

    def __call__(self, text: str, k: int = 5) -> list[list[Filling]]:
        """For each mask of the text, in order, the k most probable tokens, each mask on its own.

        Raises:
            BertworksError: the text has no mask.
        """
        read = self.read(text)
        (likeliest,) = self.likeliest([read], k)
        return self.answer(read, likeliest, k)

    def read(self, text: str) -> Blanks:
        """The text as the network reads it.

        Raises:
            UsageError: it is no text.
            BertworksError: it has no mask.
        """
        if not isinstance(text, str):
            raise UsageError(f"{text!r:.60} is no text", fix="give a string")
        t = self.tokenizer
        encoding = t.encode(text)
        ids = np.array(encoding.ids[1:-1], np.int64)
        masks = np.flatnonzero(ids == t.mask_id)
        if not len(masks):
            mask = t.special_tokens["mask_token"]
            raise BertworksError(
                f"there is nothing to fill in {_short(text)!r}", fix=f"put {mask} where a word is missing"
            )
        return Blanks(text, ids, masks, encoding, list(self._windows(ids, masks)))

    @torch.no_grad()
    def likeliest(self, texts: Sequence[Blanks], k: int) -> list[Tensor]:
        """For each text float32 [masks, 2, k]: the k greatest probabilities and their tokens. Texts are computed
        together, sorted by length. A model may have more words than its tokenizer, which nobody can say."""
        windows = [window for one in texts for window in one.windows]
        found = [torch.zeros(0)] * len(windows)
        for part in packed_numbers([len(tokens) + 2 for tokens, _ in windows], [1] * len(windows), TOKENS):
            examples = [self._example(*windows[number]) for number in part]
            batch = collate(examples).to(self._device)
            words = self._scores(batch).float().softmax(-1)[:, : self.tokenizer.vocab_size]
            best = words.topk(min(k, words.shape[1]))
            rows = torch.stack([best.values, best.indices.float()], 1).cpu()
            for number, row in zip(part, rows.split([len(e.masked_positions) for e in examples]), strict=True):
                found[number] = row
        each = iter(found)
        return [torch.cat(list(islice(each, len(one.windows)))) for one in texts]

    def answer(self, read: Blanks, likeliest: Tensor, k: int) -> list[list[Filling]]:
        """The likeliest tokens in words."""
        t, (text, ids, masks, encoding, _) = self.tokenizer, read
        return [
            [
                Filling(
                    score=score,
                    token=token,
                    token_str=t.decode([token], skip_special_tokens=False),
                    sequence=self._decoded(ids, position, token),
                    text=self._replaced(text, encoding.offsets[position + 1], token),
                )
                for score, token in zip(values[:k], map(int, tokens[:k]), strict=True)
            ]
            for position, (values, tokens) in zip(masks.tolist(), likeliest.tolist(), strict=True)
        ]

    def _windows(self, ids: Ids, masks: Ids) -> Iterator[tuple[Ids, Ids]]:
        """As `Blanks` has them."""
        room = self.longest - 2
        if len(ids) <= room:
            yield ids, masks
            return
        for number, mask in enumerate(masks.tolist()):
            start = _start(mask, room, len(ids))
            yield ids[start : start + room], masks[number : number + 1] - start

    def _example(self, tokens: Ids, asked: Ids) -> Example:
        s = frame([tokens], Special(self.tokenizer.cls_id, self.tokenizer.sep_id), -1)
        return Example(s.input_ids, s.token_type_ids, asked + 1, np.zeros_like(asked), -1)

    def _decoded(self, ids: Ids, position: int, token: int) -> str:
        filled = ids.copy()
        filled[position] = token
        return self.tokenizer.decode(filled.tolist(), skip_special_tokens=False)

    def _replaced(self, text: str, place: tuple[int, int], token: int) -> str:
        """The text with a token where the mask at `place` (first and last character) stands."""
        begin, end = place
        word = self.tokenizer.decode([token], skip_special_tokens=False).strip().removeprefix("##")
        mask = self.tokenizer.special_tokens["mask_token"]
        return text[:begin] + text[begin:end].replace(mask, word) + text[end:]  # a space may belong to the mask


def fill(model: str | Path, texts: Iterable[str], k: int = 5) -> Iterator[list[list[Filling]]]:
    """For each text, for each of its masks, the k most probable tokens.

    Raises:
        UsageError: k is not positive.
        BertworksError: no such model, or a text without a mask.
    """
    if k < 1:
        raise UsageError(f"k is {k}: expected 1 or more")
    filler = Filler(model)
    for text in texts:
        yield filler(text, k)


def _start(position: int, room: int, length: int) -> int:
    return int(min(max(0, position - room // 2), length - room))


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
