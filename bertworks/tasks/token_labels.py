"""Tasks with a label for each word or token: tags of words, labelled spans of a text."""

import re
from abc import abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from operator import eq
from sys import intern
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.examples import Example, Ids, add_special_tokens
from bertworks.datasets.annotations import OUTSIDE, tag_scheme
from bertworks.datasets.schema import (
    Item,
    LabelCell,
    LabelProblem,
    Names,
    Schema,
    StudiedFile,
    find_texts,
    first_column,
    named_columns,
)
from bertworks.datasets.values import MOST, label_text, list_of, spans_of
from bertworks.errors import BertworksError, expect, require
from bertworks.metrics import intervals
from bertworks.metrics.classification import Span, paired, tag_runs
from bertworks.tasks.sequences import (
    NO_OFFSETS,
    Features,
    Offsets,
    ShortIds,
    Window,
    centered_window,
    strip_span,
    tokens_in_span,
)
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import (
    NOTHING,
    Answer,
    Attributed,
    Explained,
    Featurizer,
    Logits,
    Mistake,
    Pairs,
    Task,
    log_odds,
    softmax,
    target_example,
)

DECODED_AT_ONCE = 1 << 16  # words or tokens of a long text whose probabilities are in memory
_WORD_COLUMNS = ("tokens", "words", "token", "word")
_TAG_COLUMNS = ("tags", "ner_tags", "pos_tags", "labels", "label", "tag")
ScoreOfSpan = Callable[[Span, Span | None], float | None]
COUNTED_AT_ONCE = 1 << 14  # words of which the entities are in memory
_LONG_TEXT = 10_000  # characters; of a longer text a mistake shows what is around the entity


