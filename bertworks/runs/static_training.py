"""A table of static vectors, fitted to the vectors that an encoder has for whole texts.

Model2Vec trains such a table in steps (tokenlearn). But the mean over the tokens of a text is a
linear function of the table, so the best table is a solution of linear equations: there is no
learning rate, and no number of steps to choose.

- `TeacherVectors`: texts of a corpus, the vectors of an encoder for them, and the table that these
  give
- `TokenShares`: the tokens of texts as a sparse matrix
- `linear_map`, `corrected_rows`: the two solutions
- `principal_directions`: the directions of the largest variances
"""

import heapq
import random
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity, embedding_bag

from bertworks.errors import require
from bertworks.events import Event, duration
from bertworks.inference.embedder import Embedder, Vectors
from bertworks.inference.engine import LazyModel
from bertworks.io.file_job import FileJob, Portion, unpacked_values
from bertworks.io.inputs import chunk_by_size
from bertworks.io.options import Bulk
from bertworks.runs.prepare import read_text, refuse_in_corpus
from bertworks.text.segmentation import split_sentences

Numbers = NDArray[np.float64]
Rows = NDArray[np.int64]

# The next two were chosen on other texts and collections than those that are reported
# (docs/experiments, 2026-11-30).
USUAL_TEXTS = 30_000  # that are drawn from a corpus
TEXT_BYTES = 240  # of whole sentences, about 40 English words: then a text ends
RIDGE = 0.02  # how strongly a row stays where the map of all rows puts it
_MAP_RIDGE = 1e-3  # the same for the map, as a part of the mean variance
_TOLERANCE = 1e-3  # of the gradient, as a part of its size at the start
_MOST_STEPS = 200  # of conjugate gradients; 10 to 40 are usual
_TEXTS_AT_ONCE = 512  # of a portion, which is kept
_LEAST_TEXTS = 100  # of which five are held out


