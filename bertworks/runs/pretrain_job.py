"""The job of a pre-training: its batches, its network, its evaluation.

- `split_documents`, `phase_batches`, `held_out_batches`: shards and a recipe -> the batches of
  steps and evaluations
- `Text`: the shards of a language, or of pairs of translations
- `PretrainJob`: what a `TrainingRun` trains
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast
from zlib import crc32

import numpy as np
import torch
from torch import nn

from bertworks.batching.batch import Batch, Batches, StepBatches, batches_by_length
from bertworks.batching.contexts import CONTEXT_OBJECTIVES, ContextConfig
from bertworks.batching.examples import Ids, keyed_rng
from bertworks.batching.sampling import (
    ExampleStream,
    Format,
    MaskingConfig,
    Parallel,
    SamplingConfig,
    make_sampler,
    make_targets,
)
from bertworks.checkpoints.generation_config import GENERATION_FILE
from bertworks.checkpoints.hf_config import num_parameters
from bertworks.checkpoints.model_card import encoder_card, pretraining_card
from bertworks.checkpoints.model_folder import ModelFolder, load_model, save_model
from bertworks.checkpoints.resolve import resolve_model
from bertworks.checkpoints.sentence_transformers import SentenceTransformerSettings
from bertworks.config import dump_recipe
from bertworks.errors import expect, printable, require
from bertworks.inference.masked_lm import GENERATOR, state_with_generator
from bertworks.io.arrays import write_npy
from bertworks.io.atomic_write import is_sealed, sealing, write_text
from bertworks.metrics.translation import has_sacrebleu
from bertworks.models.config import EncoderConfig
from bertworks.models.embeddings import Characters
from bertworks.models.heads import scale_transform
from bertworks.models.layers import initialize_word_vectors, initialize_xavier
from bertworks.models.memory import Memory, make_memory
from bertworks.models.transformer import init_local_attention, scale_residual, student_layers
from bertworks.runs.adaptation import BitsBatches, bits_batches, bits_per_character, extended_state
from bertworks.runs.held_out_translations import HeldOutPairs
from bertworks.runs.report import write_report
from bertworks.runs.run_folder import BITS, BITS_BEFORE, describe, versions
from bertworks.runs.training_run import Job, Progress, RunSettings
from bertworks.tasks.task import shortened
from bertworks.text.shards import Shards, TokenStore
from bertworks.text.tokenizer import Template, Tokenizer, spelling_tokenizer
from bertworks.text.tokenizer_folder import END_OF_TEXT
from bertworks.text.vocabulary import without_last
from bertworks.training.device import DTYPES, Precision
from bertworks.training.loop import TrainableModel, evaluate, with_memory
from bertworks.training.objectives import (
    ACCURACY,
    BLEU,
    OBJECTIVES,
    SHARED,
    PretrainingModel,
    Teacher,
    figures,
    heads_of,
    student_config,
    student_state,
)
from bertworks.training.recipe import Recipe, TokenObjective

# No document is longer than this fraction of the text: wrong sentences come from other documents,
# and the held-out part should be small.
MIN_SECTIONS = 40
HELD_OUT_FRACTION = 0.05
HELD_OUT_TOKENS = 100_000
CHUNK = 1 << 24  # tokens counted at once
AT_ONCE = 32  # held-out sequences in a batch
LANES = 8  # of held-out text: few, as the beginning of each one is read without a memory
_SAMPLE = "It's a text (with 2 parts) by Zoë."  # what a vocabulary for translations keeps
EVALUATED_MASKING = MaskingConfig(dynamic=False)
EVALUATED_CONTEXT = ContextConfig()
# of held-out masks, the same in every run; the day on which BERT was published
MASKS_SEED = 20181011


class Text(NamedTuple):
    """A part of the text, with its own shards.

    languages: one; two, for translations; none, of a model without a table of languages.
    is_parallel: whether its documents are the two sides of translations in turn.
    """

    languages: tuple[str, ...]
    shards: Shards
    is_parallel: bool = False

    @property
    def store(self) -> TokenStore:
        """Its documents; a pair is one of two sentences."""
        s = self.shards
        if not self.is_parallel:
            return split_long_documents(s)
        return TokenStore(s.tokens, s.sentences[s.documents], np.arange(0, len(s.documents), 2))


def in_languages(batch: Batch, numbers: Sequence[int]) -> Batch:
    """Return the batch with languages as token types, by the types that it has.

    With two of them, the positions of the second part of each sequence begin at 0 (Conneau and
    Lample 2019, section 3.3).
    """
    layout = batch.layout
    types = batch.token_type_ids
    assert types is not None
    if len(numbers) > 1:
        first = torch.zeros_like(layout.first, dtype=torch.int64).index_add(
            0, layout.sequence_ids, 1 - types
        )
        layout = replace(layout, position_ids=layout.places - types * first[layout.sequence_ids])
    return replace(batch, layout=layout, token_type_ids=torch.tensor(numbers)[types])


def split_long_documents(store: TokenStore) -> TokenStore:
    """Return the store itself, or one whose long documents are cut into sections."""
    longest = max(2, (len(store.sentences) - 1) // MIN_SECTIONS)
    if len(store.documents) > 1 and np.diff(store.documents).max() <= longest:
        return store
    edges = [
        np.arange(first, last, longest)
        for first, last in zip(store.documents, store.documents[1:], strict=False)
    ]
    return TokenStore(
        store.tokens, store.sentences, np.append(np.concatenate(edges), store.documents[-1])
    )


def split_documents(store: TokenStore, seed: int) -> tuple[Ids, Ids]:
    """Documents to train on, and held-out documents, both ascending.

    Raises:
        BertworksError: with fewer than four documents or sections.
    """
    count = len(store.documents) - 1
    require(
        count >= 4,
        f"there is too little text: {len(store.sentences) - 1} sentences in {count} documents",
        "",
        "give at least a few hundred sentences; a useful model needs millions of words",
    )
    order = keyed_rng("held-out", seed).permutation(count)
    sizes = np.diff(store.sentences[store.documents])
    target = min(HELD_OUT_FRACTION * len(store.tokens), HELD_OUT_TOKENS)
    # documents above the target come last
    order = order[np.argsort(sizes[order] > target, kind="stable")]
    held_out = 1 + int(np.searchsorted(np.cumsum(sizes[order]), target))
    held_out = min(max(held_out, 2), count - 2)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def phase_batches(
    store: TokenStore,
    documents: Ids,
    recipe: Recipe,
    tokenizer: Tokenizer,
    plans: Path,
    rank: int,
    world_size: int,
    note: Callable[[str], object] = lambda text: None,
    locate: Callable[[int], tuple[int, int]] | None = None,
) -> StepBatches:
    """Return the micro-batches of step n of the whole run, phase after phase.

    Plans are functions of the arguments, kept in the folder `plans`, so that a resumed run need not
    wait for them. A plan that has changed, or is of other arguments, is made again and noted.
    locate: the phase of a step, and the step in it; None: `recipe.train.locate`.
    """
    corpus = (
        len(store.tokens),
        *(crc32(row.data) for row in (store.sentences, store.documents, documents)),
    )
    of_phase = []
    counts = (
        token_counts(store, documents, tokenizer.vocab_size)
        if recipe.masking.frequency_power or recipe.token_objective in CONTEXT_OBJECTIVES
        else None
    )
    for number, phase in enumerate(recipe.train.phases):
        path = plans / f"phase-{number}.npy"
        seed = (recipe.seed << 8) + number
        length = phase.sequence_length
        template = template_of(tokenizer, recipe.sampling.format)
        sampler = make_sampler(store, recipe.sampling, length, template, seed)
        key = repr((recipe.sampling, length, seed, template, corpus))
        if not is_sealed(path, key):
            if path.exists():
                note(f"{path}: the plan is damaged, or of an older version: it was made again")
            with sealing(path, key) as temporary:
                write_npy(temporary, sampler.plan_blocks(documents))
        sampler.plan = np.asarray(np.load(path, mmap_mode="r"))
        replaces = "replaced_token" in recipe.weights
        targets = make_targets(
            tokenizer, recipe.masking, recipe.token_objective, replaces, counts, recipe.context
        )
        lanes = phase.batch_size if recipe.sampling.lanes else 0
        stream = ExampleStream(sampler, targets, seed, lanes)
        memory_length = recipe.encoder.memory_length
        if lanes and memory_length > (stream.num_steps - 1) * length:
            note(
                f"a lane of the text has {stream.num_steps:,} sequences of {length} tokens: a "
                f"memory of {memory_length:,} tokens is never full"
            )
        of_phase.append(
            Batches(stream, phase.batch_size, recipe.train.micro_batch_tokens, rank, world_size)
        )

    def batches(step: int) -> list[Batch]:
        number, within = (locate or recipe.train.locate)(step)
        return of_phase[number](within)

    return batches


def notes_on_pairs(part: tuple[TokenStore, Ids, Ids], plans: Path, recipe: Recipe) -> Iterator[str]:
    """Yield what a person should know of the pairs of texts from which a translator learns.

    Held-out pairs that are also in the training are counted, and pairs that are longer than a
    sequence.

    Args:
        part: the pairs, the numbers of those of the training, and of the held-out ones.
        plans: the folder of the plans of `phase_batches`.
    """
    store, documents, held_out = part

    def pair(number: int) -> bytes:
        first, _, end = store.sentences[store.documents[number] :][:3].tolist()
        return bytes(store.tokens[first:end].tobytes())

    held_out_pairs = {pair(number): number for number in held_out.tolist()}
    repeated = {held_out_pairs[p] for p in map(pair, documents.tolist()) if p in held_out_pairs}
    if repeated:
        yield (
            f"held-out pairs that are also in the training: {len(repeated):,} of "
            f"{len(held_out):,} (pairs {_first_pairs(repeated)}); they make the scores better "
            "than on new texts"
        )
    for number, phase in enumerate(recipe.train.phases):
        used = {*np.load(plans / f"phase-{number}.npy", mmap_mode="r")[:, 0].tolist()}
        starts = store.sentences[store.documents[documents]]
        long = [n for n, start in zip(documents.tolist(), starts.tolist()) if start not in used]
        if long:
            yield (
                f"pairs longer than {phase.sequence_length} tokens, left out: {len(long):,} of "
                f"{len(documents):,} (pairs {_first_pairs(long)})"
            )


def longest_source(
    part: tuple[TokenStore, Ids, Ids], tokenizer: Tokenizer, sequence_length: int
) -> int:
    """Return the largest number of tokens of a source from which a translator learns.

    Args:
        part: the pairs, the numbers of those of the training, and of the held-out ones.
        sequence_length: tokens of a sequence; longer pairs are left out.
    """
    store, documents, _ = part
    first_sentences = store.documents[documents]
    starts, middles, ends = (store.sentences[first_sentences + n] for n in range(3))
    num_special = Parallel.num_special(template_of(tokenizer, "parallel"))
    fits = ends - starts + num_special <= sequence_length
    if not fits.any():
        return sequence_length
    return int((middles - starts)[fits].max()) + tokenizer.template.num_special()


def _first_pairs(numbers: Collection[int]) -> str:
    """Return the numbers of the first pairs, counted from 1."""
    names = [f"{number + 1:,}" for number in sorted(numbers)[:5]]
    return ", ".join(names) + (", ..." if len(numbers) > len(names) else "")


def template_of(tokenizer: Tokenizer, format: Format) -> Template:
    """Return the special tokens of a format.

    In a stream it is only the one that ends a text, which GPT-2's template lacks; of XLNet's two it
    is the first, <sep>. Of parallel texts the second one begins with a special token, which
    Marian's template lacks.
    """
    if format == "parallel" and not tokenizer.template.prefix:
        return tokenizer.template._replace(start=(tokenizer.start_id,))
    if format != "stream":
        return tokenizer.template
    end = tuple(number for number, token in enumerate(tokenizer.tokens) if token == END_OF_TEXT)
    return Template((), (), (tokenizer.template.suffix or end)[:1])


def held_out_batches(
    store: TokenStore,
    documents: Ids,
    tokenizer: Tokenizer,
    *,
    format: Format,
    sequence_length: int,
    sequences: int,
    kind: TokenObjective = "masked_lm",
    replaces: bool = False,
    masking: MaskingConfig = EVALUATED_MASKING,
    counts: Ids | None = None,
    at_once: int = AT_ONCE,
    in_lanes: bool = False,
) -> list[Batch]:
    """Return batches of `at_once` sequences with fixed masks.

    15 % of the tokens are masked, 80/10/10, whatever the masking of the training, so that figures
    of different runs on the same text and vocabulary compare. replaces: with fixed numbers for a
    generator. counts: of each token in the text of the training, for static vectors: their windows
    and negative words are fixed, too. in_lanes: a batch has the next sequence of each of up to
    LANES lanes, in the order of the text.

    Raises:
        BertworksError: no sentence has two words from which static vectors could be learned.
    """
    config = SamplingConfig(format=format)
    sampler = make_sampler(
        store, config, sequence_length, template_of(tokenizer, format), MASKS_SEED
    )
    sampler.plan = sampler.make_plan(documents)
    targets = make_targets(tokenizer, masking, kind, replaces, counts, EVALUATED_CONTEXT)
    count = min(sequences, len(sampler))
    stream = ExampleStream(sampler, targets, MASKS_SEED)
    if in_lanes:
        at_once = max(1, min(LANES, count - 1))
        stream = ExampleStream(sampler, targets, MASKS_SEED, at_once)
        count = at_once * max(1, min(count // at_once, stream.num_steps))
    batches = batches_by_length((stream[n] for n in range(count)), at_once)
    require(
        kind not in CONTEXT_OBJECTIVES
        or any(batch.targets[kind].labels.any() for batch in batches),
        "no sentence of the held-out text has two words of the vocabulary next to each other, so "
        "there is nothing to learn from",
        hint="give whole sentences; a sentence ends with a full stop or with its paragraph",
    )
    return batches


def masked_examples(
    batch: Batch, tokenizer: Tokenizer, kind: TokenObjective = "masked_lm"
) -> Iterator[str]:
    """The first two sequences of a batch, and the tokens that are predicted in them, in words."""
    target = batch.targets[kind]
    starts = batch.layout.cu_seqlens.tolist()
    for number, (start, end) in enumerate(pairwise(starts[:3]), 1):
        labels = target.labels[(target.positions >= start) & (target.positions < end)]
        parts = batch.input_ids[start:end].tolist(), labels.tolist()
        words = " -> ".join(shortened(" ".join(map(tokenizer.piece, ids))) for ids in parts)
        yield printable(f"example  sequence {number}  {words}")


def token_counts(store: TokenStore, documents: Ids, vocab_size: int) -> Ids:
    """int64 [vocab_size]: how often each token is in these documents, which ascend."""
    counts = np.zeros(vocab_size, np.int64)
    gaps = np.flatnonzero(np.diff(documents) != 1) + 1
    for row in np.split(documents, gaps):  # neighbouring documents are counted together
        first, last = store.sentences[store.documents[[row[0], row[-1] + 1]]].tolist()
        for start in range(first, last, CHUNK):
            counts += np.bincount(
                store.tokens[start : min(start + CHUNK, last)], minlength=len(counts)
            )
    return counts


def most_frequent_token(
    store: TokenStore,
    documents: Ids,
    tokenizer: Tokenizer,
    batches: list[Batch],
    kind: str = "masked_lm",
    num_predicted: int | None = None,
) -> tuple[str, float]:
    """Return the most frequent token of the training text, the baseline of a model.

    `documents` are ascending. With it comes the fraction of the held-out predicted tokens that it
    is.

    num_predicted: the tokens that can be predicted, of the first ones; all others are the first
        one. None: all.
    """
    counts = token_counts(store, documents, tokenizer.vocab_size)
    labels = torch.cat([batch.targets[kind].labels for batch in batches])
    if num_predicted is not None:
        counts[0] += counts[num_predicted:].sum()
        counts = counts[:num_predicted]
        labels = labels * (labels < num_predicted)
    best = int(counts.argmax())
    return tokenizer.tokens[best], int((labels == best).sum()) / max(1, len(labels))


def half_of(family: Recipe, teacher: EncoderConfig) -> EncoderConfig:
    """Return a student with half of the layers of its teacher.

    Raises:
        ValueError: see `student_config`.
    """
    layers = max(1, teacher.num_hidden_layers // 2)
    return student_config(replace(family.encoder, num_hidden_layers=layers), teacher)


def with_teacher(recipe: Recipe, teacher: EncoderConfig, fields_set: Collection[str]) -> Recipe:
    """The recipe with the network of a student. given: names of the fields that the user has set.

    Raises:
        ValueError: such a field is not that of the teacher; see `student_config`.
        UsageError: a recipe without a teacher.
    """
    expect(
        recipe.distils,
        f"{recipe.title} has no objective with a teacher",
        hint="--recipe distilbert",
    )
    encoder = student_config(recipe.encoder, teacher)
    for name, value in vars(encoder).items():
        requested = getattr(recipe.encoder, name)
        if f"encoder.{name}" in fields_set and requested != value:
            raise ValueError(
                f"encoder.{name} is {requested!r}, but {value!r} in the teacher, and the student "
                "has its layers"
            )
    return replace(recipe, encoder=encoder, teacher_layers=teacher.num_hidden_layers)


class PretrainJob(Job):
    """Masked tokens and other objectives on shards, for a `TrainingRun`."""

    describe = staticmethod(describe)

    def __init__(
        self,
        recipe: Recipe,
        shards: Shards,
        init: str | None = None,
        *,
        new_words: int = 0,
        texts: Sequence[Text] = (),
        teacher: str | None = None,
    ):
        """Create the job.

        init: the model to continue from. new_words: by which its vocabulary is extended. texts: the
        parts of a text in several languages; (): the shards are all of it. teacher: the model from
        which this one learns.
        """
        self.recipe = recipe
        self.shards = shards
        self.init = init
        self.tokenizer = shards.tokenizer()
        self._old = without_last(self.tokenizer, new_words) if new_words else self.tokenizer
        self._has_start = False  # whether the initial model can be evaluated, and was not yet
        length_of_init = self.tokenizer.model_max_length
        self.tokenizer.model_max_length = recipe.encoder.max_position_embeddings
        self.precision = cast(Precision, recipe.train.precision)
        self.settings = RunSettings(
            recipe.optimizer,
            recipe.seed,
            self.precision,
            recipe.train.num_steps,
            evaluate_every=recipe.train.evaluate_every,
            save_every=recipe.train.save_every,
            evaluates_start=True,
            keeps="last" if recipe.encoder.decoder is None else "best",
            average=recipe.train.average,
        )
        # the model of the teacher
        self.teaching = load_model(resolve_model(teacher)) if teacher else None
        self.teacher = self.teaching and Teacher(*self.teaching[:2], DTYPES[self.precision])
        self._main_objective: str = next(iter(recipe.weights))
        self.texts = texts or [Text((), shards)]
        self.parts = [
            (store := text.store, *split_documents(store, recipe.seed)) for text in self.texts
        ]
        self.store, self.documents, self.held_out = self.parts[0]
        # of these one is drawn at random; a translator has translations alone
        self._monolingual = [n for n, text in enumerate(self.texts) if not text.is_parallel] or [0]
        sizes = [float(self.texts[n].shards.manifest.tokens) for n in self._monolingual]
        weights = np.array(sizes) ** recipe.sampling.language_power
        self.fractions = weights / weights.sum()
        if recipe.encoder.decoder is not None:
            # Longer texts are divided when they are translated.
            longest = longest_source(self.parts[0], self.tokenizer, recipe.train.sequence_length)
            if init is not None:
                longest = max(longest, length_of_init)
            self.tokenizer.model_max_length = min(longest, recipe.encoder.max_position_embeddings)

    def follow(self, steps: Sequence[int]) -> None:
        """Changes the number of steps of each phase."""
        self.settings = replace(self.settings, num_steps=sum(steps))
        self.recipe = self.recipe.with_steps(steps)

    def network(self) -> PretrainingModel:
        """Return a network with random weights."""
        model = PretrainingModel.of(self.recipe)
        model.teacher = self.teacher
        # positions that were not trained keep their sines
        if self.recipe.initialization == "neighbours":
            model.encoder.embeddings.get_submodule("position").requires_grad_(False)
        return model

    def initial_network(self) -> tuple[PretrainingModel, list[str]]:
        """Return the network with which the training starts, and notes."""
        torch.manual_seed(self.recipe.seed)
        model = self.network()
        notes = []
        if self.teaching:
            chosen = student_layers(
                self.teaching.config.num_hidden_layers, self.recipe.encoder.num_hidden_layers
            )
            model.load_state_dict(student_state(self.teaching, self.recipe.encoder), strict=False)
            notes.append(
                f"the student starts from layers {', '.join(map(str, chosen))} of the teacher"
            )
        elif self.init is not None:
            state = state_with_generator(resolve_model(self.init), model)
            state = extended_state(state, self._old, self.tokenizer, self.recipe.encoder.vocab_size)
            model.load_state_dict(state, strict=False)
            self._has_start = all(
                "lm_head" not in name or name in state for name, _ in model.named_parameters()
            )
            missing = [name for name, _ in model.named_parameters() if name not in state]
            if missing:
                heads = ", ".join(sorted({name.split(".")[0] for name in missing}))
                notes.append(f"{self.init} has no {heads}: initialized at random")
            text = self.tokenizer.target.decode(self.tokenizer.target.ids([_SAMPLE])[0])
            if model.decoder is not None and text.strip() != _SAMPLE:
                notes.append(
                    f"translations are written in the vocabulary of {self.init}, which makes "
                    f"{text!r} of {_SAMPLE!r}"
                )
        elif self.recipe.encoder.kind == "static":
            known = torch.from_numpy(self._counts > 0)
            known[sorted(self.tokenizer.special_ids)] = False
            initialize_word_vectors(model.encoder.embeddings.token, known)
            notes.append(
                f"{int(known.sum()):,} of {len(known):,} tokens occur in the text of the training; "
                "the others have the vector 0"
            )
        elif self.recipe.encoder.kind == "elmo":
            cast(Characters, model.encoder.embeddings).draw()
        elif self.recipe.initialization == "xavier":
            initialize_xavier(model, self.recipe.encoder.hidden_size)
        elif self.recipe.initialization == "neighbours":
            init_local_attention(model.encoder)
        elif self.recipe.initialization == "scaled_residual":
            scale_residual(model.encoder)
            if self.recipe.encoder.task_transform and model.lm_head is not None:
                scale_transform(model.lm_head, self.recipe.encoder.num_hidden_layers)
        return model, notes

    def initial_memory(self, device: torch.device) -> Memory | None:
        """Return the memory of the network, of all lanes of a step, before the first step."""
        return make_memory(self.recipe.encoder, self.recipe.train.phases[0].batch_size, device)

    def batches(
        self, plans: Path, rank: int, size: int, note: Callable[[str], None]
    ) -> StepBatches:
        """Return the batches of each step."""
        of_text = []
        for text, (store, documents, _) in zip(self.texts, self.parts, strict=True):
            recipe = self.recipe
            folder = plans / "-".join(text.languages)
            if text.is_parallel:
                recipe = replace(recipe, sampling=replace(recipe.sampling, format="parallel"))
            corpus = store, documents, recipe, self.tokenizer
            of_text.append(
                phase_batches(
                    *corpus, folder, rank, size, note, lambda n: self.recipe.train.locate(n)
                )
            )
        if self.texts[0].is_parallel:
            for sentence in notes_on_pairs(self.parts[0], plans, self.recipe):
                note(sentence)

        def batches(step: int) -> list[Batch]:
            number = self.text_of(step)
            return [self._in_languages(batch, number) for batch in of_text[number](step)]

        return batches

    def text_of(self, step: int) -> int:
        """Return the number of the text of a step.

        Translations are evenly spread, of the others it is random.
        """
        rate = self.recipe.sampling.parallel_rate
        if int((step + 1) * rate) > int(step * rate):
            return len(self.texts) - 1
        draw = keyed_rng("language", self.recipe.seed, step).random()
        return self._monolingual[
            min(int((draw >= self.fractions.cumsum()).sum()), len(self._monolingual) - 1)
        ]

    def _in_languages(self, batch: Batch, number: int) -> Batch:
        names = self.texts[number].languages
        return (
            in_languages(batch, [self.recipe.encoder.languages.index(name) for name in names])
            if names
            else batch
        )

    def evaluate(self, network: TrainableModel) -> dict[str, float]:
        """Return the figures of the network on held-out text."""
        result = dict[str, float]()
        device = next(network.parameters()).device
        for ending, batches in self._held_out_batches.items():
            memory = make_memory(self.recipe.encoder, batches[0].layout.num_sequences, device)
            with with_memory(network, memory):
                means = evaluate(network, batches, self.precision)
            if ending.startswith("_at_"):
                means = {self._main_objective: means[self._main_objective]}
            result |= {
                name + ending: value
                for name, value in figures(means, perplexity=not ending).items()
            }
        # Spelled words that are not in the vocabulary have no probability.
        is_scored = self.recipe.encoder.kind != "elmo" and not self.texts[0].is_parallel
        if self.init is None or not is_scored or not self._bits_batches[0].characters:
            return result
        return result | self._bits(network)

    def evaluate_trained(self, network: TrainableModel) -> dict[str, float]:
        """Return the BLEU of a network that translates, if sacrebleu is installed."""
        if self.recipe.encoder.decoder is None or not has_sacrebleu():
            return {}
        assert isinstance(network, PretrainingModel)
        value = self._held_out_pairs.bleu(network, self.precision)
        return {f"{self._main_objective}_{BLEU.key}": value}

    def _bits(self, network: TrainableModel) -> dict[str, float]:
        """Return bits per character.

        The first time it includes those of the initial model with its own tokenizer.
        """
        assert isinstance(network, PretrainingModel)
        own_batches, initial = self._bits_batches
        result = {BITS: bits_per_character(network, own_batches, self.precision)}
        if self._has_start:
            path = resolve_model(str(self.init))
            device = next(network.parameters()).device
            encoder = replace(self.recipe.encoder, vocab_size=ModelFolder(path).config.vocab_size)
            before = PretrainingModel.of(replace(self.recipe, encoder=encoder))
            before.load_state_dict(state_with_generator(path, before), strict=False)
            result[BITS_BEFORE] = bits_per_character(before.to(device), initial, self.precision)
            self._has_start = False
        return result

    def is_better(self, figures: Mapping[str, float], best: Mapping[str, float]) -> bool:
        """Return whether figures are better than the best ones so far."""
        main = f"{self._main_objective}_{OBJECTIVES[self._main_objective].measures[0].name}"
        return figures[main] < best[main]

    def baseline(self) -> tuple[str, dict[str, Any]] | None:
        """Return the baseline in words, and its figures; None: no prediction is right or wrong."""
        if ACCURACY not in OBJECTIVES[self.recipe.token_objective].measures:
            return None
        language = "".join(self.texts[0].languages)  # of the first one
        batches = self._held_out_batches[f"_in_{language}" if language else ""]
        kind = self.recipe.token_objective
        where = f" in {language}" if language else ""
        token, accuracy = most_frequent_token(
            self.store,
            self.documents,
            self.tokenizer,
            batches,
            kind,
            num_predicted=self.recipe.encoder.vocab_size if kind == "forward_lm" else None,
        )
        text = (
            f"always predicting {token!r} would get {accuracy:.1%} of the "
            f"{OBJECTIVES[kind].title} right{where}"
        )
        return text, {"token": token, f"{kind}_accuracy": accuracy}

    def flops_per_token(self, step: int) -> float:
        """Return the matrix-product operations of a step per token."""
        length = self.recipe.train.phases[self._phase(step)].sequence_length
        rate = self.recipe.predictions
        return self.recipe.flops_per_token(length, min(1, rate + 1 / length))

    def cost(self, steps: int) -> float:
        """Return the cost of the first steps.

        It is the seconds that were measured for a budget, else their arithmetic.
        """
        phases = self.recipe.train.phases
        ends = [*accumulate(p.num_steps for p in phases)]
        costs = [
            p.batch_size * p.sequence_length * self.flops_per_token(end)
            for p, end in zip(phases, ends)
        ]
        each = self.schedule.plans[0].step_seconds if self.schedule else costs
        return float(
            np.interp(
                steps, [0, *ends], [0, *accumulate(p.num_steps * c for p, c in zip(phases, each))]
            )
        )

    def progress(self, step: int) -> Progress:
        """Return how far the training is at a step."""
        fields = {"phase": self._phase(step) + 1, "phases": len(self.recipe.train.phases)}
        return Progress(self.cost(step), self.flops_per_token(step), fields)

    def save(self, folder: Path, network: nn.Module | None, facts: Mapping[str, Any]) -> None:
        """Write the model folder."""
        if network is not None:
            self._save_model(folder, network, facts)
        write_report(folder, facts.get("baseline"))

    def _save_model(self, folder: Path, network: nn.Module, facts: Mapping[str, Any]) -> None:
        if self.recipe.encoder.kind in ("static", "elmo"):
            self._save_encoder(folder, network, facts)
            return
        config = self.recipe.encoder
        heads = heads_of(self.recipe.weights)
        is_masked = self.recipe.token_objective in ("masked_lm", "permutation_lm")
        card = partial(
            pretraining_card,
            recipe=dump_recipe(self.recipe),
            steps=facts["step"],
            tokens=facts["tokens"],
            corpus=self._corpus,
            held_out=facts["evaluation"],
            versions=versions(),
            mask_token=self.tokenizer.special_tokens["mask_token"] if is_masked else None,
            num_end_tokens=len(self.tokenizer.template.suffix),
        )
        state = {name: p.detach() for name, p in network.named_parameters()}
        name = folder.resolve().name
        if any(name.startswith(GENERATOR) for name in state):
            smaller = config.generator(self.recipe.generator_size)
            tables = {f"encoder.embeddings.{table}.weight" for table in SHARED}
            generator_state = {
                n.removeprefix(GENERATOR): p
                for n, p in state.items()
                if n.startswith(GENERATOR) or n in tables
            }
            text = card(
                smaller, name=f"{name}, generator", parameters=num_parameters(smaller, ["lm_head"])
            )
            save_model(folder / GENERATOR[:-1], generator_state, smaller, self.tokenizer, card=text)
            state = {n: p for n, p in state.items() if not n.startswith(GENERATOR)}
        text = card(
            config,
            name=name,
            parameters=num_parameters(config, heads),
            detects="replaced_token" in heads,
        )
        save_model(folder, state, config, self.tokenizer, card=text)
        if config.decoder is not None and self.init is not None:
            rules = ModelFolder(resolve_model(self.init)).within / GENERATION_FILE
            if rules.is_file():  # how the initial model translates
                write_text(folder / GENERATION_FILE, rules.read_text(encoding="utf-8"))

    def _save_encoder(self, folder: Path, network: nn.Module, facts: Mapping[str, Any]) -> None:
        """Write a folder of static vectors or of an ELMo.

        What only the training needs, a second table or an output layer, is in the checkpoints
        alone. sentence-transformers opens a folder of static vectors, too. An ELMo reads texts
        without the vocabulary of its training.
        """
        config = self.recipe.encoder
        num_words = config.vocab_size
        if config.kind == "elmo":
            config = replace(config, vocab_size=1)  # the only token of its tokenizer
        card = encoder_card(
            config,
            name=folder.resolve().name,
            recipe=dump_recipe(self.recipe),
            steps=facts["step"],
            tokens=facts["tokens"],
            words=num_words,
            corpus=self._corpus,
            held_out=facts["evaluation"],
            versions=versions(),
        )
        parameters = network.named_parameters()
        state = {name: p.detach() for name, p in parameters if name.startswith("encoder.")}
        save_model(folder, state, config, self._plain_tokenizer, card=card)
        if config.kind == "static":
            SentenceTransformerSettings().save(folder, config.hidden_size, is_static=True)

    @cached_property
    def _plain_tokenizer(self) -> Tokenizer:
        """The tokenizer of a folder of an encoder: without special tokens around a text."""
        longest = self.recipe.encoder.max_position_embeddings
        if self.recipe.encoder.kind == "elmo":
            return spelling_tokenizer(longest)
        return self.tokenizer.without_template(longest)

    @property
    def _corpus(self) -> dict[str, object]:
        """The counts and the hash of the text, for the model card."""
        manifests = [text.shards.manifest for text in self.texts]
        counts = ("documents", "sentences", "tokens")
        corpus: dict[str, object] = {
            name: sum(getattr(m, name) for m in manifests) for name in counts
        }
        return corpus | {"sha256": " ".join(m.files["tokens.bin"] for m in manifests)}

    @cached_property
    def _counts(self) -> Ids:
        """How often each token is in the text of the training: int64 [vocab_size]."""
        return token_counts(self.store, self.documents, self.recipe.encoder.vocab_size)

    def _phase(self, step: int) -> int:
        """Return the phase of a step, counted from 1."""
        return self.recipe.train.locate(max(0, step - 1))[0]

    @cached_property
    def _bits_batches(self) -> tuple[BitsBatches, BitsBatches]:
        """Held-out windows for the trained network, and for the initial one."""
        train = self.recipe.train
        template = template_of(self.tokenizer, self.recipe.sampling.format)
        return bits_batches(
            self.store,
            self.held_out,
            self.tokenizer,
            template,
            length=train.held_out_length,
            windows=train.held_out_sequences,
            kind=self.recipe.token_objective,
            read_by=None if self._old is self.tokenizer else self._old,
        )

    @cached_property
    def _held_out_pairs(self) -> HeldOutPairs:
        """The pairs that a network with a decoder translates in evaluations."""
        return HeldOutPairs(self._held_out_batches[""], self.tokenizer)

    @cached_property
    def _held_out_batches(self) -> dict[str, list[Batch]]:
        """Return held-out batches by the ending of their figures.

        They are sequences of the usual length, about as many tokens in the longest ones, and
        sequences of each language; translations have both.
        """
        usual = self.recipe.train.held_out_length
        longest = self.recipe.train.sequence_length
        parts = {"": (usual, self._monolingual)}
        if self.recipe.sampling.lanes:
            usual = longest
        # pairs are never cut, and static vectors do not read farther in longer sequences
        has_one_length = self.texts[0].is_parallel or self.recipe.encoder.kind == "static"
        if longest > usual and not has_one_length:
            parts[f"_at_{longest}"] = longest, self._monolingual
        parts |= {
            f"_in_{'-'.join(t.languages)}": (usual, [n])
            for n, t in enumerate(self.texts)
            if t.languages
        }
        return {
            ending: [batch for number in numbers for batch in self._held_out_of(number, length)]
            for ending, (length, numbers) in parts.items()
        }

    def _held_out_of(self, number: int, length: int) -> list[Batch]:
        """Sequences of a text; all texts together have those of a run with one."""
        train = self.recipe.train
        (store, _, documents) = self.parts[number]
        is_parallel = self.texts[number].is_parallel
        length = train.sequence_length if is_parallel else length  # longer pairs are left out
        tokens = train.held_out_sequences * train.held_out_length // len(self._monolingual)
        num_sequences = tokens // length
        if self.recipe.encoder.decoder is not None:  # most pairs are far below that length
            lengths = np.diff(store.sentences[store.documents])[documents]
            num_sequences = int(tokens / lengths.mean())
        format: Format = "parallel" if is_parallel else self.recipe.sampling.format
        batches = held_out_batches(
            store,
            documents,
            self.tokenizer,
            format=format,
            sequence_length=length,
            sequences=max(1, num_sequences),
            kind=self.recipe.token_objective,
            replaces="replaced_token" in self.recipe.weights,
            counts=self._counts if self.recipe.encoder.kind == "static" else None,
            in_lanes=self.recipe.sampling.lanes,
        )
        return [self._in_languages(batch, number) for batch in batches]
