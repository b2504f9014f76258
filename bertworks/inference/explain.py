"""Explains a prediction: attributions of words, attention, and similarity of tokens.

- `explain`: a model and a text -> `Explanation`
- `Explanation`: values, a table for a terminal, and an HTML page without external files
- `integrated_gradients` of tokens, `occlusion` of words: how much each contributes to an output
- `read_tokens`: which tokens a hidden state depends on
"""

import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertworks.batching.batch import Batch, collate
from bertworks.batching.examples import Example, Ids, Target
from bertworks.checkpoints.hf_config import component_names
from bertworks.errors import UsageError, expect, require
from bertworks.events import JsonObject
from bertworks.inference.engine import LazyModel, open_model
from bertworks.inference.masked_lm import Discriminator, load_masked_lm
from bertworks.inference.predictor import Predictor, item_of
from bertworks.inference.translation import Translator, open_network
from bertworks.io.atomic_write import write_bytes
from bertworks.models.attention import Source
from bertworks.models.layout import Layout
from bertworks.models.transformer import Encoder
from bertworks.reports.svg import Section, details, grid, headline, html, note, page, render
from bertworks.tasks.sequences import Features
from bertworks.tasks.task import Attributed, log_odds
from bertworks.text.marian import split_language
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.objectives import PretrainingModel

ATTRIBUTION_TOKENS = 4096  # of a batch of copies
FEWEST_STEPS = 32
MOST_STEPS = 512
MOST_TOKENS = 1 << 15  # of all copies: long texts get fewer steps
TOLERANCE = 0.01  # of the sum of absolute attributions
# of a network, for copies of one sequence: [copies], with gradients
Output = Callable[[Sequence[Example]], Tensor]


@dataclass(frozen=True)
class IntegratedGradients:
    """attributions: float64 [n].

    They should sum to `end - start`, the output for the sequence minus the output for the baseline
    (completeness). `error` is the difference.
    """

    attributions: NDArray[np.float64]
    start: float
    end: float
    steps: int

    @property
    def error(self) -> float:
        """The difference of the sum of the attributions from that of the outputs."""
        return float(self.attributions.sum() - (self.end - self.start))


