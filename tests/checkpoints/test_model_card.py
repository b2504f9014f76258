"""Every command and every Python snippet that a model card can print is executed here, in the
folder of its model, and gives the answers of the model."""

import ast
import json
import re
import shlex
import shutil
import warnings
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import bertworks as bw
from bertworks.checkpoints.model_card import pretraining_card
from bertworks.checkpoints.model_folder import save_model
from bertworks.cli.main import main
from bertworks.models.config import EncoderConfig
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import train_vocabulary
from bertworks.training.objectives import PretrainingModel
from bertworks.training.recipe import load_recipe
from tests.support.fine import (
    FILES_OF_TASKS,
    write_model,
    write_pairs,
    write_reviews,
)
from tests.support.tiny import documents

SIZES = ("hidden_size=32", "num_hidden_layers=2", "num_attention_heads=2")
LANGUAGES = ("en", "de")


def blocks(folder: Path) -> list[tuple[str, str]]:
    """The kind and the content of each block of code on a card, except the recipe."""
    card = (folder / "README.md").read_text()
    assert not re.search(r"\b(PROMPT|TEXTS?|LANGUAGE|NAME|CLASS|ENDING|EOS|MOST)\b", card)
    matches = re.findall(r"^```(\w*)\n(.*?)^```", card, re.DOTALL | re.MULTILINE)
    return [(kind, content) for kind, content in matches if kind != "toml"]


def snippets(folder: Path) -> list[str]:
    return [content for kind, content in blocks(folder) if kind == "python"]


def commands(folder: Path) -> list[str]:
    return [line for kind, content in blocks(folder) if kind == "" for line in content.splitlines()]


