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
        task: The task. Default: detected from the columns.
        text: Column of the text; give two for pairs. Default: detected automatically. Repeatable.
        label: Column of the label; give several if each holds 0 and 1. Default: detected
            automatically.
        group: Rows with the same value in this column stay on one side of the split.
            Default: none.
        positive: Of two classes, the one that F1 is reported for. Default: 1, yes, true or pos,
            else the rarer one.
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
        layers: Keep this many layers of the model, evenly spaced. Default: all.
        teacher: Distillation: a model fine-tuned for the same task; its predictions are learned as
            well. Default: none.
        method: full: train the whole network. frozen: train only a linear head on its embeddings,
            in seconds. contrastive: bring the embeddings of texts with the same label together,
            then train a linear head. cosine: train the cosine of pairs; untrained: only its scale.
            static: train one vector per token instead of a network, at least twenty times as fast.
            auto: frozen or contrastive for fewer than 17 rows per label, else full (for pairs:
            cosine), unless another method is significantly better in cross-validation.
        validation: Without a dev file. split: hold out 10 % as the dev set. folds: cross-validate,
            then train the final model on all rows. auto: folds for fewer than 2,000 rows.
        budget: Time limit of each run (5m, 1h): fewer epochs, if those of the recipe take longer.
            Default: none.
        recipe: stable, contrastive or static (for these methods), mt-dnn (with --joint), paper,
            electra, gpt, deberta, feature_based (an LSTM on a frozen BERT), or a .toml file.
            Default: the one of the method, else stable.
        overrides: Change a field of the recipe: --set seed=1. Repeatable.
        metric: The metric that is reported first and by which methods are compared. Default: the
            main metric of the task.
        seed: Random seed of the new head, the order of the rows and dropout. Default: from the
            recipe.
        new_head: Discard the existing task head and train a new one.
        label_descriptions: A file with the columns label and text that describes the labels. A
            linear head learns from these texts as from rows. Default: the names of the labels, if
            they are words and have fewer than 8 rows each.
        precision: auto: as in the recipe, else bf16 where it is faster on this hardware.
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
            .toml file. Default: a BERT for the budget.
        overrides: Change a field of the recipe: --set seed=1. Repeatable.
        budget: Training time (30m, 2h). Model size, batch size and steps are chosen to fit.
            Default: 1h, or the steps of the recipe.
        tokenizer: A tokenizer folder. Default: a new tokenizer is built from the text.
        init: Initialize from this model (domain adaptation): a folder or a name on the hub, with a
            masked-LM head, which minilm lacks. Default: random weights.
        extend_vocabulary: Add this many words of the text to the vocabulary of the model. Default:
            none.
        teacher: Distillation (--recipe distilbert): the teacher of a smaller model. Default: none.
        languages: Language of an input, e.g. en; give one per input. Repeatable.
        parallel: Translations: a table of two columns, or two files with the same number of lines,
            e.g. pairs.en pairs.de. Default: none.
        precision: auto: as in the recipe, else bf16 where it is faster on this hardware.
        seed: Random seed of the weights, the order of the text and the masks. Default: from the
            recipe.
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
