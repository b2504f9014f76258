"""Compare a fine-tuned model with baselines, which take a few seconds.

They have the same training rows and the same held-out rows.

- `baseline_answers`: what each of them answers on a dev set, or in a cross-validation
- `FrozenEncoder`: vectors of a model that is not trained, as features of a linear model
- `compare_baselines`: their scores, the paired differences, and what follows from them

The linear models are those of scikit-learn. Their strengths are the best of a grid on SST-2, CoLA,
MRPC, STS-B, RTE and wikigold with 50 to 500 training rows (docs/experiments).
"""

import re
import warnings
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.batching.batch import Batch
from bertworks.batching.examples import ExampleGroup, example_of
from bertworks.checkpoints.model_folder import Model
from bertworks.events import JsonObject
from bertworks.inference.embedder import Vectors, normalized
from bertworks.inference.engine import compute_each, compute_vectors, prepared_encoder
from bertworks.io.inputs import chunk_by_size
from bertworks.metrics.classification import count_spans
from bertworks.metrics.intervals import (
    Interval,
    cross_validated_difference,
    label_correlation,
    middle,
    moved_estimate,
    paired_difference,
    resampled,
)
from bertworks.models.layers import meta_device_init
from bertworks.models.transformer import Encoder, InferenceEncoder, Stack
from bertworks.tasks.heads import combine_vectors
from bertworks.tasks.linear_head import LinearHead, fit_linear_head
from bertworks.tasks.registry import task_of
from bertworks.tasks.scores import (
    format_score,
    groups_of,
    interval_of,
    least_value,
    metric_name,
    row_sums,
)
from bertworks.tasks.sequences import Features, Rows, num_tokens_read, read_texts
from bertworks.tasks.settings import SentenceVectors, TaskConfig
from bertworks.tasks.task import ABSENT_LOGIT, Answer, Logits, Task, targets_of
from bertworks.text.segmentation import split_sentences
from bertworks.training.device import InferencePrecision

SomeAnswers = Sequence[Answer | None]  # None for rows that a method does not answer
Answers = dict[str, list[Answer | None]]  # by method
_CommonRows = tuple[list[Any], ...]  # items, and the answers of two methods to all of them
FINETUNED = "fine-tuned"
COMPARED = (
    "the table compares models trained on two thirds of the rows, on held-out rows; models trained "
    "on all rows are probably better"
)
# Method of a fine-tuning -> the name of its model in tables, and in sentences.
MODEL_NAMES: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("auto", "full"), (FINETUNED, "fine-tuning")),
    "frozen": ("linear head", "the linear head"),
    "untrained": ("untrained cosine", "the untrained cosine"),
    "cosine": ("fine-tuned from the cosine", "fine-tuning from the cosine"),
    "contrastive": ("contrastive training", "contrastive training"),
    "static": ("trained static vectors", "the training of static vectors"),
}
FROZEN = "frozen vectors"
COSINE = "cosine"
# Baseline -> the method of a fine-tuning that begins with it.
_FINETUNING_OF = {FROZEN: "frozen", COSINE: "cosine"}
# Method of a fine-tuning -> the baseline that is the same method.
_SAME = {"frozen": FROZEN, "untrained": COSINE}
# Kana, Chinese characters and Hangul.
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")
_LETTER = re.compile(r"[^\W\d_]")
_TERMS = {"token_pattern": r"\w+|[^\w\s]+", "ngram_range": (1, 2)}
# Tokens times labels from which a linear model of words learns.
_MAX_TERMS = 3_000_000
# A tagger learns from all words: with more words times labels than this it takes fewer iterations,
# but not fewer than _MIN_ITERATIONS.
_MAX_TAGGED = 1_000_000
# Rows are encoded to learn from them up to this number of tokens times parameters, and of tokens.
_ENCODER_WORK = 5e11
_MAX_ENCODED = 100_000
# The rows that are predicted may have this many times the tokens.
HELD_OUT_WORK = 2
# Characters of a text in a bag of words: its words take fifty times the memory.
_LONGEST_TEXT = 1 << 19
# Words whose features are in memory at a time.
_AT_ONCE = 1 << 12
_MAX_FEATURES = 50_000
_MAX_ITERATIONS = 100
_MIN_ITERATIONS = 30
_FOLDS = 3