def integrated_gradients(
    output: Output,
    embedding: nn.Embedding,
    example: Example,
    baseline: Ids,
    places: Ids | None = None,
) -> IntegratedGradients:
    """Return integrated gradients over the token embeddings (Sundararajan et al. 2017).

    They are the mean gradient on the straight line from the embeddings of `baseline` to those of
    the sequence (Gauss-Legendre), times the difference. The number of steps doubles until the
    completeness error is below TOLERANCE, or up to a limit.

    embedding: the token embeddings of the network.
    baseline: int64 [n], the tokens that stand for "no information". Tokens that are the same in the
        sequence get 0.
    places: int64, which token of the sequence each one is that the network reads of a copy; None:
        it reads all, once and in order.
    """
    with torch.no_grad():
        end, start = output([example, example._replace(input_ids=baseline)]).tolist()
        ids, other = (
            torch.from_numpy(x).to(embedding.weight.device) for x in (example.input_ids, baseline)
        )
        base = embedding(other)
        difference = embedding(ids) - base

    def mean_gradient(steps: int) -> Tensor:
        """Return the mean gradient: [n, hidden]."""
        nodes, weights = (
            torch.from_numpy(x).to(base) / 2 for x in np.polynomial.legendre.leggauss(steps)
        )
        at_once = max(1, ATTRIBUTION_TOKENS // len(base))
        mean = torch.zeros_like(base)
        for positions, weight in zip(nodes.split(at_once), weights.split(at_once), strict=True):
            mixed = (
                (base + (positions[:, None, None] + 0.5) * difference)
                .flatten(0, 1)
                .requires_grad_()
            )
            read = mixed
            if places is not None:
                read = mixed.view(len(positions), *base.shape)[:, places].flatten(0, 1)
            replaced = embedding.register_forward_hook(lambda *_, read=read: read)
            with replaced, torch.enable_grad():
                (gradient,) = torch.autograd.grad(output([example] * len(positions)).sum(), mixed)
            mean += (weight[:, None, None] * gradient.view(len(positions), *base.shape)).sum(0)
        return mean

    steps = FEWEST_STEPS
    most = min(MOST_STEPS, MOST_TOKENS // len(base))
    while True:
        attributions = (mean_gradient(steps) * difference).sum(-1).double().cpu().numpy()
        result = IntegratedGradients(attributions, start, end, steps)
        if abs(result.error) <= TOLERANCE * np.abs(attributions).sum() or 2 * steps > most:
            return result
        steps *= 2


@torch.no_grad()
def occlusion(
    output: Output, example: Example, words: Sequence[tuple[int, int]], baseline: Ids
) -> NDArray[np.float64]:
    """Return by how much the output falls when the tokens of a word are replaced: float64 [words].

    They are replaced by those of `baseline`.

    words: the first token and the end of each.
    """
    numbers = []
    copies = []
    for number, (first, end) in enumerate(words):
        ids = example.input_ids.copy()
        ids[first:end] = baseline[first:end]
        if (ids != example.input_ids).any():  # else rounding would give other values than 0
            numbers.append(number)
            copies.append(example._replace(input_ids=ids))
    falls = np.zeros(len(words))
    whole = output([example])
    at_once = max(1, ATTRIBUTION_TOKENS // len(example.input_ids))
    parts = [output(copies[n : n + at_once]) for n in range(0, len(copies), at_once)]
    falls[numbers] = (whole - torch.cat([whole[:0], *parts])).double().cpu().numpy()
    return falls


def read_tokens(encoder: Encoder, example: Example, layer: int = -1) -> NDArray[np.bool_]:
    """Return whether the hidden state of a token after a layer depends on a token of the text.

    bool [n, n]: the state is the row, the token of the text the column. It shows who reads whom, as
    in Figure 3 of Devlin et al. 2019.

    From the network, not from its settings: whether the derivative by the embedding of the token is
    zero. One product of a random vector with the Jacobian of each state, in one pass over n copies
    of the sequence. A derivative that is zero by construction is exactly zero; one that is too
    small for the precision of the network counts as zero too.

    layer: the number of the hidden states, 0: the embeddings.
    """
    table = encoder.embeddings.token
    n = len(example.input_ids)
    batch = collate([example] * n).to(table.weight.device)
    tokens = table(batch.input_ids).detach().requires_grad_()
    # replaces the embeddings
    with table.register_forward_hook(lambda *_: tokens), torch.enable_grad():
        states = encoder(*batch.inputs)[layer]
        read = states.view(n, n, -1).diagonal().T  # of each copy another state
        weights = torch.randn(read.shape, generator=torch.Generator().manual_seed(0)).to(read)
        (gradient,) = torch.autograd.grad((read * weights).sum(), tokens)
    depends: NDArray[np.bool_] = (gradient.view(n, n, -1) != 0).any(-1).cpu().numpy()
    return depends


MOST_CELLS = 8_000_000  # of all attention maps on a page; long sequences are truncated
TEMPLATE = Path(__file__).with_name("explanation.html")
# the drawing code, shared with the page of `bertworks serve`
MAPS = Path(__file__).with_name("maps")
MOST_READERS = 24  # tokens of the picture of who reads whom, which costs a pass over their square
MOST_ANSWERS = 5  # for a mask
MOST_NAMED = 3  # words in the sentence of an explanation
NAMED_SHARE = 0.5  # of what raises the output: the named words have it, or many words share it
MOST_BOXES = 40  # words that are shown in boxes with their values; more are a running text
_UNIT = re.compile(r" \((log-odds|its score)\)$")
_CLOSING = re.compile(r"[.,;:!?%)\]}’”»…]")
_OPENING = re.compile(r".*[(\[{‘“«¿¡]")
_UNSPACED = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]"
_BOTH_UNSPACED = re.compile(rf".*{_UNSPACED}\n{_UNSPACED}")
Rows = tuple[tuple[str, str], ...]


class UnwantedError(Exception):
    """An explanation was ended before it was complete."""


@dataclass(frozen=True)
class Explanation:
    """A prediction of a model for a text, or a pair, with its reasons.

    It has n tokens in w words, including `[CLS]` and `[SEP]`.

    answer: the prediction: names and values, the best first, and all labels of a classification.
    explained: the output that is attributed, in words; "": none, without attributions.
    baseline: the token that stands for "no information".
    spans: the first token and the end of each word.
    gradients: integrated gradients of every token; None: the network has no gradients.
    occlusion: float64 [w]: by how much the output falls without a word.
    attention: of each layer float32 [heads, n, n]: attention of a token (row) to another (column);
        none: an LSTM. Of a text in windows it has the first tokens only, those of the first window;
        so has `similarity`.
    similarity: float32 [layers + 1, n, n]: cosine similarity of tokens after each layer, embeddings
        first.
    reads: bool [m, m]: whether the last hidden state of a token (row) depends on another (column),
        of the first tokens, read as a text; None: the network has no gradients.
    replaced: float64 [w]: of a discriminator (ELECTRA) the probability that a word was replaced:
        the highest of its tokens; None: another model.
    translation_tokens: the m tokens of a translation, with the one that ends it; none: another
        model.
    cross_attention: of each layer of a decoder float32 [heads, m, n]: how much attention the step
        that wrote a token of the translation (row) paid to a token of the text (column).
    """

    model: str
    texts: tuple[str, ...]
    answer: tuple[tuple[str, str], ...]
    explained: str
    baseline: str
    tokens: tuple[str, ...]
    words: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    gradients: IntegratedGradients | None
    occlusion: NDArray[np.float64] | None
    attention: tuple[NDArray[np.float32], ...]
    similarity: NDArray[np.float32]
    notes: tuple[str, ...] = ()
    reads: NDArray[np.bool_] | None = None
    replaced: NDArray[np.float64] | None = None
    translation_tokens: tuple[str, ...] = ()
    cross_attention: tuple[NDArray[np.float32], ...] = ()

    @property
    def reading(self) -> dict[str, NDArray[np.float32]]:
        """The attention of a translation to the text as the mean over heads: float32 [m, n].

        It is that of the last layer, and the mean over all layers; {}: another model.
        """
        if not self.cross_attention:
            return {}
        layers = np.stack([layer.mean(0) for layer in self.cross_attention])
        return {"last_layer": layers[-1], "all_layers": layers.mean(0)}

    @property
    def word_gradients(self) -> NDArray[np.float64] | None:
        """float64 [w]: integrated gradients, summed over the tokens of each word."""
        if self.gradients is None:
            return None
        return np.array([self.gradients.attributions[first:end].sum() for first, end in self.spans])

    @property
    def sentence(self) -> str:
        """Which words raise the explained output most, in a sentence; "": nothing is explained.

        The words of which the rises make up NAMED_SHARE of those of all words, at most MOST_NAMED.
        The share of a word is the mean of its shares by integrated gradients and by occlusion.
        """
        if not self.explained:
            return ""
        thing = _UNIT.sub("", self.explained)
        methods = [v for v in (self.word_gradients, self.occlusion) if v is not None]
        rises = [values.clip(min=0) for values in methods]
        shares = sum((r / r.sum() for r in rises if r.sum() > 0), np.zeros(len(self.words)))
        if not shares.any():
            return f"No word raises {thing}."
        shares /= shares.sum()
        best = np.argsort(-shares, kind="stable")[:MOST_NAMED]
        best = best[shares[best] > 0]
        before = np.cumsum(shares[best]) - shares[best]
        named = best[before < NAMED_SHARE]
        names = list(dict.fromkeys(f"“{self.words[n]}”" for n in named))
        words = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        is_prediction = bool(self.answer) and thing == f"the label “{self.answer[0][0]}”"
        if shares[named].sum() < NAMED_SHARE:
            what = f"made it “{self.answer[0][0]}”" if is_prediction else f"raise {thing}"
            return f"Many words together {what}, most of all {words}."
        if is_prediction:
            return f"{words} made it “{self.answer[0][0]}”."
        return f"{words} {'raises' if len(names) == 1 else 'raise'} {thing} most."

    @property
    def running_words(self) -> tuple[tuple[str, str], ...]:
        """The words with the space before each, "" or " ", as in a text."""
        pairs = pairwise(("", *self.words))
        return tuple((_space_between(before, word), word) for before, word in pairs)

    @property
    def completeness(self) -> str:
        """The completeness error of the integrated gradients, in words."""
        g = self.gradients
        if g is None:
            return ""
        fraction = abs(g.error) / max(float(np.abs(g.attributions).sum()), 1e-12)
        ends = f"the output goes from {g.start:+.3f} (all words {self.baseline}) to {g.end:+.3f}"
        error = (
            f"completeness error {g.error:+.4f}, {fraction:.1%} of all attributions, "
            f"{g.steps} steps"
        )
        return f"integrated gradients sum to {g.attributions.sum():+.3f}; {ends}: {error}"

    def as_dict(self) -> JsonObject:
        """Return all but attention and similarity, which are large."""
        names = ("model", "texts", "answer", "explained", "sentence", "words")
        values: JsonObject = {name: getattr(self, name) for name in names}
        g = self.gradients
        words = self.word_gradients if g else None
        if g and words is not None:
            values |= {"gradients": words.tolist(), "completeness_error": g.error, "steps": g.steps}
        if self.occlusion is not None:
            values["occlusion"] = self.occlusion.tolist()
        if self.replaced is not None:
            values["replaced"] = self.replaced.tolist()
        if self.translation_tokens:
            reading = {name: weights.tolist() for name, weights in self.reading.items()}
            values |= {
                "tokens": self.tokens,
                "translation_tokens": self.translation_tokens,
                "reading": reading,
            }
        return values | {"baseline": self.baseline, "notes": self.notes}

    def __str__(self) -> str:
        lines = [f"{figure:>8}  {name}" for name, figure in self.answer]
        if self.explained:
            lines += [
                "",
                self.sentence,
                "",
                f"for {self.explained}:",
                f"{'gradients':>9}  {'occlusion':>9}",
            ]
            blank = [" " * 9] * len(self.words)
            columns = (
                blank if values is None else [f"{value:+9.3f}" for value in values]
                for values in (self.word_gradients, self.occlusion)
            )
            lines += ["  ".join(cells) for cells in zip(*columns, self.words, strict=True)]
        if self.translation_tokens:
            lines += ["", *self._reading_lines()]
        return "\n".join([*lines, *([self.completeness] if self.gradients else []), *self.notes])

    def _reading_lines(self) -> list[str]:
        """Return for each token of a translation the token of the text that it reads most."""
        weights = self.reading["last_layer"]
        best = weights.argmax(1)
        width = max(map(len, ("translation", *self.translation_tokens)))
        return [
            f"{'translation':{width}}  {'weight':>6}  reads (last layer, mean of its heads)",
            *(
                f"{token:{width}}  {row[column]:6.1%}  {self.tokens[column]}"
                for token, row, column in zip(self.translation_tokens, weights, best, strict=True)
            ),
        ]

    def save(self, path: str | Path) -> None:
        """Write the page: one HTML file without external files.

        Raises:
            BertworksError: it cannot be written.
        """
        write_bytes(path, self.html().encode("utf-8", "replace"))  # lone surrogates are not UTF-8

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html())}" width="100%" height="600"></iframe>'

    def html(self) -> str:
        """Return the page.

        Texts, labels and tokens are escaped.
        """
        sections = render(
            TEMPLATE.read_text("utf-8"), e=self, maps=self.maps(), zip=zip, most_boxes=MOST_BOXES
        )
        summary = (
            f"explained: {self.explained}"
            if self.explained
            else "who reads whom in a translation"
            if self.translation_tokens
            else "attention and similarity of a text"
        )
        style, script = (MAPS.joinpath(f"maps.{kind}").read_text("utf-8") for kind in ("css", "js"))
        parts = [headline(self.sentence)] if self.sentence else []
        parts.append(html(sections))
        if self.reads is not None:
            parts.append(details("Who reads whom", *self._reading(self.reads)))
        return page(
            self.model, "explanation of a prediction", summary, parts, style=style, script=script
        )

    def _reading(self, reads: NDArray[np.bool_]) -> tuple[Section, Section]:
        """Return a picture as Figure 3 of Devlin et al. 2019, and a sentence."""
        m = len(reads)
        which = (
            f"The first {m} of {len(self.tokens)} tokens, read as a text"
            if m < len(self.tokens)
            else "All tokens"
        )
        title = "A row reads the filled columns"
        text = (
            f"{which}. A cell is filled if the last hidden state of the row depends on the "
            "token of the column"
        )
        picture = grid(title, self.tokens[:m], reads.tolist())
        return picture, note(f"{text}: if the derivative by its embedding is not zero.")

    def maps(self) -> JsonObject:
        """Return the input of maps/maps.js: the first tokens, up to a limit, and maps of them.

        Maps are bytes in base64: attention of each layer [heads, n, n], 255 for 1; similarity after
        each layer, embeddings first, [n, n], 127 for 0; `reading` of a translation [m, n], 255 for
        1.
        """
        num_maps = sum(map(len, self.attention))
        n = self.similarity.shape[-1]
        size = min(n, int((MOST_CELLS / max(1, num_maps)) ** 0.5))
        maps: JsonObject = {
            "tokens": self.tokens[:size],
            "attention": [_packed(layer[:, :size, :size] * 255) for layer in self.attention],
            "similarity": [_packed(layer[:size, :size] * 127 + 127) for layer in self.similarity],
        }
        if self.translation_tokens:
            maps["translation_tokens"] = self.translation_tokens
            maps["translation_maps"] = {
                name: _packed(weights[:, :size] * 255) for name, weights in self.reading.items()
            }
        return maps