class TeacherVectors:
    """Texts of a corpus, and the vectors that an encoder, the teacher, has for them.

    While `job` is open, the vectors are kept in files next to the output, so that the command
    continues after an interruption.

    Args:
        source: the encoder.
        inputs: raw text: files, folders or globs.
        num_texts: how many texts are drawn from the whole corpus, at most.
        output: the model folder that will be written.

    Attributes:
        reader: of the corpus.
        job: the portions of vectors.

    Raises:
        BertworksError, UsageError: no such text, or the output would be a part of it.
    """

    def __init__(
        self, source: LazyModel, inputs: Sequence[str | Path], num_texts: int, output: Path
    ):
        self.reader = read_text(inputs)
        refuse_in_corpus(output, self.reader)
        self._where = ", ".join(map(str, inputs))
        self._num_texts = num_texts
        self._embedder = Embedder(source)
        identity = {
            "command": "convert --train",
            "corpus": self.reader.identity(),
            "texts": [num_texts, TEXT_BYTES, _TEXTS_AT_ONCE],
            "model": self._embedder.fingerprint,
            "precision": self._embedder.precision,
        }
        self.job = FileJob(output, Bulk(), identity, maker="", settings=())

    def fit(
        self, numbers: Rows, features: Numbers, dimensions: int
    ) -> Generator[Event, None, tuple[Numbers, list[str]]]:
        """Return the vectors of tokens that fit the vectors of texts, and notes on them.

        They are found in two steps. One linear map of the features of all tokens fits the principal
        components of the vectors of texts; then each token that occurs is corrected on its own. A
        token that does not occur has what the map gives.

        The event "evaluation" tells how well the table fits texts that it was not fitted to.

        Args:
            numbers: the ids of the tokens that get a vector.
            features: [tokens, width], what is known of each without the texts: its vector in the
                space of the encoder, with the weight of its frequency.
            dimensions: numbers of a vector.

        Raises:
            BertworksError: too few texts, or none with a token of the vocabulary.
        """
        yield Event("stage", f"train: {self._where} is read")
        texts, rows = self._known_texts(numbers, dimensions)
        vectors = (yield from self._vectors(texts)).astype(np.float64)
        # Five of a hundred parts of the corpus are held out. They are parts, and not single texts,
        # because neighbours are alike.
        is_held_out = np.arange(len(rows)) * 100 // len(rows) % 20 == 10
        held_out = TokenShares([rows[n] for n in np.flatnonzero(is_held_out)], len(numbers))
        shares = TokenShares([rows[n] for n in np.flatnonzero(~is_held_out)], len(numbers))
        mean = vectors[~is_held_out].mean(0)
        vectors -= mean
        directions, variance = principal_directions(vectors[~is_held_out], dimensions)
        targets = torch.from_numpy(vectors @ directions).float()
        known_vectors = torch.from_numpy(features).float()
        mapping = linear_map(shares.means(known_vectors), targets[~is_held_out])
        mapped = known_vectors @ mapping
        table = yield from corrected_rows(shares, targets[~is_held_out], mapped)
        untrained = torch.from_numpy(features @ directions).float()
        cosines = {
            name: float(cosine_similarity(held_out.means(values), targets[is_held_out]).mean())
            for name, values in (("untrained", untrained), ("map", mapped), ("trained", table))
        }
        fields = {"texts": len(rows), "held_out_texts": int(is_held_out.sum()), "cosine": cosines}
        text = f"cosine with the vectors of the encoder, for {is_held_out.sum():,} other texts: "
        text += f"{cosines['untrained']:.3f} before the training, {cosines['trained']:.3f} after it"
        yield Event("evaluation", text, fields)
        notes = [
            f"{dimensions} of {features.shape[1]} dimensions, with {variance:.1%} of the variance "
            "of the texts",
            f"trained on the vectors of the encoder for {(~is_held_out).sum():,} texts; {text}",
            f"{len(shares.seen):,} of {len(numbers):,} tokens occur in these texts; a map that "
            "all tokens share gives the vectors of the others",
        ]
        if cosines["trained"] <= cosines["untrained"]:
            notes.append(
                "WARNING: the training made the vectors worse: the corpus is too small, or its "
                "parts differ too much"
            )
        return table.double().numpy(), notes

    def _known_texts(self, numbers: Rows, dimensions: int) -> tuple[list[str], list[Rows]]:
        """Return the texts that have a known token, and the rows of their tokens.

        A token without a row has the number -1. Arguments and errors are those of `fit`.
        """
        texts = draw_texts((document.text for document in self.reader), self._num_texts)
        tokenizer = self._embedder.tokenizer
        row_of_token = np.full(tokenizer.vocab_size, -1, np.int64)
        row_of_token[numbers] = np.arange(len(numbers))
        longest = self._embedder.settings.max_length  # the teacher reads no further
        rows = [row_of_token[np.array(ids[:longest], np.int64)] for ids in tokenizer.ids(texts)]
        known = [place for place, of_text in enumerate(rows) if (of_text >= 0).any()]
        require(
            known,
            "the vocabulary has none of the words of the corpus",
            self._where,
            "name a text in the language of the model with --train",
        )
        least = max(_LEAST_TEXTS, dimensions + dimensions // 10)
        require(
            len(known) >= least,
            f"the table would be trained on {len(known):,} texts of about {TEXT_BYTES} characters: "
            f"{dimensions} dimensions take at least {least:,}, and thousands are better",
            self._where,
            f"raise --train-texts {self._num_texts}"
            if len(texts) == self._num_texts
            else "name more text with --train, or leave --train out",
        )
        return [texts[place] for place in known], [rows[place] for place in known]

    def _vectors(self, texts: Sequence[str]) -> Generator[Event, None, Vectors]:
        """Return the vectors of texts; yield the progress, with a forecast of the time."""
        num_read = 0
        begin = time.monotonic()

        def portions() -> Iterator[list[str]]:
            nonlocal num_read
            for portion in chunk_by_size(texts, _TEXTS_AT_ONCE):
                num_read += len(portion)
                yield portion

        for event in self.job.make("train", portions(), self._portion):
            if event.kind == "stage":
                seconds = (time.monotonic() - begin) / event.fields["amount"]
                left = seconds * (len(texts) - num_read) / _TEXTS_AT_ONCE
                text = f"train: the encoder has read {num_read:,} of {len(texts):,} texts, about "
                text += f"{duration(left)} left"
                event = Event("stage", text, event.fields | {"what": "texts", "amount": num_read})
            yield event
        content = chain.from_iterable(map(unpacked_values, self.job.files))
        values = np.frombuffer(b"".join(content), np.float32)
        return values.reshape(len(texts), self._embedder.dimension)

    def _portion(self, texts: Sequence[str]) -> Portion:
        return 0, [self._embedder.portion(texts)[0].tobytes()]


def draw_texts(documents: Iterable[str], count: int) -> list[str]:
    """Return texts of a few sentences, at most `count`, from all documents, in their order.

    Equal documents give equal texts.
    """
    draw = random.Random(0)
    texts = (
        " ".join(sentences)
        for document in documents
        for sentences in chunk_by_size(split_sentences(document), TEXT_BYTES, _num_bytes)
    )
    numbered = ((draw.random(), number, text) for number, text in enumerate(texts))
    sample = heapq.nsmallest(count, numbered)
    return [text for _, _, text in sorted(sample, key=lambda item: item[1])]


def _num_bytes(sentence: str) -> int:
    """Return the size in UTF-8, which tells the content better across scripts than characters."""
    return len(sentence.encode(errors="surrogatepass"))


class _Sums(NamedTuple):
    """A sparse matrix: which members each group has, with which weights."""

    members: Tensor
    starts: Tensor
    weights: Tensor

    @classmethod
    def of(cls, groups: Rows, members: Rows, weights: Numbers, num_groups: int) -> "_Sums":
        order = np.argsort(groups, kind="stable")
        starts = np.searchsorted(groups[order], np.arange(num_groups))
        return cls(
            torch.from_numpy(members[order]),
            torch.from_numpy(starts),
            torch.from_numpy(weights[order]).float(),
        )

    def __call__(self, values: Tensor) -> Tensor:
        """Return the weighted sum of each group; 0 for one without a member."""
        return embedding_bag(
            self.members, values, self.starts, mode="sum", per_sample_weights=self.weights
        )


class TokenShares:
    """Which share of each text each row of a table is: the matrix A of the means A x table.

    Args:
        texts: for each text the rows of its tokens, with -1 for a token without a row, which counts
            in the length of the text. No text is empty.
        num_rows: of the table.

    Attributes:
        seen: the rows that occur.
    """

    def __init__(self, texts: Sequence[Rows], num_rows: int):
        lengths = np.array([len(rows) for rows in texts])
        places = np.repeat(np.arange(len(texts)), lengths)
        rows = np.concatenate(texts)
        has_row = rows >= 0
        pairs, counts = np.unique(places[has_row] * num_rows + rows[has_row], return_counts=True)
        places, rows = np.divmod(pairs, num_rows)
        shares = counts / lengths[places]
        seen, columns = np.unique(rows, return_inverse=True)
        self.seen = torch.from_numpy(seen)
        self._seen_means = _Sums.of(places, columns, shares, len(texts))
        self._seen_sums = _Sums.of(columns, places, shares, len(seen))
        self.squares = torch.from_numpy(np.bincount(columns, shares**2)).float()

    def means(self, table: Tensor) -> Tensor:
        """Return the mean of the rows of each text: [texts, width]. table: [rows, width]."""
        return self._seen_means(table[self.seen])

    def normal_product(self, seen_rows: Tensor) -> Tensor:
        """Return A' A times the rows that occur: [seen, width], as the argument."""
        return self._seen_sums(self._seen_means(seen_rows))

    def sums(self, vectors: Tensor) -> Tensor:
        """Return A' times vectors of texts: [seen, width]. vectors: [texts, width]."""
        return self._seen_sums(vectors)


def linear_map(inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the matrix M for which |inputs M - targets|^2 + ridge |M|^2 is smallest.

    The ridge is a small part of the mean of the squares of a column of the inputs. It is computed
    in float64.

    Args:
        inputs: [n, width].
        targets: [n, dimensions].

    Returns:
        [width, dimensions].
    """
    width = inputs.shape[1]
    products = torch.zeros(width, width, dtype=torch.float64)
    sums = torch.zeros(width, targets.shape[1], dtype=torch.float64)
    for block, block_targets in zip(inputs.split(4096), targets.split(4096), strict=True):
        exact = block.double()
        products += exact.T @ exact
        sums += exact.T @ block_targets.double()
    ridge = _MAP_RIDGE * products.diagonal().mean()
    # without any known token the products are 0, and the map is 0
    products.diagonal().add_(ridge.clamp_min(torch.finfo(torch.float64).tiny))
    solution: Tensor = torch.linalg.solve(products, sums)
    return solution.to(inputs.dtype)


def corrected_rows(
    shares: TokenShares, targets: Tensor, table: Tensor, ridge: float = RIDGE
) -> Generator[Event, None, Tensor]:
    """Return the table T for which |A T - targets|^2 + ridge |T - table|^2 is smallest.

    Rows that do not occur stay as they are. The solution is that of conjugate gradients for the
    correction of the rows that occur, scaled by the diagonal of the equations (Hestenes and Stiefel
    1952; Saad 2003, "Iterative methods for sparse linear systems", algorithm 9.1), for all columns
    at once. Yields the progress.

    Args:
        shares: the matrix A.
        targets: [texts, dimensions].
        table: [rows, dimensions].
        ridge: above 0.
    """
    scale = (shares.squares + ridge)[:, None]
    gradient = shares.sums(targets - shares.means(table))
    scaled = gradient / scale
    correction = torch.zeros_like(gradient)
    direction = scaled
    size = (gradient * scaled).sum(0)
    smallest = size * _TOLERANCE**2
    for step in range(1, _MOST_STEPS + 1):
        if bool((size <= smallest).all()):
            break
        product = shares.normal_product(direction) + ridge * direction
        length = size / (direction * product).sum(0).clamp_min(torch.finfo(size.dtype).tiny)
        correction += length * direction
        gradient = gradient - length * product
        scaled = gradient / scale
        new_size = (gradient * scaled).sum(0)
        direction = scaled + new_size / size.clamp_min(torch.finfo(size.dtype).tiny) * direction
        size = new_size
        fields = {"stage": "train", "what": "steps", "amount": step}
        yield Event("stage", f"train: step {step} of conjugate gradients", fields)
    result = table.clone()
    result[shares.seen] += correction
    return result


def principal_directions(centered: Numbers, count: int) -> tuple[Numbers, float]:
    """Return the directions of the largest variances of vectors with the mean 0.

    They are computed in float64 and sorted by variance, and the largest component of each is
    positive: equal vectors give equal results everywhere.

    Args:
        centered: [n, width].
        count: of directions, at most `width`.

    Returns:
        float64 [width, count]; and the share of the variance in these directions.
    """
    variances, directions = np.linalg.eigh(centered.T @ centered)
    directions = directions[:, ::-1][:, :count]  # eigh sorts from the smallest variance on
    largest = np.abs(directions).argmax(0)
    directions = directions * np.sign(directions[largest, np.arange(count)])
    total = max(float(variances.sum()), np.finfo(np.float64).tiny)
    return directions, float(variances[::-1][:count].sum()) / total
