"""BLiMP (Warstadt et al. 2020): the fraction of minimal pairs whose grammatical sentence has the higher score."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertworks.batching.batch import shuffled_index
from bertworks.datasets.reader import RowReader
from bertworks.errors import BertworksError, UsageError
from bertworks.events import Event
from bertworks.inference.masked_lm import Score, score
from bertworks.io.atomic_write import refuse_unwritable, write_text
from bertworks.training.device import Precision

COLUMNS = ("sentence_good", "sentence_bad", "UID")
_REPORT_INTERVAL = 200  # pairs between two lines of progress
Pair = Mapping[str, Any]  # a row of the file


def evaluate_blimp(
    model: str | Path,
    data: str | Path,
    *,
    output: str | Path | None = None,
    sample: int = 0,
    within_word: bool = False,
    device: str = "auto",
    precision: Precision = "fp32",
) -> Iterator[Event]:
    """The fraction of pairs in which the good sentence scores strictly higher than the bad one: by paradigm (UID), by
    phenomenon, and the mean over paradigms. Equal scores are errors. The fields of the last event are the result.

    Args:
        data: a file with the fields sentence_good, sentence_bad and UID, in any format, or a folder of .jsonl files.
        output: a JSON file for the result.
        sample: pairs of each paradigm, the same every time. A sample is part of every larger one. 0: all.
        within_word: see `score`.

    Raises:
        UsageError: a negative sample.
        BertworksError: no such model or data.
    """
    if sample < 0:
        raise UsageError(f"a sample of {sample} pairs: expected 1 or more, or 0 for all")
    if output is not None:
        refuse_unwritable(output)
    pairs = list(_read(data, sample))
    sentences = (pair[column] for pair in pairs for column in COLUMNS[:2])
    scores = score(model, sentences, within_word=within_word, device=device, precision=precision)
    outcomes = []
    for number, (good, bad) in enumerate(zip(scores, scores, strict=True), 1):
        outcomes.append(is_better(good, bad))
        if number % _REPORT_INTERVAL == 0:
            text = f"blimp: {number:,} of {len(pairs):,} pairs, {sum(outcomes) / number:.1%} right so far"
            yield Event("stage", text, {"stage": "blimp", "what": "pairs", "amount": number, "of": len(pairs)})
    result = {"model": str(model), "sample": sample, "within_word": within_word, **_figures(pairs, outcomes)}
    if output is not None:
        write_text(output, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    yield Event("done", _table(result), result)


def is_better(good: Score, bad: Score) -> bool:
    """Strictly. Sentences with the same tokens are a tie even if the last bits of their scores differ, which depend on
    the other sentences of a batch."""
    return good["tokens"] != bad["tokens"] and good["score"] > bad["score"]


def _read(data: str | Path, sample: int) -> Iterator[Pair]:
    """The pairs, or a sample of them, by paradigm."""
    path = Path(data)
    paradigms: dict[str, list[Pair]] = defaultdict(list)
    for file in sorted(path.glob("*.jsonl*")) if path.is_dir() else [path]:
        for row in RowReader(file):
            for column in COLUMNS:
                if not isinstance(row.values.get(column), str):
                    hint = "give BLiMP's files: sentence_good, sentence_bad, UID"
                    raise BertworksError(f"no text in the field {column!r}", where=row.where, hint=hint)
            paradigms[row.values["UID"]].append(row.values)
    if not paradigms:
        raise BertworksError("no pairs of sentences", where=str(data), hint="name a .jsonl file of BLiMP")
    for pairs in paradigms.values():
        count = min(sample or len(pairs), len(pairs))
        yield from (pairs[shuffled_index(i, len(pairs), 0, 0)] for i in range(count)) if count < len(pairs) else pairs


def _figures(pairs: Sequence[Pair], outcomes: Sequence[bool]) -> dict[str, Any]:
    by_paradigm: dict[tuple[str, str], list[bool]] = defaultdict(list)
    terms = {pair["UID"]: str(pair.get("linguistics_term") or "") for pair in pairs}
    for pair, outcome in zip(pairs, outcomes, strict=True):
        by_paradigm[terms[pair["UID"]], pair["UID"]].append(outcome)
    paradigms: dict[str, dict[str, Any]] = {}
    phenomena: dict[str, list[float]] = defaultdict(list)
    for (phenomenon, uid), results in sorted(by_paradigm.items()):
        accuracy = sum(results) / len(results)
        paradigms[uid] = {"accuracy": accuracy, "pairs": len(results), "phenomenon": phenomenon}
        phenomena[phenomenon].append(accuracy)
    return {
        "pairs": len(pairs),
        "mean": sum(paradigm["accuracy"] for paradigm in paradigms.values()) / len(paradigms),
        "phenomena": {name: sum(values) / len(values) for name, values in phenomena.items()},
        "paradigms": paradigms,
    }


def _table(result: Mapping[str, Any]) -> str:
    """The result for readers: paradigms below their phenomena."""
    width = max(len(name) for name in (*result["paradigms"], *result["phenomena"])) + 2
    lines: list[str] = []
    for name, accuracy in result["phenomena"].items():
        lines.append(f"{name or 'paradigms':<{width}}  {accuracy:6.1%}")
        paradigms = [(uid, row) for uid, row in result["paradigms"].items() if row["phenomenon"] == name]
        lines += [f"  {uid:<{width - 2}}  {row['accuracy']:6.1%}" for uid, row in paradigms]
    mean = f"{result['mean']:6.1%}, of {len(result['paradigms'])} paradigms, {result['pairs']:,} pairs"
    return "\n".join([*lines, f"{'mean':<{width}}  {mean}"])
