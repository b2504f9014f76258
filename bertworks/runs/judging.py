"""How good a fine-tuned model's answers are: items with labels and answers in, figures and words out. The counting is
done elsewhere (`learn.scores`, `learn.squad_scores`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertworks.errors import UsageError
from bertworks.files.task import TaskDescription
from bertworks.learn import scores, squad_scores
from bertworks.learn.answers import Answer, mark_entities
from bertworks.rows.schema import Item, Task

METRICS: Mapping[Task, str] = {  # what decides which state of a training is the best
    "classification": "accuracy",
    "multilabel": "micro_f1",
    "regression": "spearman",
    "tagging": "f1",
    "spans": "f1",
    "qa": "f1",
    "choice": "accuracy",
}
NAMES = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "matthews_correlation": "Matthews correlation",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "exact": "exact match",
    "f1": "F1",
}
SHARES = ("accuracy", "macro_f1", "micro_f1", "exact", "f1", "precision", "recall")  # shown in per cent


def metric_of(task: Task, asked: str | None = None, labels: Sequence[str] = ()) -> str:
    """The figure by which the best state is chosen. labels: of tagging, which may mark entities or not.

    Raises:
        UsageError: what is asked for is no figure of the task.
    """
    known: tuple[str, ...] = {
        "classification": ("accuracy", "macro_f1", "matthews_correlation", *(("f1",) if len(labels) in (0, 2) else ())),
        "spans": ("f1", "precision", "recall"),
        "multilabel": ("micro_f1", "macro_f1", "accuracy"),
        "regression": ("spearman", "pearson"),
        "qa": ("f1", "exact"),
        "choice": ("accuracy",),
    }.get(task, ("f1", "precision", "recall", "accuracy"))
    if task == "tagging" and not mark_entities(labels):
        known = ("accuracy", "macro_f1")
    if asked is not None and asked not in known:
        raise UsageError(f"{asked!r} is not a figure of {task}", fix=f"name one of {', '.join(known)}")
    return asked or (METRICS[task] if METRICS[task] in known else known[0])


def judge(d: TaskDescription, items: Sequence[Item], answers: Sequence[Answer]) -> dict[str, float]:
    """The figures of a task; all items have labels."""
    gold = [item.label for item in items]
    match d.task:
        case "classification":
            return scores.classification(gold, [answer["label"] for answer in answers], d.labels)
        case "multilabel":
            return scores.multilabel(gold, [answer["labels"] for answer in answers])
        case "regression":
            return scores.regression(gold, [answer["value"] for answer in answers])
        case "choice":
            return scores.choice(gold, [answer["choice"] for answer in answers])
        case "tagging" if not mark_entities(d.labels):
            given = [tag for answer in answers for tag in answer["tags"]]
            return scores.classification([tag for tags in gold for tag in tags], given, d.labels)
        case "tagging":
            return scores.tagging(gold, [answer["tags"] for answer in answers])
        case "spans":
            found = [[(e["start"], e["end"], e["type"]) for e in answer["entities"]] for answer in answers]
            return scores.spans(gold, found)
        case "qa":
            return judge_answers(items, answers)


def judge_answers(items: Sequence[Item], answers: Sequence[Answer]) -> dict[str, float]:
    """The official figures as shares; `threshold`, the margin by which "no answer" has to win for the best F1, where
    some questions have none."""
    # By their places: files have ids, or none.
    golds = [tuple(text for _, text in item.label or ()) for item in items]
    questions = [squad_scores.Question(str(place), texts) for place, texts in enumerate(golds)]
    without = not all(question.answers for question in questions)
    version: squad_scores.Version = "2.0" if without else "1.1"
    unit = squad_scores.unit_of([item.texts[1] for item in items])
    # Of what was found best, whatever the threshold, so that the best threshold can be seen.
    given = {str(place): answer["answer"] for place, answer in enumerate(answers)}
    figures = squad_scores.evaluate(questions, given, version=version, unit=unit)
    wanted = {"exact": figures["exact"] / 100, "f1": figures["f1"] / 100}
    if without:
        best = {str(place): (a["n_best"] or [{"text": ""}])[0]["text"] for place, a in enumerate(answers)}
        margins = {str(place): a["no_answer_margin"] for place, a in enumerate(answers)}
        found = squad_scores.evaluate(questions, best, version="2.0", no_answer_probabilities=margins, unit=unit)
        wanted |= {"best_f1": found["best_f1"] / 100, "threshold": found["best_f1_thresh"]}
    return wanted


def describe_scores(figures: Mapping[str, Any]) -> str:
    """Figures as a sentence."""
    if not figures:
        return "nothing was evaluated"
    shown = [f"loss {figures['loss']:.3f}"] if "loss" in figures else []
    for name, title in NAMES.items():
        if name in figures:
            value = figures[name]
            shown.append(f"{title} {value:.1%}" if name in SHARES else f"{title} {value:.3f}")
    return ", ".join(shown)