def _space_between(before: str, word: str) -> str:
    """Return the space between two words of a text: none at punctuation or between ideographs."""
    is_joined = (
        not before
        or _CLOSING.match(word)
        or _OPENING.fullmatch(before)
        or _BOTH_UNSPACED.match(f"{before}\n{word}")
    )
    return "" if is_joined else " "


def _packed(values: NDArray[np.float32]) -> str:
    """Values from 0 to 255 as bytes, in base64."""
    return b64encode(np.rint(values).clip(0, 255).astype(np.uint8).tobytes()).decode()


class _Prediction(NamedTuple):
    """A loaded model and its prediction."""

    encoder: Encoder
    logits: Callable[[Batch], Tensor] | None  # of its head; None: it has none
    attributed: Attributed
    answer: Rows
    notes: Sequence[str]
    frozen: bool = False  # the encoder has no gradients
    replaced: NDArray[np.float64] | None = None  # [n]: probabilities of the tokens
    # The sequences of the attributed one, if the network reads both texts of a pair apart, or a
    # text in windows; and which of its tokens theirs are, one sequence after the other.
    parts: Sequence[Example] = ()
    places: Ids | None = None
    translation_tokens: tuple[str, ...] = ()
    cross_attention: tuple[NDArray[np.float32], ...] = ()

    def sequences(self, example: Example) -> list[Example]:
        """Return what the network reads of a copy of the attributed sequence.

        It is this copy, or each of its parts.
        """
        if not self.parts:
            return [example]
        borders = np.cumsum([len(part.input_ids) for part in self.parts])[:-1]
        ids = np.split(example.input_ids[self.places], borders)
        return [
            part._replace(input_ids=own_ids) for part, own_ids in zip(self.parts, ids, strict=True)
        ]

    @property
    def num_mapped(self) -> int:
        """How many of the first tokens maps are of: all, or those of the first window."""
        if not any(part.window for part in self.parts):
            return len(self.attributed[0].input_ids)
        assert self.places is not None
        first = self.places[: len(self.parts[0].input_ids)]
        return int((first == np.arange(len(first))).sum())


