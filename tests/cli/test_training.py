"""Commands that train: what they refuse before they begin, and what they write."""

import json
import re
from pathlib import Path

import pytest

import bertworks
from tests.support.fine import write_choices, write_conll, write_reviews
from tests.support.gpt import write_gpt2
from tests.support.served import write_head
from tests.support.shell import Shell
from tests.support.tables import FAST, SENTENCE, read_table, short, write_table, write_text


@pytest.fixture
def text(shell: Shell) -> Path:
    return write_text("my text.txt")


@pytest.fixture
def data(shell: Shell) -> Path:
    return write_reviews(Path("r.csv"), 40)


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("", "pretrain needs an output folder", "add -o MODEL; or --estimate"),
        ("-o out --recipe distilbert", "learns from a teacher", "name it: --teacher MODEL"),
        (
            "-o out --recipe bert-tiny --teacher MODEL",
            "has no objective with a teacher",
            "--recipe distilbert",
        ),
        (
            "-o out --tokenizer MODEL --init MODEL",
            "--init takes the tokenizer of the model",
            "give --tokenizer or --init, not both",
        ),
        (
            "-o out --extend-vocabulary 3",
            "--extend-vocabulary 3 adds words to the vocabulary of a model",
            "give a model and a number: --init MODEL --extend-vocabulary 1000",
        ),
        (
            "-o out --init MODEL --extend-vocabulary 1000",
            "words that a vocabulary can be extended by, not 1,000",
            "takes all of them (0: leave it out); and --overwrite",
        ),
        (
            "-o out --tokenizer MODEL --recipe albert-small --set encoder.hidden_size=16 --set "
            "encoder.num_attention_heads=2 --set encoder.embedding_size=8 --set "
            "sampling.format=next_sentence",
            "files of albert have no place for these heads together",
            "--set sampling.format=sentence_order, and no [[objectives]] in the recipe",
        ),
        (
            "-o out --tokenizer MODEL --set encoder.pooler_dropout=true",
            "encoder.pooler_dropout is True: files of bert can only hold False",
            "--set encoder.pooler_dropout=false",
        ),
    ],
)
def test_a_pretraining_that_is_refused(
    words: str, error: str, hint: str, text: Path, model: Path, shell: Shell
):
    words = words.replace("MODEL", str(model))
    shell.refuses(["pretrain", text, "--device", "cpu", *words.split()], error, hint)
    assert not list(Path().glob("out/model.safetensors"))


def test_a_vocabulary_is_not_extended_by_shards(text: Path, model: Path, shell: Shell):
    shell.works("prepare", text, "--tokenizer", model, "--workers", "1", "-o", "my shards")
    recipe = Path("bare.toml")
    short()
    content = Path("tiny.toml").read_text()
    recipe.write_text(re.sub(r"(?s)\[vocabulary\].*?\[optimizer\]", "[optimizer]", content))
    words = ["pretrain", "my shards", "--recipe", recipe, "--device", "cpu", "-o", "out"]
    shell.refuses(
        [*words, "--init", model, "--extend-vocabulary", 1],
        "--extend-vocabulary chooses words of raw text, and these are shards",
        "name the text, or leave --extend-vocabulary out",
    )


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("r.csv", "2 data sets", "--joint trains one encoder with a head for each"),
        ("--mix 2", "--mix is for --joint", "--joint trains one encoder with a head for each"),
        (
            "--method frozen --epochs 3 --seed 2 --set dropout=0.2",
            "the method 'frozen' does not use --set dropout, --epochs, --seed",
            "leave out --set dropout, --epochs, --seed; or --method full",
        ),
        (
            "--method cosine --teacher MODEL",
            "the method 'cosine' does not use --teacher",
            "leave out --teacher; or --method full",
        ),
        ("--method cosine", "cosine", "use --method "),
        (
            "--method contrastive --set label_smoothing=0.1",
            "the method 'contrastive' does not use --set label_smoothing",
            "leave out --set label_smoothing; or --method full",
        ),
        (
            "--method full --set rows_per_label=2",
            "the method 'full' does not use --set rows_per_label",
            "leave out --set rows_per_label; or --method contrastive",
        ),
        (
            "--method full --set lm_weight=0.5 --recipe gpt",
            "only GPT and GPT-2 have this loss",
            "--set lm_weight=0",
        ),
        (
            "--seeds 1000000000000 --method full",
            "1,000,000,000,000",
            "type smaller numbers of --seeds and --folds, or fewer values of --sweep",
        ),
    ],
)
def test_a_fine_tuning_that_is_refused(
    words: str, error: str, hint: str, data: Path, model: Path, shell: Shell
):
    words = words.replace("MODEL", str(model))
    command = ["finetune", data, *words.split(), "--model", model, "--device", "cpu", "-o", "out"]
    shell.refuses(command, error, hint)
    assert not list(Path().glob("out/model.safetensors"))