class FrozenEncoder:
    """Vectors of a model that is not trained.

    Each text is encoded once.

    Args:
        model: the initial model; its head is not used.
        max_length: of a text or of each window over it, in tokens.
        windows: see `TaskConfig`.
    """

    def __init__(self, model: Model, device: torch.device, max_length: int, windows: int = 0):
        self._model = model
        self._device = device
        self._max_length = max_length
        self._windows = windows
        self.width = model.config.hidden_size
        work = _ENCODER_WORK / replace(model.config, vocab_size=1).num_parameters()
        self.max_tokens = int(min(work, _MAX_ENCODED))
        self._vectors = dict[str, Vectors]()

    @cached_property
    def _network(self) -> tuple[Stack | InferenceEncoder, InferencePrecision]:
        """The encoder, prepared for inference, and its precision."""
        with meta_device_init():
            encoder = Encoder(self._model.config)
        state = {
            name: self._model.state[f"encoder.{name}"].to(self._device)
            for name in encoder.state_dict()
        }
        encoder.load_state_dict(state, assign=True)
        return prepared_encoder(encoder.requires_grad_(False).eval(), "auto")

    def has_read(self, text: str) -> bool:
        """Return whether the vector of a text is known already."""
        return text in self._vectors

    def texts(self, texts: Iterable[str]) -> Vectors:
        """Return the means of the last hidden states, of length 1: float32 [texts, width]."""
        network, precision = self._network
        texts = list(texts)
        new = list(dict.fromkeys(text for text in texts if text not in self._vectors))
        tokenizer = self._model.tokenizer
        units: list[ExampleGroup] = []
        if self._windows > 1:
            most = num_tokens_read(self._max_length, self._windows)
            for ids, count in tokenizer.leading_ids(new, most):
                segments = [(tokenizer.array(ids), count)]
                read = read_texts(segments, tokenizer.template, self._max_length, self._windows)
                units.append(read.unit)
        else:
            encodings = tokenizer.encode_each(new, max_length=self._max_length)
            units += [[example_of(tokenizer, e)] for e in encodings]
        vectors = compute_vectors(network, units, "mean", self.width, precision)
        self._vectors |= zip(new, normalized(vectors), strict=True)
        return np.stack([self._vectors[text] for text in texts])

    def predicted_tokens(self, rows: Rows, head: LinearHead | None = None) -> NDArray[np.float32]:
        """Return the last hidden state of every token from which a label is predicted.

        It is float32 [M, width]; with a head it is the logits of the tokens, [M, outputs]: the
        states of a long row take far more memory.
        """
        network, precision = self._network

        def compute(batch: Batch) -> Tensor:
            states = network(*batch.inputs, batch.target.positions)
            last = torch.as_tensor(states[-1])
            return last if head is None else torch.from_numpy(head(last.float().cpu().numpy()))

        width = self.width if head is None else len(head.bias)
        return np.concatenate(
            compute_each(network, compute, [row.unit for row in rows], (width,), precision)
        )


class _Prediction(NamedTuple):
    """What a simple method predicts for rows."""

    method: str
    train: Rows  # the rows from which it learns
    numbers: Sequence[int]  # of the rows that it predicts
    logits: Logits  # of these rows