def explain(
    model: str | Path | LazyModel,
    *texts: str,
    target: str | None = None,
    baseline: Literal["mask", "pad"] = "mask",
    device: str = "auto",
    is_wanted: Callable[[], bool] | None = None,
) -> Explanation:
    """Explain a prediction.

    There are integrated gradients and occlusion of the words, attention of every head, similarity
    of the tokens after every layer, and who reads whom.

    The attributed output is the log-odds of the label; the value of a regression; the tag of a
    word; the score of the answer or choice; for a pre-trained model, the log-odds of the token at
    the first [MASK]; for a discriminator, the log-odds that a word was replaced. Without a [MASK],
    or without a head, there are no attributions. Of a translator there is the attention of each
    token of the translation to those of the text.

    Args:
        model: a folder or a name, pre-trained or fine-tuned; or an open model, which stays on its
            device.
        texts: one; or a pair, a question and its context, a prompt and its choices.
        target: what to explain instead of the prediction: a label; a word, for tags and replaced
            words; another token for [MASK].
        baseline: the token that stands for "no information": [MASK], or [PAD].
        is_wanted: called before each batch of copies of the text; the computation ends when it
            returns false, also after a step of a translation. With None it runs to its end.

    Raises:
        UnwantedError: the explanation is not wanted any more.
        UsageError: the model cannot read the texts, or does not have the target.
        BertworksError: no such model.
    """
    t = (source := open_model(model, device, translates=True)).tokenizer
    require(
        source.config.kind != "elmo",
        "this model has neither attention nor a table of tokens that an explanation could use",
        source.folder,
        "explain another encoder, such as minilm; evaluate probe shows what its layers know",
    )
    if source.config.decoder is not None:
        p = _translation(source, texts, target, is_wanted)
    else:
        p = (_finetuned if source.has_task else _pretrained)(source, texts, target)
    (example, name, value) = p.attributed
    logits = p.logits
    embedding = p.encoder.embeddings.token
    blank_id = {"mask": t.mask_id, "pad": t.pad_id}.get(baseline, -1)
    expect(
        value is None or blank_id >= 0,
        f"the baseline {baseline!r} is not known to this tokenizer",
        hint="use mask or pad",
    )
    sequences = p.sequences(example)
    mapped = slice(p.num_mapped)
    if len(example.input_ids) > p.num_mapped:
        sequences = sequences[:1]
    lengths = [len(sequence.input_ids) for sequence in sequences]
    batch = collate(sequences).to(embedding.weight.device)
    with torch.no_grad():
        states = p.encoder(*batch.inputs)
        directions = F.normalize(torch.stack(states).float(), dim=-1)
    spans, other = _words(example.input_ids, t, blank_id)
    gradients = falls = None
    if value is not None and logits is not None:

        def output(examples: Sequence[Example]) -> Tensor:
            if is_wanted is not None and not is_wanted():
                raise UnwantedError("this explanation is not wanted any more")
            read = [sequence for copy in examples for sequence in p.sequences(copy)]
            x = logits(collate(read).to(embedding.weight.device)).float()
            return value(x.view(len(examples), -1, x.shape[-1]))

        falls = occlusion(output, example, spans, other)
        if not p.frozen:
            gradients = integrated_gradients(output, embedding, example, other, p.places)
    return Explanation(
        model=source.name,
        texts=texts,
        answer=p.answer,
        explained=name,
        baseline=t.tokens[blank_id] if blank_id >= 0 else "",
        tokens=tuple(
            t.piece(n) if p.translation_tokens else t.tokens[n] for n in example.input_ids
        ),
        words=tuple(
            t.decode(example.input_ids[a:b], skip_special_tokens=False).strip() for a, b in spans
        ),
        spans=spans,
        gradients=gradients,
        occlusion=falls,
        attention=tuple(
            _attention(layer, lengths)[:, mapped, mapped]
            for layer in p.encoder.attention_maps(states, batch.layout, batch.token_type_ids)
        ),
        similarity=(directions @ directions.transpose(1, 2)).cpu().numpy()[:, mapped, mapped],
        notes=tuple(p.notes),
        reads=None if p.frozen else _readers(p.encoder, sequences),
        replaced=None
        if p.replaced is None
        else np.array([p.replaced[a:b].max() for a, b in spans]),
        translation_tokens=p.translation_tokens,
        cross_attention=p.cross_attention,
    )


