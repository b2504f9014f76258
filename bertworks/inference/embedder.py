"""Vectors of texts.

- `Embedder`: a loaded model that computes them
- `Moments`, `normalized`: vectors centered, whitened, or scaled to length 1
- `texts_to_encode`, `selected_prompt`: what other programs expect of a model with a method
  `encode`: some look for the methods of sentence-transformers, mteb for its `EncoderProtocol`
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from bertworks.batching.batch import Batch
from bertworks.batching.examples import ExampleGroup, Target, example_of
from bertworks.checkpoints.sentence_transformers import SentenceTransformerSettings
from bertworks.checkpoints.vector_modules import vector_network
from bertworks.datasets.schema import Item
from bertworks.errors import UsageError, expect, optional_import, require
from bertworks.events import Event, JsonObject, show_progress
from bertworks.inference.engine import (
    LazyModel,
    ModelUser,
    OnnxModel,
    compute_each,
    compute_vectors,
    open_model,
    prepared_encoder,
)
from bertworks.inference.predictor import copy_files
from bertworks.io.atomic_write import local_path, refuse_not_empty
from bertworks.io.file_job import portions_of
from bertworks.io.tables import (
    texts_of,
)
from bertworks.models.settings import Pooling
from bertworks.models.transformer import Encoder, InferenceEncoder, Stack, with_fp16_weights
from bertworks.tasks.registry import task_of
from bertworks.tasks.sequences import Features, Truncation, num_tokens_read, read_texts
from bertworks.tasks.settings import MOST_WINDOWS, TaskConfig
from bertworks.tasks.task import Featurizer, unknown_token_warnings
from bertworks.training.device import (
    InferencePrecision,
    PrecisionOption,
    choose_device,
    disable_heap_trim,
)

DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # names of the prompt before documents
_PROMPTS_OF_TYPE = {"query": ("query",), "document": DOCUMENT_PROMPTS}
_DISTANCE_ORDERS = {"manhattan": 1.0, "euclidean": 2.0}  # the norms of differences


def texts_to_encode(inputs: Any) -> list[str]:
    """Return the texts in the first argument of `encode`.

    Args:
        inputs: a list, a column or a table of texts (see `texts_of`); or the batches of a
            DataLoader, of which each is a dict with a list of texts named "text". Other entries of
            a batch, such as ids, are not read.

    Raises:
        UsageError: a batch without a list of texts, or a value that is no text.
    """
    is_stream = (
        isinstance(inputs, Iterable)
        and not isinstance(inputs, Set)
        and not hasattr(inputs, "__getitem__")
    )
    if is_stream:  # a generator, or a DataLoader
        inputs = list(inputs)
    has_batches = isinstance(inputs, list | tuple) and len(inputs) > 0 and _is_batch(inputs[0])
    if not has_batches:
        return list(texts_of(inputs, "give a list of strings, or one string"))
    texts: list[Any] = []
    for number, batch in enumerate(inputs, 1):
        expect(
            _is_batch(batch),
            f"batch {number} is {batch!r:.60}: expected a dict with a list of texts named 'text'",
            hint="pass texts: other inputs have no vectors here",
        )
        texts.extend(batch["text"])
    return list(texts_of(texts, "give a list of strings, or one string"))


def _is_batch(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("text"), list | tuple)


def selected_prompt(
    settings: SentenceTransformerSettings,
    *,
    prompt: str | None,
    prompt_name: str | None,
    task_metadata: Any,
    prompt_type: str | None,
) -> str:
    """Return the prompt before the texts, selected as sentence-transformers and mteb select it.

    The first of these that is given decides: `prompt`, `prompt_name`, the task and the type of the
    texts. For a task, the first name decides that the model has: NAME-TYPE, NAME, KIND-TYPE, KIND,
    where NAME is the name of the task and KIND its kind, such as Retrieval. Then come the names of
    the type: query; or document, passage and corpus. Texts with a type never get the default prompt
    of the model; other texts get it if nothing else is selected.

    Args:
        prompt: the prompt itself.
        prompt_name: the name of a prompt of the model. "query" and "document" are known for each
            model, and are empty for one that has no such prompt.
        task_metadata: a task of mteb, with attributes `name` and `type`; None: no task.
        prompt_type: "query" or "document"; None: neither.

    Raises:
        UsageError: the model has no prompt with this name; or there is no such type.
    """
    kind_of_text = None if prompt_type is None else str(getattr(prompt_type, "value", prompt_type))
    types = " and ".join(_PROMPTS_OF_TYPE)
    is_known_type = kind_of_text is None or kind_of_text in _PROMPTS_OF_TYPE
    expect(
        is_known_type, f"there is no prompt_type {kind_of_text!r}", hint=f"the types are {types}"
    )
    if prompt is not None:
        return prompt
    if prompt_name is not None:
        names = [
            *settings.prompts,
            *(name for name in _PROMPTS_OF_TYPE if name not in settings.prompts),
        ]
        expect(
            prompt_name in names,
            f"the model has no prompt named {prompt_name!r}",
            hint=f"the names are {', '.join(names)}",
        )
        return settings.prompt(prompt_name)
    candidates: list[str] = []
    if task_metadata is not None:
        for name in (task_metadata.name, task_metadata.type):
            if kind_of_text is not None:
                candidates.append(f"{name}-{kind_of_text}")
            candidates.append(name)
    if kind_of_text is not None:
        candidates.extend(_PROMPTS_OF_TYPE[kind_of_text])
        return settings.prompt(*candidates)
    known = [name for name in candidates if name in settings.prompts]
    return settings.prompt(*known)  # without names, the default prompt


def _compared_tensors(measure: str, *vectors: Any) -> Iterator[Tensor]:
    """Yield vectors as tensors, of length 1 if their cosines are compared."""
    for tensor in map(_tensor, vectors):
        yield normalize(tensor, dim=-1) if measure == "cosine" else tensor


def _tensor(vectors: Any) -> Tensor:
    """Return vectors as a tensor: of a tensor, an array, or a list of either."""
    if isinstance(vectors, Tensor):
        return vectors.float()
    if isinstance(vectors, list | tuple) and vectors and isinstance(vectors[0], Tensor):
        return torch.stack(list(vectors)).float()
    return torch.from_numpy(np.array(vectors, np.float32))


Whitening = Literal["none", "center", "whiten"]
Vectors = NDArray[np.float32]
_SMALLEST = 1e-7  # of the largest variance: directions with less are noise and become 0
_SHORTEST = 1e-12


class Moments:
    """Count, sum and products of vectors, which come in blocks [N, D]."""

    def __init__(self, dimension: int, blocks: Iterable[Vectors]):
        self.count = 0
        self._sum = np.zeros(dimension)
        self._products = np.zeros((dimension, dimension))
        for block in blocks:
            exact = block.astype(np.float64)
            self.count += len(block)
            self._sum += exact.sum(0)
            self._products += exact.T @ exact

    @property
    def can_whiten(self) -> bool:
        """Whether there are more vectors than dimensions."""
        return self.count > len(self._sum)

    def whitener(self, kind: Literal["center", "whiten"]) -> Callable[[Vectors], Vectors]:
        """Return the transformation that centers, or whitens (Su et al. 2021, arXiv 2103.15316).

        Whitening makes the covariance of the vectors the identity, except in directions without
        variance.

        Raises:
            BertworksError: to whiten, not more vectors than dimensions: all would end at the same
                distance.
        """
        mean = self._sum / self.count
        if kind == "center":
            return lambda x: (x - mean).astype(np.float32)
        require(
            self.can_whiten,
            f"whitening needs more vectors than dimensions: {self.count:,} vectors of "
            f"{len(self._sum)} dimensions",
            "",
            "--learn-from a file with more texts, or --whitening center",
        )
        variances, directions = np.linalg.eigh(self._products / self.count - np.outer(mean, mean))
        is_wide = variances > _SMALLEST * variances[-1]
        matrix = directions * np.where(is_wide, np.where(is_wide, variances, 1.0) ** -0.5, 0.0)
        return lambda x: ((x - mean) @ matrix).astype(np.float32)


def normalized(x: Vectors) -> Vectors:
    """Rows scaled to length 1; rows of zeros stay."""
    lengths = np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), _SHORTEST).astype(np.float32)
    return np.asarray(np.divide(x, lengths, dtype=np.float32))


def num_zero(vectors: Vectors) -> int:
    """Return how many vectors are 0: those of texts without a token that the model knows."""
    return int(np.count_nonzero(~vectors.any(axis=1)))


def _num_characters(text: object) -> int:
    """Return the length of a text; 0 for another object, which `Embedder.units` refuses."""
    return len(text) if isinstance(text, str) else 0


class Embedder(ModelUser):
    """A loaded model that computes vectors of texts.

    A pickle of it holds the path of the model folder, these settings and a hash of the files;
    another process opens the folder again when it uses the object.

    Args:
        model: a folder of ours, of transformers or of sentence-transformers, an exported encoder,
            `minilm`, or a hub id; or an open model, which stays on its device.
        pooling, normalize, max_length: None: as in the model's files, else the mean, not
            normalized, and the maximum length of the model.
        windows: the largest number of windows of a text that is longer; they overlap by half, and
            the mean of their vectors is that of the text, before a module Dense and the
            normalization. 0 or 1: the text is truncated, as sentence-transformers does it.
        precision: "auto": bf16 where the hardware is faster with it, else fp32; a single short text
            then uses weights in half precision, which changes the fourth digit. "fp32": exact.
            "int8": 8-bit matrix multiplication; the cosine of MiniLM's vectors with exact ones is
            above .99. A single short text uses half precision too.

    Attributes:
        dimension: of the vectors: the hidden size, unless the model has a module Dense or
            `truncate_dim`.
        normalize_option: the argument `normalize`.
        precision: the precision that "auto" selected.

    Raises:
        BertworksError: no such model, or vectors that bertworks cannot compute.
        UsageError: no such pooling; `max_length` exceeds the model's maximum; no such number of
            windows, or windows of static vectors.
    """

    def __init__(
        self,
        model: str | Path | LazyModel,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        windows: int = 0,
        device: str = "auto",
        precision: PrecisionOption = "auto",
    ):
        known = get_args(Pooling)
        expect(
            pooling in (None, *known),
            f"there is no pooling {pooling!r}",
            hint=f"use one of {', '.join(known)}",
        )
        source = open_model(model, device, embeds=True)
        self._set_opening(
            Embedder,
            source,
            pooling=pooling,
            normalize=normalize,
            max_length=max_length,
            windows=windows,
            precision=precision,
        )
        self.folder = source.within
        settings = source.sentence_transformer.settings
        self.tokenizer = source.tokenizer
        longest = source.config.max_position_embeddings
        self._network, self.precision = _network(source, precision)
        expect(
            max_length is None or 3 <= max_length <= longest,
            f"max_length is {max_length}: the model reads from 3 to {longest} tokens",
        )
        self.settings = replace(
            settings,
            pooling=pooling or settings.pooling,
            normalize=settings.normalize if normalize is None else normalize,
            max_length=max_length
            or min(settings.max_length or longest, self.tokenizer.model_max_length, longest),
        )
        expect(
            0 <= windows <= MOST_WINDOWS,
            f"windows is {windows}: a text is read in at most {MOST_WINDOWS} windows",
            hint=f"a number from 2 to {MOST_WINDOWS}; or 0, which truncates texts",
        )
        expect(
            windows <= 1 or not self.is_static,
            "static vectors have no windows: the vector of a text is the mean of all its tokens",
            where=self.folder,
            hint="leave --windows out",
        )
        self.windows = windows
        self.normalize_option = normalize
        self._modules = vector_network(settings.modules, source.config.hidden_size)
        self.dimension = min(self._modules.size, settings.truncate_dim or self._modules.size)
        fits = self.settings.pooling != "last-four" or not source.exported
        expect(
            fits,
            "an exported model has only the last layer",
            where=self.folder,
            hint="use another pooling, or the model that was exported",
        )
        disable_heap_trim()
        self._is_open()

    def embed(self, texts: Iterable[str], *, prompt: str | None = None) -> Vectors:
        """float32 [texts, dimension].

        The vector of a text does not depend on the other texts (in int8 slightly).

        Args:
            texts: a list of strings.
            prompt: prefix of each text; None: the model's default.

        Raises:
            UsageError: not a list, or not of strings.
        """
        return self.embed_and_count(texts, prompt=prompt)[0]

    def embed_and_count(
        self, texts: Iterable[str], *, prompt: str | None = None, counts: Truncation | None = None
    ) -> tuple[Vectors, Truncation]:
        """Return the vectors, as `embed`, and how much of the texts was truncated.

        Args:
            counts: the counts of earlier calls, to which those of this call are added.

        Raises:
            UsageError: not strings.
        """
        texts = list(texts_of(texts, "embed([text])[0]"))
        counts = Truncation() if counts is None else counts
        vectors = [np.zeros((0, self.dimension), np.float32)]
        for portion_texts in portions_of(texts, _num_characters):
            units, truncated_tokens = self.units(portion_texts, prompt)
            vectors.append(self.finish(self.raw(units)))
            for unit, num_truncated in zip(units, truncated_tokens, strict=True):
                # a truncated text fills the room
                counts.add(self._room, num_truncated, in_windows=len(unit) > 1)
        return np.concatenate(vectors), counts

    def encode(
        self,
        inputs: str | Iterable[Any],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | torch.device | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        task_metadata: Any = None,
        hf_split: str | None = None,
        hf_subset: str | None = None,
        prompt_type: str | None = None,
    ) -> Any:
        """Return vectors as `SentenceTransformer.encode` does, for programs that call this method.

        The vectors are float32 [dimension] for one string, else float32 [texts, dimension]. In
        Python, `embed` is shorter.

        Args:
            inputs: one string; a list, a column or a table of texts; or the batches of a
                DataLoader, as mteb gives them: dicts with a list of texts named "text".
            prompt_name: the name of one of the model's prompts; None: see `prompt_type`.
            prompt: the prefix of each text itself, whatever `prompt_name` is.
            batch_size: has no effect: a batch has a fixed number of tokens, and vectors do not
                depend on it.
            show_progress_bar: whether a line shows the progress; None: no line.
            output_value: "sentence_embedding" is the only one.
            precision: "float32" is the only one.
            convert_to_numpy: whether the result is an array; else it is a list of tensors.
            convert_to_tensor: whether the result is one tensor, whatever `convert_to_numpy` is.
            device: None, or the device of the model.
            normalize_embeddings: whether vectors have length 1, also those of a model that does not
                normalize.
            truncate_dim: how many of the first numbers of each vector are kept, before it is
                normalized.
            task_metadata: the task of mteb: prompts can be named after it, as sentence-transformers
                has it.
            hf_split, hf_subset: of mteb; they have no effect.
            prompt_type: "query" or "document": the prompt with this name (for documents also
                "passage" or "corpus"), and no prompt if the model has none. None: the default
                prompt of the model.

        Raises:
            UsageError: values that are no texts, an unknown prompt, or a value that the argument
                does not have.
            TypeError: an unknown argument.
        """
        expect(
            output_value == "sentence_embedding",
            f"output_value is {output_value!r:.60}: bertworks has only 'sentence_embedding'",
            hint="leave output_value out",
        )
        expect(
            precision == "float32",
            f"precision is {precision!r:.60}: bertworks has only 'float32'",
            hint="leave precision out",
        )
        model_device = choose_device(self._source.device)
        is_same_device = device is None or str(choose_device(str(device))) == str(model_device)
        expect(
            is_same_device,
            f"the device is {str(device)!r}, but the model is on {str(model_device)!r}",
            hint="name the device when the model is opened: Embedder(MODEL, device=DEVICE)",
        )
        expect(batch_size >= 1, f"batch_size is {batch_size!r:.60}: expected 1 or more")
        expect(
            truncate_dim is None or truncate_dim >= 1,
            f"truncate_dim is {truncate_dim!r:.60}: expected 1 or more",
        )
        is_single = isinstance(inputs, str)
        texts = texts_to_encode([inputs] if is_single else inputs)
        prefix = selected_prompt(
            self.settings,
            prompt=prompt,
            prompt_name=prompt_name,
            task_metadata=task_metadata,
            prompt_type=prompt_type,
        )
        portions = [np.zeros((0, self.dimension), np.float32)]
        show_progress(self._encoding(texts, prefix, portions), bool(show_progress_bar))
        vectors = np.concatenate(portions)
        if truncate_dim is not None:
            vectors = np.ascontiguousarray(vectors[:, :truncate_dim])
        if normalize_embeddings:
            vectors = normalized(vectors)
        result: Any = vectors
        if convert_to_tensor:
            result = torch.from_numpy(vectors).to(model_device)
        elif not convert_to_numpy:
            result = list(torch.from_numpy(vectors).to(model_device))
        return result[0] if is_single else result

    def _encoding(
        self, texts: Sequence[str], prompt: str, portions: list[Vectors]
    ) -> Iterator[Event]:
        """Append the vectors of texts to `portions`. Yield the progress."""
        num_encoded = 0
        for portion_texts in portions_of(texts, _num_characters):
            portions.append(self.portion(portion_texts, prompt)[0])
            num_encoded += len(portion_texts)
            yield Event("stage", f"encode: {num_encoded:,} of {len(texts):,} texts")
        yield Event("done", f"encode: {len(texts):,} texts")

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Return how similar each of M vectors is to each of N, as a tensor [M, N].

        The measure is that of the model's files: cosine, dot, or negative euclidean or manhattan
        distance. It is for programs that know sentence-transformers.

        embeddings1: [M, dimension], or one vector. embeddings2: [N, dimension], or one vector.
        """
        measure = self.settings.similarity
        first, second = map(torch.atleast_2d, _compared_tensors(measure, embeddings1, embeddings2))
        if measure in _DISTANCE_ORDERS:
            distances: Tensor = torch.cdist(first, second, p=_DISTANCE_ORDERS[measure])
            return -distances
        products: Tensor = first @ second.T
        return products

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Return how similar each of N vectors is to the vector with the same number, a tensor [N].

        See `similarity`. Both arguments are [N, dimension].
        """
        measure = self.settings.similarity
        first, second = _compared_tensors(measure, embeddings1, embeddings2)
        if measure in _DISTANCE_ORDERS:
            distances: Tensor = torch.linalg.vector_norm(
                first - second, ord=_DISTANCE_ORDERS[measure], dim=-1
            )
            return -distances
        products: Tensor = first * second
        return products.sum(-1)

    @property
    def mteb_model_meta(self) -> Any:
        """The description of the model for mteb, a `ModelMeta`.

        mteb keeps results of earlier evaluations by name and revision. The revision is a hash of
        everything that the vectors depend on, so that mteb never takes the results of other vectors
        for those of this model.

        Raises:
            BertworksError: mteb is not installed.
        """
        with optional_import("mteb_model_meta", "mteb"):
            from mteb.models.model_meta import ModelMeta, ScoringFunction
        vectors_depend_on = {
            **self.fingerprint,
            "normalize_option": self.normalize_option,
            "precision": self.precision,
        }
        content = json.dumps(vectors_depend_on, sort_keys=True)
        fields = {
            "name": f"bertworks/{self._source.name}",
            "revision": hashlib.sha256(content.encode()).hexdigest()[:40],
            "max_tokens": self.settings.max_length,
            "embed_dim": self.dimension,
            "similarity_fn_name": ScoringFunction(self.settings.similarity),
            "use_instructions": any(self.settings.prompts.values()),
            "framework": ["PyTorch"],
        }
        return ModelMeta.create_empty(overwrites=fields)

    def portion(self, texts: Sequence[str], prompt: str | None = None) -> tuple[Vectors, list[int]]:
        """The vectors of texts that fit in memory; and the number of truncated tokens of each."""
        units, truncated = self.units(texts, prompt)
        return self.finish(self.raw(units)), truncated

    def units(
        self, texts: Sequence[str], prompt: str | None = None, *, keep_end: bool = False
    ) -> tuple[list[ExampleGroup], list[int]]:
        """The input of the network for each text; and the number of truncated tokens of each.

        Args:
            keep_end: whether a text that is too long, with its prompt, loses its beginning and not
                its end.

        Raises:
            UsageError: not strings.
        """
        if wrong := [n for n, text in enumerate(texts, 1) if not isinstance(text, str)]:
            raise UsageError(f"text {wrong[0]} is {texts[wrong[0] - 1]!r:.60}: expected a string")
        prefix = self.settings.prompt() if prompt is None else prompt
        inputs = [
            (prefix + text).lower() if self.settings.lowercase else prefix + text for text in texts
        ]
        if self.is_static:
            # The tokenizer takes most of the time: neither offsets nor a template are needed.
            lists = self.tokenizer.ids(inputs, reads_special_tokens=True)
            return self._units(((np.array(ids, np.int64), len(ids)) for ids in lists), keep_end)
        if keep_end:
            arrays = self.tokenizer.arrays(inputs)
            return self._units(((ids, len(ids)) for ids, _ in arrays), keep_end)
        if self.windows > 1:
            leading = self.tokenizer.leading_ids(inputs, self._room)
            return self._units(((self.tokenizer.array(ids), n) for ids, n in leading), keep_end)
        encodings = list(self.tokenizer.encode_each(inputs, max_length=self.settings.max_length))
        units: list[ExampleGroup] = [[example_of(self.tokenizer, e)] for e in encodings]
        return units, [e.num_truncated for e in encodings]

    def units_of_ids(
        self, lists: Sequence[Sequence[int]], prompt: str | None = None, *, keep_end: bool = False
    ) -> tuple[list[ExampleGroup], list[int]]:
        """`units` for texts whose tokens are known already.

        Args:
            lists: for each text the ids of its tokens, with or without the special tokens around
                them.
            prompt: see `embed`.
            keep_end: see `units`.
        """
        prefix = self.settings.prompt() if prompt is None else prompt
        if self.settings.lowercase:
            prefix = prefix.lower()
        ((prompt_ids, _),) = self.tokenizer.arrays([prefix])
        inner = (np.array([*prompt_ids, *self._inner_ids(ids)], np.int64) for ids in lists)
        return self._units(((ids, len(ids)) for ids in inner), keep_end)

    def _inner_ids(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the ids without the special tokens of the template, if these stand around them."""
        template = self.tokenizer.template
        begins = tuple(ids[: len(template.prefix)]) == template.prefix
        ends = tuple(ids[len(ids) - len(template.suffix) :]) == template.suffix
        is_whole = len(ids) >= template.num_special() and begins and ends
        return ids[template.inner(len(ids))] if is_whole else ids

    @property
    def _room(self) -> int:
        """How many tokens of a text the network reads, besides the special tokens."""
        num_special = self.tokenizer.template.num_special()
        return num_tokens_read(self._longest - num_special, self.windows)

    @property
    def _longest(self) -> int:
        """The largest number of tokens of a sequence."""
        return self.settings.max_length or self.tokenizer.model_max_length

    def _units(
        self, texts: Iterable[tuple[NDArray[Any], int]], keep_end: bool
    ) -> tuple[list[ExampleGroup], list[int]]:
        """Return the input of the network for each text, as `units` does.

        texts: the ids of their tokens, without special tokens, or those that are read; and the
            number of all.
        """
        units = list[ExampleGroup]()
        truncated = list[int]()
        for segment in texts:
            read = read_texts(
                [segment],
                self.tokenizer.template,
                self._longest,
                self.windows,
                keep_end=keep_end,
            )
            units.append(read.unit)
            truncated.append(read.num_truncated)
        return units, truncated

    def examples(self, rows: Iterable[tuple[str, ...]], *prompts: str) -> list[Event]:
        """Return notes on the first two rows as the network reads them, and on unknown tokens.

        rows: where each row stands, and its texts. prompts: names of the prompt before them
        (`SentenceTransformerSettings.prompt`).
        """
        prompt = self.settings.prompt(*prompts)
        with_text = [row for row in rows if any(row[1:])]
        units_of_rows = ((where, self.units(texts, prompt)) for where, *texts in with_text[:2])
        features = [
            Features(
                Item((), None, where), list(chain.from_iterable(units)), num_truncated=sum(cut)
            )
            for where, (units, cut) in units_of_rows
        ]
        task = task_of(TaskConfig(task="classification", vectors="pair"))
        notes = Featurizer(self.tokenizer, task).examples(features)
        texts = (" ".join(texts) for _, *texts in with_text)
        return [*notes, *unknown_token_warnings(self.tokenizer, texts)]

    def raw(self, units: Sequence[ExampleGroup]) -> Vectors:
        """float32 [units, size], before normalization and truncation."""
        vectors = compute_vectors(
            self._network, units, self.settings.pooling, self.width, self.precision
        )
        if not self.settings.modules:
            return vectors
        return np.asarray(self._modules(torch.from_numpy(vectors)).numpy())

    def token_vectors(self, units: Sequence[ExampleGroup]) -> list[Vectors]:
        """Return for each unit the last hidden states of its tokens, float32 [tokens, hidden_size].

        Special tokens are included. A text that is read in windows has the states of its first one.
        """

        def compute(batch: Batch) -> Tensor:
            states: list[Tensor] = self._network(*batch.inputs)
            return states[-1][batch.target.positions]

        all_tokens = list[ExampleGroup]()
        for example, *_ in units:
            places = np.arange(len(example.input_ids))
            all_tokens.append(
                [example._replace(targets={"task": Target(places, np.zeros_like(places))})]
            )
        return compute_each(self._network, compute, all_tokens, (self.width,), self.precision)

    @property
    def width(self) -> int:
        """The hidden size of the network."""
        return self._source.config.hidden_size

    @property
    def is_static(self) -> bool:
        """Whether it looks up the vectors of tokens, and takes their mean."""
        return self._source.config.kind == "static"

    def finish(self, vectors: Vectors) -> Vectors:
        """Return the vectors of the model, float32 [units, dimension].

        They have length 1 if the model normalizes; they are truncated after that, as in
        sentence-transformers; and they have length 1 again if the caller of this class normalizes.
        """
        if self.settings.normalize:
            vectors = normalized(vectors)
        if vectors.shape[1] > self.dimension:
            vectors = vectors[:, : self.dimension]
            vectors = normalized(vectors) if self.normalize_option else vectors
        return np.ascontiguousarray(vectors)

    def save(self, folder: str | Path) -> None:
        """Write the model as a folder for sentence-transformers that gives the same vectors.

        Raises:
            UsageError: the folder is not empty.
            BertworksError: sentence-transformers lacks this pooling, or cannot normalize truncated
                vectors.
        """
        folder = local_path(folder)
        refuse_not_empty(folder)
        require(
            self.dimension == self._modules.size or not self.normalize_option,
            "sentence-transformers truncates vectors after it normalizes them: a folder cannot "
            "hold normalize=True",
            self.folder,
            "leave normalize out",
        )
        require(
            self.windows <= 1,
            "sentence-transformers truncates texts: a folder cannot hold windows",
            self.folder,
            "leave windows out",
        )
        self.settings.save(folder, self.width, is_static=self.is_static)
        copy_files(self.folder, folder)

    @property
    def fingerprint(self) -> JsonObject:
        """Everything that the vectors depend on, except the text."""
        settings = vars(self.settings).copy()
        if self.settings.truncate_dim is None:  # fingerprints of an earlier version do not have it
            del settings["truncate_dim"]
        del settings["modules"]
        if self.settings.modules:
            settings["modules"] = [module.fingerprint for module in self.settings.modules]
        if self.windows > 1:  # without them it is that of an earlier version
            settings["windows"] = self.windows
        return self._source.fingerprint | settings