def baseline_answers(
    train: Rows,
    held_out: Rows,
    d: TaskConfig,
    encoder: FrozenEncoder,
    *,
    parts: Sequence[Sequence[int]] = (),
) -> Answers:
    """Return the answers of baselines, trained on `train`, on `held_out`, by method.

    The first method is the trivial one. Of many rows they learn from a sample, and those with an
    encoder answer a sample (None: the other rows), both stratified by label, so that each takes
    seconds; the name then says how many rows these are. The features of words learn from all
    sentences: with a sample of these they look weak.

    Args:
        encoder: one for several calls encodes each text once.
        parts: of a cross-validation: `held_out` has the training rows with these numbers, part
            after part. Each part is answered by what was learned from the other rows; the trivial
            method has the same constant in all of them.
    """
    task = task_of(d)
    folds = [(train, held_out)]
    if parts:
        folds = []
        for part in parts:
            rest = sorted(set(range(len(train))).difference(part))
            folds.append(([train[n] for n in rest], [train[n] for n in part]))
    if task.has_context:
        no_answer: Answer = {
            "answer": "",
            "start": -1,
            "end": -1,
            "score": 1.0,
            "no_answer_margin": 0.0,
            "n_best": [],
        }
        nearest = [answer for fold in folds for answer in _nearest_sentences(*fold)]
        return {task.trivial: [no_answer] * len(held_out), "nearest sentence": [*nearest]}
    answers_of: Answers = {}
    sample_sizes = dict[str, list[str]]()
    before = 0
    for fold_train, rows in folds:
        for prediction in _predictions(fold_train, rows, task, encoder, len(folds)):
            answers = answers_of.setdefault(prediction.method, [None] * len(held_out))
            decoded = _decoded(task, [rows[n] for n in prediction.numbers], prediction.logits)
            for n, answer in zip(prediction.numbers, decoded, strict=True):
                answers[before + n] = answer
            sizes = sample_sizes.setdefault(prediction.method, [])
            if len(prediction.train) < len(fold_train):
                sizes.append(f" of {len(prediction.train):,} rows")
        before += len(rows)
    constant = task.constant_logits(_all_targets(train), len(_all_targets(held_out)))
    named: Answers = {task.trivial: [*_decoded(task, held_out, constant)]}
    for method, answers in answers_of.items():
        num_answers = len(answers) - answers.count(None)
        on_rows = f" on {num_answers:,} rows" if None in answers else ""
        named[f"{method}{min(sample_sizes[method], default='')}{on_rows}"] = answers
    return named