def _attention(layer: Tensor, lengths: Sequence[int]) -> NDArray[np.float32]:
    """Return the attention of a layer between all tokens, [heads, n, n]: none between sequences.

    Args:
        layer: [sequences, heads, longest, longest].
        lengths: of the sequences.
    """
    probabilities = layer.float().cpu()
    maps = [
        attention[:, :length, :length]
        for attention, length in zip(probabilities, lengths, strict=True)
    ]
    heads = [torch.block_diag(*maps_of_head) for maps_of_head in zip(*maps, strict=True)]
    return torch.stack(heads).numpy()


def _readers(encoder: Encoder, sequences: Sequence[Example]) -> NDArray[np.bool_]:
    """Return which of the first tokens read which, see `read_tokens`.

    None reads a token of another sequence.
    """
    beginnings = [
        Example(sequence.input_ids[:MOST_READERS], sequence.token_type_ids[:MOST_READERS], {})
        for sequence in sequences
    ]
    blocks = [torch.from_numpy(read_tokens(encoder, beginning)) for beginning in beginnings]
    reads: NDArray[np.bool_] = torch.block_diag(*blocks).numpy()
    return reads[:MOST_READERS, :MOST_READERS]


def _words(ids: Ids, t: Tokenizer, blank_id: int) -> tuple[tuple[tuple[int, int], ...], Ids]:
    """Return the first token and the end of each word, and the ids of the baseline.

    In it all tokens are blank except special tokens and masks.
    """
    is_special = np.isin(
        ids, [*t.template.prefix, *t.template.between, *t.template.suffix, t.mask_id]
    )
    edges = np.flatnonzero(is_special | np.roll(is_special, 1) | t.starts_word[ids]).tolist()
    return tuple(pairwise([*edges, len(ids)])), np.where(is_special, ids, blank_id)


