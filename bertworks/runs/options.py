"""The options of trainings: the command line reads them, and a run folder stores them.

Their docstrings are the help. Nothing large is imported: help is fast.
"""

from dataclasses import dataclass
from typing import Literal

Method = Literal["auto", "full", "frozen", "untrained", "cosine", "contrastive", "static"]
Validation = Literal["auto", "split", "folds"]


@dataclass(frozen=True, kw_only=True)
class LabelledOptions:
    """What labelled data means.

    Args:
        task: The task. Unset: inferred from the columns and printed.
        text: Column of the text; give two for pairs. Unset: inferred and printed. Repeatable.
        label: Column of the label; give several if each holds 0 and 1. Unset: inferred and printed.
        group: Rows with the same value in this column stay on one side of the split.
        positive: Of two classes the one whose F1 is reported. Unset: 1, yes, true or pos, else the
            rarer one.
    """

    # as in `tasks.settings`, which is not imported for help
    task: (
        Literal["classification", "multilabel", "regression", "tagging", "spans", "qa", "choice"]
        | None
    ) = None
    text: tuple[str, ...] = ()
    label: tuple[str, ...] = ()
    group: str | None = None
    positive: str | None = None


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(LabelledOptions):
    """What a fine-tuning starts from, and how it trains.

    Args:
        model: minilm, a model folder, or the name of a model on the Hugging Face hub.
        layers: Keep this number of layers of the model, evenly spread. Unset: all.
        teacher: Distillation: a model fine-tuned for the same task, from which this one learns too.
        method: full: train the whole network. frozen: a linear head on its vectors, in seconds.
            contrastive: bring the vectors of texts with the same label together, then fit a linear
            head; for one text and one label. cosine: compare pairs by the cosine of their vectors,
            and train from there. untrained: that cosine, with its scale fitted. static: train a
            table with one vector for each token instead of a network; texts or pairs are then read
            twenty times as fast or more, with a lower score. auto: with few
            rows, by the rows of a label (the median): fewer than 8: frozen; 8 to 16: frozen if its
            accuracy probably reaches 85 %, else contrastive; more, and pairs: full (pairs: cosine)
            unless another one is clearly better in a cross-validation, or a cheaper one is better.
            With many rows: full; of a model of static vectors: static instead of full.
        validation: Without a dev file. split: a random tenth of the rows is dev. folds: scores come
            from a cross-validation, the model from all rows. auto: folds for fewer than 2,000 rows.
        budget: Time of each run (5m, 1h): fewer epochs, if those of the recipe take longer.
        recipe: stable, contrastive and static (of these methods), mt-dnn (with --joint), paper,
            electra, gpt, deberta,
            feature_based (LSTM on a frozen BERT), or a .toml.
        overrides: Change a field of the recipe: --set seed=1. Repeatable.
        metric: The metric that is reported first, and compares methods.
        seed: Seed of the new head, the order of the rows and dropout. Unset: the recipe's.
        new_head: Discard the existing task head and train a new one.
        label_descriptions: A file with the columns label and text, which describes labels. A linear
            head learns from these texts as from rows; unset, from the names of labels, if they are
            words and have fewer than 8 rows each.
        precision: auto: that of the recipe, else bf16 where the hardware is faster with it.
    """

    model: str = "minilm"
    layers: int | None = None
    teacher: str | None = None
    method: Method = "auto"
    validation: Validation = "auto"
    budget: str | None = None
    recipe: str | None = None
    overrides: tuple[str, ...] = ()
    metric: str | None = None
    seed: int | None = None
    new_head: bool = False
    label_descriptions: str | None = None
    precision: str | None = None


@dataclass(frozen=True, kw_only=True)
class PretrainOptions:
    """What a pre-training starts from, and how it trains.

    Args:
        recipe: A recipe (bert-base), a family (roberta; its size is chosen for the budget), or a
            .toml file.
        overrides: Change a field of the recipe: --set seed=1. Repeatable.
        budget: Training time (30m, 2h). Model size, batch size and steps are chosen to fit.
        tokenizer: A tokenizer folder. Unset: built from the text.
        init: Initialize from this model (domain adaptation): a folder, minilm, or a name on the
            hub.
        extend_vocabulary: Add this number of words of the text to the vocabulary of the model.
        teacher: Distillation (--recipe distilbert): the model from which a smaller one learns.
        languages: Language of an input, as en; give one per input. Repeatable.
        parallel: Translations: a table of two columns, or two files of as many lines, as pairs.en
            pairs.de.
        precision: auto: that of the recipe, else bf16 where the hardware is faster with it.
        seed: Seed of the weights, the order of the text and the masks.
    """

    recipe: str | None = None
    overrides: tuple[str, ...] = ()
    budget: str | None = None
    tokenizer: str | None = None
    init: str | None = None
    extend_vocabulary: int | None = None
    teacher: str | None = None
    languages: tuple[str, ...] = ()
    parallel: tuple[str, ...] = ()
    precision: str | None = None
    seed: int | None = None
