"""Find where in a network syntax is: structural probes of every layer on a treebank.

The method is that of Hewitt and Manning 2019.

- `evaluate_probe`: a model and a treebank -> figures of each layer, of a random encoder and of a
  chain of words
- `word_sequences`, `read_words`: sentences in words -> the input of the network, and which tokens
  each word has
- `write_word_states`: the mean state of the tokens of each word, after every layer -> arrays of
  float16, so that memory does not grow with the text
- `probe_table`, `probe_page`: the result in words, and as a page with a chart
"""

import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks.batching.batch import collate, token_budget_indices
from bertworks.batching.examples import Example, Ids, add_special_tokens, sample_rows
from bertworks.datasets.treebank import Treebank, TreeSentence, read_treebank
from bertworks.errors import BertworksError, expect, printable, require
from bertworks.events import Event, JsonObject
from bertworks.inference.engine import LazyModel, batch_tokens, open_model, prepared_encoder
from bertworks.io.atomic_write import local_path, refuse_not_empty, write_json, write_text
from bertworks.io.inputs import IssueCounter, chunk_by_size
from bertworks.metrics.intervals import RowSums, difference, mean_of_runs
from bertworks.metrics.trees import LONGEST, SHORTEST, GoldTree, tree_metrics
from bertworks.models.transformer import Encoder, InferenceEncoder, Stack
from bertworks.reports import svg
from bertworks.reports.svg import Series
from bertworks.tasks.task import shortened
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.device import THREADS, choose_device
from bertworks.training.probes import ProbeKind, WordStates, predictions, train_probe

FIGURES = {"uuas": "UUAS", "dspr": "DSpr", "root_accuracy": "root accuracy", "nspr": "NSpr"}
_KINDS: tuple[ProbeKind, ...] = ("distance", "depth")
MOST_REPEATS = 10_000  # epochs of a probe, and probes of a layer
_SMALLER = (
    "--sample 3000 reads fewer sentences, --layers 0,1 keeps fewer layers; TMPDIR names "
    "another disk"
)
_CHARACTERS = 1 << 20  # of sentences that are tokenized together
_LARGEST = float(np.finfo(np.float16).max)
WordArray = NDArray[np.float16]  # [words, width]
_CHAIN = "linear chain"
_Result = Mapping[str, Any]  # of `evaluate_probe`
_Figures = dict[int, list[dict[str, RowSums]]]  # layer -> the figures of each seed


class WordSequence(NamedTuple):
    """A sentence as the network reads it.

    Token tokens[i] of it belongs to word words[i]; a token may belong to two words.
    """

    example: Example
    tokens: Ids
    words: Ids
    num_words: int


class _Sentences(NamedTuple):
    """All sentences as the network reads them, and their trees.

    Parts are ranges of their numbers.
    """

    sequences: list[WordSequence]
    gold: list[GoldTree]
    train: range
    dev: range
    evaluated: range  # test, or again dev
    tested: str  # which of both


class _Work(NamedTuple):
    """The sentences and settings that all layers and encoders share."""

    data: _Sentences
    layers: list[int]
    rank: int
    epochs: int
    seeds: range
    device: torch.device


