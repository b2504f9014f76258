"""Evaluate translations: BLEU and chrF of a network with a decoder, and a second one to compare.

- `evaluate_translation`: figures with intervals, by length of the source, and the worst sentences;
  also as a page
- `translation_metric`: BLEU or chrF of a model as sums over pairs, from translations that are kept
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.examples import sample_rows
from bertworks.checkpoints.storage import read_json
from bertworks.errors import expect
from bertworks.events import Event, JsonObject
from bertworks.inference.translation import AT_ONCE, Translation, Translator
from bertworks.io.atomic_write import local_path, refuse_unwritable, write_json, write_text
from bertworks.io.inputs import chunk_by_size
from bertworks.metrics.intervals import (
    FEWEST_GROUPS,
    RowSums,
    middle,
    paired_difference,
    resampled,
)
from bertworks.metrics.squad import f1_unit_of
from bertworks.metrics.translation import Tokenization, TranslationMetric, bleu, chrf
from bertworks.reports import svg
from bertworks.text.translations import read_translations
from bertworks.training.device import PrecisionOption

NAMES = {"bleu": "BLEU", "chrf": "chrF"}
# The longest sources of each part of the table by length, in words. A word of English is about two
# characters of Japanese or Chinese.
LENGTHS = {"word": (7, 13, 20), "character": (14, 26, 40)}
NUM_WORST = 10
_Metrics = Mapping[str, TranslationMetric]  # by name, see NAMES
_Rows = NDArray[np.int64]  # numbers of pairs


def evaluate_translation(
    model: str | Path,
    files: Sequence[str | Path],
    *,
    other: str | Path | None = None,
    beam: int | None = None,
    length_penalty: float | None = None,
    max_tokens: int | None = None,
    target_language: str | None = None,
    cut: bool = False,
    lowercase: bool = False,
    tokenize: Tokenization = "13a",
    sample: int = 0,
    output: str | Path | None = None,
    device: str = "auto",
    precision: PrecisionOption = "auto",
) -> Iterator[Event]:
    """Compute BLEU and chrF of the translations of a network with a decoder, by sacrebleu.

    The fields of the event "done" are:

    - `model`, `sources`, `pairs` (their number), `beam`, `length_penalty`
    - `figures` and `intervals` (95 %, by the bootstrap over pairs; empty for fewer than 10 pairs)
      of `bleu` and `chrf`, and their `signatures`, without which no two figures compare
    - `limited`: how many translations reached the limit of their tokens
    - `lengths`: `figures` and `intervals` of the pairs with sources of a length
    - `worst`: the ten translations with the lowest chrF of a sentence, the lowest first
    - with `other`: its name, `other_figures`, `other_limited`, and `differences`: of each metric
      the `value` of model - other, its `interval` by resamples of the same pairs for both (Koehn
      2004), and whether it `is_resolved`: whether the interval is without 0

    Args:
        files: sources and references, see `read_translations`: a table of two columns, or two
            files.
        other: a second model, which translates by the same options.
        beam, length_penalty, max_tokens, target_language, cut: see `translate`.
        lowercase: whether upper and lower case are the same in both metrics.
        tokenize: how BLEU divides texts into words, see `metrics.translation.bleu`.
        sample: a number of pairs, the same every time; 0: all.
        output: an HTML file for the result.
        precision: see `Embedder`.

    Raises:
        UsageError: an option outside its range.
        BertworksError: sacrebleu is not installed; the files cannot be used; no such model, or one
            without a decoder; a source with a sentence of more tokens than the network reads.
    """
    expect(sample >= 0, f"a sample of {sample} pairs: expected 1 or more, or 0 for all")
    refuse_unwritable(None if output is None else local_path(output))
    bleu([""], [""], tokenize=tokenize)  # what is not installed is reported before the computation
    translations = read_translations(files)
    yield from (Event("note", note) for note in translations.notes())
    numbers = sample_rows(range(len(translations.pairs)), sample)
    pairs = [translations.pairs[number] for number in numbers]
    sources, references = map(list, zip(*pairs, strict=True))
    if tokenize == "13a" and f1_unit_of(references) == "character":
        yield Event(
            "note",
            "WARNING: 13a treats a text without spaces as a single word: use --tokenize zh, "
            "ja-mecab or char",
        )
    translators = [
        Translator(name, device, precision) for name in (model, other) if name is not None
    ]
    metrics: list[_Metrics] = []
    answers_of_models: list[list[Translation]] = []
    for translator in translators:
        answers = yield from _with_progress(
            translator(
                sources,
                translator.rules(beam, length_penalty),
                max_tokens=max_tokens,
                target_language=target_language,
                cuts=cut,
            ),
            f"{translator.where}: {{:,}} of {len(sources):,} texts",
        )
        texts = [answer["translation"] for answer in answers]
        metrics.append(
            {
                "bleu": bleu(texts, references, lowercase=lowercase, tokenize=tokenize),
                "chrf": chrf(texts, references, lowercase=lowercase),
            }
        )
        answers_of_models.append(answers)
    limited = [
        sum(answer["finish_reason"] == "max_tokens" for answer in answers)
        for answers in answers_of_models
    ]
    unit = f1_unit_of(sources)
    sizes = np.array([len(text.split() if unit == "word" else text) for text in sources])
    scores = metrics[0]["chrf"].sentence_scores
    rules = translators[0].rules(beam, length_penalty)
    result: JsonObject = {
        "model": str(model),
        "files": translations.files,
        **_figures(metrics, np.arange(len(sources))),
        "signatures": {name: metric.signature for name, metric in metrics[0].items()},
        "beam": rules.beam,
        "length_penalty": rules.length_penalty,
        "limited": limited[0],
        "unit": unit,
        "lengths": [
            {"length": length, **_figures(metrics, rows)}
            for length, rows in _by_length(sizes, LENGTHS[unit])
        ],
        "worst": [
            {
                "number": numbers[row] + 1,
                "chrf": float(scores[row]),
                "source": sources[row],
                "translation": answers_of_models[0][row]["translation"],
                "reference": references[row],
            }
            for row in scores.argsort(kind="stable")[:NUM_WORST]
        ],
    }
    if other is not None:
        result |= {"other": str(other), "other_limited": limited[1]}
    text = "\n".join(_lines(result))
    if output is not None:
        write_text(local_path(output), translation_page(result))
        text += f"\nwritten to {output}"
    yield Event("done", text, result)


def translation_metric(
    model: str | Path,
    files: Sequence[str],
    folder: Path,
    /,
    *,
    metric: Literal["bleu", "chrf"] = "bleu",
    beam: int = 4,
    lowercase: bool = False,
    longer_than: int = 0,
    up_to: int | None = None,
    device: str = "auto",
) -> TranslationMetric:
    """Return BLEU or chrF of the translations of a model, with a row for each pair.

    Args:
        files: sources and references, see `read_translations`.
        folder: of the model's translations, which are kept in `beam-N.json`.
        lowercase: see `evaluate_translation`.
        longer_than, up_to: words of the sources that count. The rows of the others are zeros, so
            that figures of long and of short sources have the same resamples.

    Raises:
        UsageError: no such metric.
        BertworksError: as `evaluate_translation`.
    """
    expect(metric in NAMES, f"the metric is {metric!r}: expected one of {', '.join(NAMES)}")
    pairs = read_translations(files).pairs
    sources, references = map(list, zip(*pairs, strict=True))
    path = folder / f"beam-{beam}.json"
    stored = read_json(path) if path.exists() else {}
    if stored.get("sources") != sources:
        translator = Translator(model, device)
        answers = translator(sources, translator.rules(beam))
        stored = {
            "sources": sources,
            "translations": [answer["translation"] for answer in answers],
        }
        write_json(path, stored)
    compute = {"bleu": bleu, "chrf": chrf}[metric]
    whole = compute(stored["translations"], references, lowercase=lowercase)
    sizes = np.array([len(source.split()) for source in sources])
    counts = (sizes > longer_than) & (sizes <= (up_to or np.inf))
    return replace(whole, rows=whole.rows * counts[:, None])


def _with_progress(
    answers: Iterator[Translation], text: str
) -> Generator[Event, None, list[Translation]]:
    """Return the translations, after an event for each part of them.

    Args:
        text: of the events, with {} in the place of the number of translations.
    """
    result: list[Translation] = []
    for part in chunk_by_size(answers, AT_ONCE):
        result += part
        fields = {"stage": "translate", "what": "texts", "amount": len(result)}
        yield Event("stage", text.format(len(result)), fields)
    return result


def _by_length(sizes: NDArray[np.int64], ends: Sequence[int]) -> Iterator[tuple[str, _Rows]]:
    """Yield the rows of each range of sizes that has rows, and the range in words."""
    places = np.searchsorted(ends, sizes)
    names = [f"up to {ends[0]}"]
    names += [f"{low + 1} to {high}" for low, high in pairwise(ends)]
    names.append(f"more than {ends[-1]}")
    for place, name in enumerate(names):
        rows = np.flatnonzero(places == place)
        if len(rows):
            yield name, rows


def _figures(metrics: Sequence[_Metrics], rows: _Rows) -> JsonObject:
    """Return the figures of some of the pairs, and how two models differ on them.

    Args:
        metrics: of one model or two.
        rows: the numbers of the pairs.
    """
    parts = [
        {name: RowSums(metric.rows[rows], metric.score) for name, metric in of_model.items()}
        for of_model in metrics
    ]
    result: JsonObject = {
        "pairs": len(rows),
        "figures": {name: metric.value for name, metric in parts[0].items()},
        "intervals": {},
    }
    has_intervals = len(rows) >= FEWEST_GROUPS
    if has_intervals:
        result["intervals"] = {name: middle(resampled(part)) for name, part in parts[0].items()}
    if len(parts) == 1:
        return result
    result["other_figures"] = {name: metric.value for name, metric in parts[1].items()}
    result["differences"] = {}
    if has_intervals:
        for name, metric in parts[0].items():
            value, (low, high) = paired_difference(metric, parts[1][name])
            is_resolved = not low <= 0 <= high
            difference = {"value": value, "interval": [low, high], "is_resolved": is_resolved}
            result["differences"][name] = difference
    return result


def _cell(part: Mapping[str, Any], name: str) -> str:
    """Return a figure with its interval."""
    value = f"{part['figures'][name]:.1f}"
    if name not in part["intervals"]:
        return value
    low, high = part["intervals"][name]
    return f"{value} ({low:.1f} to {high:.1f})"


def _difference(part: Mapping[str, Any], name: str) -> str:
    """Return the difference of two models with its interval."""
    if name not in part["differences"]:
        return ""
    difference = part["differences"][name]
    low, high = difference["interval"]
    text = f"{difference['value']:+.1f} ({low:+.1f} to {high:+.1f})"
    return text if difference["is_resolved"] else f"{text}, not resolved"


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the result for the console."""
    yield f"{result['pairs']:,} pairs, beam {result['beam']}; intervals: 95 %, over pairs"
    for name, title in NAMES.items():
        yield f"{title}  {_cell(result, name)}  {result['signatures'][name]}"
        if "other" in result:
            yield (
                f"      {result['other_figures'][name]:.1f} of {result['other']}; difference "
                f"{_difference(result, name) or 'of too few pairs for an interval'}"
            )
    width = max(len(part["length"]) for part in result["lengths"])
    yield f"by length of the source in {result['unit']}s"
    for part in result["lengths"]:
        cells = "  ".join(f"{title} {_cell(part, name)}" for name, title in NAMES.items())
        yield f"  {part['length']:<{width}}  {part['pairs']:>6,} pairs  {cells}"
    for name, model in (("limited", "model"), ("other_limited", "other")):
        if result.get(name):
            yield (
                f"WARNING: {result[name]:,} translations of {result[model]} reached the limit of "
                "their tokens, and may lack their end; --max-tokens raises it"
            )


