"""Many fine-tunings of one request: seeds, folds, settings; and their summary."""

import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

from bertworks.checkpoints.storage import read_json, record_files
from bertworks.config import parse_overrides
from bertworks.errors import UsageError, expect, names_of
from bertworks.events import Event, JsonObject, PartOfJob, forward_events
from bertworks.io.atomic_write import local_path, refuse_nested, replacing, write_json, write_text
from bertworks.metrics.intervals import Array, Interval, interval_of_mean
from bertworks.runs.data_splits import LabelledData
from bertworks.runs.finetune import Baselines, finetune_events, refuse_unused
from bertworks.runs.finetune_job import FinetuneRequest
from bertworks.runs.loggers import IDS_FILE, require_loggers
from bertworks.runs.report import place_of, write_trials_report
from bertworks.runs.run_folder import FILES, check_same_request, open_run
from bertworks.tasks.scores import bounded, format_score, metric_name
from bertworks.training.recipe import PAPER_GRID, load_finetune_recipe

MAX_TRIALS = 10_000  # of one request; the plan of absurdly many would not fit in memory
# of the best training
NOT_COPIED = (
    "report.html",
    "metrics.jsonl",
    "data.json",
    "finished.json",
    "trials.json",
    IDS_FILE,
)


class Trial(NamedTuple):
    """One fine-tuning of several."""

    folder: str  # inside the output
    setting: str  # its settings in the sweep; "": there is no sweep
    request: FinetuneRequest


def plan_trials(
    request: FinetuneRequest, *, seeds: int = 1, folds: int = 0, sweep: Sequence[str] = ()
) -> list[Trial]:
    """Return all combinations.

    Args:
        seeds: number of seeds, from that of the request; the split into train and dev stays the
            same.
        folds: parts of the data, each is the dev data once; 0: the usual split.
        sweep: `field=value,value,...` settings, or "paper": the grid of Devlin et al. 2019,
            appendix A.3.

    Raises:
        UsageError: settings of another form, or that the method does not use; a single fold; more
            than MAX_TRIALS.
    """
    expect(folds == 0 or folds >= 2, "folds divide the training data: expected 2 or more")
    first = (
        load_finetune_recipe(request.recipe, request.overrides).seed
        if request.seed is None
        else request.seed
    )
    trials = []
    grid = [
        _values(word)
        for words in names_of(sweep)
        for word in (PAPER_GRID if words == "paper" else (words,))
    ]
    swept = parse_overrides([word for words in grid for word in words]).keys()
    refuse_unused(request.method, [*swept, *["seeds"] * (seeds > 1)])
    for field in parse_overrides(request.overrides).keys() & swept:
        raise UsageError(
            f"{field} is in the sweep, and is set by another option",
            hint="leave out one of them",
        )
    parts = range(folds) if folds else [None]
    count = math.prod(map(len, grid)) * max(1, folds) * seeds
    expect(
        count <= MAX_TRIALS,
        f"{count:,} fine-tunings (settings, times folds, times seeds): expected at most "
        f"{MAX_TRIALS:,}",
        hint="type smaller numbers of --seeds and --folds, or fewer values of --sweep",
    )
    for words, fold, seed in product(product(*grid), parts, range(first, first + seeds)):
        name = [word.replace("optimizer.", "") for word in words]
        name += [f"fold-{fold}"] if folds else []
        name += [f"seed-{seed}"] if seeds > 1 or not name else []
        trial_request = replace(
            request, overrides=(*request.overrides, *words), seed=seed, fold=fold, folds=folds
        )
        trials.append(Trial("-".join(name).replace("/", "_"), " ".join(words), trial_request))
    return trials


