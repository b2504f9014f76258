"""Predictions of pre-trained heads: tokens for masks, scores of sentences, replaced tokens.

- `Filler`, `fill`: the most probable tokens for each [MASK]
- `score`: pseudo-log-likelihoods, which rank sentences. They are not probabilities of sentences:
  each token is predicted from the tokens on both sides.
- `Discriminator`, `detect`: an ELECTRA discriminator gives each token of a text the probability
  that it was replaced
- `load_with_generator`, `detection_scores`, `ranking_figures`: a discriminator and its generator,
  evaluated
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertworks.batching.batch import Batch
from bertworks.batching.examples import Example, Ids, Target, add_special_tokens
from bertworks.checkpoints.model_folder import ModelFolder, load_model
from bertworks.errors import expect, quoted, require
from bertworks.inference.causal_lm import CausalModel, Score, log_likelihoods, make_score
from bertworks.inference.engine import (
    MAX_SCORES,
    LazyModel,
    ModelUser,
    compute_each,
    open_model,
)
from bertworks.io.inputs import chunk_by_size
from bertworks.io.tables import texts_of
from bertworks.metrics.classification import area_under_curve
from bertworks.models.config import EncoderConfig
from bertworks.models.heads import TokenHead
from bertworks.models.transformer import Encoder
from bertworks.tasks.sequences import centered_window
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.device import Precision
from bertworks.training.objectives import PretrainingModel


class Filling(TypedDict, total=False):
    """One predicted token, with the fields of Hugging Face's fill-mask pipeline, and `text`.

    The answers of a server leave `sequence` or `text` out where they would repeat a long text for
    every token.
    """

    score: float  # probability
    token: int
    token_str: str
    sequence: str  # decoded, with a space between all words
    text: str  # the input with the token in place of the mask


def load_masked_lm(source: LazyModel) -> PretrainingModel:
    """Return a masked language model in evaluation mode.

    Raises:
        BertworksError: it reads from left to right, or has no masked LM head or no mask token.
    """
    require(
        source.config.direction != "left_to_right",
        "this model reads from left to right: it continues texts, and cannot predict masked tokens",
        source,
        f'bertworks generate {quoted(source.folder)} "a text"',
    )
    require(
        source.tokenizer.mask_id >= 0,
        "this model has no mask token: it was not trained to predict masked tokens",
        source,
        "use a masked language model, such as BERT or RoBERTa",
    )
    network = source.network(partial(PretrainingModel, objectives={"masked_lm": 1.0}))
    network.unread_id = source.tokenizer.mask_id
    return network


class MaskedText(NamedTuple):
    """A tokenized text with masks."""

    text: str
    ids: NDArray[np.int32]  # without [CLS] and [SEP]
    masks: Ids  # their positions in `ids`
    offsets: NDArray[np.int32]  # [ids, 2]: the characters of each
    # Tokens, and positions of the masks in them: one window; for a long text one around each mask.
    # They are views, because there may be as many windows as tokens.
    windows: list[tuple[NDArray[np.int32], Ids]]

    @property
    def costs(self) -> list[int]:
        """Cost of each window in tokens.

        The logits of a mask cost about as much as 8 tokens.
        """
        return [len(tokens) + 2 + 8 * len(masks) for tokens, masks in self.windows]


class Filler(ModelUser):
    """A loaded model that predicts masked tokens.

    The model is a folder, also an exported one, or a name; or an open model, which stays on its
    device.
    """

    def __init__(self, model: str | Path | LazyModel, device: str = "cpu"):
        source = open_model(model, device, predicts_tokens=True)
        self._set_opening(Filler, source)
        self.tokenizer = source.tokenizer
        self.longest = source.config.max_position_embeddings
        output = "logits", source.config.vocab_size
        self.model = (
            source.session("fp32", gives=output) if source.exported else load_masked_lm(source)
        )
        self._is_open()

    def __call__(self, text: str, k: int = 5) -> list[list[Filling]]:
        """For each mask of the text, in order, the k most probable tokens.

        Masks are predicted independently.

        Raises:
            UsageError: k is not positive.
            BertworksError: the text has no mask.
        """
        expect(k >= 1, f"k is {k}: expected 1 or more")
        masked = self.read(text)
        (top_tokens,) = self.top_tokens([masked], k)
        return [
            self.fillings_of_mask(masked, number, mask_tokens, sequence=True, text=True)
            for number, mask_tokens in enumerate(top_tokens)
        ]

    def read(self, text: str) -> MaskedText:
        """Tokenize a text.

        Raises:
            UsageError: it is not a string.
            BertworksError: it has no mask.
        """
        t = self.tokenizer
        ((ids, offsets),) = t.arrays([text])
        masks = np.flatnonzero(ids == t.mask_id)
        mask = t.special_tokens["mask_token"]
        require(
            len(masks), f"there is no {mask} in {text!r:.60}", "", f"put {mask} in place of a word"
        )
        room = self.longest - t.template.num_special()
        groups = [masks] if len(ids) <= room else masks[:, None]
        edges = [centered_window(int(group[0]), int(group[0]), len(ids), room) for group in groups]
        windows = [
            (ids[start:end], group - start)
            for group, (start, end) in zip(groups, edges, strict=True)
        ]
        return MaskedText(text, ids, masks, offsets, windows)

    def target(self, text: str) -> int:
        """Return the token that a text is.

        It is that of the vocabulary as it is spelled there, else after tokenization.

        Raises:
            UsageError: it is several tokens, none, or unknown.
        """
        t = self.tokenizer
        if text in self._numbers:
            return self._numbers[text]
        (ids,) = t.ids([text])
        what = f"the target {text[:60]!r} is {len(ids)} tokens of this model: expected one"
        if len(ids) == 1 and ids[0] == t.unk_id:
            what = f"the target {text[:60]!r} is not in the vocabulary"
        expect(
            len(ids) == 1 and ids[0] != t.unk_id,
            what,
            hint="give words that the vocabulary has as a whole",
        )
        return ids[0]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The number of each token of the vocabulary."""
        return {token: number for number, token in enumerate(self.tokenizer.tokens)}

    def top_tokens(
        self, texts: Sequence[MaskedText], k: int, targets: Sequence[int] = ()
    ) -> list[NDArray[np.float32]]:
        """For each text float32 [masks, 2, k]: the k highest probabilities and their tokens.

        Texts are computed in batches sorted by length. Tokens of the model that the tokenizer lacks
        are left out.

        Args:
            targets: different tokens, the only ones that are returned; none: all. Their
                probabilities are among all tokens, as in the pipeline of transformers.
        """
        t = self.tokenizer
        units = [
            [
                _example(ids.astype(np.int64), masks, np.zeros_like(masks), t)
                for ids, masks in text.windows
            ]
            for text in texts
        ]
        count = min(k, len(targets) or t.vocab_size)

        def best(batch: Batch) -> Tensor:
            probabilities = self.model.scores(batch).float().softmax(-1)[:, : t.vocab_size]
            if not targets:
                top = probabilities.topk(count)
                return torch.stack([top.values, top.indices.float()], 1)
            tokens = torch.tensor(targets, device=probabilities.device)
            top = probabilities[:, tokens].topk(count)
            return torch.stack([top.values, tokens[top.indices].float()], 1)

        return compute_each(self.model, best, units, (2, count), splits_units=True)

    def fillings_of_mask(
        self,
        masked: MaskedText,
        number: int,
        top_tokens: NDArray[np.float32],
        *,
        sequence: bool,
        text: bool,
    ) -> list[Filling]:
        """Return the most probable tokens of one mask, as text.

        Args:
            number: of the mask, from 0.
            top_tokens: [2, k], probabilities and tokens.
            sequence, text: whether the fillings have these fields, each as long as the text.
        """
        t = self.tokenizer
        position = int(masked.masks[number])
        begin, end = masked.offsets[position].tolist()
        mask = masked.text[begin:end]  # a space may belong to the mask
        ids = masked.ids.tolist()
        fillings: list[Filling] = []
        scores, tokens = top_tokens.tolist()
        for score, token in zip(scores, map(int, tokens), strict=True):
            word = t.decode([token], skip_special_tokens=False)
            filling = Filling(score=score, token=token, token_str=word)
            if sequence:
                ids[position] = token
                filling["sequence"] = t.decode(ids, skip_special_tokens=False)
            if text:
                piece = mask.replace(
                    t.special_tokens["mask_token"], word.strip().removeprefix("##")
                )
                filling["text"] = masked.text[:begin] + piece + masked.text[end:]
            fillings.append(filling)
        return fillings