class TokenTask(Task):
    """A task with one of several labels for each word or token of a text.

    near: how many words or characters on each side of an entity a mistake in a long text shows.
    """

    num_texts = (1, 1)
    part = "kind of entity"
    counted = "entities in train"
    pipeline = "token-classification"
    reads_windows = True
    labels_tokens = True
    recipe_fields: Names = ("lstm_units", "class_weights", "label_smoothing")
    endpoint = "ner"
    reads = "text"
    near: int

    def with_targets(self, reader: Featurizer, example: Example, pieces: list[str]) -> list[str]:
        """Each tag follows the last token of its word."""
        starts = example.target.positions.tolist()
        if not starts:
            return pieces
        begins = [*reader.tokenizer.begins_words(example.input_ids), True]
        ends = [*starts[1:], begins.index(True, starts[-1] + 1)]
        tagged = list(pieces)
        for end, tag in zip(ends, example.target.labels.tolist(), strict=True):
            tagged[end - 1] += f"/{self.d.labels[tag]}"
        return tagged

    def best_labels(self, logits: Logits) -> tuple[list[str], "array[float]"]:
        """Return the best label of each word or token, and its probability.

        A long text has millions of tokens, so no array here is larger than their logits.
        """
        tags: list[str] = []
        scores = array("d")
        for start in range(0, len(logits), DECODED_AT_ONCE):
            p = softmax(logits[start : start + DECODED_AT_ONCE] / np.float32(self.d.temperature))
            tags += [self.d.labels[number] for number in p.argmax(-1)]
            scores.frombytes(p.max(-1).tobytes())
        return tags, scores

    def in_words(self, item: Item, answer: Answer) -> str:
        if "entities" in answer:
            spans = [f"{x['text']} {x['type']} {x['score']:.1%}" for x in answer["entities"]]
            return ", ".join(spans) or "no entity"
        words = answer.get("words", item.texts)
        return " ".join(f"{word}/{tag}" for word, tag in zip(words, answer["tags"], strict=True))

    def tag_output(self, features: Features, tags: Sequence[str], target: str | None) -> Attributed:
        """Return the tag of one word or token.

        It is the target, else the first that is not O, else the first.
        """
        words = features.words
        if not tags:
            return features.unit[0], "", None
        expect(
            target is None or target in words,
            f"the word {target!r} is not in the text, as the tokenizer splits it",
            hint=f"use one of {', '.join(words[:20])}",
        )
        if target is not None:
            word = words.index(target)
        else:
            word = next((number for number, tag in enumerate(tags) if tag != "O"), 0)
        ends = np.cumsum([len(example.target.positions) for example in features.unit])
        label = self.d.labels.index(tags[word])
        window = int(np.searchsorted(ends, word, side="right"))
        place = word - int(ends[window])  # among the predictions of the window, from its end
        name = f"the tag {tags[word]} of “{words[word]}” (log-odds)"
        return features.unit[window], name, lambda x: log_odds(x[:, place], label)

    def entities(self, features: Features, tags: Sequence[str], logits: Logits) -> list[Answer]:
        """Return the entities that tags mark in a text, with their characters."""
        scheme = self.d.tag_scheme
        assert scheme is not None
        text = features.item.texts[0]
        offsets = features.offsets
        entities = []
        for first, last, kind in tag_runs(tags, scheme):
            start, end = strip_span(text, offsets[first, 0], offsets[last - 1, 1])
            if start < end:
                p = softmax(logits[first:last] / np.float32(self.d.temperature))
                entity = {"start": start, "end": end, "type": kind, "text": text[start:end]}
                entities.append(entity | {"score": float(p.max(-1).mean())})
        return entities

    def mistakes(self, pairs: Pairs) -> Iterator[Mistake]:
        """Yield one mistake for each entity."""
        for item, answer in pairs:
            score_of = self.score_of_spans(answer)
            for spans in self.span_pairs([(item, answer)]):
                for gold, predicted in paired(*spans):
                    if gold != predicted:
                        yield self._mistake(item, gold, predicted, score_of)

    def _mistake(
        self, item: Item, gold: Span | None, predicted: Span | None, score_of: ScoreOfSpan
    ) -> Mistake:
        place = predicted or gold
        assert place is not None
        score = score_of(place, predicted)
        text = self.text_between(item, None, None)
        if len(text) > _LONG_TEXT:
            start = max(0, place[0] - self.near)
            text = f"... {self.text_between(item, start, place[1] + self.near)} ..."
        labels = [
            NOTHING if span is None else f"{span[2]}: {self.text_between(item, *span[:2])}"
            for span in (gold, predicted)
        ]
        badness = 0.5 if score is None else score
        kind = _kind_of_mistake(gold, predicted)
        return Mistake(item.where, (text,), labels[0], labels[1], score, badness, kind)

    @abstractmethod
    def score_of_spans(self, answer: Answer) -> ScoreOfSpan:
        """Return a function that returns the probability of a prediction, or None.

        Its arguments are a place and the span that is predicted there, or None.
        """

    @abstractmethod
    def text_between(self, item: Item, start: int | None, end: int | None) -> str:
        """Return a part of the text of an item; None: from its beginning, or to its end."""


def _kind_of_mistake(gold: Span | None, predicted: Span | None) -> str:
    if gold is None:
        return "" if predicted is None else f"{predicted[2]!r} predicted where there is no entity"
    if predicted is None:
        return f"{gold[2]!r} missed"
    if gold[2] == predicted[2]:
        return f"wrong borders of {gold[2]!r}"
    return f"true {gold[2]!r}, predicted {predicted[2]!r}"


def _tagged(
    reader: Featurizer,
    item: Item,
    row: ShortIds,
    predicted: ShortIds | None,
    tags: ShortIds,
    offsets: Offsets,
) -> Features:
    """Return an item in windows over its text.

    Args:
        predicted: positions in the row, ascending; None: all. Each is predicted in the window where
            it has most context.
    """

    def part(window: Window, begin: int, _: int) -> tuple[Ids, Ids]:
        inside = slice(window.start, window.end)
        places = np.arange(window.end - window.start)
        if predicted is not None:
            inside = slice(*np.searchsorted(predicted, (window.start, window.end)))
            places = predicted[inside].astype(np.int64) - window.start
        is_own = window.is_own[places]
        return places[is_own] + begin, tags[inside][is_own].astype(np.int64)

    return reader.in_windows(item, row, part, offsets)