# --- a pre-trained model


def _pretrained(source: LazyModel, texts: Sequence[str], target: str | None) -> _Prediction:
    expect(1 <= len(texts) <= 2, f"{len(texts)} texts: a pre-trained model reads one, or a pair")
    t = source.tokenizer
    parts = component_names(source.state)
    answer = tuple[tuple[str, str], ...]()
    network = None
    encoding = t.encode(*texts, max_length=source.config.max_position_embeddings)
    notes = (
        [f"{encoding.num_truncated} tokens at the end were truncated"]
        if encoding.num_truncated
        else []
    )
    ids, types = (np.array(values, np.int64) for values in (encoding.ids, encoding.type_ids))
    masks = np.flatnonzero(ids == t.mask_id)[:1]
    example = Example(ids, types, {"masked_lm": Target(masks, np.zeros_like(masks))})
    if "replaced_token" in parts:
        return _discriminated(source.network(Discriminator), t, example, target, notes)
    if "lm_head" in parts and source.config.direction != "left_to_right":
        network = load_masked_lm(source)
    encoder = network.encoder if network else source.network(Encoder, "encoder.")
    attributed: Attributed = example, "", None
    if network is None:
        notes.append("this model does not fill masks: there is no prediction to attribute")
    elif not len(masks):
        mask = t.special_tokens.get("mask_token", "[MASK]")
        cut = f": {notes[0]}" if notes else ""
        expect(
            target is None,
            f"the text has no {mask} for the target {target!r}{cut}",
            hint=f"put {mask} in the text",
        )
        notes.append(f"there is no prediction to attribute: put {mask} in place of a word")
    else:
        attributed, answer = _masked(network, t, example, target)
    return _Prediction(encoder, network and network.scores, attributed, answer, notes)


