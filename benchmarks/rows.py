"""The rows of docs/results.md: what is learned, with which command, and how it is judged."""

from dataclasses import dataclass

EQUAL = (
    "epochs=3",
    "patience=0",
    "optimizer.learning_rate=5e-5",
)  # on top of the recipe "stable": the settings of `--peer`


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    group: str
    command: str  # after `bertworks`, but for seed and output; paths within the data
    metrics: tuple[str, ...]  # the first is the one by which the best state was kept


def glue(name: str, *metrics: str) -> Row:
    return Row(name, "GLUE", f"evaluate glue --data glue --task {name}", metrics)


ROWS = (
    glue("CoLA", "matthews_correlation"),
    glue("SST-2", "accuracy"),
    glue("MRPC", "f1", "accuracy"),
    glue("STS-B", "spearman", "pearson"),
    glue("QQP", "f1", "accuracy"),
    glue("MNLI", "accuracy"),
    glue("QNLI", "accuracy"),
    glue("RTE", "accuracy"),
    glue("WNLI", "accuracy"),
    Row(
        "SQuAD 1.1 (8,200 questions to learn from)", "Questions",
        "finetune squad/train-v1.1-sample.json.gz --dev squad/dev-v1.1.json.gz", ("f1", "exact"),
    ),
    Row(
        "WNUT-17", "Entities", "finetune ner/wnut17/wnut17train.conll --dev ner/wnut17/emerging.dev.conll",
        ("f1", "precision", "recall"),
    ),
    Row("wikigold (a tenth set aside)", "Entities", "finetune ner/wikigold/wikigold.conll.txt", ("f1",)),
    Row(
        "wikigold, documents around (a tenth set aside)", "Entities",
        "finetune ner/wikigold/wikigold.conll.txt --set document_context=true", ("f1",),
    ),
    Row(
        "wikigold, frozen encoder", "Entities",
        "finetune ner/wikigold/wikigold.conll.txt --recipe features --set recurrent_units=256", ("f1",),
    ),
    Row("CODAH", "Choices", "finetune multiple-choice/codah", ("accuracy",)),
    Row("JSTS", "Japanese", "finetune ja/jsts --model JA", ("spearman", "pearson")),
    Row("JCommonsenseQA", "Japanese", "finetune ja/jcommonsenseqa --model JA", ("accuracy",)),
    Row("Wikipedia NER (a tenth set aside)", "Japanese", "finetune ja/ner-wikipedia/ner.json.gz --model JA", ("f1",)),
    Row("JaQuAD", "Japanese", "finetune ja/jaquad --model JA --set epochs=1", ("f1", "exact")),
    Row(
        "NSMC", "Korean",
        "finetune ko/nsmc/ratings_train.txt.gz --dev ko/nsmc/ratings_test.txt.gz --model KO --set epochs=1",
        ("accuracy",),
    ),
    Row(
        "KorSTS", "Korean", "finetune ko/korsts/sts-train.tsv --dev ko/korsts/sts-dev.tsv --model KO",
        ("spearman", "pearson"),
    ),
)  # fmt: skip
PEERS = ("CoLA", "SST-2", "MRPC", "STS-B", "RTE", "WNUT-17", "SQuAD 1.1 (8,200 questions to learn from)")
