"""Compute with networks that read from left to right.

- `CausalModel`: texts -> tokens, hidden states, logits, in a precision
- `log_likelihoods`: the probability of every token given those before it, in one pass
- `TextGenerator`, `generate`: prompts -> continuations, greedy or sampled, in batches, with a cache
  of keys and values
- `next_token_probabilities`: logits -> what is sampled from
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.batching.batch import Batch, token_budget_indices
from bertworks.batching.examples import Example, Ids, Target
from bertworks.checkpoints.generation_config import GenerationConfig, read_generation_config
from bertworks.checkpoints.hf_mapping import check_output_layer
from bertworks.checkpoints.storage import read_json
from bertworks.errors import expect, listed, quoted, require
from bertworks.inference.engine import (
    MAX_SCORES,
    LazyModel,
    ModelUser,
    compute_each,
    open_model,
    precision_for,
    prepared_encoder,
)
from bertworks.io.inputs import chunk_by_size
from bertworks.io.tables import texts_of
from bertworks.models.cache import KeyValueCache
from bertworks.models.layout import Layout
from bertworks.models.transformer import pack_output, to_int8_inference
from bertworks.training.device import THREADS, PrecisionOption
from bertworks.training.objectives import PretrainingModel

AT_ONCE = 64  # texts that are tokenized, or sorted by length and continued, together

# Each token given those before it; or given all others, when it alone is masked.
Measure = Literal["log_likelihood", "pseudo_log_likelihood"]


class Score(TypedDict):
    """The score of a sentence.

    Natural logarithms.
    """

    text: str
    score: float  # the sum of `log_probabilities`, at most 0
    tokens: list[str]
    log_probabilities: list[float]  # of each token
    measure: Measure


def make_score(
    text: str, tokens: list[str], values: NDArray[np.float32], measure: Measure
) -> Score:
    """Return the score of a sentence. values: the log-probability of each token."""
    exact = values.astype(np.float64)
    return Score(
        text=text,
        score=float(exact.sum()),
        tokens=tokens,
        log_probabilities=exact.tolist(),
        measure=measure,
    )


class CausalModel:
    """An open network that reads from left to right, with its output layer, in a precision.

    Attributes:
        longest: the largest number of tokens that it reads.
        is_endless: whether a text may be longer: the network reads distances of tokens and no
            positions, so that the first tokens can be dropped (Dai et al. 2019).
        end_ids: the tokens that end a text, those of generation_config.json first.
        start_ids: the end token that stands between the texts of a training, if there is one.
        generation: what generation_config.json says.

    Raises:
        BertworksError: it reads in both directions, it is an exported one, or the weights lack the
            head.
    """

    def __init__(self, source: LazyModel, precision: PrecisionOption = "auto"):
        self.tokenizer = source.tokenizer
        self.config = source.config
        self.where = str(source)
        mask = self.tokenizer.special_tokens.get("mask_token", "a mask")
        require(
            self.config.direction == "left_to_right",
            "this model reads in both directions: it cannot continue texts",
            self.where,
            f'bertworks fill {quoted(source.folder)} "a text with {mask}"',
        )
        path = str(source.within / "config.json")
        check_output_layer(source.settings, source.weights, self.config, path, predicts_tokens=True)
        network = source.network(partial(PretrainingModel, objectives={"causal_lm": 1.0}))
        assert network.lm_head is not None
        self.precision = precision_for(network.encoder, precision, source)
        self.encoder = (
            to_int8_inference(network.encoder)  # also for few tokens, which a pass with a cache has
            if self.precision == "int8"
            else prepared_encoder(network.encoder, self.precision)[0]
        )
        self._transform = network.lm_head.transform
        self._output = pack_output(
            network.encoder.embeddings.token.weight, network.lm_head.bias, self.precision
        )
        self.device = network.encoder.embeddings.token.weight.device
        self.longest = self.config.max_position_embeddings
        self.is_endless = self.config.position_embedding_type == "relative"
        self.generation = read_generation_config(source.within)
        ends = _end_ids(source)
        self.start_ids = ends[:1]
        if self.generation.end_ids is not None:
            ends = [
                number for number in self.generation.end_ids if number < self.tokenizer.vocab_size
            ]
        self.end_ids = ends

    def states(
        self,
        ids: Tensor,
        layout: Layout,
        rows: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Return the last hidden states; see `Encoder.forward`."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            states: list[Tensor] = self.encoder(ids, layout, None, rows, cache=cache)
        return states[-1]

    def logits(self, states: Tensor) -> Tensor:
        """[M, hidden] -> [M, vocabulary].

        The network may have more tokens than the tokenizer.
        """
        return self._output(self._transform(states.float()))

    def prompt(self, text: str, number: int) -> list[int]:
        """Return the tokens of a text, with those of the template in front of it.

        Raises:
            UsageError: it is not a string.
            BertworksError: it has no tokens, or the network cannot read it and one more token.
        """
        ids = self.tokenizer.encode(text).ids
        ids = ids[: len(ids) - len(self.tokenizer.template.suffix)]
        require(ids, f"text {number} has no tokens: {text[:60]!r}", "", "begin it with a word")
        require(
            len(ids) < self.longest or self.is_endless,
            f"text {number} has {len(ids):,} tokens: the model reads {self.longest:,}, with "
            "those that it adds",
            self.where,
            "shorten the text",
        )
        return ids


def _end_ids(source: LazyModel) -> list[int]:
    """Return the tokens that end a text; [] without any.

    They are those of config.json, else of tokenizer_config.json, else the one that the template
    puts after a text, as BERT's [SEP].
    """
    end = source.settings.get("eos_token_id")
    path = source.within / "tokenizer_config.json"
    if end is None and path.exists():
        token = read_json(path).get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        end = source.tokenizer.tokens.index(token) if token in source.tokenizer.tokens else None
    if end is None:
        end = list(source.tokenizer.template.suffix[:1])
    numbers = end if isinstance(end, list) else [end]
    return [
        number
        for number in numbers
        if type(number) is int and 0 <= number < source.tokenizer.vocab_size
    ]


def log_likelihoods(model: CausalModel, sentences: Iterable[str]) -> Iterator[Score]:
    """Yield the log-likelihood of each sentence, in order.

    It is the log-probability of every token given those before it, in one pass.

    The first token is predicted from the special tokens of the template, or from the end token,
    which stands between the texts of a training. Without either it is not predicted, and `tokens`
    begins with the second. Special tokens in a sentence are ordinary text. A sentence that is
    longer than the network reads is computed in windows: each token is predicted from half of the
    maximum number of tokens or more.

    Raises:
        BertworksError: a sentence without a token that can be predicted.
    """
    t = model.tokenizer
    start = list(t.template.prefix) or model.start_ids
    first = len(start) or 1
    size = max(1, MAX_SCORES // model.config.vocab_size)  # rows of logits in one product

    def log_probabilities(batch: Batch) -> Tensor:
        """Return the log-probabilities of the labels of a batch, float32 [M]."""
        states = model.states(batch.input_ids, batch.layout, batch.target.positions)
        results = []
        for rows, labels in zip(states.split(size), batch.target.labels.split(size), strict=True):
            logits = model.logits(rows).float()
            results.append(logits.gather(1, labels[:, None])[:, 0] - logits.logsumexp(-1))
        return torch.cat(results)

    number = 0
    for texts in chunk_by_size(sentences, AT_ONCE):
        sequences = [np.array([*start, *ids], np.int64) for ids in t.ids(texts)]
        for text, ids in zip(texts, sequences, strict=True):
            number += 1
            require(
                len(ids) > first,
                f"sentence {number} has no tokens{'' if start else ' to predict'}: {text[:60]!r}",
                "",
                "leave it out"
                if start
                else "give a longer one: this model cannot predict the first token",
            )
        units = [list(_windows(ids, first, model.longest)) for ids in sequences]
        results = compute_each(
            model.encoder, log_probabilities, units, (), model.precision, splits_units=True
        )
        for text, ids, values in zip(texts, sequences, results, strict=True):
            yield make_score(text, [t.tokens[n] for n in ids[first:]], values, "log_likelihood")


def _windows(ids: Ids, first: int, longest: int) -> Iterator[Example]:
    """Yield sequences of up to `longest` tokens that predict the tokens from `first` on.

    Each of these is predicted once.
    """
    begin = 0
    while first < len(ids):
        end = min(len(ids) - 1, begin + longest)
        labels = np.arange(first, end + 1)
        tokens = ids[begin:end]
        target = Target(labels - 1 - begin, ids[labels])
        yield Example(tokens, np.zeros_like(tokens), {"next_token": target})
        first = end + 1
        begin = end - longest // 2


CACHE_BYTES = 1 << 30  # of keys and values of a batch
_LIKELY = 1024  # tokens that are sorted first for top_p: they nearly always suffice
# tokens before a stop string that are decoded with it: a decoder may change the first of them
_AROUND_STOP = 8
_KEPT = 0.75  # fraction of unfinished texts below which the finished ones leave the cache

FinishReason = Literal["end_token", "stop", "max_tokens", "context"]


class Generation(TypedDict):
    """A text and its continuation."""

    text: str  # the prompt
    continuation: str  # without the end token, and without the stop string and what follows it
    ids: list[int]  # all tokens that were generated, without the end token
    # The end token; a stop string; max_tokens; or the text is as long as the network can read.
    finish_reason: FinishReason


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How the next token is chosen.

    Args:
        max_tokens: of a continuation.
        temperature: 0: the most probable token. Else logits are divided by it.
        top_k: sample among the k most probable tokens; None: among all.
        top_p: sample among the most probable tokens that have this probability together (Holtzman
            et al. 2020, section 3.1), after `top_k`; None: among all.
        seed: of the random numbers.
        stop: strings at which a continuation ends.
        sampling: "model": the temperature, `top_k` and `top_p` of the model's
            generation_config.json.

    Raises:
        UsageError: a value outside its range; one string and no list of them; `top_k` or `top_p` at
            temperature 0, where they change nothing; a temperature, `top_k` or `top_p` beside
            `sampling`.
    """

    max_tokens: int = 50
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    stop: Iterable[str] = ()  # becomes a tuple
    sampling: Literal["options", "model"] = "options"

    def __post_init__(self) -> None:
        object.__setattr__(
            self,
            "stop",
            tuple(listed(self.stop, "give a list of strings", "stop string", ordered=False)),
        )
        rules = [
            (self.max_tokens >= 1, "max_tokens is {max_tokens}: expected 1 or more"),
            (
                0 <= self.temperature < float("inf"),
                "temperature is {temperature}: expected a number from 0",
            ),
            (self.top_k is None or self.top_k >= 1, "top_k is {top_k}: expected 1 or more"),
            (
                self.top_p is None or 0 < self.top_p <= 1,
                "top_p is {top_p}: expected a number above 0, up to 1",
            ),
            (self.seed >= 0, "seed is {seed}: expected a whole number from 0"),
            (all(self.stop), "a stop string is empty"),
            (
                self.sampling in ("options", "model"),
                "sampling is {sampling!r}: expected 'options' or 'model'",
            ),
        ]
        for holds, message in rules:
            expect(holds, message.format_map(vars(self)))
        samples = self.temperature > 0 or (self.top_k, self.top_p) == (None, None)
        expect(
            samples,
            "top_k and top_p change nothing at temperature 0, which takes the most probable token",
            hint="add --temperature 1, or leave them out",
        )
        has_options = (self.temperature, self.top_k, self.top_p) != (0.0, None, None)
        expect(
            not (has_options and self.sampling == "model"),
            "temperature, top_k and top_p are those of the model with sampling 'model'",
            hint="leave --sampling out, or the others",
        )

    def of_model(self, generation: GenerationConfig) -> "SamplingOptions":
        """Return these options, or with `sampling` "model" those of the model.

        They are in its generation_config.json.

        Raises:
            BertworksError: the file asks for what is not computed here.
        """
        if self.sampling == "options":
            return self
        generation.require_computed()
        return replace(
            self,
            temperature=generation.temperature,
            top_k=generation.top_k,
            top_p=generation.top_p,
            sampling="options",
        )