def _discriminated(
    network: Discriminator, t: Tokenizer, example: Example, target: str | None, notes: Sequence[str]
) -> _Prediction:
    """Of an ELECTRA discriminator: the words that were most probably replaced.

    The log-odds of one of them is attributed.
    """
    ids = example.input_ids
    with torch.no_grad():
        batch = collate([example]).to(network.encoder.embeddings.token.weight.device)
        probabilities = torch.sigmoid(network.logits(batch)[:, 0].float()).double().cpu().numpy()
    special = {*t.template.prefix, *t.template.between, *t.template.suffix}
    spans = [(a, b) for a, b in _words(ids, t, t.pad_id)[0] if ids[a] not in special]
    words = [t.decode(ids[a:b], skip_special_tokens=False).strip() for a, b in spans]
    expect(words, "the text has no words", hint="give a text")
    expect(
        target in (None, *words),
        f"the word {target!r} is not in the text",
        hint=f"use one of {', '.join(words[:20])}",
    )
    places = [a + int(probabilities[a:b].argmax()) for a, b in spans]  # the token that decides
    best = sorted(range(len(words)), key=lambda n: -probabilities[places[n]])
    chosen = best[0] if target is None else words.index(target)
    name = f"“{words[chosen]}” as a replaced word (log-odds)"
    answer = tuple((words[n], f"{probabilities[places[n]]:.1%}") for n in best[:MOST_ANSWERS])
    attributed: Attributed = example, name, lambda x: x[:, places[chosen], 0]
    return _Prediction(
        network.encoder, network.logits, attributed, answer, notes, replaced=probabilities
    )


def _masked(
    network: PretrainingModel, t: Tokenizer, example: Example, target: str | None
) -> tuple[Attributed, Rows]:
    batch = collate([example]).to(network.encoder.embeddings.token.weight.device)
    with torch.no_grad():
        # the model may have more
        words = network.scores(batch)[0].float().softmax(-1)[: t.vocab_size]
    best = words.topk(min(MOST_ANSWERS, len(words)))
    token = int(best.indices[0])
    if target is not None:
        ids = t.ids([target])[0]
        expect(
            len(ids) == 1,
            f"{target!r} is {len(ids)} tokens: expected a single token of the vocabulary",
        )
        (token,) = ids
        expect(token != t.unk_id, f"{target!r} is not in the vocabulary", hint="use another word")
    token_text, *best_texts = (
        t.decode([n], skip_special_tokens=False) for n in [token, *best.indices.tolist()]
    )
    name = f"“{token_text}” in place of {t.tokens[t.mask_id]} (log-odds)"
    answer = tuple(
        (text, f"{p:.1%}") for text, p in zip(best_texts, best.values.tolist(), strict=True)
    )
    return (example, name, lambda x: log_odds(x[:, 0], token)), answer


# --- a translator