def test_models_that_read_from_left_to_right(shell: Shell):
    write_gpt2(Path("gpt"))
    words = ["--model", "gpt", *FAST, "-o", "out"]
    shell.refuses(
        ["finetune", write_conll(Path("data.conll"), 40), *words],
        "cannot be fine-tuned for",
        "--model minilm, or another model that reads in both directions",
    )
    rows = [(f"a film {n % 9}", str(1990 + n % 9)) for n in range(40)]
    data = write_table("far.csv", ("text", "score"), *rows)
    shell.refuses(
        ["finetune", data, *words, "--method", "full", "--task", "regression"],
        "a GPT has no bias for it",
        "subtract 1994 from all of them, or use --model minilm",
    )


def test_layers_of_an_lstm(model: Path, shell: Shell):
    Path("names.conll").write_text("the O\nfilm B-work\n\n" * 12)
    words = ["finetune", "names.conll", "--model", model, "--recipe", "feature_based", "-o", "out"]
    shell.refuses(
        [*words, *FAST, "--set", "lstm_units=8", "--set", "feature_layers=9"],
        "feature_layers is 9, and the model has the layers 0 (embeddings) to 2",
        "--set feature_layers=last",
    )
    shell.refuses([*words, "--method", "frozen"], "has no LSTM", "leave --recipe out")


def test_a_teacher_of_another_task(data: Path, model: Path, shell: Shell):
    teacher = write_head(
        Path("teacher"), task="classification", text=("text",), labels=("bad", "good")
    )
    run = ["--model", model, "--epochs", 1, "--device", "cpu", "--teacher", teacher, "-o", "out"]
    choices = write_choices(Path("choices.csv"), 40)
    shell.refuses(
        ["finetune", choices, *run],
        "--teacher is not available for choice: expected classification",
        "leave out --teacher",
    )
    advice = "fine-tune a teacher from the same model: bertworks finetune DATA --method full"
    shell.refuses(["finetune", data, *run], "the teacher was fine-tuned for classification", advice)
    rows = [(f"a {mood} film {n}", mood) for n in range(20) for mood in ("bad", "good")]
    data = write_table("moods.csv", ("text", "label"), *rows)
    shell.refuses(
        ["finetune", data, *run, "--layers", 99], "--layers 99: expected a number from 1 to", ""
    )


def test_labels_that_no_head_fits(shell: Shell):
    classifier = write_head(
        Path("c"), task="classification", text=("text",), label=("label",), labels=("neg", "pos")
    )
    rows = [(f"a film {n}", ["gut", "schlecht"][n % 2]) for n in range(30)]
    data = write_table("d.csv", ("text", "label"), *rows)
    shell.refuses(
        ["finetune", data, "--model", classifier, *FAST, "-o", "out"],
        "the model's labels are not those of the data",
        "--reset-head discards the model's head and trains a new one",
    )


