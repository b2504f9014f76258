"""Folders of a linear layer on means of hidden states: other programs open the encoder, compute the
probabilities with the lines of the card, and refuse the folder where they would compute something
else."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import bertworks as bw
from bertworks.checkpoints.hf_config import own_type
from bertworks.checkpoints.model_card import REFUSED, encoder_use
from bertworks.checkpoints.model_folder import ModelFolder, load_model, save_model
from bertworks.checkpoints.task_config import save_task, task_settings
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.registry import task_of
from bertworks.tasks.settings import TaskConfig
from tests.checkpoints.test_model_card import (
    MASKED,
    executed,
    snippets,
    write_pretrained,
    write_xlm,
)

RECIPES: dict[str, dict[str, Any]] = {**MASKED, "gpt2": {}, "gpt": {}, "bert-ltr": {}}
LABELS = ("neg", "pos", "none")
CLASSES = TaskConfig(
    task="classification", labels=LABELS, text=("text",), label=("label",), vectors="mean"
)
TOPICS = TaskConfig(
    task="multilabel",
    labels=LABELS,
    text=("text",),
    label=("labels",),
    vectors="mean",
    threshold=0.5,
)
NUMBER = TaskConfig(task="regression", text=("text",), label=("score",), vectors="mean")
PAIRS = {"text": ("sentence1", "sentence2")}
KINDS = {
    "classes": CLASSES,
    "topics": TOPICS,
    "a number": NUMBER,
    "classes of pairs": replace(CLASSES, vectors="pair", **PAIRS),
    "a number of pairs": replace(NUMBER, vectors="pair", **PAIRS),
    "classes by the cosine": replace(CLASSES, vectors="cosine", labels=LABELS[:2], **PAIRS),
    "a number by the cosine": replace(NUMBER, vectors="cosine", **PAIRS),
}
CARD = "# A model\n\n## Use\n\n{}\n## Limits\n"
TOLERANCE = 1e-6


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """transformers reports missing and unexpected weights, which the tests read from its loading
    info."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    yield
    transformers.logging.set_verbosity(verbosity)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pretrained(tmp_path_factory.mktemp("base") / "model", "bert-tiny")


def write_folder(
    folder: Path, base: Path, d: TaskConfig = CLASSES, *, by_earlier_version: bool = False
) -> Path:
    """A model with a random output layer on the encoder of another model; its temperature is not
    1."""
    model = load_model(base)
    d = replace(d, max_length=min(32, model.config.max_position_embeddings), temperature=2.5)
    torch.manual_seed(5)
    network = TaskModel(model.config, task_of(d).head())
    layer = {
        name: torch.randn_like(p)
        for name, p in network.named_parameters()
        if name.startswith("classifier")
    }
    state = {
        name: value for name, value in model.state.items() if name.startswith("encoder.")
    } | layer
    use, head = encoder_use(d, model.config), task_settings(d, model.config)
    if by_earlier_version:
        use = REFUSED
        head |= {
            "architectures": ["BertworksRecurrentTagger"],
            "model_type": own_type(model.config.family),
        }
    save_model(
        folder, state, model.config, model.tokenizer, card=CARD.format(use), head=head, task=d
    )
    return folder


def check_card(folder: Path, *texts: str) -> None:
    """Compare the value of the lines on the card with the prediction. texts: those to read; none:
    those of the card."""
    (snippet,) = snippets(folder)
    if texts:
        snippet, count = (
            snippet.replace('["A text"]', json.dumps(texts)),
            snippet.count('["A text"]'),
        )
        snippet = snippet.replace('["A text", "and another"]', json.dumps(texts))
        assert count == (len(texts) == 1)
    elif '"and another"' in snippet:
        texts = ("A text", "and another")
    else:
        texts = ("A text",)
    value, _ = executed(snippet, folder)
    predictor = bw.Predictor(folder, device="cpu", precision="fp32")
    is_number = predictor.description.task == "regression"
    (answer,) = predictor.predict(
        [texts[0] if len(texts) == 1 else texts], probabilities=not is_number
    )
    expected = answer["value"] if is_number else answer["scores"]
    # Of a number above 1, float32 has seven digits.
    assert value == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)
    if not is_number:
        assert [*value] == [*predictor.description.labels]
        assert len({round(score, 3) for score in value.values()}) > 1  # not the same for all