def executed(code: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    """The value of the last line of a snippet, and its names."""
    tree = ast.parse(code)
    names = dict[str, Any]()
    last_statement = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with chdir(folder), warnings.catch_warnings(action="ignore"):
        exec(compile(tree, "card", "exec"), names)
        value = (
            None
            if last_statement is None
            else eval(compile(ast.Expression(last_statement.value), "card", "eval"), names)
        )
    return value, names


def typed(line: str, folder: Path, *options: str) -> None:
    program, *words = shlex.split(line)
    assert program == "bertworks"
    with chdir(folder):
        assert main([*words, *options]) == 0


def write_pretrained(folder: Path, recipe: str, **changes: Any) -> Path:
    """A network of random weights, every one perturbed, with the card of its pre-training."""
    sizes = tuple(f"encoder.{size}" for size in (*SIZES, *changes.pop("sizes", ())))
    r = load_recipe(recipe, (*sizes, "initialization=published") if "albert" in recipe else sizes)
    texts = [*documents(60), *["The capital of France is Paris."] * 30]
    t, _ = train_vocabulary(texts, replace(r.vocabulary, size=400))
    c = replace(r.encoder, vocab_size=t.vocab_size, **changes)
    network = PretrainingModel(
        c, {kind: w for kind, w in r.weights.items() if kind != "replaced_token"}
    )
    torch.manual_seed(0)
    state = {
        name: p.detach() + 0.15 * torch.randn_like(p) for name, p in network.named_parameters()
    }
    save_model(
        folder, state, c, t, card=card_of(folder, c, t, is_causal=r.token_objective == "causal_lm")
    )
    return folder


def card_of(folder: Path, c: EncoderConfig, t: Tokenizer, *, is_causal: bool) -> str:
    return pretraining_card(
        c,
        name=folder.name,
        recipe="a = 1",
        corpus={"documents": 1},
        held_out={},
        versions={},
        steps=1,
        tokens=1,
        parameters=1,
        mask_token=None if is_causal else t.special_tokens["mask_token"],
        num_end_tokens=len(t.template.suffix),
    )


MASKED = {
    "bert-tiny": {},
    "roberta-small": {},
    "distilbert-small": {},
    "albert-small": {"sizes": ("embedding_size=16",)},
    "xlm-small": {"type_vocab_size": 0, "languages": ()},
    "electra-small": {"sizes": ("embedding_size=32",)},
    "modernbert-small": {},
}


@pytest.mark.parametrize("recipe", MASKED)
def test_the_card_of_a_masked_language_model(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = write_pretrained(tmp_path / "m", recipe, **MASKED[recipe])
    (snippet,) = snippets(folder)
    (command,) = commands(folder)
    fillings, _ = executed(snippet, folder)
    capsys.readouterr()
    typed(command, folder, "--json")
    answer = json.loads(capsys.readouterr().out)
    expected = bw.load(folder, device="cpu").fill([shlex.split(command)[-1]])[0][0]
    assert [filling["token"] for filling in fillings] == [filling["token"] for filling in expected]
    assert [filling["score"] for filling in fillings] == pytest.approx(
        [filling["score"] for filling in expected], abs=1e-5
    )
    assert expected[0]["token_str"] in json.dumps(answer, ensure_ascii=False)


def test_the_card_of_an_xlnet(tmp_path: Path):
    """Its code hides the mask from all tokens, as `fill` does."""
    folder = write_pretrained(tmp_path / "m", "xlnet-small")
    (snippet,) = snippets(folder)
    (command,) = commands(folder)
    tokens, _ = executed(snippet, folder)
    model = bw.load(folder, device="cpu")
    fillings = model.fill([shlex.split(command)[-1]])[0][0]
    assert tokens == [model.tokenizer.tokens[filling["token"]] for filling in fillings]
    typed(command, folder)


@pytest.mark.parametrize("language", ["", "de"])
def test_the_card_of_a_masked_language_model_of_several_languages(language: str, tmp_path: Path):
    changes = {"type_vocab_size": 2, "languages": LANGUAGES, "language": language}
    folder = write_pretrained(tmp_path / "it's m", "xlm-small", **changes)
    for command in commands(folder):
        typed(command, folder)
    assert len(commands(folder)) == (1 if language else 2)
    converted = folder if language else tmp_path / "it's m-en"
    prompt = shlex.split(commands(folder)[-1])[-1]
    model = bw.load(converted, device="cpu")
    fillings = model.fill([prompt])[0][0]
    (snippet,) = snippets(folder)
    tokens, _ = executed(snippet, folder)
    assert tokens == [model.tokenizer.tokens[filling["token"]] for filling in fillings]
    other_language = next(name for name in LANGUAGES if name != (language or "en"))
    list(bw.convert(folder, tmp_path / "other", language=other_language))
    assert tokens != [
        model.tokenizer.tokens[filling["token"]]
        for filling in bw.load(tmp_path / "other").fill([prompt])[0][0]
    ]
    if not language:  # the card of a converted folder has the number of its language, too
        (snippet,) = snippets(converted)
        _, names = executed(snippet, converted)
        expected = names["model"](
            names["inputs"]["input_ids"], langs=torch.zeros_like(names["inputs"]["input_ids"])
        )
        torch.testing.assert_close(names["outputs"].logits, expected.logits)
        (snippet,) = snippets(tmp_path / "other")
        assert 'inputs["input_ids"], 1)  # "de"' in snippet


@pytest.mark.parametrize("recipe", ["gpt2", "gpt", "bert-ltr"])
def test_the_card_of_a_model_that_continues_texts(recipe: str, tmp_path: Path):
    folder = write_pretrained(tmp_path / "m", recipe)
    (command,) = commands(folder)
    (snippet,) = snippets(folder)
    typed(command, folder)
    text, _ = executed(snippet, folder)
    prompt = shlex.split(command)[-1]
    (continuation,) = bw.load(folder, device="cpu").generate([prompt])
    t = Tokenizer.load(folder)
    start = [*t.template.prefix, *t.ids([prompt])[0]]
    import transformers

    assert text == transformers.AutoTokenizer.from_pretrained(folder).decode(
        [*start, *continuation["ids"]], skip_special_tokens=True
    )
    assert len(continuation["ids"]) > 5


def test_the_card_of_a_discriminator(tmp_path: Path):
    from tests.support.tiny import write_corpus, write_recipe
    from tests.training.test_objectives import TINY

    recipe = write_recipe(tmp_path / "r.toml", *TINY, ("num_steps = 40", "num_steps = 2"))
    list(
        bw.pretrain(
            write_corpus(tmp_path / "t.jsonl", 30), tmp_path / "m", recipe=str(recipe), device="cpu"
        )
    )
    (snippet,) = snippets(tmp_path / "m")
    (command,) = commands(tmp_path / "m")
    value, _ = executed(snippet, tmp_path / "m")
    assert value == bw.load(tmp_path / "m").detect(["The chef ate the meal."])
    write_reviews(tmp_path / "m/DATA.csv", 30)
    typed(command, tmp_path / "m", "--device", "cpu", "--set", "epochs=1")
    assert bw.Predictor(tmp_path / "m/CLASSIFIER", device="cpu").predict(["good film"])
    (snippet,) = snippets(tmp_path / "m/generator")
    (command,) = commands(tmp_path / "m/generator")
    typed(command, tmp_path / "m/generator")
    value, _ = executed(snippet, tmp_path / "m/generator")
    expected = bw.load(tmp_path / "m/generator").fill([shlex.split(command)[-1]])[0][0]
    assert [filling["token"] for filling in value] == [filling["token"] for filling in expected]


DATA = FILES_OF_TASKS | {"pairs": ("pairs.csv", write_pairs)}


def write_xlm(folder: Path) -> Path:
    """A model of two languages, for one of them."""
    r = load_recipe("xlm-small", tuple(f"encoder.{size}" for size in SIZES))
    base = Tokenizer.load(write_model(folder.with_name("words")))
    c = replace(
        r.encoder, vocab_size=base.vocab_size, type_vocab_size=2, languages=LANGUAGES, language="de"
    )
    torch.manual_seed(0)
    network = PretrainingModel(c, {"masked_lm": 1.0})
    state = {
        name: p.detach() + 0.15 * torch.randn_like(p) for name, p in network.named_parameters()
    }
    save_model(folder, state, c, base, card="")
    return folder


def finetuned(folder: Path, task: str, base: Path) -> Path:
    name, write = DATA[task]
    data = write(folder / name)
    if task == "pairs":  # classes instead of numbers
        lines = data.read_text().splitlines()
        rows = [line.rsplit("\t", 1) for line in lines[1:]]
        data.write_text(
            "\n".join(
                [
                    lines[0],
                    *(f"{texts}\t{'high' if float(n) > 2.5 else 'low'}" for texts, n in rows),
                ]
            )
        )
    if task == "regression":
        data.write_text(re.sub(r"^[^\t]*\t", "", data.read_text(), flags=re.MULTILINE))
    options = {
        "epochs": 2,
        "learning_rate": 3e-3,
        "method": "full",
        "validation": "split",
        "device": "cpu",
    }
    bw.finetune(data, model=base, output=folder / "out", **options)
    return folder / "out"


def compare(
    task: str, value: Any, predictor: bw.Predictor, snippet: str, in_a_language: bool
) -> None:
    """Compare the value of a snippet with the prediction for the same text."""
    match task:
        case "classification" | "pairs":
            texts = [("A text", "and another")] if task == "pairs" else ["A text"]
            (prediction,) = predictor.predict(texts)
            if isinstance(value, list):
                value = value[0]
            if isinstance(value, dict):
                value = value["label"]
            assert value == prediction["label"]
        case "regression":
            (prediction,) = predictor.predict(["A text"])
            number = value if in_a_language else value[0]["score"]
            assert number == pytest.approx(prediction["value"], abs=1e-4)
        case "multilabel":
            (prediction,) = predictor.predict(["A text"], probabilities=True)
            if in_a_language:
                scores = value
            else:
                labels = value if isinstance(value[0], dict) else value[0]
                scores = {row["label"]: row["score"] for row in labels}
            assert scores == pytest.approx(prediction["scores"], abs=1e-6)
        case "tagging" | "spans":
            (prediction,) = predictor.predict(["Some words."])
            types = [entity["type"] for entity in prediction["entities"]]
            if not in_a_language:
                assert [entity_of_snippet["entity_group"] for entity_of_snippet in value] == types
            elif task == "tagging":
                pieces = [(token, tag) for token, tag in value if token not in ("[CLS]", "[SEP]")]
                assert [tag for token, tag in pieces if not token.startswith("##")] == prediction[
                    "tags"
                ]
            else:
                assert any(tag != "O" for token, tag in value[1:-1]) == bool(types)
        case "qa":
            (prediction,) = predictor.predict(
                [{"question": "A question?", "context": "A text that has the answer."}]
            )
            if prediction["answer"]:  # else the model finds none
                assert value == prediction["answer"]
        case "choice":
            row = {
                "startphrase": "A beginning.",
                "ending0": "A first end.",
                "ending1": "A second end.",
            }
            names = predictor.description.text
            (prediction,) = predictor.predict(
                [{name: row.get(name, "A second end.") for name in names}]
            )
            assert value == ("A first end." if int(prediction["choice"]) == 0 else "A second end.")


QUICK = "classification", "qa", "choice"  # cards of the other tasks are made alike


@pytest.mark.parametrize(
    "task",
    [task if task in QUICK else pytest.param(task, marks=pytest.mark.slow) for task in DATA],
)
def test_the_card_of_a_fine_tuned_model(task: str, tmp_path: Path):
    out = finetuned(tmp_path, task, write_model(tmp_path / "base"))
    check_card(task, out, tmp_path, in_a_language=False)


@pytest.mark.parametrize(
    "task",
    [
        "classification",
        *(
            pytest.param(task, marks=pytest.mark.slow)
            for task in ("pairs", "regression", "multilabel", "tagging", "spans", "qa")
        ),
    ],
)
def test_the_card_of_a_fine_tuned_model_of_several_languages(task: str, tmp_path: Path):
    out = finetuned(tmp_path, task, write_xlm(tmp_path / "base"))
    check_card(task, out, tmp_path, in_a_language=True)
    (snippet,) = snippets(out)
    assert "langs" in snippet
    assert ', 1)  # "de"' in snippet


def check_card(task: str, out: Path, home: Path, *, in_a_language: bool) -> None:
    data = home / DATA[task][0]
    for command in commands(out):
        shutil.copy(data, out / data.name)
        suffix = "jsonl" if data.suffix != ".csv" else "csv"
        typed(command.replace("new.csv", data.name).replace("scored.csv", f"scored.{suffix}"), out)
        assert (out / f"scored.{suffix}").stat().st_size
    (snippet,) = snippets(out)
    value, _ = executed(snippet, out)
    compare(task, value, bw.Predictor(out, device="cpu"), snippet, in_a_language)


def test_the_card_of_a_frozen_model_does_not_contradict_itself(tmp_path: Path):
    data = write_reviews(tmp_path / "d.csv", 1100)
    base = write_model(tmp_path / "base")
    bw.finetune(
        data, model=base, output=tmp_path / "out", method="frozen", validation="split", device="cpu"
    )
    card = (tmp_path / "out/README.md").read_text()
    assert "rejects this folder, and `AutoModel` opens the encoder" in card
    assert "Its probabilities are" in card
    assert "not calibrated" not in card
    assert "divide the logits" not in card
    (snippet,) = snippets(tmp_path / "out")
    value, _ = executed(snippet, tmp_path / "out")
    predictor = bw.Predictor(tmp_path / "out", device="cpu", precision="fp32")
    assert value == pytest.approx(
        predictor.predict(["A text"], probabilities=True)[0]["scores"], abs=1e-6
    )
    shutil.copy(data, tmp_path / "out/new.csv")
    (command,) = commands(tmp_path / "out")
    typed(command, tmp_path / "out")
    list(bw.convert(tmp_path / "out", tmp_path / "copy"))
    (tmp_path / "out/README.md").unlink()
    list(bw.convert(tmp_path / "out", tmp_path / "converted"))
    (snippet,) = snippets(tmp_path / "converted")
    _, names = executed(snippet, tmp_path / "converted")
    with chdir(tmp_path / "converted"):  # the model is "."
        predictions = names["model"].predict(["good film"])
    assert predictions == bw.Predictor(tmp_path / "out").predict(["good film"])