def fill(model: str | Path, texts: Iterable[str], k: int = 5) -> Iterator[list[list[Filling]]]:
    """For each text, for each of its masks, the k most probable tokens.

    Raises:
        UsageError: one text and no list; k is not positive.
        BertworksError: no such model, or a text without a mask.
    """
    texts = texts_of(texts, "fill(model, [text])")
    yield from map(partial(Filler(model), k=k), texts)


AT_ONCE = 256  # texts that are tokenized together
COPIES = 4096  # copies of sentences with different masks that are computed together
# its tokens, and a copy for each of them, with that token masked
_Sentence = tuple[str, Ids, list[Example]]


def score(
    model: str | Path | LazyModel,
    sentences: Iterable[str],
    *,
    within_word: bool = False,
    device: str = "auto",
    precision: Precision = "fp32",
) -> Iterator[Score]:
    """Yield the log-likelihood of each sentence.

    Of a masked language model it is the pseudo-log-likelihood: `measure` says which.

    A model that reads from left to right predicts each token from those before it, and the first
    from the end token (`causal_lm.log_likelihoods`). Else each token is masked in turn, and the
    log-probabilities of the original tokens are summed (Salazar et al. 2020). Longer sentences have
    lower sums: compare sentences of one length, or `score / len(tokens)`. "[MASK]" in a sentence is
    ordinary text. In sentences longer than the model's maximum, each token is predicted from the
    window around it.

    Args:
        model: a folder or a name; or an open model, which stays on its device.
        within_word: with each token, also mask the later pieces of its word, which would reveal it
            (PLL-word-l2r, Kauf and Ivanova 2023).

    Raises:
        UsageError: one sentence and no list; `within_word` with a model that masks nothing.
        BertworksError: no such model, one without a masked LM head, or an empty sentence.
    """
    sentences = texts_of(sentences, "score(model, [text])")
    source = open_model(model, device, predicts_tokens=True)
    if source.config.direction == "left_to_right":
        expect(
            not within_word,
            "within_word masks pieces of words, but this model reads from left to right and "
            "masks nothing",
            where=source,
            hint="leave --within-word out",
        )
        yield from log_likelihoods(CausalModel(source, precision), sentences)
        return
    network = load_masked_lm(source)
    tokenizer = source.tokenizer
    c = network.encoder.config
    at_once = max(1, MAX_SCORES // c.vocab_size)

    def log_probabilities(batch: Batch) -> Tensor:
        logits = network.scores(batch).float()
        return logits.gather(1, batch.target.labels[:, None])[:, 0] - logits.logsumexp(-1)

    encoded = _encoded(sentences, tokenizer, c.max_position_embeddings, within_word)
    for group in chunk_by_size(encoded, COPIES, lambda sentence: len(sentence[1])):
        units = [copies for _, _, copies in group]
        results = compute_each(
            network, log_probabilities, units, (), precision, at_once, splits_units=True
        )
        for (text, ids, _), values in zip(group, results, strict=True):
            yield make_score(
                text, [tokenizer.tokens[n] for n in ids], values, "pseudo_log_likelihood"
            )


def is_better(good: Score, bad: Score) -> bool:
    """Strictly.

    Sentences with the same tokens are a tie even if the last bits of their scores differ, which
    depend on the other sentences of a batch.
    """
    return good["tokens"] != bad["tokens"] and good["score"] > bad["score"]


def _encoded(
    sentences: Iterable[str], tokenizer: Tokenizer, longest: int, within_word: bool
) -> Iterator[_Sentence]:
    """Yield each sentence, its ids, and a copy for each token.

    In a copy the token is masked, with `within_word` also the rest of its word, and the token is
    predicted. A copy of a long sentence is the window around the token.
    """
    room = longest - tokenizer.template.num_special()
    groups = chunk_by_size(sentences, AT_ONCE)
    pairs = chain.from_iterable(zip(texts, tokenizer.ids(texts), strict=True) for texts in groups)
    for number, (text, token_ids) in enumerate(pairs, 1):
        require(token_ids, f"sentence {number} has no tokens: {text[:60]!r}", "", "leave it out")
        ids = np.array(token_ids, np.int64)
        places = np.arange(len(ids))
        ends = places + 1  # the end of what is masked from each token on
        if within_word:
            starts = np.append(np.flatnonzero(tokenizer.starts_word[ids]), len(ids))
            ends = starts[np.searchsorted(starts, places, side="right")]
        copies = []
        for place, end in zip(places.tolist(), ends.tolist(), strict=True):
            masked = ids.copy()
            masked[place:end] = tokenizer.mask_id
            begin, stop = centered_window(place, place + 1, len(ids), room)
            tokens = masked[begin:stop]
            copies.append(_example(tokens, np.array([place - begin]), ids[[place]], tokenizer))
        yield text, ids, copies


def _example(tokens: Ids, masks: Ids, labels: Ids, tokenizer: Tokenizer) -> Example:
    """Tokens with special tokens around them. masks: positions in `tokens`."""
    s = add_special_tokens([tokens], tokenizer.template)
    target = Target(masks + len(tokenizer.template.prefix), labels)
    return Example(s.input_ids, s.token_type_ids, {"masked_lm": target})


# --- replaced tokens

GENERATOR = "generator."  # how names of its parameters begin; its folder in that of the model
# scores of tokens, and whether they were replaced
Ranked = tuple[NDArray[np.float64], NDArray[np.bool_]]


class Detection(TypedDict):
    """The tokens of a text, without special tokens."""

    text: str
    tokens: list[str]
    offsets: list[tuple[int, int]]  # first character and end of each token
    probabilities: list[float]  # that a token was replaced


class Discriminator(nn.Module):
    """An encoder with the head for replaced tokens (Clark et al. 2020, section 2)."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        self.encoder = Encoder(c)
        self.replaced_token = TokenHead(c)

    def logits(self, batch: Batch) -> Tensor:
        """[T, 1]: the log-odds that a token was replaced."""
        states = self.encoder(*batch.inputs)[-1]
        return self.replaced_token(states)[:, None]  # type: ignore[no-any-return]


def detect(
    source: LazyModel, texts: Iterable[str], precision: Precision = "fp32"
) -> Iterator[Detection]:
    """Yield for each text the probability of each token that it was replaced (Clark et al. 2020).

    In a text longer than the model's maximum, each token is seen in the window in which it is
    farthest from the edges.

    Args:
        source: a discriminator.

    Raises:
        UsageError: a text that is no string.
        BertworksError: a text without tokens; the model has no head for replaced tokens.
    """
    texts = texts_of(texts, "detect([text])[0]")
    network = source.network(Discriminator)
    t = source.tokenizer
    room = source.config.max_position_embeddings - t.template.num_special()

    def compute(batch: Batch) -> Tensor:
        return torch.sigmoid(network.logits(batch).float())[batch.target.positions, 0]

    for group in chunk_by_size(texts, AT_ONCE):
        encodings = list(t.arrays(group))
        for text, (ids, _) in zip(group, encodings, strict=True):
            require(len(ids), f"a text has no tokens: {text[:60]!r}", "", "leave it out")
        units = [list(_windows(ids.astype(np.int64), room, t)) for ids, _ in encodings]
        results = compute_each(network, compute, units, (), precision)
        for text, (ids, places), probabilities in zip(group, encodings, results, strict=True):
            tokens = [t.tokens[n] for n in ids]
            offsets = [(start, end) for start, end in places.tolist()]
            yield Detection(
                text=text, tokens=tokens, offsets=offsets, probabilities=probabilities.tolist()
            )


def _windows(ids: Ids, room: int, t: Tokenizer) -> Iterator[Example]:
    """Yield the text, or windows of `room` tokens that overlap by half.

    The target of each has the tokens that are nearer to its middle than to that of another one, so
    that every token is in one target.
    """
    starts = [*range(0, len(ids) - room, max(1, room // 2)), max(0, len(ids) - room)]
    edges = [0, *((a + b + room) // 2 for a, b in pairwise(starts)), len(ids)]
    for start, (begin, end) in zip(starts, pairwise(edges), strict=True):
        s = add_special_tokens([ids[start : start + room]], t.template)
        positions = np.arange(begin, end) - start + len(t.template.prefix)
        yield Example(
            s.input_ids,
            s.token_type_ids,
            {"replaced_token": Target(positions, np.zeros_like(positions))},
        )


def state_with_generator(folder: Path, model: PretrainingModel) -> dict[str, Tensor]:
    """Return the parameters of a model folder.

    Those of the generator in it are among them, if the model has one of this size.
    """
    state = load_model(folder, needs={"encoder"}).state
    if model.generator is not None and (folder / GENERATOR[:-1]).is_dir():
        config, weights, _ = load_model(folder / GENERATOR[:-1], needs={"encoder", "lm_head"})
        if config.hidden_size == model.generator.encoder.config.hidden_size:
            state |= {GENERATOR + name: value for name, value in weights.items()}
    return state


def load_with_generator(folder: Path, config: EncoderConfig) -> PretrainingModel:
    """Return a discriminator with the generator in its folder.

    Raises:
        BertworksError: there is none.
    """
    inner = folder / GENERATOR[:-1]
    require(
        (inner / "config.json").is_file(),
        "a discriminator alone cannot be evaluated: the folder has no generator, which replaces "
        "tokens",
        folder,
        "use the run folder of its pre-training",
    )
    size = ModelFolder(inner).config.hidden_size / config.hidden_size
    network = PretrainingModel(
        config, {"masked_lm": 1.0, "replaced_token": 1.0}, generator_size=size
    )
    state = state_with_generator(folder, network)
    network.load_state_dict(
        state | {n: p for n, p in network.state_dict().items() if n not in state}
    )
    return network


@torch.no_grad()
def detection_scores(network: PretrainingModel, batches: Iterable[Batch]) -> Iterator[Ranked]:
    """For each batch the scores of a discriminator, and whether the tokens were replaced."""
    device = next(network.parameters()).device
    network.eval()
    for batch in (batch.to(device) for batch in batches):
        _, input_ids, replaced = network.replace_tokens(batch)
        states = network.encoder(input_ids, batch.layout, batch.token_type_ids)[-1]
        assert network.replaced_token is not None
        yield network.replaced_token(states).double().cpu().numpy(), replaced.cpu().numpy()


def ranking_figures(ranked: Iterable[Ranked]) -> dict[str, float]:
    """Return how well a discriminator ranks replaced tokens above others.

    `replaced_token_auc`; and `replaced_tokens`: which fraction was replaced.
    """
    scores, labels = zip(*ranked, strict=True)
    all_labels = np.concatenate(labels)
    auc = area_under_curve(np.concatenate(scores), all_labels)
    return {"replaced_token_auc": auc, "replaced_tokens": float(all_labels.mean())}