@torch.no_grad()
def _translation(
    source: LazyModel,
    texts: Sequence[str],
    target: str | None,
    is_wanted: Callable[[], bool] | None,
) -> _Prediction:
    expect(
        len(texts) == 1,
        f"{len(texts)} texts: a translator reads one",
        hint="explain them one by one",
    )
    expect(
        target is None,
        "a translator has a single translation to explain",
        hint="leave the target out",
    )
    translator = Translator(source, precision="fp32")
    t = translator.tokenizer
    language, text = split_language(texts[0], translator.languages)
    expect(text.strip(), "the text has no words", hint="give a text")
    encoding = t.encode(text, max_length=translator.longest - len(language))
    notes = (
        [f"{encoding.num_truncated} tokens at the end were truncated"]
        if encoding.num_truncated
        else []
    )
    ids = [*language, *encoding.ids]
    best = translator.hypotheses(
        [ids], translator.rules(), None, lambda _: is_wanted is None or is_wanted()
    )
    if is_wanted is not None and not is_wanted():
        raise UnwantedError("this explanation is not wanted any more")
    answer = translator.joined(text, best)
    new_ids = best[0].ids
    network = open_network(source)
    assert network.decoder is not None
    embeddings = network.encoder.embeddings
    device = embeddings.token.weight.device
    layouts = Layout.of([len(ids)], device), Layout.of([len(new_ids)], device)
    states = network.encoder(torch.tensor(ids, device=device), layouts[0])
    read = Source(states[-1], layouts[0])
    before = torch.tensor([translator.start_id, *new_ids[:-1]], device=device)
    states = network.decoder(embeddings(before, layouts[1]), layouts[1], read)
    maps = network.decoder.cross_attention_maps(states, layouts[1], read)
    require(
        maps,
        "this network has no attention: it reads the whole text before it writes",
        source.folder,
        "explain a translation by a network with attention, as of --recipe seq2seq-luong",
    )
    example = Example(np.array(ids, np.int64), np.zeros(len(ids), np.int64), {})
    return _Prediction(
        network.encoder,
        None,
        (example, "", None),
        ((answer["translation"], f"{answer['score']:.3f}"),),
        notes,
        translation_tokens=tuple(map(t.target.piece, new_ids)),
        cross_attention=tuple(layer[0].float().cpu().numpy() for layer in maps),
    )


# --- a fine-tuned one


def _finetuned(source: LazyModel, texts: Sequence[str], target: str | None) -> _Prediction:
    predictor = Predictor(source, precision="fp32")
    network = predictor.network
    task = predictor.task
    item = item_of(texts[0] if len(texts) == 1 else texts, 1, task)
    ((encoded, answer),) = predictor.answers([item])
    if target is not None and not task.has_labels:
        raise UsageError(
            f"a model for {task.name} has a single prediction to explain",
            hint="leave the target out",
        )
    notes = (
        [f"{encoded.num_truncated} tokens at the end were truncated"]
        if encoded.num_truncated
        else []
    )
    parts = encoded.unit if task.reads_apart or encoded.has_mean else ()
    if encoded.has_mean:
        notes.append(
            f"the text is read in {len(encoded.unit)} windows: words are explained over all of "
            "them; attention and similarity are those of the first one"
        )
    if task.reads_windows and len(encoded.unit) > 1:
        notes.append(
            "the text is longer than the model's maximum: the window with this prediction is "
            "explained"
        )
    attributed, rows = task.explained(encoded, answer, target)
    places = None
    if parts:
        joined, places = _joined(encoded)
        attributed = joined, *attributed[1:]
    frozen = network.features is not None
    if frozen and attributed[-1] is not None:
        notes.append(
            "the encoder of this model is frozen and has no gradients: there is only occlusion"
        )
    logits = network.logits
    return _Prediction(
        network.encoder,
        lambda x: logits(x) / task.d.temperature,
        attributed,
        tuple(rows),
        notes,
        frozen=frozen,
        parts=tuple(parts),
        places=places,
    )


def _joined(features: Features) -> tuple[Example, Ids]:
    """Return all tokens that are read of a pair apart or in windows, each once, as one sequence.

    The second value has the position there of each token of the sequences of the unit, one after
    the other.
    """
    places: list[Ids] = []
    size = 0
    sequences_of_texts = [part.places() for part in features.parts] or [
        [np.arange(len(example.input_ids))] for example in features.unit
    ]
    for sequences in sequences_of_texts:
        places += [size + positions for positions in sequences]
        size = int(places[-1][-1]) + 1
    ids = np.zeros(size, np.int64)
    types = np.zeros(size, np.int64)
    for example, positions in zip(features.unit, places, strict=True):
        ids[positions] = example.input_ids
        types[positions] = example.token_type_ids
    return features.unit[0]._replace(input_ids=ids, token_type_ids=types), np.concatenate(places)