def next_token_probabilities(
    logits: Tensor, temperature: float, top_k: int | None = None, top_p: float | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the probabilities of the next tokens, and these tokens, the most probable first.

    float [B, V] -> float64 [B, n], which sum to 1, and int64 [B, n]; None: all tokens in order.
    Temperature, top_k and top_p are applied in this order, each to the probabilities that remain.
    """
    size = logits.shape[1]
    scores = (logits.float() - logits.float().amax(-1, keepdim=True)) / temperature
    if top_k is None and top_p is None:
        return scores.double().softmax(-1), None
    values, tokens = scores.topk(min(top_k or _LIKELY, size))
    p = values.double().softmax(-1)
    if top_k is None:
        p = (values.double() - scores.double().logsumexp(-1, keepdim=True)).exp()
        if len(p[0]) < size and bool((p.sum(-1) < (top_p or 1)).any()):
            values, tokens = scores.sort(descending=True)
            p = values.double().softmax(-1)
    if top_p is not None:
        before = p.cumsum(-1) - p
        p = torch.where(before < top_p, p, 0.0)
    return p / p.sum(-1, keepdim=True), tokens


def _largest(logits: Tensor) -> Tensor:
    """[B, V] -> int64 [B]: the first of the largest.

    On a CPU numpy takes a tenth of the time of torch.
    """
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    return torch.from_numpy(logits.float().numpy().argmax(-1))


def sampled(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Return the columns in which the sums of the probabilities pass these numbers.

    float64 [B, n], and float64 [B] from 0 to below 1 -> int64 [B].
    """
    sums = probabilities.cumsum(-1)
    total = sums[:, -1:]
    below = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(sums, below, right=True)[:, 0]


def random_numbers(seed: int, prompt: Sequence[int], copy: int, count: int) -> NDArray[np.float64]:
    """float64 [count] from 0 to below 1.

    They depend on the seed, the prompt and the number of earlier copies of it alone: not on the
    other texts of a batch.
    """
    key = hashlib.sha256(f"{seed} {copy} {','.join(map(str, prompt))}".encode()).digest()[:16]
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little"))).random(count)


@dataclass
class _Continuation:
    """A text in progress."""

    text: str
    prompt: list[int]
    copy: int  # earlier copies of the same prompt
    limit: int  # tokens
    ids: list[int]
    reason: FinishReason = "max_tokens"


class TextGenerator(ModelUser):
    """A loaded network that continues texts.

    The model is a folder, a name, or an open model, which stays on its device.

    Args:
        precision: see `Embedder`.

    Raises:
        BertworksError: no such model; one that reads in both directions, or an exported one.
    """

    def __init__(
        self,
        model: str | Path | LazyModel,
        device: str = "auto",
        precision: PrecisionOption = "auto",
    ):
        source = open_model(model, device, predicts_tokens=True)
        self._set_opening(TextGenerator, source, precision=precision)
        self.model = CausalModel(source, precision)
        self._is_open()

    def __call__(
        self, texts: Iterable[str], options: SamplingOptions = SamplingOptions()
    ) -> Iterator[Generation]:
        """Yield the continuation of each text, in order.

        Texts are computed in batches of similar length.

        Raises:
            UsageError: a text that is not a string.
            BertworksError: a text without tokens, or one that fills all positions of the network; a
                sampling of the model that is not computed here.
        """
        options = options.of_model(self.model.generation)
        copies: Counter[bytes] = Counter()
        number = 0
        for chunk in chunk_by_size(texts, AT_ONCE):
            group = []
            for text in chunk:
                number += 1
                prompt = self.model.prompt(text, number)
                digest = hashlib.sha256(np.array(prompt, np.int32).tobytes()).digest()
                limit = options.max_tokens
                if not self.model.is_endless:
                    limit = min(limit, self.model.longest - len(prompt))
                group.append(_Continuation(text, prompt, copies[digest], limit, []))
                copies[digest] += 1
            # Where the network limits the text, all have the same length, but not their prompts.
            by_prompt = sorted(group, key=lambda continuation: len(continuation.prompt))
            longest = self.model.longest
            lengths = [min(longest, len(c.prompt) + c.limit) for c in by_prompt]
            for numbers in token_budget_indices(lengths, [1] * len(group), self._max_tokens):
                self._continue([by_prompt[number] for number in numbers], options)
            for continuation in group:
                yield self._finished(continuation, options)

    @property
    def _max_tokens(self) -> int:
        """The tokens of a batch, with padding, that a cache of CACHE_BYTES holds."""
        c = self.model.config
        return CACHE_BYTES // (c.num_hidden_layers * 2 * c.hidden_size * 4)

    def _continue(self, batch: list[_Continuation], options: SamplingOptions) -> None:
        """Fill `ids` and `reason` of the texts of a batch."""
        THREADS.adapt()
        model = self.model
        device = self.model.device
        most = max(continuation.limit for continuation in batch)
        # only an endless text may be longer
        prompts = [continuation.prompt[-(model.longest - 1) :] for continuation in batch]
        layout = Layout.of([len(prompt) for prompt in prompts], device)
        room = most - 1
        if model.is_endless:
            room = min(room, model.longest - layout.max_seqlen)
        cache = KeyValueCache(model.config.num_hidden_layers, layout, room)
        choose = self._chooser(batch, options, most)
        ends = torch.tensor(model.end_ids, dtype=torch.int64, device=device)
        limits = torch.tensor([continuation.limit for continuation in batch], device=device)
        tokens = torch.zeros(len(batch), most, dtype=torch.int64, device=device)
        counts = torch.zeros(len(batch), dtype=torch.int64, device=device)  # of finished texts
        rows = torch.arange(len(batch), device=device)  # of the batch, that are in the cache
        live = torch.ones_like(rows, dtype=torch.bool)
        ids = torch.tensor([number for prompt in prompts for number in prompt], device=device)
        with torch.no_grad():
            states = model.states(ids, layout, layout.last.long(), cache)
            for step in range(most):
                chosen = choose(model.logits(states)[:, : model.tokenizer.vocab_size], rows, step)
                tokens[rows, step] = chosen
                done = torch.isin(chosen, ends) | (limits[rows] == step + 1)
                if options.stop:
                    done |= self._has_stop(tokens, rows, live, step + 1, options.stop)
                counts[rows[live & done]] = step + 1
                live = live & ~done
                unfinished = int(live.sum())
                if unfinished == 0:
                    break
                # A finished text is computed on until it leaves the cache: it must not run out of
                # positions.
                if unfinished < _KEPT * len(rows) or cache.num_columns == model.longest:
                    unfinished_rows = live.nonzero()[:, 0]
                    cache.keep(unfinished_rows)
                    rows = rows[unfinished_rows]
                    chosen = chosen[unfinished_rows]
                    live = live[unfinished_rows]
                if model.is_endless:
                    cache.make_room(model.longest)
                states = model.states(chosen, cache.next_layout(), cache=cache)
        for continuation, new_ids, count in zip(
            batch, tokens.tolist(), counts.tolist(), strict=True
        ):
            continuation.ids = new_ids[:count]
            if continuation.ids[-1] in model.end_ids:
                continuation.ids = continuation.ids[:-1]
                continuation.reason = "end_token"
            elif count == continuation.limit < options.max_tokens:
                continuation.reason = "context"

    def _chooser(
        self, batch: list[_Continuation], options: SamplingOptions, most: int
    ) -> Callable[[Tensor, Tensor, int], Tensor]:
        """Return a function that chooses the next tokens.

        Logits [B', V], rows of the batch int64 [B'] and the step -> int64 [B'].
        """
        if options.temperature == 0:
            return lambda logits, rows, step: _largest(logits)
        numbers = [
            random_numbers(options.seed, continuation.prompt, continuation.copy, most)
            for continuation in batch
        ]
        uniform = torch.from_numpy(np.stack(numbers)).to(self.model.device)

        def choose(logits: Tensor, rows: Tensor, step: int) -> Tensor:
            p, tokens = next_token_probabilities(
                logits, options.temperature, options.top_k, options.top_p
            )
            columns = sampled(p, uniform[rows, step])
            return columns if tokens is None else tokens.gather(1, columns[:, None])[:, 0]

        return choose

    def _has_stop(
        self, tokens: Tensor, rows: Tensor, live: Tensor, count: int, stop: Iterable[str]
    ) -> Tensor:
        """Return whether the last of `count` tokens completes a stop string: bool [B'].

        Every token but a special one has a byte or more, so the last tokens are enough.
        """
        longest = max(len(text.encode("utf-8", "replace")) for text in stop) + _AROUND_STOP
        # the whole is decoded only if its end has a stop string
        begins = max(0, count - longest), 0
        ids_of_rows = tokens[rows, :count].tolist()
        has_stop = [
            alive
            and all(any(end in self._decoded(ids[begin:]) for end in stop) for begin in begins)
            for ids, alive in zip(ids_of_rows, live.tolist(), strict=True)
        ]
        return torch.tensor(has_stop, device=tokens.device)

    def _decoded(self, ids: Sequence[int]) -> str:
        return self.model.tokenizer.decode(ids, skip_special_tokens=False)

    def _finished(self, continuation: _Continuation, options: SamplingOptions) -> Generation:
        """Return the result for a text.

        Decoders may change the first token of a text (a space before it), so that the continuation
        is the end of the whole text.
        """
        before = self._decoded(continuation.prompt)
        whole = self._decoded([*continuation.prompt, *continuation.ids])
        new_text = (
            whole.removeprefix(before)
            if whole.startswith(before)
            else self._decoded(continuation.ids)
        )
        places = [new_text.find(text) for text in options.stop if text in new_text]
        if places:
            new_text = new_text[: min(places)]
            continuation.reason = "stop"
        return Generation(
            text=continuation.text,
            continuation=new_text,
            ids=continuation.ids,
            finish_reason=continuation.reason,
        )


def generate(
    model: str | Path | LazyModel,
    texts: Iterable[str],
    *,
    max_tokens: int = 50,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: Iterable[str] = (),
    sampling: Literal["options", "model"] = "options",
    device: str = "auto",
    precision: PrecisionOption = "auto",
) -> Iterator[Generation]:
    """The continuation of each text by a model that reads from left to right (GPT-2), in order.

    A continuation ends at an end token of the model (those of generation_config.json, else that of
    config.json), at a stop string, after `max_tokens`, or where the text has as many tokens as the
    model reads: `finish_reason` says which. A Transformer-XL has no such limit; of a longer text it
    reads the last tokens.

    At temperature 0 each token is the most probable one. Else tokens are drawn, with random numbers
    that depend on the seed and the text alone, not on the other texts; equal texts get different
    ones. In bf16 the last digits of logits depend on the batch, and rarely so does a token.

    Args:
        model: a folder or a name; or an open model, which stays on its device.
        max_tokens: of a continuation.
        temperature: 0: no sampling; 1: the probabilities of the model.
        top_k: sample among the k most probable tokens.
        top_p: sample among the most probable tokens that have this probability together, after
            `top_k` (Holtzman et al. 2020, section 3.1).
        stop: strings at which a continuation ends; they are not part of it.
        sampling: "model": the temperature, `top_k` and `top_p` of the model's
            generation_config.json, in place of these options.
        precision: see `Embedder`.

    Raises:
        UsageError: one text and no list; an option outside its range.
        BertworksError: no such model, or one that reads in both directions; a text without tokens,
            or with as many as the model reads.
    """
    texts = texts_of(texts, "generate(model, [text])")
    options = SamplingOptions(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop,
        sampling=sampling,
    )
    yield from TextGenerator(model, device, precision)(texts, options)