@pytest.mark.parametrize("recipe", RECIPES)
def test_transformers_opens_the_encoder_and_no_classifier(recipe: str, tmp_path: Path) -> None:
    base = write_pretrained(tmp_path / "base", recipe, **RECIPES[recipe])
    folder = write_folder(tmp_path / "model", base)
    encoder, report = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert all("pooler" in name for name in report["missing_keys"])
    assert len(report["unexpected_keys"]) == 2
    assert not report["mismatched_keys"]
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(
        "the film was good", return_tensors="pt"
    )
    with torch.no_grad():
        states = encoder.eval()(**tokens).last_hidden_state
        expected = transformers.AutoModel.from_pretrained(base).eval()(**tokens).last_hidden_state
    assert torch.equal(states, expected)
    for labels in ({}, *({"num_labels": count} for count in (1, 2, 3, encoder.config.hidden_size))):
        with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
            transformers.AutoModelForSequenceClassification.from_pretrained(folder, **labels)
    with pytest.raises(ValueError, match="Could not load model"):
        transformers.pipeline("text-classification", model=str(folder))
    check_card(folder)


def test_a_model_of_several_languages(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", write_xlm(tmp_path / "base"))
    check_card(folder)
    assert ', 1)  # "de"' in (folder / "README.md").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_the_lines_of_the_card_compute_the_answers(kind: str, base: Path, tmp_path: Path) -> None:
    d = KINDS[kind]
    folder = write_folder(tmp_path / "model", base, d)
    check_card(folder)
    long_text = "the capital of france is paris " * 20  # is truncated
    check_card(folder, *[long_text, "the end"][: len(d.text)])
    refuses = pytest.raises(RuntimeError, match="ignore_mismatched_sizes")
    with refuses:
        transformers.AutoModelForSequenceClassification.from_pretrained(folder)


@pytest.mark.parametrize("kind", ["classes", "classes of pairs", "a number by the cosine"])
@pytest.mark.parametrize("recipe", ["bert-tiny", "roberta-small", "gpt2", "xlm-small"])
def test_folders_of_earlier_versions(recipe: str, kind: str, tmp_path: Path) -> None:
    """They open as before, and transformers refuses them; `convert` writes the files of today."""
    base = write_pretrained(tmp_path / "base", recipe, **RECIPES[recipe])
    d = KINDS[kind]
    earlier = write_folder(tmp_path / "earlier", base, d, by_earlier_version=True)
    assert load_file(earlier / "model.safetensors")["classifier.weight"].dim() == 2
    with pytest.raises(ValueError, match="bertworks"):
        transformers.AutoModel.from_pretrained(earlier)
    now = write_folder(tmp_path / "now", base, d)
    list(bw.convert(earlier, tmp_path / "converted"))
    list(bw.convert(now, tmp_path / "again"))
    names = ("model.safetensors", "config.json", "task.json", "README.md")
    for name in names:
        content = (now / name).read_bytes()
        assert (tmp_path / "converted" / name).read_bytes() == content
        assert (tmp_path / "again" / name).read_bytes() == content
    text: Any = "the end" if len(d.text) == 1 else ("the end", "of france")
    bw.Predictor(earlier).save(tmp_path / "copy")
    answers = [
        bw.Predictor(folder, device="cpu", precision="fp32").predict([text])
        for folder in (earlier, now, tmp_path / "copy", tmp_path / "converted")
    ]
    assert answers == [answers[0]] * 4


def test_an_earlier_temperature_and_the_new_form(base: Path, tmp_path: Path) -> None:
    """A folder from before the temperature was in the weights: it is divided once, by `convert`,
    which writes the form of today, and by `Predictor.save`, which keeps the form."""
    earlier = write_folder(tmp_path / "earlier", base, by_earlier_version=True)
    d = replace(ModelFolder(earlier).task_config, temperature=4.0, weights_temperature=1.0)
    save_task(d, earlier)
    list(bw.convert(earlier, tmp_path / "model"))
    bw.Predictor(earlier).save(tmp_path / "copy")
    scores = {
        name: bw.Predictor(tmp_path / name, device="cpu", precision="fp32").predict(["the end"])[0][
            "score"
        ]
        for name in ("earlier", "model", "copy")
    }
    assert scores == pytest.approx(dict.fromkeys(scores, scores["earlier"]), abs=TOLERANCE)
    for name, axes in (("model", 3), ("copy", 2)):
        assert ModelFolder(tmp_path / name).task_config.temperature == 1
        assert load_file(tmp_path / name / "model.safetensors")["classifier.weight"].dim() == axes
    with pytest.raises(ValueError, match="bertworks"):
        transformers.AutoModel.from_pretrained(tmp_path / "copy")
    check_card(tmp_path / "model")


@pytest.mark.parametrize(
    "recipe", ["bert-tiny", "roberta-small", "distilbert-small", "gpt2", "bert-ltr"]
)
def test_an_exported_model_has_the_settings_of_the_usual_class(recipe: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    base = write_pretrained(tmp_path / "base", recipe, **RECIPES[recipe])
    folder = write_folder(tmp_path / "model", base)
    list(bw.export(folder, tmp_path / "onnx"))
    settings = json.loads((tmp_path / "onnx/config.json").read_text())
    config = transformers.AutoConfig.from_pretrained(tmp_path / "onnx")
    assert config.id2label == dict(enumerate(LABELS))
    assert config.model_type == ModelFolder(folder).config.family
    (architecture,) = settings["architectures"]
    # The usual class of a BERT from left to right would read its first token.
    assert architecture.endswith("ForSequenceClassification") == (recipe != "bert-ltr")
    assert recipe == "bert-ltr" or hasattr(transformers, architecture)
    texts = ["the end", "paris is the capital of france"]
    exact, exported = (
        bw.Predictor(path, device="cpu", precision="fp32").predict_proba(texts)
        for path in (folder, tmp_path / "onnx")
    )
    assert abs(exact - exported).max() < 1e-5


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_sentence_transformers_reads_the_means_and_no_scores(base: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = write_folder(tmp_path / "model", base, KINDS["a number by the cosine"])
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        sentence_transformers.CrossEncoder(str(folder), device="cpu")
    vectors = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(
        ["the end", "of france"]
    )
    cosine = (vectors[0] @ vectors[1]) / (
        vectors[0] @ vectors[0] * (vectors[1] @ vectors[1])
    ) ** 0.5
    tensors = load_file(folder / "model.safetensors")
    number = float(tensors["classifier.weight"][0, 0, 0] * cosine + tensors["classifier.bias"][0])
    (answer,) = bw.Predictor(folder, device="cpu", precision="fp32").predict(
        [("the end", "of france")]
    )
    assert answer["value"] == pytest.approx(number, abs=1e-5)


def test_other_shapes_are_refused(base: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", base)
    tensors = load_file(folder / "model.safetensors")
    for weight in (
        tensors["classifier.weight"].expand(2, -1, -1),
        tensors["classifier.weight"][None],
    ):
        save_file(
            tensors | {"classifier.weight": weight.contiguous()}, folder / "model.safetensors"
        )
        (folder / "weights.json").unlink(missing_ok=True)
        with pytest.raises(
            bw.BertworksError, match=r"classifier\.weight is torch\.float32 .* shape \[any, any\]"
        ):
            load_model(folder)