def test_advice_after_a_training(shell: Shell, model: Path):
    """The last line names what the warnings about the data have found."""
    rows = [(f"{SENTENCE} {n}", "rare" if n % 9 == 0 else "often") for n in range(45)]
    data = write_table("d.csv", ("text", "label"), *rows)
    command = ("finetune", data, "--model", model, "--device", "cpu", "--method", "frozen")
    answer = shell.works(*command, "--max-length", "16", "--windows", "0", "-o", "short")
    advice = answer.partition("what would help next: ")[2]
    assert re.match(r"--max-length \d+", advice)
    assert "--set class_weights=balanced" in advice
    next_command = shell.shows(answer, "next: bertworks predict {} new.csv -o scored.csv")
    write_table("new.csv", ("text",), ("a film",))
    shell.types(next_command)
    assert json.loads(Path("short/task.json").read_text())["labels"] == ["often", "rare"]
    assert bertworks.Predictor("short", device="cpu").predict(["a film"])


def test_fields_within_objects_are_texts_and_labels(model: Path, shell: Shell):
    rows = read_table(str(write_reviews(Path("r.csv"), 60)))
    lines = [
        json.dumps({"body": {"en": row["text"]}, "labels": {"label": row["label"], "sure": 1.5}})
        for row in rows
    ]
    data = Path("nested.jsonl")
    data.write_text("\n".join(lines) + "\n")
    shell.refuses(
        ["check", data, "--model", model, "--text", "body.en", "--label", "labels"],
        "and 57 more of this kind",
        "name a field within it: --label labels.label or --label labels.sure",
    )
    shell.refuses(
        ["check", data, "--model", model, "--text", "body.en", "--label", "labels.labl"],
        "the fields within them: body.en, labels.label, labels.sure",
        "did you mean --label labels.label?",
    )
    columns = ["--text", "body.en", "--label", "labels.label"]
    answer = shell.works("check", data, "--model", model, *columns)
    assert "--label labels.label" in answer
    shell.works("finetune", data, "--model", model, *columns, "-o", "out", "--method", "frozen")
    assert "accuracy" in shell.works("evaluate", "task", "out", data)
    shell.works("predict", "out", data, "-o", "scored.jsonl")
    scored = [json.loads(line) for line in Path("scored.jsonl").read_text().splitlines()]
    assert [list(row) for row in scored] == [
        ["body", "labels", "predicted_label", "predicted_score", "truncated_tokens"]
    ] * 60
    assert [row["body"]["en"] for row in scored] == [row["text"] for row in rows]
    shell.refuses(
        ["embed", model, data, "--text", "body"],
        "'body' holds {'en'",
        "name a field within it: --text body.en",
    )
    shell.works("embed", model, data, "--text", "body.en", "-o", "v.npy")


def test_how_text_is_divided_is_the_first_line(model: Path, shell: Shell):
    line = "They measured the flow of air along the wing at a high speed. " * 4
    data = Path("abstracts.txt")
    data.write_text("\n\n".join(f"{n} {line}" for n in range(60)))
    first = "plain text: a blank line ends a document (long lines between blank lines)"
    prepare = ["prepare", data, "--tokenizer", model]
    pretrain = ["pretrain", data, "--tokenizer", model, *short()]
    for number, command in enumerate((prepare, pretrain, ["vocab", data, "--size", "500"])):
        answer = shell.works(*command, "-o", f"out{number}", "--json")
        assert json.loads(answer.splitlines()[0])["text"].startswith(first)
    data.write_text("\n\n".join(f"{n} {line[:150]}" for n in range(8000)))
    shell.refuses(
        [*prepare, "-o", "other"],
        "does a blank line end a document, or a paragraph of one document?",
        "--documents blank_line if it ends documents",
    )
    shell.refuses(
        [*pretrain, "-o", "new"],
        "does a blank line end a document",
        "--documents file if the file is one document",
    )
    assert not Path("new").exists()
    assert "8,000 documents" in shell.works(*prepare, "-o", "all", "--documents", "blank_line")