def evaluate_probe(
    model: str | Path | LazyModel,
    data: str | Path,
    *,
    layers: str | Sequence[int] = "all",
    rank: int = 0,
    epochs: int = 40,
    sample: int = 0,
    seeds: int = 1,
    seed: int = 0,
    output: str | Path | None = None,
    device: str = "auto",
) -> Iterator[Event]:
    """Train a distance and a depth probe on the frozen states of each layer, and evaluate them.

    They are evaluated on the test part of a treebank (on dev if there is no test part). The event
    "done" has the figures of each layer, of an untrained encoder of the same shape and of a linear
    chain, with 95 % intervals over sentences and seeds. See `metrics.trees` for the figures and
    `training.probes` for the training.

    Args:
        data: a folder of CoNLL-U files, or one file (`datasets.treebank.read_treebank`).
        layers: "all", "0,2-4", or numbers; 0 is the embeddings.
        rank: of the probes; 0: the width of the model.
        epochs: at most this number for each probe.
        sample: training sentences, the same every time; 0: all.
        seeds: probes of each layer; seed: of the first one, and of the untrained encoder.
        output: a new folder for `probe.json` and `probe.html`.

    Raises:
        UsageError: no such layer or rank; absurdly many seeds or epochs; an exported model, which
            has only its last layer.
        BertworksError: no such model; no treebank, or a tree that is none; no sentence of 5 to 50
            words; a word without a token; no room on the disk.
    """
    if output is not None:
        refuse_not_empty(local_path(output))
    for name, value, least in (
        ("rank", rank, 0),
        ("epochs", epochs, 1),
        ("sample", sample, 0),
        ("seeds", seeds, 1),
    ):
        expect(value >= least, f"{name} is {value}: expected {least} or more")
    for name, value in (("epochs", epochs), ("seeds", seeds)):
        expect(value <= MOST_REPEATS, f"{name} is {value:,}: expected at most {MOST_REPEATS:,}")
    bank = read_treebank(data)
    yield from (Event("note", note) for note in bank.notes)
    source = open_model(model, device)
    expect(
        not source.exported,
        "an exported model has only its last layer",
        where=source.within,
        hint="use the model that was exported",
    )
    numbers = _layers(layers, source.config.num_hidden_layers)
    width = source.config.hidden_size
    expect(
        rank <= width,
        f"the rank is {rank}: a probe of this model has at most {width} rows, its width",
    )
    read = yield from _read(source, bank, sample)
    # Sentences without any figure are refused before the network computes anything.
    gold = [read.gold[number] for number in read.evaluated]
    hint = "name a larger treebank"
    require(
        any(tree.counts_for_correlation for tree in gold),
        f"no sentence to evaluate on has {SHORTEST} to {LONGEST} words: only these count in "
        "DSpr and NSpr",
        data,
        hint,
    )
    require(
        any(tree.edges for tree in gold),
        "no sentence to evaluate on has two words that are no punctuation: there are no edges "
        "to find",
        data,
        hint,
    )
    work = _Work(
        read, numbers, rank or width, epochs, range(seed, seed + seeds), choose_device(device)
    )
    result: JsonObject = {
        "model": source.name,
        "treebank": str(data),
        "evaluated_on": read.tested,
        "train": len(read.train),
        "sentences": len(read.evaluated),
        "rank": work.rank,
        "epochs": epochs,
        "seed": seed,
        "seeds": seeds,
    }
    encoder, _ = prepared_encoder(source.network(Encoder, "encoder."), "fp32")
    trained = yield from _encoder_figures(encoder, work, "")
    with torch.random.fork_rng(devices=[]):  # the initial weights of a training
        torch.manual_seed(seed)
        untrained = Encoder(source.config).to(work.device).requires_grad_(False).eval()
    encoder, _ = prepared_encoder(untrained, "fp32")
    random = yield from _encoder_figures(encoder, work, "untrained encoder, ")
    result |= _compared(work, trained, random)
    text = probe_table(result)
    if output is not None:
        folder = local_path(output)
        write_json(folder / "probe.json", result)
        write_text(folder / "probe.html", probe_page(result))
        text += f"\nwritten to {output}/probe.html"
    yield Event("done", text, result)


def _layers(layers: str | Sequence[int], count: int) -> list[int]:
    """Return the numbers of the layers.

    Args:
        layers: see `evaluate_probe`.
        count: of the layers after the embeddings.
    """
    hint = f"use all, or numbers from 0 (the embeddings) to {count}, as 0,2-4"
    if layers == "all":
        return list(range(count + 1))
    numbers = set[int]()
    for part in layers.split(",") if isinstance(layers, str) else map(str, layers):
        first, dash, last = part.strip().partition("-")
        expect(
            first.isdecimal() and (last.isdecimal() or not dash),
            f"{part!r} is not a layer",
            hint=hint,
        )
        numbers.update(range(int(first), int(last or first) + 1) or [count + 1])
    expect(numbers and max(numbers) <= count, f"the model has no such layers: {layers}", hint=hint)
    return sorted(numbers)


