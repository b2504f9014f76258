"""Find out what the states of a network tell of the parts of speech of words.

A linear classifier reads the state of a word after one layer and names its part of speech. The
network is frozen (Peters et al. 2018, section 5.3; Liu et al. 2019, "Linguistic Knowledge and
Transferability of Contextual Representations").

- `tag_metric`: a model and a treebank -> the accuracy on test of the layer that is best on dev, as
  sums over sentences; also of those words alone that have two parts of speech
- `ambiguous_forms`: the words of a text that are two parts of speech
"""

import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.examples import sample_rows
from bertworks.checkpoints.storage import read_json
from bertworks.datasets.treebank import TreeSentence, read_treebank
from bertworks.errors import expect, require
from bertworks.evaluation.probe import (
    WordSequence,
    check_room,
    states_file,
    word_sequences,
    write_word_states,
)
from bertworks.inference.engine import open_model, prepared_encoder
from bertworks.io.atomic_write import write_json
from bertworks.metrics.intervals import Array, RowSums, ratio
from bertworks.models.transformer import Encoder
from bertworks.tasks.linear_head import fit_linear_head
from bertworks.tasks.outputs import Classification

FORMS = ("all", "ambiguous")
# Parts of speech of marks, which the tokenizers of static vectors leave out.
MARKS = frozenset({"PUNCT", "SYM"})
# An ambiguous word has its second part of speech this often, and stands there as many times that
# this is more than one slip of an annotator.
LEAST_SHARE = 0.1
LEAST_COUNT = 20
# Of the gradient at the end of a fit: smaller ones change hardly a prediction, and static vectors,
# which are far from a normal distribution, then take thousands of steps.
_TOLERANCE = 1e-4
_HINT = "name a larger treebank"


class TaggedPart(NamedTuple):
    """A part of a treebank, and what a classifier of each layer says of its words.

    predicted: int64 [layers, words], numbers of parts of speech.
    """

    sentences: Sequence[TreeSentence]
    predicted: NDArray[np.int64]


def tag_metric(
    model: str,
    data: str,
    folder: Path,
    /,
    *,
    forms: Literal["all", "ambiguous"] = "all",
    sample: int = 3000,
    device: str = "auto",
) -> tuple[RowSums, int]:
    """Return the accuracy of parts of speech on test, and the layer that it is of.

    It is the layer with the highest accuracy on dev; 0 is the embeddings. Sentences are the rows.
    Marks of punctuation and symbols do not count, because word vectors know none. A sentence that
    is too long for the model is a row of zeros.

    Args:
        data: a treebank with train, dev and test parts, see `read_treebank`.
        folder: of the predictions, which are kept in `tags-SAMPLE.json`.
        forms: the words that count: "all", or those that are "ambiguous" in train, see
            `ambiguous_forms`.
        sample: sentences of train, the same every time; 0: all.

    Raises:
        UsageError: no such forms; an exported model, which has only its last layer.
        BertworksError: no such model; no treebank, or one without a test part; no word that counts.
    """
    expect(forms in FORMS, f"forms is {forms!r}: expected one of {', '.join(FORMS)}")
    bank = read_treebank(data)
    require(bank.test, "the treebank has no test part", data, "name a folder with a test file")
    path = folder / f"tags-{sample}.json"
    if not path.exists():
        tags = predicted_tags(model, [sample_rows(bank.train, sample), bank.dev, bank.test], device)
        write_json(path, tags)
    stored = read_json(path)
    labels: list[str] = stored["labels"]
    counted = ambiguous_forms(bank.train) if forms == "ambiguous" else None
    dev, test = (
        _rows(TaggedPart(sentences, np.array(stored[name])), labels, counted)
        for name, sentences in (("dev", bank.dev), ("test", bank.test))
    )
    for name, rows in (("dev", dev), ("test", test)):
        require(rows[:, :, 1].sum(), f"no word of {name} counts", data, _HINT)
    accuracies = dev[:, :, 0].sum(1) / dev[:, :, 1].sum(1)
    layer = int(accuracies.argmax())
    return RowSums(test[layer], _accuracy), layer


def _accuracy(sums: Array) -> Array:
    """Return right words / words: [samples, 2] -> [samples]."""
    return ratio(sums[:, 0], sums[:, 1])