def run_trials(
    output: str | Path,
    trials: Sequence[Trial],
    *,
    device: str = "auto",
    overwrite: bool = False,
    data: LabelledData | None = None,
    log_to: str | Iterable[str] = (),
) -> Iterator[Event]:
    """Runs all trials, each in its own folder inside `output`.

    Afterwards `output` holds the model that is best on dev, and trials.json with all results. If
    interrupted, the same call resumes.

    All of them are compared with baselines: the report of the trials shows the comparisons.

    data: that of the requests, if it is read already.
    log_to: see `finetune_events`; each of the trainings has its own log.

    Raises:
        UsageError: torchrun started several processes. Otherwise as `finetune_events`.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count > 1:
        raise UsageError(
            "several fine-tunings run one after the other, in one process, and there are "
            f"{count} processes",
            hint="leave torchrun out; or type one command for each: --seed 1 -o FOLDER-1",
        )
    loggers = require_loggers(names_of(log_to))
    output = local_path(output, "output folder")
    shared = {
        k: v
        for k, v in trials[0].request.content().items()
        if k not in ("seed", "fold", "folds", "overrides")
    }
    request = shared | {"several": True}
    refuse_nested(output, trials[0].request.paths)
    resumes = check_same_request(output, request, overwrite)
    with ExitStack() as stack:

        @cache
        def begin() -> None:
            """Write the request of all trainings, and lock the folder.

            This comes before the first of them writes a file.
            """
            inner = {trial.folder: trial.request.content() for trial in trials}
            stack.enter_context(open_run(output, request, overwrite, inner))

        if resumes:
            begin()
        yield from _run_trials(
            output,
            trials,
            before_writing=begin,
            device=device,
            overwrite=overwrite,
            data=data,
            log_to=loggers,
        )


def _run_trials(
    output: Path, trials: Sequence[Trial], *, before_writing: Callable[[], None], **options: Any
) -> Iterator[Event]:
    """The trials one after the other, then their summary and the best model.

    before_writing: is called when a request has been checked, before its first file is written.
    """
    done = list[JsonObject]()
    samples = list[Array]()
    baselines = Baselines()
    for number, trial in enumerate(trials, 1):
        yield Event(
            "stage",
            f"fine-tuning {number} of {len(trials)}: {trial.folder}",
            {"stage": trial.folder},
        )
        folder = output / trial.folder
        events = finetune_events(
            folder,
            trial.request,
            baselines=baselines,
            extrapolates=False,
            before_writing=before_writing,
            **options,
        )
        part = PartOfJob(f"training {number}/{len(trials)}", number - 1, 1, len(trials))
        event = yield from forward_events(part.placed(events))
        numbers = {"seed": trial.request.seed, "fold": trial.request.fold}
        results = {
            name: event.fields[name]
            for name in ("metric", "score", "figures", "seconds", "rows", "baselines")
        }
        done.append({"folder": trial.folder, "setting": trial.setting, **numbers, **results})
        samples.append(np.array(read_json(folder / "result.json")["resamples"]))
        settings = summary(done, samples)
        positive = results["baselines"].get("positive")
        write_json(output / "trials.json", {"trials": done, "settings": settings})
    # not the best single run: that is luck
    best_setting = max(settings, key=lambda row: row["mean"])["setting"]
    best = max(
        (result for result in done if result["setting"] == best_setting),
        key=lambda result: result["score"],
    )
    for outdated in record_files(output):  # of the model that was the best before
        outdated.unlink(missing_ok=True)
    for name in FILES:
        if name not in NOT_COPIED and (output / best["folder"] / name).exists():
            with replacing(output / name) as temporary:
                shutil.copyfile(output / best["folder"] / name, temporary)
    score = format_score(best["metric"], best["score"])
    choice = (
        f"the best of {len(done)} trainings, chosen by its {score} {place_of(best)}: expect "
        "the mean on new texts"
    )
    text = f"{table(best['metric'], settings, positive)}\n{output}: {choice} ({best['folder']})"
    text += f"\nsee {write_trials_report(output, done, text)}"
    card = output / "README.md"
    note = f"This model is {choice}. The mean: {text.partition(';')[0]}"
    write_text(
        card, card.read_text(encoding="utf-8").replace("## Quality\n", f"## Quality\n\n{note}\n", 1)
    )
    yield Event(
        "done", text, {"folder": str(output), "trials": done, "settings": settings, "best": best}
    )


def summary(done: Sequence[JsonObject], samples: Sequence[Array]) -> list[JsonObject]:
    """Return the scores of each setting over seeds and folds.

    They are mean, deviation and 95 % interval (`interval_of_trials`).

    samples: the scores of each trial on resamples of its dev rows.
    """
    rows = []
    for name in dict.fromkeys(result["setting"] for result in done):
        trials, parts = zip(
            *(pair for pair in zip(done, samples, strict=True) if pair[0]["setting"] == name)
        )
        scores = [trial["score"] for trial in trials]
        result_of_setting = {
            "setting": name,
            "scores": scores,
            "count": len(scores),
            "mean": fmean(scores),
        }
        deviation = stdev(scores) if len(scores) > 1 else None
        rows.append(
            result_of_setting
            | {"deviation": deviation, "interval": interval_of_trials(trials, parts)}
        )
    return rows


def interval_of_trials(trials: Sequence[Mapping[str, Any]], samples: Sequence[Array]) -> Interval:
    """Return the interval of the mean score of trials of one setting.

    It is over the sampling of the dev rows and of the seeds. A seed counts with its mean over the
    folds.
    """
    seeds = {trial["seed"] for trial in trials}
    means = [
        fmean(trial["score"] for trial in trials if trial["seed"] == seed) for seed in sorted(seeds)
    ]
    rows = max(1, sum(trial["rows"] for trial in trials) // len(seeds))
    return bounded(interval_of_mean(means, samples), fmean(means), rows, trials[0]["metric"])


def table(metric: str, settings: Sequence[JsonObject], positive: str | None = None) -> str:
    """Return the summary in words. positive: of two classes the one whose F1 is reported."""
    lines = []
    for row in sorted(settings, key=lambda row: -row["mean"]):
        score = format_score(metric, row["mean"], row["interval"])
        spread = f", deviation {format_score(metric, row['deviation'])}" if row["count"] > 1 else ""
        each = ", ".join(format_score(metric, score) for score in row["scores"])
        lines.append(
            f"{row['setting'] or 'all'}: {metric_name(metric, positive)} {score}{spread}; {each}"
        )
    return "\n".join(lines)


def _values(word: str) -> list[str]:
    name, equals, values = word.partition("=")
    if not equals or not name or not all(values.split(",")):
        raise UsageError(
            f"{word!r} sweeps nothing",
            hint="write it as optimizer.learning_rate=2e-5,5e-5; or: paper",
        )
    expect(
        name != "seed",
        "the seed is not a setting of a sweep",
        hint="use --seeds: it gives mean and interval",
    )
    return [f"{name}={value}" for value in dict.fromkeys(values.split(","))]