def _read(source: LazyModel, bank: Treebank, sample: int) -> Generator[Event, None, _Sentences]:
    """Return the sentences that fit into the model.

    Args:
        sample: see `evaluate_probe`.
    """
    longest = source.config.max_position_embeddings
    train = sample_rows(bank.train, sample)
    tested = "test" if bank.test else "dev"
    fitting = list[tuple[TreeSentence, WordSequence]]()
    long = IssueCounter()
    parts = dict[str, range]()
    for name, sentences in (("train", train), ("dev", bank.dev), ("test", bank.test)):
        start = len(fitting)
        for sentence, sequence in zip(sentences, word_sequences(source, sentences), strict=True):
            if sequence is None:
                long.add(sentence.where)
            else:
                fitting.append((sentence, sequence))
        parts[name] = range(start, len(fitting))
        require(
            parts[name] or not sentences,
            f"no sentence of {name} is short enough for this model: it reads {longest} tokens",
            sentences[0].where if sentences else "",
            "use another model",
        )
    if long.count:
        yield Event(
            "note",
            f"sentences of more than {longest} tokens, left out: {long}",
            {"long": long.count},
        )
    for sentence, sequence in fitting[:2]:
        pieces = " ".join(map(source.tokenizer.piece, sequence.example.input_ids.tolist()))
        yield Event(
            "note",
            printable(
                f"example  {sentence.where.rpartition('/')[2]}  {shortened(pieces)} -> "
                f"{sentence.words[sentence.root]} (root)"
            ),
        )
    if tested == "dev":
        yield Event(
            "note",
            "there is no test file: these are scores on dev, which also decided when each training "
            "ended",
        )
    gold = [GoldTree(sentence.heads, sentence.is_punctuation) for sentence, _ in fitting]
    return _Sentences(
        [sequence for _, sequence in fitting],
        gold,
        parts["train"],
        parts["dev"],
        parts[tested],
        tested,
    )


def _compared(work: _Work, trained: _Figures, random: _Figures) -> JsonObject:
    """Return the figures of all layers and of the baselines, and their differences."""
    gold = [work.data.gold[number] for number in work.data.evaluated]
    places = [np.arange(len(tree.depths), dtype=np.float64) for tree in gold]
    chain = tree_metrics(gold, [np.abs(x[:, None] - x) for x in places], places)
    layers, random_layers = (
        [{"layer": layer, **_row(runs)} for layer, runs in figures.items()]
        for figures in (trained, random)
    )
    best, best_random = (
        max(rows, key=lambda row: row["uuas"])["layer"] for rows in (layers, random_layers)
    )
    references = {
        f"layer {layer}": trained[layer]
        for layer in (work.layers[0], work.layers[-1])
        if layer != best
    }
    references |= {
        f"untrained encoder, layer {best_random}": random[best_random],
        _CHAIN: [chain] * len(work.seeds),
    }
    differences = {}
    for name, runs in references.items():
        uuas, interval = mean_of_runs(
            [
                difference(best_run["uuas"], run["uuas"])
                for best_run, run in zip(trained[best], runs, strict=True)
            ]
        )
        differences[name] = {"uuas": uuas, "interval": list(interval)}
    return {
        "chain": _row([chain]),
        "layers": layers,
        "random": random_layers,
        "best_layer": best,
        "differences": differences,
    }


def _encoder_figures(
    encoder: Stack | InferenceEncoder, work: _Work, name: str
) -> Generator[Event, None, _Figures]:
    """Return the figures of each layer of an encoder, for each seed.

    Args:
        name: of the encoder, in front of that of a layer.
    """
    counts = [sequence.num_words for sequence in work.data.sequences]
    starts = np.cumsum([0, *counts], dtype=np.int64)
    figures: _Figures = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        total = len(counts)
        # In bytes: the states are float16.
        size = 2 * sum(counts) * len(work.layers) * encoder.config.hidden_size
        check_room(folder, size, _SMALLER)
        for done in write_word_states(encoder, work.data.sequences, work.layers, folder):
            fields = {"stage": "probe", "what": "sentences", "amount": done, "of": total}
            yield Event("stage", f"{name}hidden states: {done:,} of {total:,} sentences", fields)
        for layer in work.layers:
            words = WordStates(np.load(states_file(folder, layer), mmap_mode="r"), starts)
            figures[layer] = []
            for seed in work.seeds:
                run = yield from _probed(words, work, seed, f"{name}layer {layer}")
                figures[layer].append(run)
            row = _row(figures[layer])
            text = "  ".join(f"{FIGURES[key]} {row[key]:.3f}" for key in FIGURES)
            yield Event(
                "evaluation",
                f"{name}layer {layer}: {text}",
                {"encoder": name, "layer": layer, **row},
            )
    return figures