def ambiguous_forms(sentences: Iterable[TreeSentence]) -> set[str]:
    """Return the words, in lower case, that are two parts of speech or more.

    Such a word stands LEAST_COUNT times or more in the sentences, and the second most frequent of
    its parts of speech has a share of LEAST_SHARE or more.
    """
    counts: Mapping[str, Counter[str]] = defaultdict(Counter)
    for sentence in sentences:
        for word, tag in zip(sentence.words, sentence.parts_of_speech, strict=True):
            counts[word.lower()][tag] += 1
    forms = set()
    for word, tags in counts.items():
        total = tags.total()
        (_, second) = tags.most_common(2)[-1]
        if len(tags) > 1 and total >= LEAST_COUNT and second >= LEAST_SHARE * total:
            forms.add(word)
    return forms


def _rows(part: TaggedPart, labels: Sequence[str], forms: set[str] | None) -> Array:
    """Return right words and words of each layer and sentence: float64 [layers, sentences, 2].

    A word without a prediction (-1) does not count.

    Args:
        forms: the words in lower case that count; None: all.
    """
    numbers = {label: number for number, label in enumerate(labels)}
    tags = [tag for sentence in part.sentences for tag in sentence.parts_of_speech]
    words = [word.lower() for sentence in part.sentences for word in sentence.words]
    # A part of speech that train lacks has a number that no prediction has.
    gold = np.array([numbers.get(tag, len(labels)) for tag in tags])
    counts = np.array(
        [
            tag not in MARKS and (forms is None or word in forms)
            for word, tag in zip(words, tags, strict=True)
        ]
    ) & (part.predicted[0] >= 0)
    lengths = [len(sentence.words) for sentence in part.sentences]
    starts = np.cumsum([0, *lengths[:-1]])
    right = np.add.reduceat(((part.predicted == gold) & counts).astype(np.float64), starts, axis=1)
    total = np.add.reduceat(counts.astype(np.float64), starts)
    return np.stack([right, np.broadcast_to(total, right.shape)], axis=2)


def predicted_tags(
    model: str, parts: Sequence[Sequence[TreeSentence]], device: str = "auto"
) -> dict[str, list[str] | list[list[int]]]:
    """Train a classifier on the states of each layer, and return what it says of all words.

    Args:
        parts: the sentences of train, dev and test.

    Returns:
        `labels`: the parts of speech of train; `dev` and `test`: for each layer the number of the
        label of each word, or -1 for the words of sentences that are too long for the model.
    """
    source = open_model(model, device, embeds=True)
    expect(
        not source.exported,
        "an exported model has only its last layer",
        where=source.within,
        hint="use the model that was exported",
    )
    sentences = [sentence for part in parts for sentence in part]
    sequences: list[WordSequence] = []
    is_read = np.zeros(sum(len(sentence.words) for sentence in sentences), bool)
    first = 0
    for sentence, sequence in zip(sentences, word_sequences(source, sentences), strict=True):
        if sequence is not None:
            sequences.append(sequence)
            is_read[first : first + len(sentence.words)] = True
        first += len(sentence.words)
    tags = np.array([tag for sentence in sentences for tag in sentence.parts_of_speech])
    ends = np.cumsum([sum(len(sentence.words) for sentence in part) for part in parts])
    in_train = is_read & (np.arange(len(is_read)) < ends[0])
    require(in_train.any(), "no sentence of train is short enough", model, "use another model")
    labels, numbers = np.unique(tags[in_train], return_inverse=True)
    encoder, _ = prepared_encoder(source.network(Encoder, "encoder."), "fp32")
    layers = range(source.config.num_hidden_layers + 1)
    predicted = np.full((len(layers), len(is_read)), -1)
    with tempfile.TemporaryDirectory() as temporary:
        states_folder = Path(temporary)
        size = 2 * int(is_read.sum()) * len(layers) * source.config.hidden_size
        check_room(states_folder, size, "sample = 1000 reads fewer sentences")
        for _ in write_word_states(encoder, sequences, layers, states_folder):
            pass
        for layer in layers:
            states = np.load(states_file(states_folder, layer), mmap_mode="r")
            head = fit_linear_head(
                Classification(outputs=len(labels), pooled=False),
                states[: in_train.sum()].astype(np.float32),
                numbers,
                tolerance=_TOLERANCE,
            )
            predicted[layer, is_read] = head(states.astype(np.float32)).argmax(1)
    return {
        "labels": labels.tolist(),
        "dev": predicted[:, ends[0] : ends[1]].tolist(),
        "test": predicted[:, ends[1] : ends[2]].tolist(),
    }