class TaggingTask(TokenTask):
    """A tag for each word."""

    name = "tagging"
    meaning = "a tag for each word"
    texts = "the words"
    expected = 'write one tag for each word, as ["O", "B-person"]'
    label_note = "a tag for each word: {labels}"
    file_kind = "conll"
    needed_lists = 2
    metrics = ("f1", "precision", "recall", "accuracy")
    fields = ("tags",)
    trivial = "most frequent tag"
    row_fractions = ()
    reads_words = True
    recipe_fields = ("lstm_units", "document_context", "class_weights", "label_smoothing")
    near = 20

    def schema_of_layout(self, file: StudiedFile) -> Schema | None:
        """The columns of a CoNLL file, or those with lists of words and of their tags."""
        columns = file.columns
        if file.kind == self.file_kind:
            document = "document" if columns["document"].high > 0 else None
            label = ("tags",) if "tags" in columns else ()
            return Schema(task=self.name, text=("tokens",), label=label, document=document)
        lists = named_columns(column for column in columns.values() if column.is_listed)
        word_names = [columns[name].known_name for name in file.text] or _WORD_COLUMNS
        words = first_column(lists, word_names)
        if words is None:
            return None
        label_names = [columns[name].known_name for name in file.label] or _TAG_COLUMNS
        for tags in [lists[name] for name in label_names if name in lists]:
            # Of the rows with a value: some may have no tags.
            ratio = tags.entries * words.lists / max(1, words.entries * tags.lists)
            if MOST <= ratio <= 1 / MOST:
                return Schema(task=self.name, text=(words.name,), label=(tags.name,))
        return None

    def label_problem(self, schema: Schema, file: StudiedFile) -> LabelProblem | None:
        if not set(schema.labels) - {"O"}:
            return "no word has a tag other than O", "tag some words"
        if len(schema.labels) < 2:
            what = f"all words have the same tag, {schema.labels[0]!r}"
            return what, "tag the words differently, or name another column"
        return None

    def read_label(self, cell: LabelCell) -> Any:
        tags = list_of(cell.value)
        if tags is None:
            return None
        require(
            len(tags) == len(cell.texts),
            f"{len(cell.texts)} words and {len(tags)} tags",
            cell.where,
            self.expected,
        )
        return tuple(intern(cell.known_label(label_text(tag))) for tag in tags)

    def read(self, reader: Featurizer, items: list[Item]) -> Iterator[Features]:
        offsets_of_raw = reader.tokenizer.words([item.texts[0] for item in items if item.raw])
        reader.check_count(sum(map(len, offsets_of_raw)))
        offsets = iter(offsets_of_raw)
        rows = [
            Features(item, (), offsets=next(offsets) if item.raw else NO_OFFSETS) for item in items
        ]
        words = [features.words for features in rows]
        document, ends = reader.pieces(chain.from_iterable(words))
        template = reader.tokenizer.template
        room = self.d.max_length - template.num_special()
        for features, of_item in zip(rows, words, strict=True):
            tokens = ends[: len(of_item) + 1]
            ends = ends[len(of_item) :]
            row = document[tokens[0] : tokens[-1]]
            tags = np.zeros(len(of_item), np.int32)
            if features.item.label is not None:
                tags[:] = [self.d.labels.index(tag) for tag in features.item.label]
            if not self.d.document_context or len(row) > room:
                firsts = tokens[:-1] - tokens[0]
                yield _tagged(reader, features.item, row, firsts, tags, features.offsets)
            else:
                start, stop = centered_window(int(tokens[0]), int(tokens[-1]), len(document), room)
                sequence = add_special_tokens([document[start:stop]], template)
                positions = tokens[:-1].astype(np.int64) - start + len(template.prefix)
                example = target_example(sequence, positions, tags.astype(np.int64))
                yield features._replace(unit=[example])

    def decode(self, features: Features, logits: Logits) -> Answer:
        """Return the best tag of each word and its probability.

        Of a raw text it also returns its words, and its entities if the tags mark any.
        """
        tags, scores = self.best_labels(logits)
        answer: Answer = {"tags": tags, "scores": scores}
        if features.item.raw:
            answer["words"] = features.words
            if self.d.tag_scheme is not None:
                answer["entities"] = self.entities(features, tags, logits)
        return answer

    def with_scheme(self, schema: Schema, rows: Sequence[Item]) -> tuple[Schema, list[str]]:
        """Return the schema, which tells whether the tags are bare types of entities.

        They need an O that is more frequent than each type: else they are parts of speech. A note
        says what the tags mark.
        """
        counts = Counter(chain.from_iterable(item.label for item in rows))
        most_common, _ = counts.most_common(1)[0]
        # One character before or after a type: the tags mark entities in a way that is not known.
        marked = sum(re.fullmatch(r"\w[-_].+|.+[-_]\w", tag) is not None for tag in schema.labels)
        bare = (
            tag_scheme(schema.labels) is None
            and most_common in OUTSIDE
            and 2 * marked < len(schema.labels)
        )
        scheme = tag_scheme(schema.labels, bare)
        note = (
            "the tags mark no entities: word accuracy (known schemes: IOB, IOBES, BILOU, BMES, "
            "BMEWO)"
        )
        if scheme is not None:
            num_types = len({kind for _, kind in scheme.marks.values()} - {""})
            types = "1 type" if num_types == 1 else f"{num_types} types"
            note = f"tags: {scheme.name}, {types}"
        return replace(schema, bare_types=bare), [note]

    def compared_texts(self, rows: Sequence[Item]) -> list[Names]:
        """Return the sentence of the words."""
        return [(" ".join(item.texts),) for item in rows]

    def count_unit(self) -> str:
        return self.counted if self.d.tag_scheme else "words in train"

    def expected_texts(self, count: int) -> tuple[bool, str]:
        return count > 0, "a string, or a list of words"

    def explained(self, features: Features, answer: Answer, target: str | None) -> Explained:
        tags = answer["tags"]
        return self.tag_output(features, tags, target), zip(features.words, tags)

    def metrics_of(self) -> Names:
        if self.d.tag_scheme is None:
            return ("accuracy", "macro_f1", "matthews_correlation")
        return self.metrics

    def named_spans(self, label: Any) -> list[Span]:
        """Entities by words; other tags by words, too."""
        scheme = self.d.tag_scheme
        if scheme is None:
            return [(number, number + 1, tag) for number, tag in enumerate(label)]
        return [(start, end, kind or "_") for start, end, kind in tag_runs(label, scheme)]

    def label_parts(self, item: Item, answer: Answer) -> Iterator[slice | None]:
        """No entity is in two parts."""
        gold = item.label
        predicted = answer["tags"]
        count = min(len(gold), len(predicted))
        is_free = self.d.tag_scheme is None
        start = 0
        while start + COUNTED_AT_ONCE < count:
            cuts = range(start + COUNTED_AT_ONCE, count)
            end = next(
                (
                    cut
                    for cut in cuts
                    if is_free or (gold[cut] in OUTSIDE and predicted[cut] in OUTSIDE)
                ),
                count,
            )
            yield slice(start, end)
            start = end
        yield slice(start, None)

    def accuracy(self, counts: NDArray[Any], pairs: Pairs) -> intervals.RowSums:
        """The fraction of the words whose tag is right."""
        for item, answer in pairs:
            has_all = len(item.label) == len(answer["tags"])
            require(
                has_all,
                f"{len(answer['tags'])} predicted tags for {len(item.label)} words",
                item.where,
                "give each word one tag",
            )
        right = [sum(map(eq, item.label, answer["tags"])) for item, answer in pairs]
        return intervals.ratio_sums(right, [len(item.label) for item, _ in pairs])

    def score_of_spans(self, answer: Answer) -> ScoreOfSpan:
        scores = answer["scores"]
        return lambda place, _: float(sum(scores[place[0] : place[1]]) / (place[1] - place[0]))

    def text_between(self, item: Item, start: int | None, end: int | None) -> str:
        return " ".join(item.texts[start:end])