def _probed(
    words: WordStates, work: _Work, seed: int, name: str
) -> Generator[Event, None, dict[str, RowSums]]:
    """Train the two probes of a layer with one seed, and return their figures.

    Args:
        name: of the layer.
    """
    data = work.data
    outputs = dict[ProbeKind, Any]()
    for kind in _KINDS:
        gold = [tree.distances if kind == "distance" else tree.depths for tree in data.gold]
        training = train_probe(
            words,
            gold,
            data.train,
            data.dev,
            kind=kind,
            rank=work.rank,
            epochs=work.epochs,
            seed=seed,
            device=work.device,
        )
        for loss, probe in training:
            text = (
                f"{name}, {kind} probe: epoch {probe.epochs} of at most {work.epochs}, loss on "
                f"dev {loss:.4f}"
            )
            fields = {"stage": "probe", "what": "epochs", "amount": probe.epochs, "of": work.epochs}
            yield Event("stage", text, fields)
        outputs[kind] = predictions(probe.matrix, words, data.evaluated, kind)
    return tree_metrics(
        [data.gold[number] for number in data.evaluated], outputs["distance"], outputs["depth"]
    )


def _row(runs: Sequence[Mapping[str, RowSums]]) -> JsonObject:
    """Return the mean of each figure over the seeds, and its interval."""
    means = {name: mean_of_runs([run[name] for run in runs]) for name in FIGURES}
    row: JsonObject = {name: mean for name, (mean, _) in means.items()}
    return row | {"intervals": {name: list(interval) for name, (_, interval) in means.items()}}


def _cells(row: Mapping[str, Any]) -> list[str]:
    """Return the figures of a row as texts.

    Fractions are in percent, correlations as they are, the main figures have intervals.
    """
    uuas_low, uuas_high = row["intervals"]["uuas"]
    dspr_low, dspr_high = row["intervals"]["dspr"]
    return [
        f"{100 * row['uuas']:.1f} ({100 * uuas_low:.1f} to {100 * uuas_high:.1f})",
        f"{row['dspr']:.2f} ({dspr_low:.2f} to {dspr_high:.2f})",
        f"{row['root_accuracy']:.1%}",
        f"{row['nspr']:.2f}",
    ]


def _rows(result: _Result) -> list[list[str]]:
    """Return the table: a row for each layer, those of the baselines after them."""
    rows = [[f"layer {row['layer']}", *_cells(row)] for row in result["layers"]]
    rows += [[f"untrained, layer {row['layer']}", *_cells(row)] for row in result["random"]]
    return [*rows, [_CHAIN, *_cells(result["chain"])]]


def _verdict(result: _Result) -> list[str]:
    """Return lines that compare the best layer with other ones."""
    lines = [f"best UUAS: layer {result['best_layer']}"]
    for name, row in result["differences"].items():
        low, high = (100 * end for end in row["interval"])
        lines.append(
            f"  {100 * row['uuas']:+.1f} points against {name} ({low:+.1f} to {high:+.1f})"
        )
    return lines


def probe_table(result: _Result) -> str:
    """Return the result of `evaluate_probe` in words."""
    rows = [["", *FIGURES.values()], *_rows(result)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows
    ]
    return "\n".join([_summary(result), *lines, *_verdict(result)])


def _summary(result: _Result) -> str:
    """Return a sentence about the sentences and the probes."""
    seeds = f", mean of {result['seeds']} seeds" if result["seeds"] > 1 else ""
    probes = f"probes of rank {result['rank']} trained on {result['train']:,} sentences{seeds}"
    return f"{result['sentences']:,} sentences of {result['evaluated_on']}; {probes}"


