"""Translate texts with a network that has a decoder.

- `TranslationNetwork`: an encoder, a decoder and the output layer in a precision: states of
  sources, and the logits of one more token of each hypothesis
- `DecodingRules`, `beam_search`: the best translations of tokens, greedy with a beam of 1
- `Translator`, `translate`: texts -> translations
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from bertworks.batching.batch import token_budget_indices
from bertworks.checkpoints.generation_config import read_decoding
from bertworks.checkpoints.hf_mapping import check_output_layer
from bertworks.errors import expect, quoted, require
from bertworks.events import JsonObject
from bertworks.inference.engine import (
    LazyModel,
    ModelUser,
    open_model,
    precision_for,
    prepared_encoder,
)
from bertworks.inference.onnx_translation import OnnxTranslationNetwork
from bertworks.io.inputs import chunk_by_size
from bertworks.io.tables import texts_of
from bertworks.models.attention import Source
from bertworks.models.cache import KeyValueCache
from bertworks.models.layout import Layout
from bertworks.models.recurrent import DecoderState, LSTMDecoder
from bertworks.models.transformer import (
    InferenceEncoder,
    Product,
    Stack,
    pack_output,
    to_int8_inference,
)
from bertworks.tasks.task import TooManyTokensError
from bertworks.text.marian import split_language, target_languages
from bertworks.text.segmentation import split_sentences
from bertworks.training.device import THREADS, InferencePrecision, PrecisionOption
from bertworks.training.objectives import PretrainingModel

AT_ONCE = 256  # sources that are sorted by length and translated together
BATCH_TOKENS = 4096  # of the sources of a batch, with padding, times the beam
MORE_TOKENS = 50  # that a translation may have beyond those of its source
MOST_BEAMS = 100

FinishReason = Literal["end_token", "max_tokens"]


class Translation(TypedDict):
    """The translation of a text."""

    text: str
    translation: str
    score: float  # the sum of the log-probabilities / length ** length_penalty
    ids: list[int]  # without the token that ends a text
    finish_reason: FinishReason


@dataclass(frozen=True, kw_only=True)
class DecodingRules:
    """How the best translation is looked for.

    The names and meanings are those of generation_config.json of transformers.

    Args:
        beam: The number of hypotheses of a source that are followed at the same time; 1: the most
            probable token each time.
        length_penalty: The score of a hypothesis is the sum of its log-probabilities divided by its
            length, with the token that ends it, to this power.
        no_repeat_ngram: No sequence of this number of tokens is in a translation twice; 0: any may
            be.
        early_stopping: When the search for a source ends: True: with `beam` finished hypotheses;
            False: with as many, none of which the running ones reach at their present length;
            "never": at no length.
        renormalize: Probabilities are normalised again without the forbidden tokens.
        forbidden: Tokens that no translation has.
        forced_end: The token that a translation has at its greatest length, whatever its
            probability; None: any token.
    """

    beam: int = 4
    length_penalty: float = 1.0
    no_repeat_ngram: int = 0
    early_stopping: bool | Literal["never"] = False
    renormalize: bool = False
    forbidden: tuple[int, ...] = ()
    forced_end: int | None = None


class Hypothesis(NamedTuple):
    """A translation in tokens.

    ids: with the token that ends it, if it has one.
    is_limited: whether it ends because it has reached the limit of its length; its last token may
        be an end token that is forced there.
    """

    score: float
    ids: list[int]
    is_limited: bool = False


class TranslationNetwork:
    """The encoder, the decoder and the output layer of a network.

    Args:
        network: with a decoder; it computes without dropout.
        encoder, decoder, output: what computes in place of its parts, in another precision.
    """

    def __init__(
        self,
        network: PretrainingModel,
        encoder: Stack | InferenceEncoder | None = None,
        decoder: Stack | InferenceEncoder | LSTMDecoder | None = None,
        precision: str = "fp32",
    ):
        assert network.decoder is not None
        assert network.lm_head is not None
        self.embeddings = network.encoder.embeddings
        self.encoder = encoder or network.encoder
        self.decoder = decoder or network.decoder
        self.start = network.decoder.start
        self.precision = precision
        weight = self.embeddings.token.weight
        self.device = weight.device
        if encoder is None:
            self._output: Product = partial(F.linear, weight=weight, bias=network.lm_head.bias)
        else:
            self._output = pack_output(weight, network.lm_head.bias, precision)
        self._transform = network.lm_head.transform

    def read(self, sources: Sequence[Sequence[int]]) -> Source:
        """Return the last states of the encoder for sources in tokens."""
        layout = Layout.of(list(map(len, sources)), self.device)
        ids = torch.tensor([number for ids in sources for number in ids], device=self.device)
        with self._autocast():
            return Source(self.encoder(ids, layout)[-1], layout)

    def step(self, tokens: Tensor, source: Source, cache: KeyValueCache | DecoderState) -> Tensor:
        """Return the logits of the next token of each hypothesis, float32 [B, V].

        tokens: int64 [B], the last token of each. source: see `CrossAttention`.
        """
        layout = cache.next_layout()
        with self._autocast():
            embeddings = self.embeddings(tokens, layout)
            states: Tensor = self.decoder(embeddings, layout, source, cache)[-1]
        return self._output(self._transform(states.float())).float()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")


def _prepared(network: PretrainingModel, precision: InferencePrecision) -> TranslationNetwork:
    """Return a network with its parts in their fastest form for a precision."""
    if isinstance(network.decoder, LSTMDecoder):  # nothing of it is packed
        return TranslationNetwork(network, network.encoder, network.decoder)
    assert network.decoder is not None
    encoder, decoder = (
        to_int8_inference(part)  # also for few tokens, which a step of a decoder has
        if precision == "int8"
        else prepared_encoder(part, precision)[0]
        for part in (network.encoder, network.decoder)
    )
    return TranslationNetwork(network, encoder, decoder, precision)


@torch.no_grad()
def beam_search(
    network: TranslationNetwork | OnnxTranslationNetwork,
    sources: Sequence[Sequence[int]],
    start: int,
    ends: Sequence[int],
    limits: Sequence[int],
    rules: DecodingRules = DecodingRules(),
    is_wanted: Callable[[int], bool] = lambda number: True,
) -> list[Hypothesis]:
    """Return the best translation of each source that was found.

    It is the search of transformers: of the 2 * beam best continuations of the hypotheses of a
    source, those that end are candidates if they are among the first `beam`, and the best `beam` of
    the others are continued. Sources do not depend on each other; finished ones leave the batch.

    Args:
        sources: tokens of each, with special tokens.
        start: the token from which the first one of a translation is predicted.
        ends: the tokens that end a translation.
        limits: the largest number of tokens of each translation, with the one that ends it.
        is_wanted: called after each step with the number of each source that is not finished. One
            that is not wanted any more leaves the batch; its translation may be without tokens, and
            its score -infinity.
    """
    device = network.device
    beam = rules.beam
    most = max(limits)
    source = network.read(sources)
    cache: Any = network.start(source, beam, most - 1)  # each network has one of its own
    finished: list[list[Hypothesis]] = [[] for _ in sources]
    running = list(range(len(sources)))  # the numbers of the sources in the cache
    scores = torch.full((len(sources), beam), -torch.inf, device=device)
    scores[:, 0] = 0  # the hypotheses of a source are equal at the beginning
    tokens = torch.zeros(len(sources), beam, most, dtype=torch.int64, device=device)
    last = torch.full((len(sources) * beam,), start, device=device)
    ends_tensor = torch.tensor(list(ends), device=device)
    limits_tensor = torch.tensor(list(limits), device=device)
    for step in range(most):
        count = len(running)
        length = step + 1
        is_last = limits_tensor == length
        logits = network.step(last, source, cache)
        # The normaliser counts forbidden tokens, unless probabilities are normalised again.
        normalizers = None if rules.renormalize else logits.logsumexp(-1, keepdim=True)
        _forbid(logits, tokens[:, :, :step], rules)
        if normalizers is None:
            normalizers = logits.logsumexp(-1, keepdim=True)
        # Of one hypothesis no more than these can be among the best.
        best_logits, best_tokens = logits.topk(min(2 * beam, logits.shape[1]))
        logarithms = best_logits - normalizers
        if rules.forced_end is not None and bool(is_last.any()):
            is_forced = is_last.repeat_interleave(beam)
            logarithms[is_forced] = -torch.inf
            logarithms[is_forced, 0] = 0
            best_tokens[is_forced, 0] = rules.forced_end
        width = logarithms.shape[1]
        totals = (logarithms.view(count, beam, width) + scores[:, :, None]).flatten(1)
        totals, places = totals.topk(min(2 * beam, totals.shape[1]))
        origins = places // width
        continuations = best_tokens.view(count, -1).gather(1, places)
        is_end = torch.isin(continuations, ends_tensor) | is_last[:, None]
        is_candidate = is_end[:, :beam] & totals[:, :beam].isfinite()
        for row, column in is_candidate.nonzero().tolist():
            ids = tokens[row, origins[row, column], :step].tolist()
            token = int(continuations[row, column])
            has_end = rules.forced_end is None and token in ends  # one that is not forced
            hypothesis = Hypothesis(
                totals[row, column].item() / length**rules.length_penalty,
                [*ids, token],
                is_limited=not has_end and length == limits[running[row]],
            )
            candidates = finished[running[row]]
            candidates.append(hypothesis)
            candidates.sort(key=lambda candidate: -candidate.score)
            del candidates[beam:]
        scores, columns = totals.masked_fill(is_end, -torch.inf).topk(beam)
        origins = origins.gather(1, columns)
        continuations = continuations.gather(1, columns)
        tokens = tokens.gather(1, origins[:, :, None].expand(-1, -1, most))
        tokens[:, :, step] = continuations
        unfinished = [
            row
            for row, best in enumerate(scores[:, 0].tolist())
            if not _is_over(finished[running[row]], best, length, limits[running[row]], rules)
            and is_wanted(running[row])
        ]
        if not unfinished:
            break
        rows = torch.arange(count, device=device)
        if len(unfinished) < count:
            rows = torch.tensor(unfinished, device=device)
            running = [running[row] for row in unfinished]
            scores, tokens, continuations, origins, limits_tensor = (
                x[rows] for x in (scores, tokens, continuations, origins, limits_tensor)
            )
        if beam > 1 or len(unfinished) < count:
            hypotheses = (rows[:, None] * beam + origins).flatten()
            cache.keep(hypotheses, None if len(unfinished) == count else rows)
        last = continuations.flatten()
    return [next(iter(candidates), Hypothesis(-torch.inf, [])) for candidates in finished]


def _is_over(
    candidates: Sequence[Hypothesis], best: float, length: int, limit: int, rules: DecodingRules
) -> bool:
    """Return whether the search for the translation of a source has ended.

    best: the sum of the best running hypothesis, which has `length` tokens.
    """
    if length == limit or best == -torch.inf:
        return True
    if len(candidates) < rules.beam:
        return False
    if rules.early_stopping is True:
        return True
    power = rules.length_penalty
    is_at_limit = rules.early_stopping == "never" and power > 0 and rules.beam > 1
    possible: float = best / (limit if is_at_limit else length) ** power
    return candidates[-1].score >= possible


def _forbid(logits: Tensor, tokens: Tensor, rules: DecodingRules) -> None:
    """Set the logits of tokens that a hypothesis must not have next to -infinity.

    logits [B, V]; tokens int64 [sources, hypotheses of a source, length].
    """
    if rules.forbidden:
        logits[:, list(rules.forbidden)] = -torch.inf
    size = rules.no_repeat_ngram
    if not size or tokens.shape[2] < size:
        return
    for row, ids in enumerate(tokens.flatten(0, 1).tolist()):
        beginning = ids[len(ids) - size + 1 :]
        repeated = [
            ids[place + size - 1]
            for place in range(len(ids) - size + 1)
            if ids[place : place + size - 1] == beginning
        ]
        logits[row, repeated] = -torch.inf


def open_network(source: LazyModel) -> PretrainingModel:
    """Return the network of a model with a decoder, in fp32."""
    return source.network(partial(PretrainingModel, objectives={"translation": 1.0}))


def _network_of(
    source: LazyModel, precision: PrecisionOption
) -> tuple[TranslationNetwork | OnnxTranslationNetwork, InferencePrecision]:
    """Return what computes the translations of a model with a decoder, and its precision.

    Raises as `Translator`.
    """
    if source.exported:
        make = partial(OnnxTranslationNetwork, config=source.config)
        return source.exported_network(precision, make), "fp32"
    path = str(source.within / "config.json")
    check_output_layer(source.settings, source.weights, source.config, path, predicts_tokens=True)
    network = open_network(source)
    if source.config.kind == "lstm":
        expect(
            precision in ("auto", "fp32"),
            f"precision {precision}: networks of kind 'lstm' are computed in fp32",
            hint="leave --precision out",
        )
        precision = "fp32"
    chosen = precision_for(network.encoder, precision, source)
    return _prepared(network, chosen), chosen


class Translator(ModelUser):
    """A loaded network that translates texts.

    The model is a folder, a name, or an open model, which stays on its device.

    Args:
        precision: see `Embedder`.

    Raises:
        UsageError: another precision than a network of its kind is computed in.
        BertworksError: no such model, or one without a decoder.
    """

    def __init__(
        self,
        model: str | Path | LazyModel,
        device: str = "auto",
        precision: PrecisionOption = "auto",
    ):
        source = open_model(model, device, translates=True)
        self._set_opening(Translator, source, precision=precision)
        self.where = str(source)
        self.config = source.config
        self.tokenizer = source.tokenizer
        self.languages = target_languages(self.tokenizer.tokens)
        mask = self.tokenizer.special_tokens.get("mask_token", "")
        command = "generate" if self.config.direction == "left_to_right" else "fill"
        require(
            self.config.decoder is not None,
            "this model has no decoder: it cannot translate texts",
            self.where,
            f'bertworks {command} {quoted(source.folder)} "{f"A text {mask}".strip()}"; or train a '
            "translator: bertworks pretrain --parallel SOURCE TARGET -o MODEL --recipe "
            "transformer-tiny",
        )
        self.network, self.precision = _network_of(source, precision)
        assert self.config.decoder is not None
        self.divides_texts = self.config.decoder.divides_texts
        self.decoding = read_decoding(source.within, source.settings)
        self.longest = self.config.max_position_embeddings
        # tokens of the longest text that the training had
        self.longest_trained = min(self.tokenizer.model_max_length, self.longest)
        start = self.decoding.start
        self.start_id = self.tokenizer.start_id if start is None else start
        self.end_ids = self.decoding.ends
        self._is_open()

    @property
    def fingerprint(self) -> JsonObject:
        """Return hashes of the weights and of the tokenizers."""
        return self._source.fingerprint

    @property
    def largest_beam(self) -> int:
        """The largest number of hypotheses of a source that can be followed."""
        return min(MOST_BEAMS, self.config.vocab_size // 2)

    def rules(
        self,
        beam: int | None = None,
        length_penalty: float | None = None,
        no_repeat_ngram: int | None = None,
    ) -> DecodingRules:
        """Return the rules of the model's files, with options in place of some of them.

        Raises:
            UsageError: an option outside its range.
        """
        options = {
            "beam": beam,
            "length_penalty": length_penalty,
            "no_repeat_ngram": no_repeat_ngram,
        }
        chosen = {name: value for name, value in options.items() if value is not None}
        rules = DecodingRules(**{**self.decoding.rules, **chosen})
        most = self.largest_beam
        expect(1 <= rules.beam <= most, f"beam is {rules.beam}: expected a number from 1 to {most}")
        expect(
            abs(rules.length_penalty) <= 10,
            f"length_penalty is {rules.length_penalty}: expected a number from -10 to 10",
        )
        expect(
            rules.no_repeat_ngram >= 0,
            f"no_repeat_ngram is {rules.no_repeat_ngram}: expected 1 or more, or 0 for no rule",
        )
        # Greedy decoding ends with the first end token; "never" concerns beams.
        return replace(rules, early_stopping=False) if rules.beam == 1 else rules

    def __call__(
        self,
        texts: Iterable[str],
        rules: DecodingRules | None = None,
        *,
        max_tokens: int | None = None,
        target_language: str | None = None,
        cuts: bool = False,
    ) -> Iterator[Translation]:
        """Yield the translation of each text, in order.

        A text with more tokens than the longest source of the training is divided into groups of
        sentences, and their translations are joined; a model for summaries divides no text. A text
        without tokens has an empty translation.

        Args:
            rules: None: those of the model.
            max_tokens: of the translation of a text, or of a sentence of a long one; None: that of
                the model, else MORE_TOKENS more than the source has.
            target_language: of the translations, for a model with several; None: each text begins
                with it, as in ">>deu<< A text".
            cuts: whether the end of a sentence that is too long, or of a text that is not divided,
                is left out; else it is refused.

        Raises:
            UsageError: a text that is not a string; a language that the model does not have, or
                none where it has several.
            BertworksError: a sentence with more tokens than the network reads, or such a text that
                is not divided.
        """
        rules = rules or self.rules()
        expect(
            max_tokens is None or max_tokens >= 1,
            f"max_tokens is {max_tokens}: expected a number from 1",
        )
        number = 0
        for chunk in chunk_by_size(texts, AT_ONCE):
            parts: list[list[list[int]]] = []
            for text in chunk:
                number += 1
                parts.append(self.sources(text, number, target_language, cuts))
            sources = [ids for part in parts for ids in part]
            hypotheses = iter(self.hypotheses(sources, rules, max_tokens))
            for text, part in zip(chunk, parts, strict=True):
                yield self.joined(text, [next(hypotheses) for _ in part])

    def sources(
        self, text: str, number: int, target_language: str | None, cuts: bool
    ) -> list[list[int]]:
        """Return the tokens of a text, or of groups of its sentences.

        A text is divided into groups if it has more tokens than the longest source of the training.
        Only a group of one sentence may then be longer. A model for summaries divides no text. Each
        source begins with the token of the target language, if the model has several. A text
        without tokens has no sources.

        Args:
            number: of the text, for an error.
            target_language, cuts: see `__call__`.

        Raises:
            UsageError: a language that the model does not have, or none where it has several.
            TooManyTokensError: a sentence with more tokens than the network reads, or such a text
                that is not divided.
        """
        start: list[int] = []
        # A wrong language is an error, even if there is nothing to translate into it.
        if text.strip() or target_language is not None:
            start, text = split_language(text, self.languages, target_language)
        usual = self.longest_trained - len(start)
        room = self.longest - len(start)
        if not text.strip():
            return []
        ids = self.tokenizer.encode(text).ids
        if len(ids) <= usual:
            return [[*start, *ids]]
        divides = self.divides_texts
        what = "has a sentence of" if divides else "has"
        groups: list[str] = []
        for sentence in split_sentences(text) if divides else [text]:
            joined = f"{groups[-1]} {sentence}" if groups else ""
            if joined and len(self.tokenizer.encode(joined).ids) <= usual:
                groups[-1] = joined
            else:
                groups.append(sentence)
        suffix = list(self.tokenizer.template.suffix)
        parts = []
        for group in groups:
            ids = self.tokenizer.encode(group).ids
            if len(ids) > room and not cuts:
                raise TooManyTokensError(
                    f"text {number} {what} {len(ids):,} tokens: the model reads {room:,}: "
                    f"{group[:60]!r}",
                    where=self.where,
                    hint="shorten it; or --cut leaves out its end",
                )
            if len(ids) > room:
                ids = ids[: room - len(suffix)] + suffix
            parts.append([*start, *ids])
        return parts

    def hypotheses(
        self,
        sources: Sequence[list[int]],
        rules: DecodingRules,
        max_tokens: int | None,
        is_wanted: Callable[[int], bool] = lambda number: True,
    ) -> list[Hypothesis]:
        """Return the best hypothesis of each source, computed in batches of similar length.

        Args:
            sources: see the method `sources`.
            is_wanted: see `beam_search`.
        """
        results: list[Hypothesis] = [Hypothesis(0.0, [])] * len(sources)
        lengths = list(map(len, sources))
        budget = max(BATCH_TOKENS // rules.beam, *lengths, 1) if lengths else 1
        most = max_tokens or self.decoding.max_tokens
        longest = self.config.max_position_embeddings
        for numbers in token_budget_indices(lengths, [1] * len(lengths), budget):
            THREADS.adapt()
            limits = [min(longest, most or lengths[number] + MORE_TOKENS) for number in numbers]
            hypotheses = beam_search(
                self.network,
                [sources[number] for number in numbers],
                self.start_id,
                self.end_ids,
                limits,
                rules,
                lambda place, numbers=numbers: is_wanted(numbers[place]),  # type: ignore[misc]
            )
            for number, hypothesis in zip(numbers, hypotheses, strict=True):
                results[number] = hypothesis
        return results

    def joined(self, text: str, hypotheses: Sequence[Hypothesis]) -> Translation:
        """Return the translation of a text whose sources have these hypotheses.

        Raises:
            BertworksError: there is no hypothesis, because the logits are no numbers.
        """
        require(
            all(hypothesis.ids for hypothesis in hypotheses),
            "the network's output has values that are not finite: there is no translation",
            self.where,
            "the model is damaged, or its training failed: use another one",
        )
        texts = []
        ids = []
        reason: FinishReason = "end_token"
        for hypothesis in hypotheses:
            part = hypothesis.ids
            if part and part[-1] in self.end_ids:
                part = part[:-1]
            if hypothesis.is_limited:
                reason = "max_tokens"
            ids += part
            texts.append(self.tokenizer.target.decode(part, skip_special_tokens=True).strip())
        scores = [hypothesis.score for hypothesis in hypotheses]
        return Translation(
            text=text,
            translation=re.sub(r"\s+", " ", " ".join(texts)) if len(texts) > 1 else "".join(texts),
            score=sum(scores) / max(1, len(scores)),
            ids=ids,
            finish_reason=reason,
        )


def translate(
    model: str | Path | LazyModel,
    texts: Iterable[str],
    *,
    beam: int | None = None,
    length_penalty: float | None = None,
    max_tokens: int | None = None,
    no_repeat_ngram: int | None = None,
    target_language: str | None = None,
    cut: bool = False,
    device: str = "auto",
    precision: PrecisionOption = "auto",
) -> Iterator[Translation]:
    """Yield the translation of each text by a network with an encoder and a decoder, in order.

    A text with more tokens than the longest source of the training is divided into groups of
    sentences, and their translations are joined. An empty text has an empty translation.

    Args:
        model: a folder or a name; or an open model, which stays on its device.
        beam: hypotheses that are followed at the same time; 1: the most probable token each time.
            None: those of the model, else 4.
        length_penalty: the score of a hypothesis is the sum of its log-probabilities divided by its
            length to this power. None: that of the model, else 1.
        max_tokens: of a translation; None: that of the model, else 50 more than the source has.
        no_repeat_ngram: no sequence of this number of tokens is in a translation twice. None: that
            of the model, else any may be.
        target_language: of the translations, as "deu", for a model with several; None: each text
            begins with it, as in ">>deu<< A text".
        cut: leave out the end of a sentence, or of a text to summarize, that is longer than the
            network reads.
        precision: see `Embedder`.

    Raises:
        UsageError: one text and no list; an option outside its range.
        BertworksError: no such model, or one without a decoder; a sentence with more tokens than
            the network reads.

    Example:
        >>> [answer["translation"] for answer in bw.translate("mt", ["A man rides."])]
        ['Ein Mann reitet.']
    """
    texts = texts_of(texts, "translate(model, [text])")
    translator = Translator(model, device, precision)
    rules = translator.rules(beam, length_penalty, no_repeat_ngram)
    yield from translator(
        texts, rules, max_tokens=max_tokens, target_language=target_language, cuts=cut
    )