def _network(
    source: LazyModel, option: PrecisionOption
) -> tuple[Stack | InferenceEncoder | OnnxModel, InferencePrecision]:
    """Return the network, and the precision that "auto" selected."""
    if source.exported:
        output = "last_hidden_state", source.config.hidden_size
        return source.session(option, gives=output), "fp32"
    encoder = source.network(Encoder, "encoder.")
    if source.config.kind == "static":
        expect(
            option in ("auto", "fp32"),
            f"static vectors are looked up and not computed: the precision {option!r} would only "
            "make them less exact",
            where=source.within,
            hint="leave --precision out",
        )
        return encoder, "fp32"
    ready, precision = prepared_encoder(encoder, option, source)
    return with_fp16_weights(encoder, ready) if (option, precision) == (
        "auto",
        "fp32",
    ) else ready, precision


def embed(
    model: str | Path,
    texts: Iterable[str],
    *,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    windows: int = 0,
    device: str = "auto",
    precision: PrecisionOption = "auto",
) -> Vectors:
    """Return the vectors of texts, float32 [texts, dimension].

    For more than one call, `Embedder` loads the model only once.

    Args:
        model, pooling, normalize, windows, precision: see `Embedder`.

    Raises:
        UsageError: not a list; no such number of windows.
        BertworksError: no such model.
    """
    texts = list(texts_of(texts, "embed(model, [text])[0]"))  # before the model is loaded
    return Embedder(
        model,
        pooling=pooling,
        normalize=normalize,
        windows=windows,
        device=device,
        precision=precision,
    ).embed(texts)