def probe_page(result: _Result) -> str:
    """Return the result of `evaluate_probe` as a page with two charts."""
    name = str(result["model"])
    best = next(row for row in result["layers"] if row["layer"] == result["best_layer"])
    headline = (
        f"Syntax is clearest in layer {best['layer']}: UUAS {100 * best['uuas']:.1f}, DSpr "
        f"{best['dspr']:.2f}"
    )
    charts = []
    for key, title, unit in (
        ("uuas", "UUAS: edges of the trees that are found", svg.percent),
        ("dspr", "DSpr: rank correlation of distances", svg.plain),
    ):
        points, random = (
            [(row["layer"], row[key]) for row in result[part]] for part in ("layers", "random")
        )
        chain = [(float(layer), result["chain"][key]) for layer, _ in (points[0], points[-1])]
        series = [
            Series(name, "held", points, (best["layer"], best[key])),
            Series("untrained encoder", "train", random),
            Series(_CHAIN, "base", chain),
        ]
        charts.append(svg.chart(title, series, unit, True, "layer"))
    over = "sentences and seeds" if result["seeds"] > 1 else "sentences"
    method = (
        "A probe is a linear map of the hidden states of a layer: squared distances of words "
        "under it are trained to be their distances in the dependency tree, and squared lengths "
        "their depths. Layer 0 is the embeddings. The untrained encoder has the same shape and "
        "random weights; the chain links each word to the next one. "
        f"Intervals: 95 %, over {over}. Hewitt and Manning 2019."
    )
    data = (
        f"{result['treebank']}\n{_summary(result)}\n"
        f"seed {result['seed']}, at most {result['epochs']} epochs"
    )
    sections = [
        svg.headline(headline),
        svg.side_by_side(charts),
        svg.section("Figures", svg.words(["", *FIGURES.values()], _rows(result), wraps=False)),
        svg.preformatted("The best layer", "\n".join(_verdict(result))),
        svg.preformatted("Data", data),
        svg.note(method, quiet=False),
    ]
    return svg.page(name, "structural probes", _summary(result), sections)


def word_sequences(
    source: LazyModel, sentences: Iterable[TreeSentence]
) -> Iterator[WordSequence | None]:
    """The sentences of a treebank as a model reads them; None for one that is too long for it.

    Raises:
        BertworksError: the tokenizer leaves nothing of a word, and the model has no static vectors.
    """
    return read_words(
        [(sentence.words, sentence.where) for sentence in sentences],
        source.tokenizer,
        source.config.max_position_embeddings,
        lowercase=source.sentence_transformer.settings.lowercase,
        keeps_punctuation=source.config.kind != "static",
    )


def read_words(
    sentences: Sequence[tuple[Sequence[str], str]],
    tokenizer: Tokenizer,
    max_length: int,
    *,
    lowercase: bool = False,
    keeps_punctuation: bool = True,
) -> Iterator[WordSequence | None]:
    """The sentences, their words joined by spaces; None for one with more tokens than `max_length`.

    Without a vocabulary each word is one token.

    Args:
        sentences: of each its words and where it stands.
        lowercase: whether the text is lower-cased before the tokenizer reads it.
        keeps_punctuation: false for static vectors of words, the tokenizers of which leave out
            punctuation: a word may have no token then.

    Raises:
        BertworksError: the tokenizer leaves nothing of a word.
    """
    room = max_length - tokenizer.template.num_special()
    for part in chunk_by_size(sentences, _CHARACTERS, lambda sentence: sum(map(len, sentence[0]))):
        if tokenizer.spells_words:
            for words, _ in part:
                yield None if len(words) > room else _spelled(words, tokenizer)
            continue
        texts = [
            " ".join(word.lower() if lowercase else word for word in words) for words, _ in part
        ]
        for (words, where), (ids, offsets) in zip(part, tokenizer.arrays(texts), strict=True):
            lengths = [len(word.lower() if lowercase else word) for word in words]
            starts = np.cumsum([0, *lengths[:-1]]) + np.arange(len(words))
            overlaps = (
                (offsets[:, :1] < starts + lengths)
                & (offsets[:, 1:] > starts)
                & (offsets[:, :1] < offsets[:, 1:])
            )
            tokens, of_word = np.nonzero(overlaps)
            empty = np.setdiff1d(np.arange(len(words)), of_word)
            if len(empty) and keeps_punctuation:
                raise BertworksError(
                    f"word {empty[0] + 1}, {words[empty[0]]!r:.60}, has no token: the "
                    "tokenizer removes all of it",
                    where=where,
                    hint="replace the word, or remove the sentence",
                )
            if len(ids) > room:
                yield None
                continue
            sequence = add_special_tokens([ids], tokenizer.template)
            example = Example(sequence.input_ids, sequence.token_type_ids, {})
            yield WordSequence(
                example, tokens + len(tokenizer.template.prefix), of_word, len(words)
            )


