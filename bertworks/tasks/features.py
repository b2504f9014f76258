"""Items become examples: token ids, and what is predicted for which tokens.

- `Featurizer`: items of a task -> `Features`; some of them in words
- `training_groups`: what is learned from an item
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np

from bertworks.batching.batch import ExampleGroup
from bertworks.batching.masking import Example
from bertworks.batching.sampling import add_special_tokens, keyed_rng
from bertworks.datasets.schema import Item
from bertworks.events import Event, printable
from bertworks.io.inputs import chunk_by_size
from bertworks.tasks.registry import TASKS
from bertworks.tasks.sequences import Features, SequenceReader, target_example

_ITEMS_AT_ONCE = 1000  # items that are tokenised together, or fewer
_CHARACTERS = 1 << 20  # if these have more characters
SHOWN = 200  # characters of an example in words
# Of questions that are made from texts: the most tokens of the text in which the answer stands
# (from short texts a network learns in a few steps); the most tokens on each side of the answer
# that may be in the question; the fraction of all tokens that are in no answer, the most frequent
# ones.
CLOZE_TEXT = 64
CLOZE_NEAR = 12
FREQUENT = 0.4


def shortened(text: str) -> str:
    """Return a text without its middle, if it is longer than an example may be."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]} ... {text[-SHOWN // 2 :]}"


class Featurizer(SequenceReader):
    """How items of a task are read.

    `featurizer(items)` yields what they become, in order.
    """

    def __call__(self, items: Iterable[Item]) -> Iterator[Features]:
        """Yield the features of items, in order."""
        task = TASKS[self.task]
        for group in self._groups(iter(items)):
            yield from task.read(self, group)

    def _groups(self, items: Iterator[Item]) -> Iterator[list[Item]]:
        if TASKS[self.task].reads_documents and self.document_context:
            documents = groupby(items, key=lambda item: item.document or item.where)
            return (list(document) for _, document in documents)
        least = _CHARACTERS // _ITEMS_AT_ONCE
        return chunk_by_size(items, _CHARACTERS, lambda item: max(least, item.characters))

    # --- examples in words

    def examples(self, features: Sequence[Features]) -> list[Event]:
        """Yield notes on two items as the network reads them.

        They have different labels if possible.
        """
        first = features[:1]
        with_other_label = [
            row for row in features[1:1000] if row.item.label != first[0].item.label
        ]
        return list(map(self._note, (*first, *(with_other_label or features[1:2])[:1])))

    def preview(self, items: Sequence[Item]) -> list[Event]:
        """Yield `examples` of items that are not yet read.

        They are in their documents where these are context.
        """
        with_other_label = [item for item in items[1:1000] if item.label != items[0].label]
        rows = [*items[:1], *(with_other_label or items[1:2])[:1]]
        documents = {item.document for item in rows if self.document_context} - {""}
        if documents:
            rows = [item for item in items if item.document in documents or item in rows]
        return self.examples(list(self(rows)))

    def _note(self, features: Features) -> Event:
        """Return the tokens of a sequence in words.

        Also what the network learns from them if the item has a label.
        """
        item = features.item
        task = TASKS[self.task]
        is_labelled = item.label is not None
        sequences = task.example_sequences(features, apart=self.apart)
        text = " | ".join(self._in_words(sequence, is_labelled) for sequence in sequences)
        target = task.target_text(self, sequences) if is_labelled else None
        if target is not None:
            text += f" -> {target}"
        if features.num_truncated:
            text += f"  ({features.num_truncated} tokens cut off)"
        if len(sequences) < len(features.unit):
            text += f"  (one of {len(features.unit)} windows)"
        file_and_line = item.where.rpartition("/")[2]
        fields = {"example": item.where}
        return Event("note", printable(f"example  {file_and_line}  {text}"), fields)

    def _in_words(self, example: Example, is_labelled: bool) -> str:
        """Return the tokens of a sequence, without the middle of a long one."""
        pieces = list(map(self.tokenizer.piece, example.input_ids.tolist()))
        if is_labelled:
            pieces = TASKS[self.task].with_targets(self, example, pieces)
        return shortened(" ".join(pieces))

    # --- questions that are made from texts

    def clozes(self, items: Sequence[Item], count: int, seed: int) -> Iterator[ExampleGroup]:
        """Return `count` questions about the contexts of as many items.

        The answer is a phrase, a stretch of rare tokens; the question has some of the tokens around
        it, without order, 70 % of the rare and 30 % of the frequent ones. A text may go on in the
        next context. Lewis et al. 2019 and Ram et al. 2021 make such questions from far more texts.
        """
        rng = keyed_rng("clozes", seed)
        template = self.tokenizer.template
        contexts = self.tokenizer.arrays([*dict.fromkeys(item.texts[1] for item in items[:count])])
        # contexts may have no tokens
        ids = np.concatenate([*(row for row, _ in contexts), [self.tokenizer.unk_id]])
        counts = np.bincount(ids)[ids]
        room = self.max_length - template.num_special(2)
        is_rare = (counts <= np.quantile(counts, 1 - FREQUENT)) | ~self.tokenizer.starts_word[ids]
        phrases = np.flatnonzero(np.diff(is_rare, prepend=False, append=False)).reshape(-1, 2) - (
            0,
            1,
        )
        length = min(CLOZE_TEXT, room - room // 3)
        for first, last in phrases[rng.integers(len(phrases), size=count)].tolist():
            last = min(last, first + length // 8)
            before, after = rng.integers(2, CLOZE_NEAR, size=2, endpoint=True)
            near = np.r_[max(0, first - before) : first, last + 1 : min(len(ids), last + 1 + after)]
            near = near[rng.random(len(near)) < np.where(is_rare[near], 0.7, 0.3)]
            start = rng.integers(max(0, last + 1 - length), first, endpoint=True)
            question = ids[rng.permutation(near)[: room // 3]]
            text = ids[start : start + length]
            sequence = add_special_tokens([question, text], template)
            begin = len(sequence.input_ids) - len(template.suffix) - len(text) - start
            yield [
                target_example(
                    sequence, [*range(len(sequence.input_ids))], np.array([first, last]) + begin
                )
            ]


def training_groups(encoded: Features, task: str) -> list[ExampleGroup]:
    """Return what is learned from an item.

    Choices and the texts of a pair belong together, windows do not; a window that predicts nothing
    is left out.
    """
    return TASKS[task].training_groups(encoded)