def translation_page(result: Mapping[str, Any]) -> str:
    """Return the result of `evaluate_translation` as a page."""
    headline = ", ".join(f"{title} {_cell(result, name)}" for name, title in NAMES.items())
    verdict = ""
    heads = [f"{result['unit']}s of the source", "pairs", *NAMES.values()]
    if "other" in result:
        differences = (f"{title} {_difference(result, name)}" for name, title in NAMES.items())
        verdict = f"Difference to {result['other']}: {', '.join(differences)}"
        heads += [f"{title}, difference" for title in NAMES.values()]
    rows = []
    for part in [{"length": "all", **result}, *result["lengths"]]:
        row = [part["length"], f"{part['pairs']:,}", *(_cell(part, name) for name in NAMES)]
        if "other" in result:
            row += [_difference(part, name) for name in NAMES]
        rows.append(row)
    worst = [
        [
            str(row["number"]),
            row["source"],
            row["translation"],
            row["reference"],
            f"{row['chrf']:.1f}",
        ]
        for row in result["worst"]
    ]
    sections = [
        svg.headline(headline, verdict),
        svg.section("By length of the source", svg.words(heads, rows, wraps=False)),
        svg.section(
            "The worst translations",
            svg.words(["pair", "source", "translation", "reference", "chrF"], worst),
        ),
        svg.preformatted("Signatures of sacrebleu", "\n".join(result["signatures"].values())),
        svg.note("Intervals: 95 %, by the bootstrap over pairs.", quiet=False),
    ]
    summary = (
        f"{result['pairs']:,} pairs of {' and '.join(result['files'])} · beam {result['beam']} · "
        f"{result['limited']:,} translations reached the limit of their tokens"
    )
    return svg.page(Path(result["model"]).name, "translations", summary, sections)