class SpansTask(TokenTask):
    """Labelled stretches of a text. Each token has a tag: B- or I- with the label, or O."""

    name = "spans"
    meaning = "labelled stretches of a text"
    texts = "the text"
    expected = 'write a list of {"start": 0, "end": 5, "type": "person"}, or []'
    label_note = "stretches of characters: {labels}"
    file_kind = "spans"
    metrics = ("f1", "precision", "recall")
    fields = ("entities",)
    trivial = "no entity"
    near = 100
    doubtful_note = "texts have overlapping spans: the later one wins"

    def schema_of_layout(self, file: StudiedFile) -> Schema | None:
        if file.kind != self.file_kind:
            return None
        texts = file.text or find_texts(file.columns, ("entities",), is_one=True)
        return Schema(task=self.name, text=texts, label=("entities",))

    def read_label(self, cell: LabelCell) -> Any:
        spans = spans_of(cell.value)
        if spans is None:
            return None
        places = [(span["start"], span["end"], span["type"]) for span in spans]
        length = len(cell.texts[0])
        for start, end, kind in places:
            if not 0 <= start < end <= length:
                raise BertworksError(
                    f"the {kind} from {start} to {end} is not inside its text of {length} "
                    "characters",
                    where=cell.where,
                    hint="count characters (not bytes) from 0; the end is the place after the last "
                    "one",
                )
        return tuple((start, end, cell.known_label(kind)) for start, end, kind in places)

    def read(self, reader: Featurizer, items: list[Item]) -> Iterator[Features]:
        encodings = reader.arrays([item.texts[0] for item in items])
        outside = np.int32(self.d.labels.index("O"))
        for item, (row, offsets) in zip(items, encodings, strict=True):
            tags = np.broadcast_to(outside, len(row))
            if item.label is not None:
                tags = np.full(len(row), outside)
            for start, end, kind in item.label or ():
                covered = tokens_in_span(offsets, start, end)
                tags[covered] = self.d.labels.index(f"I-{kind}")
                tags[covered[:1]] = self.d.labels.index(f"B-{kind}")
            yield _tagged(reader, item, row, None, tags, offsets)

    def decode(self, features: Features, logits: Logits) -> Answer:
        tags, _ = self.best_labels(logits)
        answer: Answer = {"tags": tags}
        if self.d.tag_scheme is not None:
            answer["entities"] = self.entities(features, tags, logits)
        return answer

    def expected_texts(self, count: int) -> tuple[bool, str]:
        return count == 1, "a string"

    def is_doubtful(self, item: Item) -> bool:
        spans = sorted(item.label or ())  # tags can express only one of two that overlap
        return any(second[0] < first[1] for first, second in pairwise(spans))

    def comparable_label(self, label: Any) -> Any:
        """The order of spans means nothing."""
        return frozenset(label)

    def network_labels(self, labels: Names) -> Names:
        """The network has a label for the first token of each type, and one for the others."""
        return ("O", *(f"{part}-{kind}" for kind in labels for part in "BI"))

    def row_labels(self, labels: Names) -> Names:
        return tuple(label[2:] for label in labels if label.startswith("B-"))

    def with_labels(self, labels: Sequence[str]) -> TaskConfig:
        return self.d

    def explained(self, features: Features, answer: Answer, target: str | None) -> Explained:
        entities = [(entity["text"], entity["type"]) for entity in answer.get("entities", ())]
        return self.tag_output(features, answer["tags"], target), entities

    def predicted_label(self, answer: Answer) -> Any:
        return [(span["start"], span["end"], span["type"]) for span in answer["entities"]]

    def named_spans(self, label: Any) -> list[Span]:
        return list(label)

    def score_of_spans(self, answer: Answer) -> ScoreOfSpan:
        predicted_scores: dict[Span | None, float] = {
            (span["start"], span["end"], span["type"]): span["score"] for span in answer["entities"]
        }
        return lambda _, predicted: predicted_scores.get(predicted)  # none of a missed span

    def text_between(self, item: Item, start: int | None, end: int | None) -> str:
        return item.texts[0][start:end]
