"""What a run leaves for people: report.html, errors.csv, the model card."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from bertworks.checkpoints.model_card import (
    REFUSED,
    encoder_use,
    fill_template,
    in_language,
    render_cell,
    render_code,
    render_table,
)
from bertworks.checkpoints.resolve import is_model_name
from bertworks.checkpoints.storage import read_json
from bertworks.checkpoints.task_config import is_own_network
from bertworks.config import dump_recipe
from bertworks.errors import quoted
from bertworks.events import JsonObject, duration
from bertworks.io.atomic_write import write_text
from bertworks.io.file_job import write_rows
from bertworks.models.config import BERT, EncoderConfig
from bertworks.reports import svg
from bertworks.reports.svg import Point, Section, Series, Show
from bertworks.runs.baselines import format_baselines
from bertworks.runs.dataset_report import DatasetReport
from bertworks.runs.run_folder import (
    BITS,
    compare_bits,
    describe,
    named_measures,
    read_metrics,
    versions,
)
from bertworks.tasks import scores as task_metrics
from bertworks.tasks.registry import TASKS, task_of
from bertworks.tasks.scores import (
    HUB_NAMES,
    NAMES,
    SHARES,
    format_metrics,
    metric_name,
    titled_metrics,
)
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import NOTHING, Mistake, Task
from bertworks.training.objectives import OBJECTIVES, PERPLEXITY
from bertworks.training.recipe import FinetuneRecipe

MetricRows = list[JsonObject]
Result = Mapping[str, Any]  # of an evaluation, as in result.json
Column = tuple[str, str, Show]  # name of the figure, title, format


class Chart(NamedTuple):
    """A chart of a figure of metrics.jsonl over steps."""

    title: str
    name: str  # of the figure
    show: Show
    from_zero: bool  # whether the axis begins at zero
    is_logarithmic: bool = False


def _show(name: str) -> Show:
    return svg.percent if name in SHARES else svg.plain


def _title(metric: str, place: str, positive: str | None = None) -> str:
    name = metric_name(metric, positive)
    return f"{name[0].upper()}{name[1:]} {place}"


def place_of(result: Result | None) -> str:
    """Return where the figures of a result come from: "on dev" or "in cross-validation"."""
    result = result or {}
    place = "in cross-validation" if result.get("is_validated") else "on dev"
    return str((result.get("baselines") or {}).get("place", place))


VALIDATED = (
    "these are scores of models trained on two thirds of the rows; the model in the folder is "
    "trained on all of them, and is probably better: the scores and their intervals are too low "
    "rather than too high"
)  # of a cross-validation
MOVED = "models trained on two thirds of the rows"
# Texts of a result, and what they are about
STATEMENTS = {"choice": "method", "certainty": "how sure", "advice": "what would help next"}
CURVE = (
    "these are estimates for the model in the folder, which is trained on all rows: they come from "
    "the learning curve of models trained on nine tenths and on two thirds of the rows"
)
NO_INTERVAL = "a score with 'about' has no interval: most labels have one or two evaluated rows"


def errors_note(result: Result) -> str:
    """Return the end of a sentence about errors.csv: what its first rows are.

    It is "" if there are no errors of this kind.
    """
    if not TASKS[result["task"]].has_temperature or not result["mistakes"]:
        return ""
    return (
        ", which begins with the rows that contradict the model most clearly; some of them may "
        "have wrong labels"
    )


def statements(result: Result) -> list[str]:
    """Return sentences: the method and why, how sure the figures are, what would help next.

    They are the same on the console, the page and the card. What is not known is left out.
    """
    return [f"{head}: {result[name]}" for name, head in STATEMENTS.items() if result.get(name)]


OPTIMIZATION_CHARTS: list[Chart] = [
    Chart("Learning rate", "learning_rate", svg.scientific, True),
    Chart("Gradient norm", "gradient_norm", svg.plain, True),
]
PRETRAINING_CHARTS: list[Chart] = [
    *(
        Chart(
            f"{objective.title[0].upper()}{objective.title[1:]}: {m.name}",
            f"{kind}_{m.key}",
            _show(m.name),
            m.starts_at_zero and m is not PERPLEXITY,
            # it falls from the size of the vocabulary to a few tokens
            is_logarithmic=m is PERPLEXITY,
        )
        for kind, objective in OBJECTIVES.items()
        for m in objective.measures
    ),
    Chart("Bits per character", BITS, svg.plain, False),
    *OPTIMIZATION_CHARTS,
    Chart("Tokens per second", "tokens_per_second", svg.short, True),
    Chart("FLOPS utilization", "matmul_share", svg.percent, True),
]
FOLD_CURVES = (
    "Held-out rows are evaluated during the cross-validation: each line of a fold is a model that "
    "has not seen the rows on which it is evaluated. The training loss is that of the model in the "
    "folder, which learns from all rows."
)
STEP_COLUMN: Column = ("step", "step", "{:,.0f}".format)
LOSS_COLUMN: Column = ("loss", "loss", "{:.4f}".format)
SHOWN_LABELS = 16  # in the chart of labels
EXPLAINED = (
    "“explain” below a text unfolds the command that shows which words speak for this prediction; "
    "a click selects it."
)
LEARNED = (
    " The model in the folder has learned from these rows by now, so that it may predict something "
    "else."
)  # after a cross-validation
SMALL_MATRIX = 5  # labels of a confusion matrix beside which there is room
SHOWN_FILES = 3  # names in the header
ANSWERED = 0.8  # of the rows, for a sentence: a person answers the others
SHOWN_CHARACTERS = 500  # of a text


def write_report(folder: Path, baseline: JsonObject | None = None) -> Path:
    """Draw the page of a run folder and return its path.

    What has not been measured yet is left out.

    Args:
        baseline: of always predicting the most frequent token: the `token`, and figures by their
            names in metrics.jsonl; None: unknown.

    Raises:
        BertworksError: the page cannot be written.
    """
    steps, evaluations = read_measurements(folder / "metrics.jsonl")
    drawings = _lines(PRETRAINING_CHARTS, steps, evaluations, "held out", {}, baseline)
    sections = [svg.side_by_side(drawings)]
    summary = _spent(steps, evaluations)
    if compared := compare_bits(folder)[1]:
        sections.insert(0, svg.headline(f"{compared[0].upper()}{compared[1:]}"))
    if evaluations:
        columns = [
            (name, f"{m.name}, {title}", m.format.format)
            for title, m, name in named_measures(evaluations[-1])
        ]
        sections.append(svg.figures("Held-out text", [STEP_COLUMN, *columns], evaluations))
        summary.append(f"held out: {describe(evaluations[-1])}")
    return _write(folder, "pre-training", summary, sections)


def write_task_report(
    folder: Path, metric: str, data: DatasetReport | str, result: Result | None
) -> Path:
    """Draw the page of a run folder and return its path.

    What is not there yet is left out.

    Args:
        metric: by which the best state was chosen.
        data: the report on the data, or what is known of them, for people.
        result: what the best state makes of dev, as in result.json; None: not evaluated yet.

    Raises:
        BertworksError: the page cannot be written.
    """
    steps, evaluations = read_measurements(folder / "metrics.jsonl")
    # a linear head has no steps
    summary = _spent(steps, evaluations) if steps or not result else []
    best = max(
        evaluations, key=lambda row: (row.get(metric, 0.0), -row.get("loss", 0.0)), default={}
    )
    marks = {metric: (best["step"], best[metric])} if metric in best else {}
    place = place_of(result)
    is_validated = bool(result and result.get("is_validated"))
    title = _title(metric, place, result.get("positive") if result else None)
    charts = [
        Chart("Loss", "loss", svg.plain, False),
        Chart(title, metric, _show(metric), False),
    ]
    # with dev rows, a cross-validation has only compared methods
    folds = result.get("fold_evaluations", []) if result and is_validated else []
    has_curves = any(len(fold) > 1 for fold in folds)
    if has_curves:
        drawings = _fold_lines(charts, steps, folds)
    else:
        drawings = _lines(charts, steps, evaluations, "dev", marks)
    if result and result.get("points"):
        drawings.append(svg.scatter(f"Numbers {place}", result["points"], "right", "answered"))
    sections: list[Section] = []
    if result and result.get("baselines"):
        never_found = task_metrics.format_never_found(result.get("never_found", {}))
        sections += _comparison(result, place, never_found)
    sections[1:1] = [svg.note(text, quiet=False) for text in statements(result or {})]
    if drawings or not result:
        parts = [svg.note(FOLD_CURVES)] if has_curves else []
        sections.append(svg.section("Training", *parts, svg.side_by_side(drawings)))
    if result:
        sections += _evaluation_sections(result, folder)
    optimization = _lines(OPTIMIZATION_CHARTS, steps, evaluations, "dev", {})
    training = [svg.side_by_side(optimization)] if optimization else []
    if evaluations:
        columns = [
            STEP_COLUMN,
            LOSS_COLUMN,
            *((name, title, _show(name)) for name, title in NAMES.items()),
        ]
        training.append(svg.figures("Evaluations on dev", columns, evaluations))
    if training:
        sections.append(svg.details("Training details", *training))
    if result:
        summary.append(
            format_metrics(result["figures"], result.get("intervals", {}), result.get("positive"))
        )
    elif evaluations:
        summary.append(f"best after step {best['step']:,}: {format_metrics(best)}")
    charts_of_data = _data_charts(data) if isinstance(data, DatasetReport) else []
    sections.append(svg.section("Data", *charts_of_data, svg.fixed_width(str(data))))
    return _write(folder, "fine-tuning", summary, sections)


def _data_charts(report: DatasetReport) -> Iterable[Section]:
    """Return charts of the labels and the lengths of texts, and what they leave out."""
    charts = []
    texts = []
    if report.labels:
        top_labels = [*report.labels.items()][:SHOWN_LABELS]
        parts = [("training", "train", [train for _, (train, _) in top_labels])]
        if not report.is_validated:  # else they are training rows as well
            parts.append(("dev", "held", [dev for _, (_, dev) in top_labels]))
        unit = (report.unit or "rows").replace(" in train", "")
        if " by " not in unit:
            unit += " by label"
        names = [name for name, _ in top_labels]
        charts.append(svg.counts(f"{unit[0].upper()}{unit[1:]}", names, parts))
        if len(top_labels) < len(report.labels):
            texts.append(f"The {len(top_labels)} most frequent of {len(report.labels):,} labels.")
    lengths = report.lengths
    is_marked = lengths.too_long > 0 and lengths.max_length < lengths.width * len(lengths.counts)
    if is_marked:
        texts.append(f"The dashed line is the maximum length, {lengths.max_length:,} tokens.")
    limit = lengths.max_length if is_marked else None
    charts.append(
        svg.histogram("Text lengths", lengths.counts, lengths.width, "tokens", "rows", limit)
    )
    yield svg.side_by_side(charts)
    if texts:
        yield svg.note(" ".join(texts))


def joint_card(
    folder: Path, recipe: FinetuneRecipe, model_name: str, results: Mapping[str, Result]
) -> str:
    """Return the card of a joint fine-tuning. results: of each task, as in result.json."""
    scores: dict[str, str] = {}
    commands = ""
    for name, result in results.items():
        scores[name] = format_metrics(result["figures"], result["intervals"], result["positive"])
        commands += f"bertworks predict . new.csv --task {name}\n"
    quality = render_table(("Task", "On dev"), scores)
    use = render_code("", commands)
    return _card(
        "joint.md", folder, recipe, model_name, count=len(results), quality=quality, use=use
    )


def _card(
    template: str, folder: Path, recipe: FinetuneRecipe, model_name: str, **values: object
) -> str:
    """Return the text of a card, with values in their places."""
    base = model_name if is_model_name(model_name) else Path(model_name).name
    return fill_template(
        Path(__file__).with_name(template),
        **values,
        name=" ".join(folder.resolve().name.split()),
        base=render_cell(base),
        recipe=render_code("toml", dump_recipe(recipe)),
    )


def _comparison(result: Result, place: str, never_found: str) -> Iterable[Section]:
    """Return the comparison with baselines as sections.

    They are a headline with the scores of the model and of the best simple method, the verdict, and
    a picture of all scores.

    Args:
        never_found: a sentence about the labels that the model never finds, or "" if there are
            none. It is the headline then, because a high score would hide it.
    """
    comparison = result["baselines"]
    heads, *table = format_baselines(comparison)
    model_row, *baseline_rows = table
    best_name, best_score, _ = baseline_rows[comparison["best"]]
    metric = comparison["metric"]
    title = _title(metric, place, comparison.get("positive"))
    scores = f"{title} {model_row[1]}; {best_name} {best_score}"
    if comparison.get("note"):  # the model of all rows has another score
        figures = {metric: result["figures"][metric]}
        scores = f"{title} {' '.join(titled_metrics(figures, result['intervals']).values())}"
        title += f", {MOVED}"
    if never_found:
        text = f"{scores}. {comparison['verdict']}" if comparison["verdict"] else scores
        yield svg.headline(f"{never_found[0].upper()}{never_found[1:]}", text)
    else:
        yield svg.headline(scores, comparison["verdict"])
    bars = [
        (method["score"], method["interval"] or (method["score"], method["score"]))
        for method in comparison["methods"]
    ]
    parts = [svg.intervals(title, heads, table, bars, _show(metric), marked=0)]
    if comparison.get("note"):
        parts.append(svg.note(comparison["note"]))
    yield svg.section("Comparison with baselines", *parts)


def write_trials_report(folder: Path, done: Sequence[Result], summary: str) -> Path:
    """Draw the page of many fine-tunings and return its path.

    Args:
        done: of each its folder, metric, seconds and baselines. summary: of all, in words.

    Raises:
        BertworksError: the page cannot be written.
    """
    bars = []
    rows = []
    metric = done[0]["metric"]
    title = _title(metric, place_of(done[0]), done[0]["baselines"].get("positive"))
    for training in done:
        baselines = training["baselines"]
        _, model_row, *baseline_rows = format_baselines(baselines)
        model = baselines["methods"][0]
        bars.append((model["score"], model["interval"] or (model["score"], model["score"])))
        best = " ".join(baseline_rows[baselines["best"]][:2])
        rows.append([training["folder"], model_row[1], best, duration(training["seconds"])])
    heads = ["fine-tuning", f"{title} (95 %)", "best baseline", "time"]
    sections = [
        svg.preformatted("Result", summary),
        svg.section(
            "All fine-tunings", svg.intervals(title, heads, rows, bars, _show(metric), marked=None)
        ),
    ]
    write_text(
        folder / "report.html",
        svg.page(folder.resolve().name, f"{len(done)} fine-tunings", "", sections),
    )
    return folder / "report.html"


def _write(folder: Path, kind: str, summary: list[str], sections: list[Section]) -> Path:
    """Write the page, with the recipe of the run and the software it was begun with at the end."""
    recipe = folder / "recipe.toml"
    run = folder / "run.json"
    sections += (
        [svg.folded("Recipe", recipe.read_text(encoding="utf-8"))] if recipe.exists() else []
    )
    if run.exists():
        sections.insert(0, svg.note(_origin(run)))
    if software := read_json(run).get("versions") if run.exists() else None:
        listed = ", ".join(f"{package} {version}" for package, version in software.items())
        sections.append(svg.note(f"Started with {listed}."))
    write_text(
        folder / "report.html", svg.page(folder.resolve().name, kind, " · ".join(summary), sections)
    )
    return folder / "report.html"


def _origin(run: Path) -> str:
    """Return the model and the data of a run, and the day on which it was begun, in words.

    Args:
        run: its run.json.
    """
    request = read_json(run).get("request", {})
    parts = []
    model = request.get("model") or request.get("init")
    if isinstance(model, str) and model:
        parts.append(f"from {model if is_model_name(model) else Path(model).name}")
    data = request.get("data") or request.get("inputs")
    names = [data] if isinstance(data, str) else data
    if isinstance(names, list) and all(isinstance(name, str) for name in names) and names:
        parts.append(f"on {', '.join(Path(name).name for name in names[:SHOWN_FILES])}")
        if len(names) > SHOWN_FILES:
            parts.append(f"and {len(names) - SHOWN_FILES} other files")
    day = date.fromtimestamp(run.stat().st_mtime)
    return f"{' '.join(['Trained', *parts])}, {day:%Y-%m-%d}"


def read_measurements(path: Path) -> tuple[MetricRows, MetricRows]:
    """Return the steps, and the evaluations, of a metrics.jsonl in the order of steps.

    Evaluations are their figures with the step among them. A run that was resumed may repeat steps:
    the last line counts.
    """
    steps: dict[int, JsonObject] = {}
    evaluations: dict[int, JsonObject] = {}
    for _, step, figures, is_evaluation in read_metrics(path):
        (evaluations if is_evaluation else steps)[step] = figures | {"step": step}
    return [steps[step] for step in sorted(steps)], [
        evaluations[step] for step in sorted(evaluations)
    ]


def _spent(steps: MetricRows, evaluations: MetricRows) -> list[str]:
    """Return the steps, tokens and time so far, in words."""
    last, held = (rows[-1] if rows else {} for rows in (steps, evaluations))
    parts = [f"{max(last.get('step', 0), held.get('step', 0)):,} steps"]
    if "tokens" in last:
        parts.append(f"{svg.short(last['tokens'])} tokens")
    if "seconds" in last:
        parts.append(f"{duration(last['seconds'])} of training")
    return parts


def _lines(
    charts: Iterable[Chart],
    steps: MetricRows,
    evaluations: MetricRows,
    held: str,
    best: Mapping[str, Point],
    baseline: JsonObject | None = None,
) -> list[Section]:
    """Return charts of figures over steps; a figure that nothing has is left out.

    Args:
        held: the name of the evaluations. best: points to mark, by figure.
        baseline: see `write_report`.
    """
    drawings = []
    for chart in charts:
        name = chart.name
        train = Series("training", "train", svg.points(steps, name))
        series = [train, Series(held, "held", svg.points(evaluations, name), best.get(name))]
        series = [line for line in series if line.points]
        if not series:
            continue
        if baseline and name in baseline:
            last = max(line.points[-1][0] for line in series)
            level = [(0, baseline[name]), (last, baseline[name])]
            series.append(Series(f"always {baseline['token']!r}", "base", level))
        drawing = svg.chart(
            chart.title,
            series,
            chart.show,
            chart.from_zero,
            is_logarithmic=chart.is_logarithmic,
        )
        drawings.append(drawing)
    return drawings


def _fold_lines(
    charts: Iterable[Chart], steps: MetricRows, folds: Sequence[MetricRows]
) -> list[Section]:
    """Return charts of figures over the part of the training that is done.

    It is the same for the training with all rows and for the folds of a cross-validation, which
    have fewer steps. Each fold is a line. Their mean is another one if they were evaluated after
    the same steps.

    Args:
        steps: of the training with all rows. folds: the evaluations of each fold.
    """
    drawings = []
    for chart in charts:
        name = chart.name
        lines = [svg.points(evaluations, name) for evaluations in folds]
        series = [Series("training", "train", _parts(svg.points(steps, name)))]
        for number, line in enumerate(lines, 1):
            series.append(Series(f"fold {number}", "fold", _parts(line)))
        if len({tuple(step for step, _ in line) for line in lines}) == 1 < len(lines):
            means = [
                (points[0][0], sum(value for _, value in points) / len(points))
                for points in zip(*lines, strict=True)
            ]
            series.append(Series("mean", "held", _parts(means)))
        if series := [line for line in series if line.points]:
            part = "part of the training"
            drawings.append(
                svg.chart(chart.title, series, chart.show, chart.from_zero, part, svg.percent)
            )
    return drawings


def _parts(points: Sequence[Point]) -> list[Point]:
    """Return points over steps as points over parts of the training, which ends with the last."""
    return [(step / points[-1][0], value) for step, value in points]


def _evaluation_sections(result: Result, folder: Path) -> Iterable[Section]:
    """Sections of the final evaluation: confusion matrix, figures by label, the worst mistakes.

    Args:
        folder: of the model, for commands.
    """
    task = TASKS[result["task"]]
    overview: list[Section] = []
    is_small = False
    if confusion := result["confusion"]:
        parts = [svg.heat(confusion["labels"], confusion["counts"])]
        is_small = len(confusion["labels"]) <= SMALL_MATRIX
        if task.labels_tokens:
            parts.append(
                svg.note(
                    f"{NOTHING} means no entity. An entity with wrong borders counts as correct "
                    "here, but not below."
                )
            )
        overview.append(svg.section("Confusion matrix", *parts))
    if figures_of_parts := result["table"]:
        shares = [
            (name, NAMES.get(name, name), svg.percent)
            for name in ("precision", "recall", "exact", "f1")
        ]
        columns: list[Column] = [
            ("name", task.part, str),
            *shares,
            ("support", "support", "{:,.0f}".format),
        ]
        title = f"By {task.part}, the weakest first"
        largest = task_metrics.largest_parts(figures_of_parts)
        if len(largest) < len(figures_of_parts):
            title += f": {len(largest)} of {len(figures_of_parts):,}, all are in result.json"
        ranked = sorted(largest.items(), key=lambda part: part[1].get("f1", 0.0))
        figures = [{"name": name, **row} for name, row in ranked]
        overview.append(svg.figures(title, columns, figures))
    if is_small and len(overview) > 1:
        yield svg.columns(overview)
    else:
        yield from overview
    if calibration := result.get("calibration"):
        yield svg.section("Probabilities", *_probability_parts(calibration))
    if rows_of_map := result.get("map"):
        yield svg.section("Map of the held-out rows", *_map_parts(rows_of_map))
    if worst := result["worst"]:
        note = task_metrics.counted(result["mistakes"], result["rows"])
        last = "score"
        title = "Most confident errors"
        show = svg.percent
        if task.predicts_numbers:
            note = f"{result['rows']:,} rows"
            last = "difference"
            title = "Largest errors"
            show = svg.plain
        note += f"; most frequent: {result['frequent']}" if result["frequent"] else ""
        note += f"; complete list: errors.csv{errors_note(result)}"
        rows = []
        for mistake in worst:
            where = mistake["where"].rpartition("/")[2]  # without the folders
            texts = (" / ".join(mistake["texts"]), mistake["gold"], mistake["predicted"])
            score = "" if mistake["score"] is None else show(mistake["score"])
            rows.append([where, *map(_shorten, texts), score])
        commands = [""] * len(rows)
        if result.get("has_explanations") and (task.has_classes or task.predicts_numbers):
            commands = [_explain_command(folder, mistake, task) for mistake in worst]
        heads = ["where", "text", "label", "prediction", last]
        parts = [svg.note(note), svg.words(heads, rows, commands=("explain", commands))]
        if any(commands):
            learned = LEARNED if result.get("is_validated") else ""
            parts.insert(1, svg.note(f"{EXPLAINED}{learned}"))
        yield svg.section(title, *parts)


def _explain_command(folder: Path, mistake: Mapping[str, Any], task: Task) -> str:
    """Return the command that explains a wrong prediction, as it is typed in a shell.

    It is "" for texts that are not shown whole, for they would fill the page.
    """
    texts = mistake["texts"]
    if sum(map(len, texts)) > SHOWN_CHARACTERS:
        return ""
    words = ["bertworks explain", quoted(folder)]
    if task.has_classes:
        label = mistake["predicted"]
        is_like_option = label.startswith("-")
        words.append(quoted(f"--target={label}") if is_like_option else f"--target {quoted(label)}")
    if any(text.startswith("-") for text in texts):
        words.append("--")
    return " ".join([*words, *map(quoted, texts)])


def _map_parts(rows_of_map: Mapping[str, Any]) -> Iterable[Section]:
    """Parts about a map of the embeddings: what it shows and does not show, and the map.

    Args:
        rows_of_map: as in result.json, see `embedding_map.describe_rows`.
    """
    rows = rows_of_map["rows"]
    wrong = sum(row["predicted"] != row["label"] for row in rows)
    yield svg.note(
        f"Each of the {len(rows):,} points is the embedding of a held-out row by the initial "
        "model, before the fine-tuning. The map shows the two directions in which the embeddings "
        f"differ most. They hold {rows_of_map['variance']:.1%} of the variance: points that are "
        "near each other here may be far apart in the other dimensions. Rings mark the "
        f"{wrong:,} rows whose prediction after the fine-tuning is wrong."
    )
    counts = Counter(row["label"] for row in rows)
    # the last mark is that of all others, if there are others
    most = svg.MARKS if len(counts) <= svg.MARKS else svg.MARKS - 1
    groups: dict[str, list[svg.Dot]] = {name: [] for name, _ in counts.most_common(most)}
    common_name = f"{len(counts) - len(groups):,} other labels"
    for row in rows:
        name = row["label"] if row["label"] in groups else common_name
        truth = f"{row['label']!r}"
        is_wrong = row["predicted"] != row["label"]
        words = f"true {truth}, predicted {row['predicted']!r}" if is_wrong else truth
        dot = svg.Dot(row["x"], row["y"], is_wrong, f"{words}: {row['text']}")
        groups.setdefault(name, []).append(dot)
    yield svg.plane("Embeddings before the fine-tuning", groups)


def _probability_parts(calibration: Mapping[str, Any]) -> Iterable[Section]:
    """Parts about probabilities: are they right, and what if the least confident rows are left out?

    Args:
        calibration: as in result.json; those of older models have no `bins`.
    """
    yield svg.note(calibration["text"], quiet=False)
    drawings = []
    if bins := calibration.get("bins"):
        yield svg.note(
            "Of predictions with a probability of 80%, about 80% should be right: the line of the "
            "first chart should follow the dashed one. Columns show how many predictions have this "
            "probability."
        )
        drawings.append(svg.reliability("Reliability of the probabilities", bins))
    if coverage := calibration.get("coverage"):
        fraction, accuracy = min(coverage, key=lambda point: abs(point[0] - ANSWERED))
        yield svg.note(
            f"If a person answers the {1 - fraction:.0%} of the rows about which the model is "
            f"least sure, {accuracy:.1%} of its other answers are right; of all its answers, "
            f"{coverage[-1][1]:.1%}.",
            quiet=False,
        )
        line = Series("accuracy", "held", coverage)
        drawings.append(
            svg.chart(
                "Accuracy of the most confident answers",
                [line],
                svg.percent,
                False,
                "fraction of the rows",
                svg.percent,
            )
        )
    if drawings:
        yield svg.side_by_side(drawings)


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " …"


def write_errors(path: Path, d: TaskConfig, wrong: Sequence[Mistake]) -> None:
    """Write errors.csv: for each mistake its row, texts, gold label and prediction.

    The texts are in their columns, and the prediction has its probability.

    They are in the order of `task_metrics.mistakes`: those first that contradict the model most
    clearly, among which are the labels that are probably wrong. In csv and tsv, which people open
    in spreadsheet programs, formulas have a ' before them.
    """
    task = task_of(d)
    texts = task.mistake_columns()
    other_columns = list(wrong[0].figures) if wrong else []
    score = "difference" if task.predicts_numbers else "score"
    columns = ["where", *texts, "gold", "predicted", score, *other_columns]
    for number in range(1, 1 + len(texts)):
        if columns.count(columns[number]) > 1:
            columns[number] += " (text)"
    rows = (
        [
            *(m.where, *m.texts, m.gold, m.predicted),
            *(f if f is None else round(f, 4) for f in (m.score, *m.figures.values())),
        ]
        for m in wrong
    )
    write_rows(
        path, columns, (dict(zip(columns, row, strict=True)) for row in rows), guard_formulas=True
    )


MAX_LABELS = 50  # of a table
_SELECTED = (
    "These rows also selected the checkpoint: expect slightly lower scores on other texts.\n"
)


def task_card(
    folder: Path,
    d: TaskConfig,
    recipe: FinetuneRecipe,
    model_name: str,
    data_report: DatasetReport,
    figures: Mapping[str, float],
    result: Result | None = None,
    config: EncoderConfig = BERT,
) -> str:
    """Return the card of a fine-tuned model.

    Args:
        model_name: the model that was fine-tuned, as in the command.
        figures: metrics on dev. result: as in result.json; None: before the final evaluation.
        config: of the network.
    """
    result = result or {}
    task = task_of(d)
    is_own = is_own_network(d, config)
    meanings = (note[6:] for note in data_report.notes if note.startswith("task: "))
    texts = '{"text": "A text", "text_pair": "and another"}' if len(d.text) == 2 else '"A text"'
    if d.reads_means:
        use = encoder_use(d, config)
    elif is_own:
        use = REFUSED
    elif config.languages:
        texts = texts if len(d.text) != 2 else '"A text", "and another"'
        use = render_code("python", in_language(task.usages["usage_in_a_language"], config))
    else:
        use = render_code("python", task.usages["usage"])
    use = use.replace("TEXTS", texts).replace("MOST", str(d.max_answer - 1))
    return _card(
        "finetuned.md",
        folder,
        recipe,
        model_name,
        library="bertworks" if is_own else "transformers",
        pipeline=task.pipeline,
        hub=_hub_fields(model_name, figures),
        kind=d.task,
        what="A table of static vectors" if config.kind == "static" else "A BERT",
        task=next(meanings, d.task),
        columns=" and ".join(f"`{render_cell(column)}`" for column in d.text) or "its text",
        max_length=d.max_length,
        longer=_longer_texts(d),
        quality=_quality(data_report, figures, result)
        + (_SELECTED if recipe.select == "best" else ""),
        data=_data(data_report).strip(),
        use=use,
        probabilities="" if task.predicts_numbers else _probabilities(result),
        software=render_table(("Package", ""), versions()),
    )


def _longer_texts(d: TaskConfig) -> str:
    """Return what is done with texts that are longer than a sequence, for a model card."""
    if TASKS[d.task].reads_windows:
        return "read in windows"
    if d.windows <= 1:
        return "truncated"
    return (
        f"read in up to {d.windows} windows, which overlap by half and have the mean of their "
        "vectors. Other programs read the first window only: the mean of the logits of all windows "
        "is the same"
    )


def _hub_fields(model_name: str, figures: Mapping[str, float]) -> str:
    """Return the model and the metrics, as the Hugging Face hub reads them."""
    base = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}.get(model_name, model_name)
    metrics = dict.fromkeys(
        HUB_NAMES.get(name, name) for name in figures if name in {*NAMES, *SHARES}
    )
    lines = ""
    if is_model_name(model_name) and "/" in base:
        lines += f"base_model: {base}\n"
    if metrics:
        lines += f"metrics: [{', '.join(metrics)}]\n"
    return lines


def _probabilities(result: Result) -> str:
    """Return whether the probabilities are calibrated."""
    calibration = result.get("calibration")
    if not calibration:
        return "\nIts probabilities are not calibrated."
    text = f"\nIts probabilities are {calibration['text']}."
    return (
        f"{text}\nIts output layer is divided by this temperature: every program computes "
        "these probabilities."
    )


def _quality(data_report: DatasetReport, figures: Mapping[str, float], result: Result) -> str:
    note = next(
        (note for note in data_report.notes if note.startswith(("evaluated on", "scored by"))),
        "evaluated on held-out rows",
    )
    note = re.sub("evaluated on .*/", "evaluated on ", note)  # without the folders
    intervals = result.get("intervals", {})
    comparison = ""
    baselines = result.get("baselines")
    if baselines:
        titles, *rows = format_baselines(baselines)
        texts = (baselines.get("note"), baselines["verdict"])
        verdict = "".join(f"\n{text}.\n" for text in texts if text)
        comparison = (
            f"\n{render_table(titles, {name: tuple(cells) for name, *cells in rows})}{verdict}"
        )
    evaluation = f"{note[0].upper()}{note[1:]}" if data_report.is_validated else f"Dev: {note}"
    heads = (place_of(result).capitalize(), "with 95 % interval" if intervals else "")
    scores = render_table(heads, titled_metrics(figures, intervals, result.get("positive")))
    remarks = [f"\n- {text}" for text in statements(result)]
    never_found = task_metrics.format_never_found(result.get("never_found", {}))
    if never_found:
        remarks.append(f"\n\nWarning: {never_found}.")
    return f"{scores}{comparison}\n{evaluation}.\n{''.join(remarks)}\n"


def _data(data_report: DatasetReport) -> str:
    labels = dict(list(data_report.labels.items())[:MAX_LABELS])
    held_out = "of them evaluated" if data_report.is_validated else "in dev"
    table = render_table(("Label", "in train", held_out), labels) if labels else ""
    warnings = "".join(f"\n- {warning}" for warning in data_report.warnings)
    return (
        f"{data_report.train:,} rows in train, {data_report.dev:,} {held_out}.\n\n{table}{warnings}"
    )