def _predictions(
    train: Rows,
    rows: Rows,
    task: Task,
    encoder: FrozenEncoder,
    folds: int,
) -> Iterator[_Prediction]:
    """Yield the predictions of each method but the trivial one."""
    most_terms = _MAX_TERMS // max(2, len(task.d.labels))
    numbers = sorted(_sampled(rows, HELD_OUT_WORK * encoder.max_tokens // folds))
    all_numbers = range(len(rows))
    new = [rows[n] for n in numbers]
    if task.counts_choices:
        vectors = [encoder.texts(row.item.texts) for row in new]
        cosines_of_choices = np.concatenate([v[1:] @ v[0] for v in vectors])[:, None]
        yield _Prediction("most similar choice", train, numbers, cosines_of_choices)
        return
    encoded = sample(train, encoder.max_tokens)
    if task.labels_tokens:
        num_targets = sum(len(targets_of(row)) for row in train)
        iterations = _MAX_ITERATIONS * _MAX_TAGGED // (num_targets * len(task.d.labels))
        iterations = min(_MAX_ITERATIONS, max(_MIN_ITERATIONS, iterations))
        logits = _linear(task, train, _word_counts(train, rows), 3.0, iterations)
        yield _Prediction("features of words", train, all_numbers, logits)
        states = encoder.predicted_tokens(encoded)
        head = fit_linear_head(task.head(), states, _all_targets(encoded))
        yield _Prediction(FROZEN, encoded, numbers, encoder.predicted_tokens(new, head))
        return
    counted: Rows = sample(train, most_terms)
    if len(counted) < len(task.d.labels) and not task.has_many_labels:
        counted = train
        logits = _nearest_mean(task, counted, _bags(counted, rows))
    else:
        logits = _linear(task, counted, _bags(counted, rows), 10.0)
    yield _Prediction("bag of words", counted, all_numbers, logits)
    sides = [[encoder.texts(side) for side in _sides(part)] for part in (encoded, new)]
    kind: SentenceVectors = "pair" if len(sides[0]) == 2 else "mean"
    interleaved = [np.stack(side, 1).reshape(-1, encoder.width) for side in sides]
    features = [combine_vectors(torch.from_numpy(x), kind).numpy() for x in interleaved]
    logits = _linear(task, encoded, features)
    yield _Prediction(FROZEN, encoded, numbers, logits)
    if kind == "pair" and not task.has_many_labels:
        cosines = [(u * v).sum(1, keepdims=True) for u, v in sides]
        if task.predicts_numbers:
            yield _Prediction(COSINE, train, numbers, cosines[1])
        else:
            yield _Prediction(COSINE, encoded, numbers, _linear(task, encoded, cosines))


def sample(rows: Rows, most: int, seed: int = 0) -> list[Features]:
    """Return shuffled rows with at most about `most` tokens together.

    They have the same fraction of every label.
    """
    return [rows[n] for n in _sampled(rows, most, seed)]


def _sampled(rows: Rows, most: int, seed: int = 0) -> list[int]:
    """Return the numbers of the rows of a sample.

    A row that is larger than a sample is in none, if there are others.
    """
    members: dict[Any, list[int]] = {}
    for number in np.random.default_rng(seed).permutation(len(rows)).tolist():
        label = rows[number].item.label
        members.setdefault(label if isinstance(label, str) else None, []).append(number)
    # Within each label the rows are spread evenly over 0 to 1.
    places = {
        n: (place + 0.5) / len(group) for group in members.values() for place, n in enumerate(group)
    }
    sizes = [sum(len(example.input_ids) for example in row.unit) for row in rows]
    largest = max(most, min(sizes))
    ordered = [n for n in sorted(places, key=places.__getitem__) if sizes[n] <= largest]
    totals = np.cumsum([sizes[n] for n in ordered])
    return ordered[: max(1, int((totals <= most).sum()))]


def _all_targets(rows: Rows) -> NDArray[Any]:
    """Return the labels of all targets of rows."""
    return np.concatenate(list(map(targets_of, rows)))


def _sides(rows: Rows) -> list[tuple[str, ...]]:
    """Return the first texts, and the second ones of pairs.

    Of very long texts it is the beginnings.
    """
    texts = ([text[:_LONGEST_TEXT] for text in row.item.texts] for row in rows)
    return list(zip(*texts, strict=True))


def _decoded(task: Task, rows: Rows, logits: Logits) -> list[Answer]:
    """Return the answer of each row.

    Args:
        logits: of all rows, [M, outputs].
    """
    ends = np.cumsum([len(targets_of(row)) for row in rows])
    return list(map(task.decode, rows, np.split(logits, ends[:-1])))


def _linear(
    task: Task,
    train: Rows,
    pair: Sequence[Any],
    strength: float = 0.0,
    iterations: int = _MAX_ITERATIONS,
) -> Logits:
    """Return the logits of a linear model for new rows.

    Args:
        pair: features of the training rows and of the new ones, as NumPy or SciPy matrices; the new
            ones may be an iterator over blocks.
        strength: of SciPy matrices, the inverse of the penalty.
        iterations: of SciPy matrices, the maximum number of iterations of the optimizer.
    """
    train_features, new_features = pair
    targets = _all_targets(train)

    def logits_of(rows: Any, labels: NDArray[Any], new_rows: Any) -> Logits:
        if isinstance(rows, np.ndarray):
            head = fit_linear_head(task.head(), rows, labels)
            return np.asarray(head(new_rows), np.float32)
        # Nearly the best weights will do; a label may be true of no row, or of all.
        with warnings.catch_warnings(action="ignore"):
            return _sparse(task, rows, labels, new_rows, strength, iterations)

    if not task.has_many_labels or len(targets) < 3 * _FOLDS:
        return logits_of(train_features, targets, new_features)
    # Labels with logits above 0 are predicted: they are moved so that this is the best micro F1 on
    # training rows that the model did not see.
    held_out_logits = np.zeros(targets.shape, np.float32)
    numbers = np.arange(len(targets))
    for fold in range(_FOLDS):
        is_in_fold = numbers * _FOLDS // len(targets) == fold
        held_out_logits[is_in_fold] = logits_of(
            train_features[~is_in_fold], targets[~is_in_fold], train_features[is_in_fold]
        )
    order = np.argsort(-held_out_logits, None, kind="stable")
    f1 = 2 * np.cumsum(targets.ravel()[order]) / (1 + np.arange(targets.size) + targets.sum())
    threshold = float(held_out_logits.ravel()[order[f1.argmax()]])
    return logits_of(train_features, targets, new_features) - threshold


def _nearest_mean(task: Task, train: Rows, pair: Sequence[Any]) -> Logits:
    """Return for new rows the cosine with the mean of the training rows of each label.

    It takes seconds with thousands of labels (Rocchio 1971).

    Args:
        pair: features of the training rows and of the new ones, as SciPy matrices.
    """
    from scipy.sparse import csr_matrix
    from sklearn.preprocessing import normalize

    train_features, new_features = pair
    entries = (np.ones(len(train)), (_all_targets(train), np.arange(len(train))))
    is_of_label = csr_matrix(entries, (len(task.d.labels), len(train)))
    means = normalize(is_of_label @ train_features)
    return np.asarray((normalize(new_features) @ means.T).toarray(), np.float32)


def _sparse(
    task: Task, x: Any, y: NDArray[Any], new: Any, strength: float, iterations: int
) -> Logits:
    """Return the logits of a linear model of sparse features: see `_linear`."""
    from scipy.special import logit
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier

    if task.predicts_numbers:
        return np.asarray(Ridge(1 / strength).fit(x, y).predict(new), np.float32)[:, None]
    model = LogisticRegression(C=strength, max_iter=iterations)
    if task.has_many_labels:  # of a single label there are two columns: false and true
        models = OneVsRestClassifier(model).fit(x, y.astype(np.int64))
        p = models.predict_proba(new)[:, -y.shape[1] :]
        return np.asarray(logit(p).clip(ABSENT_LOGIT, -ABSENT_LOGIT), np.float32)
    fitted = (model if len(np.unique(y)) > 1 else DummyClassifier()).fit(x, y)
    blocks = [np.empty((0, len(task.d.labels)), np.float32)]
    for block in new if isinstance(new, Iterator) else [new]:
        logits = np.full((block.shape[0], len(task.d.labels)), ABSENT_LOGIT, np.float32)
        logits[:, fitted.classes_] = fitted.predict_log_proba(block).clip(ABSENT_LOGIT)
        blocks.append(logits)
    return np.concatenate(blocks)


def _vectorizer(texts: Collection[str]) -> Any:
    """Return the tf-idf of words and pairs of words.

    In scripts without spaces, and in Korean, it is that of stretches of characters.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    letters, unspaced = (
        sum(len(pattern.findall(text)) for text in texts) for pattern in (_LETTER, _UNSPACED)
    )
    terms = {"analyzer": "char", "ngram_range": (1, 3)} if 2 * unspaced > letters else _TERMS
    return TfidfVectorizer(sublinear_tf=True, max_features=_MAX_FEATURES, **terms).fit(texts)


def _bags(train: Rows, held_out: Rows) -> list[Any]:
    """Return the tf-idf of the words of the training rows, and of the held-out rows.

    Pairs also have that of the words in both texts, and their cosine.
    """
    from scipy.sparse import hstack

    vectorizer = _vectorizer(list(chain.from_iterable(_sides(train))))
    bags = []
    for rows in (train, held_out):
        sides = list(map(vectorizer.transform, _sides(rows)))
        common = [sides[0].multiply(side) for side in sides[1:]]
        bags.append(hstack([*sides, *common, *(product.sum(1) for product in common)]).tocsr())
    return bags


def _word_counts(train: Rows, held_out: Rows) -> list[Any]:
    """Return the features of every predicted word or token, of the training and the held-out rows.

    Those of the held-out rows are an iterator over blocks: they take twenty times the memory of the
    words.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    words, new = (chain.from_iterable(map(_features_of_words, rows)) for rows in (train, held_out))
    vectorizer = CountVectorizer(analyzer=lambda features: features, dtype=np.float64)
    train_features = vectorizer.fit_transform(words)
    blocks = chunk_by_size(new, _AT_ONCE)
    return [train_features, (vectorizer.transform(block) for block in blocks)]


def _features_of_words(row: Features) -> Iterator[list[str]]:
    """Yield the features of each word: itself, its ends and shape, and its neighbours."""
    words = row.words
    padded = ["", "", *(word.lower() for word in words), "", ""]
    for n in range(len(words)):
        word = words[n]
        near = [f"{k}={padded[n + k]}" for k in range(5)]
        kinds = (
            "A" if c.isupper() else "a" if c.islower() else "0" if c.isdigit() else c for c in word
        )
        shape = "".join(kind for kind, _ in groupby(kinds))
        yield [
            *near,
            f"{near[1]} {near[2]}",
            f"{near[2]} {near[3]}",
            f"<{word[:3]}",
            f">{word[-3:]}",
            f">{word[-2:]}",
            f"shape={shape}",
            f"before={padded[n + 1] and words[n - 1][0].isupper()}",
        ]


def _nearest_sentences(train: Rows, rows: Rows) -> list[Answer]:
    """Return the sentence of each context that has the largest tf-idf cosine with the question."""
    contexts = {
        context: split_sentences(context[:_LONGEST_TEXT])
        for context in {row.item.texts[1] for row in rows}
    }
    all_contexts = {row.item.texts[1] for row in train} | contexts.keys()
    vectorizer = _vectorizer([context[:_LONGEST_TEXT] for context in all_contexts])
    questions = vectorizer.transform([row.item.texts[0] for row in rows])
    vectors = {context: vectorizer.transform(sentences) for context, sentences in contexts.items()}
    answers: list[Answer] = []
    for row, question in zip(rows, questions, strict=True):
        context = row.item.texts[1]
        cosines = (vectors[context] @ question.T).toarray()[:, 0]
        text = contexts[context][cosines.argmax()]
        best = float(cosines.max())
        place = {
            "start": context.index(text),
            "end": context.index(text) + len(text),
            "score": best,
        }
        answers.append(
            {
                "answer": text,
                **place,
                "no_answer_margin": -best,
                "n_best": [{"text": text, **place}],
            }
        )
    return answers


def compare_baselines(
    d: TaskConfig,
    metric: str,
    rows: Rows,
    answers: Mapping[str, SomeAnswers],
    method: str = "full",
    tried: Collection[str] = ("full",),
    place: str = "on dev",
    too_few: str = "",
    groups: Sequence[Hashable] | None = None,
    doubt: str = "",
) -> JsonObject:
    """Return the scores of the fine-tuned model and of the baselines on the same rows.

    Args:
        answers: the answers of each method, those of the fine-tuned model first, then those of the
            trivial method. A row with None in place of an answer is left out, also in the
            difference from the fine-tuned model.
        method: the method of the fine-tuning. It is not compared with the baseline that is the same
            method.
        tried: all methods that the fine-tuning compared.
        place: where the scores are from.
        too_few: why the data cannot show whether the model has learned anything, or "" if they can.
        groups: of each row of a cross-validation: its intervals are wider, because other rows train
            other models (`intervals.TRAINING_VARIANCE`). None: all rows were held out.
        doubt: why no interval of a score is known to hold; "": it does.

    Returns:
        `methods`: the name, `score` and `interval` of each method, the `difference` by which the
        fine-tuned model is better, and its interval. `best`: the number of the best baseline, from
        0. `verdict`: a sentence about what follows, or "" if the model is better than all
        baselines. `note`: of which models the scores are, in a cross-validation; else "".
        `advice`: options that would help next, if there is a verdict. `metric`, `method` and
        `place`: the arguments. `positive`: see `TaskConfig.positive_label`.
    """
    model_answers, trivial_answers = list(answers.values())[:2]
    methods: list[JsonObject] = []
    for name, method_answers in answers.items():
        if method in _SAME and name.startswith(_SAME[method]):
            continue
        items, *both_answers = _common_rows(rows, method_answers, model_answers)
        score, model_score = (row_sums(d, items, each)[metric] for each in both_answers)
        interval: Interval | None
        if groups is None:
            interval = interval_of(d, items, score, metric)
            difference = paired_difference(model_score, score, groups_of(d, items))
        else:
            answered = zip(groups, method_answers, model_answers, strict=True)
            common_groups = [group for group, *both in answered if all(both)]
            interval = moved_estimate(score, 0.0, least_value(metric), common_groups).interval
            difference = cross_validated_difference(
                model_score, score, common_groups, 1 - least_value(metric)
            )
        methods.append(
            {
                "method": name,
                "score": score.value,
                "interval": None if doubt else interval,
                "difference": difference[0],
                "difference_interval": difference[1],
            }
        )
    best = min(range(1, len(methods)), key=lambda number: methods[number]["difference"])
    task = task_of(d)
    if not too_few and task.has_text_labels:
        right_answers = [{task.fields[0]: row.item.label} for row in rows]
        _, interval = _evidence(task, metric, _common_rows(rows, right_answers, trivial_answers))
        if interval.low <= 0:
            too_few = (
                f"with {len(rows):,} rows, even a perfect model would not be clearly better than "
                "chance"
            )
    compared = {
        "metric": metric,
        "method": method,
        "place": place,
        "note": "" if groups is None else COMPARED,
        "methods": methods,
        "positive": d.positive_label,
        "best": best - 1,
    }
    common_rows = _common_rows(rows, model_answers, trivial_answers)
    verdict = _verdict(compared, _evidence(task, metric, common_rows), too_few)
    advice = []
    if verdict:
        name = methods[best]["method"]
        further = [_FINETUNING_OF[start] for start in _FINETUNING_OF if name.startswith(start)]
        untried = [f"--method {method}" for method in (*further, "full") if method not in tried]
        advice = [*untried[:1], "another --model"]
    return compared | {"verdict": verdict, "advice": advice}


def _common_rows(rows: Rows, answers: SomeAnswers, reference: SomeAnswers) -> _CommonRows:
    """Return the items with an answer of both of two methods, and the answers of each."""
    triples = zip((row.item for row in rows), answers, reference, strict=True)
    common_rows = [triple for triple in triples if triple[1] and triple[2]]
    return tuple(map(list, zip(*common_rows, strict=True)))


def _evidence(task: Task, metric: str, common_rows: _CommonRows) -> tuple[float, Interval]:
    """Return a figure of a model that is 0 if it has learned nothing, and its interval.

    Of labels this is the Matthews correlation of the predictions with them. Accuracy is no such
    figure: 35 % may be far better than chance where 28 % of the rows have the most frequent label.
    Nor is macro F1, which is larger for random answers than for a constant one. Of several labels
    for each row it is the correlation pooled within the labels (`label_correlation`), of which
    Matthews' is a case. Micro F1 is no such figure: a model that finds all rows of the rare labels,
    and none of a frequent one, has a smaller micro F1 than the trivial method, which gives the most
    frequent labels to all rows, whatever their text. Of other tasks the figure is what the model is
    better by than the trivial method. The interval is that over resampled rows, so that few rows
    give a wide one.
    """
    items, answers, constant_answers = common_rows
    sums = row_sums(task.d, items, answers)
    groups = groups_of(task.d, items)
    correlation = sums.get("matthews_correlation")
    if task.has_many_labels:
        pairs = [*zip(items, answers, strict=True)]
        _, counts = count_spans(task.span_pairs(pairs), task.d.labels)
        correlation = label_correlation(counts)
    if correlation is not None:
        return correlation.value, middle(resampled(correlation, groups))
    trivial_sums = row_sums(task.d, items, constant_answers)
    return paired_difference(sums[metric], trivial_sums[metric], groups)


def format_baselines(compared: Mapping[str, Any]) -> list[list[str]]:
    """Return the comparison as a table in words, with heads."""
    metric = compared["metric"]
    title = metric_name(metric, compared.get("positive"))
    model_name = MODEL_NAMES[compared.get("method", "full")][1]
    has_intervals = compared["methods"][0]["interval"] is not None
    level = " (95 % CI)" if has_intervals else ""
    table = [["method", f"{title}{level}", f"advantage of {model_name}{level}"]]
    for number, method in enumerate(compared["methods"]):
        score = format_score(metric, method["score"], method["interval"])
        difference = ""
        if number:  # the first method is the model itself
            interval = method["difference_interval"] if has_intervals else None
            difference = format_score(metric, method["difference"], interval, "+")
        table.append([method["method"], score, difference])
    return table


def _verdict(
    compared: Mapping[str, Any],
    evidence: tuple[float, Interval],
    too_few: str,
) -> str:
    """Return what follows from the comparison, or "" if the model is clearly better.

    It is a sentence if the model has not clearly learned anything, or is not clearly better than
    the best baseline.

    Args:
        compared: see `compare_baselines`.
        evidence: see `_evidence`.
        too_few: see `compare_baselines`.
    """
    model_name = MODEL_NAMES[compared["method"]][1]
    baselines = compared["methods"][1:]
    best = baselines[compared["best"]]
    value, interval = evidence
    has_learned = interval.low > 0
    parts = []
    if not has_learned and too_few:
        parts.append(f"these data cannot show whether {model_name} has learned anything: {too_few}")
    elif not has_learned:
        claim = "has learned nothing" if value <= 0 else "may have learned nothing"
        trivial_method = baselines[0]["method"]
        parts.append(
            f'WARNING: {model_name} {claim}: it is not clearly better than "{trivial_method}"'
        )
    if best["difference_interval"][0] > 0:
        return "; ".join(parts)
    if has_learned or compared["best"]:
        name = metric_name(compared["metric"], compared["positive"])
        bounds = best["difference_interval"] if compared["methods"][0]["interval"] else None
        difference = format_score(compared["metric"], best["difference"], bounds, "+")
        relation = "worse than" if best["difference_interval"][1] < 0 else "not clearly better than"
        parts.append(f'{model_name} is {relation} "{best["method"]}": {name} {difference}')
    return "; ".join(parts)