def _spelled(words: Sequence[str], tokenizer: Tokenizer) -> WordSequence:
    """Return a sentence of a tokenizer without a vocabulary."""
    sequence = add_special_tokens([tokenizer.array(tokenizer.spelled(words))], tokenizer.template)
    example = Example(sequence.input_ids, sequence.token_type_ids, {})
    numbers = np.arange(len(words))
    return WordSequence(example, numbers + len(tokenizer.template.prefix), numbers, len(words))


def check_room(folder: Path, size: int, hint: str) -> None:
    """Raise BertworksError if a disk has no room for a number of bytes."""
    free = shutil.disk_usage(folder).free
    require(
        size < free,
        f"the hidden states need {size / 1e9:,.1f} GB of disk, and {free / 1e9:,.1f} GB are free",
        folder,
        hint,
    )


def write_word_states(
    encoder: Stack | InferenceEncoder,
    sequences: Sequence[WordSequence],
    layers: Sequence[int],
    folder: Path,
) -> Iterator[int]:
    """Write the states of all words after each of these layers, and yield finished sentences.

    0 is the embeddings: float16 [words, width] in `states_file(folder, layer)`, sentence after
    sentence. The state of a word is the mean of those of its tokens, or 0 if it has none. The
    number of finished sentences is yielded.

    Raises:
        BertworksError: a state is no number, or larger than 65,504.
    """
    ends = np.cumsum([sequence.num_words for sequence in sequences])
    starts = [0, *ends[:-1].tolist()]
    width = encoder.config.hidden_size
    device = next(encoder.parameters()).device
    files = {
        layer: np.lib.format.open_memmap(
            states_file(folder, layer), "w+", np.float16, (int(ends[-1]), width)
        )
        for layer in layers
    }
    lengths = [len(sequence.example.input_ids) for sequence in sequences]
    done = 0
    for numbers in token_budget_indices(lengths, [1] * len(lengths), batch_tokens(device)):
        part = [sequences[number] for number in numbers]
        batch = collate([sequence.example for sequence in part]).to(device)
        first_words = np.cumsum([0, *(sequence.num_words for sequence in part)]).tolist()
        first_tokens = batch.layout.first.tolist()
        tokens = [sequence.tokens + first for sequence, first in zip(part, first_tokens)]
        words = [sequence.words + first for sequence, first in zip(part, first_words)]
        token = torch.from_numpy(np.concatenate(tokens)).to(device)
        word = torch.from_numpy(np.concatenate(words)).to(device)
        counts = torch.bincount(word, minlength=first_words[-1]).clamp(min=1)[:, None]
        THREADS.adapt()
        with torch.no_grad():
            states = encoder(*batch.inputs)
        rows = np.concatenate([np.arange(starts[number], ends[number]) for number in numbers])
        for layer in layers:
            x = states[layer].float()
            sums = x.new_zeros(first_words[-1], width).index_add_(0, word, x[token])
            files[layer][rows] = _float16((sums / counts).cpu().numpy(), layer)
        del states  # the next batch needs the memory
        done += len(numbers)
        yield done


def states_file(folder: Path, layer: int) -> Path:
    """Return the file of the states after a layer, which `numpy.load` reads."""
    return folder / f"layer-{layer}.npy"


def _float16(values: NDArray[np.float32], layer: int) -> WordArray:
    largest = float(np.abs(values).max())
    require(
        largest <= _LARGEST,
        f"the hidden states of layer {layer} reach {largest:,.6g}, more than float16 can hold "
        f"({_LARGEST:,.0f})",
        hint="leave this layer out",
    )
    return values.astype(np.float16)
