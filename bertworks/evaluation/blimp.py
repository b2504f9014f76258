"""BLiMP (Warstadt et al. 2020): for how many minimal pairs the grammatical sentence has the higher score."""

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
REPORTED = 200  # pairs between two lines of progress
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
    """The share of pairs in which the good sentence scores higher than the bad one, strictly: by paradigm (UID), by
    phenomenon, and the mean over paradigms. Equal scores are mistakes. The fields of the last event are the result.

    Args:
        data: a file with the fields sentence_good, sentence_bad and UID, in any format, or a folder of .jsonl files.
        output: a JSON file for the result.
        sample: so many pairs of each paradigm, always the same ones, each sample part of every larger one; 0: all.
        within_word: see `score`.

    Raises:
        UsageError: a negative sample.
        BertworksError: no such model or data.
    """
    if sample < 0:
        raise UsageError(f"a sample of {sample} pairs: expected 1 or more, or 0 for all")
    if output is not None:
        refuse_unwritable(output)
    pairs = list(_sampled(_read(data), sample))
    sentences = (pair[column] for pair in pairs for column in COLUMNS[:2])
    scores = score(model, sentences, within_word=within_word, device=device, precision=precision)
    right = []
    for number, (good, bad) in enumerate(zip(scores, scores, strict=True), 1):
        right.append(is_better(good, bad))
        if number % REPORTED == 0:
            told = f"blimp: {number:,} of {len(pairs):,} pairs, {sum(right) / number:.1%} right so far"
            yield Event("stage", told, {"stage": "blimp", "what": "pairs", "amount": number, "of": len(pairs)})
    result = {"model": str(model), "sample": sample, "within_word": within_word, **_figures(pairs, right)}
    if output is not None:
        write_text(output, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    yield Event("done", _table(result), result)


def is_better(good: Score, bad: Score) -> bool:
    """Strictly. Sentences that are the same to the model are a tie, whatever the last bit of their sums says: they may
    have been computed beside other neighbours."""
    return good["tokens"] != bad["tokens"] and good["score"] > bad["score"]


def _read(data: str | Path) -> dict[str, list[Pair]]:
    """The pairs of each paradigm."""
    path = Path(data)
    files = sorted(path.glob("*.jsonl*")) if path.is_dir() else [path]
    paradigms: dict[str, list[Pair]] = defaultdict(list)
    for file in files:
        for row in RowReader(file):
            for column in COLUMNS:
                if not isinstance(row.values.get(column), str):
                    raise BertworksError(f"no text in the field {column!r}", where=row.where,
                                         hint="give BLiMP's files: sentence_good, sentence_bad, UID")  # fmt: skip
            paradigms[row.values["UID"]].append(row.values)
    if not paradigms:
        raise BertworksError("no pairs of sentences", where=str(data), hint="name a .jsonl file of BLiMP")
    return paradigms


def _sampled(paradigms: Mapping[str, Sequence[Pair]], sample: int) -> Iterator[Pair]:
    for pairs in paradigms.values():
        count = min(sample or len(pairs), len(pairs))
        yield from (pairs[shuffled_index(i, len(pairs), 0, 0)] for i in range(count)) if count < len(pairs) else pairs


def _figures(pairs: Sequence[Pair], right: Sequence[bool]) -> dict[str, Any]:
    outcomes: dict[str, list[bool]] = defaultdict(list)
    phenomenon: dict[str, str] = {}
    for pair, one in zip(pairs, right, strict=True):
        outcomes[pair["UID"]].append(one)
        phenomenon[pair["UID"]] = str(pair.get("linguistics_term") or "")
    paradigms: dict[str, dict[str, Any]] = {
        uid: {"accuracy": sum(of) / len(of), "pairs": len(of), "phenomenon": phenomenon[uid]}
        for uid, of in sorted(outcomes.items(), key=lambda one: (phenomenon[one[0]], one[0]))
    }
    grouped: dict[str, list[float]] = defaultdict(list)
    for of_one in paradigms.values():
        grouped[of_one["phenomenon"]].append(of_one["accuracy"])
    return {
        "pairs": len(pairs),
        "mean": sum(of_one["accuracy"] for of_one in paradigms.values()) / len(paradigms),
        "phenomena": {name: sum(values) / len(values) for name, values in grouped.items()},
        "paradigms": paradigms,
    }


def _table(result: Mapping[str, Any]) -> str:
    """For people: paradigms under their phenomena."""
    width = max(len(name) for name in (*result["paradigms"], *result["phenomena"])) + 2
    lines: list[str] = []
    last: str | None = None
    for uid, found in result["paradigms"].items():
        if found["phenomenon"] != last:
            last = found["phenomenon"]
            lines.append(f"{last or 'paradigms':<{width}}  {result['phenomena'][last]:6.1%}")
        lines.append(f"  {uid:<{width - 2}}  {found['accuracy']:6.1%}")
    mean = f"{result['mean']:6.1%}, of {len(result['paradigms'])} paradigms, {result['pairs']:,} pairs"
    return "\n".join([*lines, f"{'mean':<{width}}  {mean}"])
