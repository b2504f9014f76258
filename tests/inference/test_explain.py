"""Explanations: attention as transformers gives it, attributions that add up to what they explain,
and a page in which text stays text."""

import base64
import hashlib
import json
import math
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from bertworks.batching.examples import Example
from bertworks.checkpoints.model_folder import load_model, save_model
from bertworks.checkpoints.task_config import save_task, task_settings
from bertworks.cli.main import main
from bertworks.errors import UsageError
from bertworks.inference.explain import (
    MAPS,
    TEMPLATE,
    TOLERANCE,
    Explanation,
    IntegratedGradients,
    UnwantedError,
    explain,
    read_tokens,
)
from bertworks.inference.masked_lm import Discriminator
from bertworks.inference.predictor import Predictor
from bertworks.inference.translation import translate
from bertworks.interop.load import load
from bertworks.models.attention import Source
from bertworks.models.config import EncoderConfig
from bertworks.models.layout import Layout
from bertworks.models.transformer import Encoder
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.registry import task_of
from bertworks.tasks.settings import TaskConfig, TaskType
from bertworks.tasks.task import log_odds
from bertworks.text.tokenizer import Tokenizer
from tests.support.fine import tokenizer, write_translator
from tests.support.gpt import write_gpt, write_gpt2
from tests.support.marian import write_marian
from tests.support.refusals import refusal
from tests.support.served import Local, write_head
from tests.support.translators import END, PAD, marian, same_network

TEXT = "the film was good in this storytown"
PARAGRAPHS = re.findall(
    r">((?:Attention is not|The cosine) .*?)</p>", TEMPLATE.read_text(), re.DOTALL
)
NOT_ATTRIBUTION, SIMILARITY = (" ".join(paragraph.split()) for paragraph in PARAGRAPHS)
ATTACK = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&</figure> </script><!--"
LABELS = {
    "classification": ("pos", "neg", "even"),
    "multilabel": ("a", "b"),
    "tagging": ("O", "B-x", "I-x"),
    "spans": ("O", "B-x", "I-x"),
}
INPUTS = {
    "classification": (TEXT,),
    "multilabel": (TEXT, "men"),
    "regression": (TEXT, "men and dogs"),
    "tagging": (TEXT,),
    "spans": (TEXT,),
    "qa": ("where lives Anna ?", "Anna lives in Paris ."),
    "choice": ("the men", "good", "a dog"),
}


def write_task_model(
    model: Path, folder: Path, task: TaskType, labels: Sequence[str] = (), units: int = 0
) -> Path:
    """The tiny BERT with a head drawn at random."""
    config, state, t = load_model(model)
    d = TaskConfig(
        task=task,
        labels=tuple(labels or LABELS.get(task, ())),
        num_choices=2,
        max_length=64,
        lstm_units=units,
    )
    torch.manual_seed(1)
    network = TaskModel(config, task_of(d).head(), d)
    network.load_state_dict(
        {name: value for name, value in state.items() if name in network.state_dict()}, strict=False
    )
    torch.nn.init.normal_(network.get_submodule(network.task.head).weight)
    save_model(folder, network.state_dict(), config, t, card="tiny", head=task_settings(d))
    save_task(d, folder)
    return folder


@pytest.fixture(scope="module")
def reviews(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task_model(model, tmp_path_factory.mktemp("reviews") / "m", "classification")


@pytest.fixture(scope="module")
def found(reviews: Path) -> Explanation:
    return explain(reviews, TEXT)


def theirs(folder: Path) -> transformers.BertForSequenceClassification:
    kind = transformers.BertForSequenceClassification
    return kind.from_pretrained(folder, attn_implementation="eager").eval()


# --- attention and states


def test_attention_is_that_of_transformers(model: Path):
    """In a batch of unequal lengths."""
    config, state, _ = load_model(model)
    encoder = Encoder(config)
    encoder.load_state_dict(
        {n.removeprefix("encoder."): v for n, v in state.items() if n.startswith("encoder.")}
    )
    lengths = [7, 1, 12]
    rows = [torch.randint(config.vocab_size, (n,)) for n in lengths]
    layout, ids = Layout.of(lengths), torch.cat(rows)
    maps = encoder.eval().attention_maps(encoder(ids, layout), layout)
    oracle = transformers.BertModel.from_pretrained(model, attn_implementation="eager").eval()
    assert [tuple(one.shape) for one in maps] == [
        (3, config.num_attention_heads, 12, 12)
    ] * config.num_hidden_layers
    for number, row in enumerate(rows):
        expected = oracle(row[None], output_attentions=True).attentions
        n = len(row)
        for ours, one in zip(maps, expected, strict=True):
            assert (ours[number, :, :n, :n] - one[0]).abs().max() <= 1e-5
            assert not ours[number, :, n:].any()
            assert not ours[number, :, :, n:].any()


def test_an_explanation_holds_the_attention_and_the_similarity_of_its_text(
    reviews: Path, found: Explanation
):
    ids = torch.tensor([tokenizer().encode(TEXT).ids])
    with torch.no_grad():
        expected = theirs(reviews)(ids, output_attentions=True, output_hidden_states=True)
    for ours, one in zip(found.attention, expected.attentions, strict=True):
        assert np.abs(ours - one[0].numpy()).max() <= 1e-5
    for ours, state in zip(found.similarity, expected.hidden_states, strict=True):
        x = state[0]
        cosine = torch.nn.functional.cosine_similarity(x[:, None], x[None], dim=-1)
        assert np.abs(ours - cosine.numpy()).max() <= 1e-5


# --- translations


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_translator(tmp_path_factory.mktemp("translator") / "mt")


def test_cross_attention_is_that_of_transformers():
    """In a batch of unequal lengths, in every layer and head."""
    oracle = marian()
    oracle.set_attn_implementation("eager")
    network = same_network(oracle)
    sources = [[5, 9, 7, 3, END], [6, END], [8, 3, 2, END]]
    targets = [[PAD, 4, 8], [PAD, 3, 9, 11, 13], [PAD]]
    layouts = [Layout.of(list(map(len, rows))) for rows in (sources, targets)]
    ids = [torch.tensor([number for row in rows for number in row]) for rows in (sources, targets)]
    source = Source(network.encoder(ids[0], layouts[0])[-1], layouts[0])
    states = network.decoder(network.encoder.embeddings(ids[1], layouts[1]), layouts[1], source)
    maps = network.decoder.cross_attention_maps(states, layouts[1], source)
    assert [tuple(one.shape) for one in maps] == [(3, 4, 5, 5)] * 3
    for number, (text, translation) in enumerate(zip(sources, targets, strict=True)):
        expected = oracle(
            torch.tensor([text]),
            decoder_input_ids=torch.tensor([translation]),
            output_attentions=True,
        ).cross_attentions
        m = len(translation)
        n = len(text)
        for layer, one in zip(maps, expected, strict=True):
            assert (layer[number, :, :m, :n] - one[0]).abs().max() <= 1e-5
            assert not layer[number, :, m:].any()
            assert not layer[number, :, :, n:].any()


def test_a_translation_is_explained_by_its_attention(translator: Path):
    text = "the film was good"
    e = explain(translator, text, device="cpu")
    (answer,) = translate(translator, [text], device="cpu", precision="fp32")
    t = Tokenizer.load(translator)
    ids = t.encode(text).ids
    assert e.answer == ((answer["translation"], f"{answer['score']:.3f}"),)
    assert e.tokens == tuple(map(t.piece, ids))
    assert e.translation_tokens == tuple(map(t.piece, [*answer["ids"], t.sep_id]))
    oracle = transformers.MarianMTModel.from_pretrained(
        translator, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        expected = oracle(
            torch.tensor([ids]),
            decoder_input_ids=torch.tensor([[t.start_id, *answer["ids"]]]),
            output_attentions=True,
        )
    assert len(e.cross_attention) == len(expected.cross_attentions) == 3
    for layer, one in zip(e.cross_attention, expected.cross_attentions, strict=True):
        assert np.abs(layer - one[0].numpy()).max() <= 1e-5
    for layer, one in zip(e.attention, expected.encoder_attentions, strict=True):
        assert np.abs(layer - one[0].numpy()).max() <= 1e-5
    last, mean = e.reading["last_layer"], e.reading["all_layers"]
    assert np.abs(last.sum(1) - 1).max() <= 1e-5
    assert np.abs(mean.sum(1) - 1).max() <= 1e-5
    assert np.abs(last - expected.cross_attentions[-1][0].mean(0).numpy()).max() <= 1e-5
    all_layers = torch.stack(expected.cross_attentions)[:, 0]
    assert np.abs(mean - all_layers.mean((0, 1)).numpy()).max() <= 1e-5
    assert e.gradients is e.occlusion is None
    assert json.loads(json.dumps(e.as_dict()))["reading"]["all_layers"] == mean.tolist()


def test_the_table_has_the_token_that_each_one_reads_most(translator: Path, tmp_path: Path):
    e = explain(translator, "Anna lives in Oslo", device="cpu")
    mean = e.reading["all_layers"]
    *_, title, first, second = str(e).splitlines()[: 3 + 2]
    assert title.split()[:3] == ["translation", "weight", "reads"]
    last = e.reading["last_layer"]
    for line, token, row in zip((first, second), e.translation_tokens, last, strict=False):
        assert line.split() == [token, f"{row.max():.1%}", e.tokens[row.argmax()]]
    e.save(tmp_path / "why.html")
    content = (tmp_path / "why.html").read_text()
    Page(content)
    assert "Who reads whom in the translation" in content
    maps = e.maps()
    assert maps["translation_tokens"] == e.translation_tokens
    weights = base64.b64decode(maps["translation_maps"]["all_layers"])
    assert np.abs(np.frombuffer(weights, np.uint8) / 255 - mean.ravel()).max() <= 0.5 / 255 + 1e-6


def test_the_page_of_another_model_has_no_translation(found: Explanation):
    assert found.reading == {}
    assert "translation" not in found.html().partition("<script>")[0]
    assert "translation_maps" not in found.maps()


@pytest.mark.parametrize("recipe", ["seq2seq-luong", "seq2seq-bahdanau"])
def test_an_lstm_has_its_alignment_and_no_self_attention(recipe: str, tmp_path: Path):
    folder = write_translator(tmp_path / "mt", recipe=recipe)
    e = explain(folder, "the film was good", device="cpu")
    assert e.attention == ()
    (layer,) = e.cross_attention
    assert layer.shape == (1, len(e.translation_tokens), len(e.tokens))
    assert np.abs(layer.sum(2) - 1).max() <= 1e-5
    assert layer.std(2).max() > 1e-3
    assert np.array_equal(e.reading["last_layer"], e.reading["all_layers"])
    assert e.maps()["attention"] == []
    assert e.translation_tokens[-1] == "</s>"  # at its limit
    assert str(e).count("%") == len(e.translation_tokens)
    Page(e.html())
    with Local(folder) as local:
        answer = local.post("/explain", {"inputs": "the film was good", "maps": True}).json()
    assert (answer["layers"], answer["heads"], answer["attention"]) == (0, 0, [])
    assert np.allclose(answer["reading"]["last_layer"], layer[0], atol=1e-5)


def test_a_translator_without_attention_has_nothing_to_explain(tmp_path: Path):
    folder = write_translator(tmp_path / "mt", recipe="seq2seq")
    assert load(folder, device="cpu").can == ("translate",)
    with refusal("cannot explain: it has no attention", "seq2seq-luong"):
        load(folder, device="cpu").explain("the film")
    with refusal("this network has no attention", "seq2seq-luong"):
        explain(folder, "the film", device="cpu")


def test_what_a_translator_does_not_explain_is_refused(translator: Path, tmp_path: Path):
    with refusal("2 texts: a translator reads one", "one by one"):
        explain(translator, "a", "b")
    with refusal("a single translation", "leave the target out"):
        explain(translator, "a", target="b")
    with refusal("no words", "give a text"):
        explain(translator, " ")
    e = explain(translator, "the men and dogs " * 9, device="cpu")
    assert len(e.tokens) == 24
    assert e.notes == ("69 tokens at the end were truncated",)
    calls: list[bool] = []

    def is_wanted() -> bool:
        calls.append(True)
        return len(calls) < 3

    with pytest.raises(UnwantedError):
        explain(translator, "the film", device="cpu", is_wanted=is_wanted)
    assert len(calls) == 4
    folder = write_marian(tmp_path / "t", [TEXT] * 9, [TEXT] * 9, num_pieces=40, languages=["deu"])
    several = write_translator(tmp_path / "mt", t=Tokenizer.load(folder))
    with refusal("none is named", "deu"):
        explain(several, TEXT)
    assert explain(several, f">>deu<< {TEXT}", device="cpu").tokens[0] == ">>deu<<"


# --- attributions


def test_words_are_whole(found: Explanation):
    assert found.words == (
        "[CLS]",
        "the",
        "film",
        "was",
        "good",
        "in",
        "this",
        "storytown",
        "[SEP]",
    )
    assert found.spans[-2][1] - found.spans[-2][0] > 1
    by_word = found.word_gradients
    assert by_word.sum() == pytest.approx(found.gradients.attributions.sum())
    assert by_word[0] == by_word[-1] == found.occlusion[0] == found.occlusion[-1] == 0


@pytest.mark.parametrize("task", INPUTS)
def test_every_task(task: TaskType, model: Path, tmp_path: Path):
    found = explain(write_task_model(model, tmp_path / "m", task), *INPUTS[task])
    assert found.explained
    assert found.gradients.attributions.any()
    assert found.occlusion.any()
    assert abs(found.gradients.error) <= 2 * TOLERANCE * np.abs(found.gradients.attributions).sum()
    assert len(found.tokens) == found.attention[0].shape[-1] == found.similarity.shape[-1]
    Page(found.html())
    json.dumps(found.as_dict())
    assert found.completeness in str(found)


@pytest.mark.parametrize("vectors", ["pair", "cosine"])
def test_both_texts_of_a_pair_whose_vectors_are_compared(vectors: Any, tmp_path: Path):
    """The network reads each text alone: no token attends to the other text, and the prediction is
    about both."""
    description = {
        "task": "classification",
        "labels": ("no", "yes"),
        "text": ("a", "b"),
        "vectors": vectors,
    }
    write_head(tmp_path / "m", **description)
    texts = ("good film", "sad dogs heard")
    e = explain(tmp_path / "m", *texts, target="yes", device="cpu")
    assert e.words == ("[CLS]", "good", "film", "[SEP]", "[CLS]", "sad", "dogs", "heard", "[SEP]")
    masked = [("[MASK] film", texts[1]), ("good [MASK]", texts[1]), (texts[0], "sad [MASK] heard")]
    probabilities = Predictor(tmp_path / "m", device="cpu", precision="fp32").predict_proba(
        [texts, *masked]
    )
    whole, *falls = (math.log(p / (1 - p)) for p in probabilities[:, 1].tolist())
    assert e.occlusion is not None
    expected = [whole - value for value in falls]
    assert [e.occlusion[number] for number in (1, 2, 6)] == pytest.approx(expected, abs=1e-4)
    assert max(map(abs, expected)) > 1e-3
    assert e.gradients is not None
    assert e.gradients.end == pytest.approx(whole, abs=1e-4)
    assert abs(e.gradients.error) < 0.05 * np.abs(e.gradients.attributions).sum()
    assert (np.abs(e.gradients.attributions) > 0).sum() == 5  # of the words of both texts
    for layer in e.attention:
        np.testing.assert_allclose(layer.sum(-1), 1, atol=1e-5)
        assert not layer[:, :4, 4:].any()
    assert e.reads is not None
    assert e.reads[:4, :4].all()
    assert not e.reads[:4, 4:].any()
    Page(e.html())


def test_another_target(reviews: Path, model: Path, tmp_path: Path):
    for label in LABELS["classification"]:
        assert f"“{label}”" in explain(reviews, TEXT, target=label).explained
    with pytest.raises(UsageError, match="no label 'good'"):
        explain(reviews, TEXT, target="good")
    tagger = write_task_model(model, tmp_path / "t", "tagging")
    assert "“storytown”" in explain(tagger, TEXT, target="storytown").explained
    assert "“dogs”" in explain(tagger, "men", "dogs", target="dogs").explained  # words, not a text
    with pytest.raises(UsageError, match="'bad' is not in the text"):
        explain(tagger, TEXT, target="bad")
    with pytest.raises(UsageError, match="single prediction"):
        explain(write_task_model(model, tmp_path / "r", "regression"), TEXT, target="1")


def test_a_text_without_words_has_no_tag_to_explain(model: Path, tmp_path: Path):
    for task in ("tagging", "spans"):
        found = explain(write_task_model(model, tmp_path / task, task), " ")
        assert (found.answer, found.explained, found.occlusion) == ((), "", None)


def test_a_word_far_back_in_a_long_text(model: Path, tmp_path: Path):
    tagger = write_task_model(model, tmp_path / "t", "tagging")
    long = explain(tagger, f"{'the men heard ' * 40} Kyoto", target="Kyoto")
    assert "kyoto" in long.words
    assert "the window with this prediction" in long.notes[0]
    assert long.occlusion[long.words.index("kyoto")]


def test_an_encoder_that_lets_no_gradients_through(model: Path, tmp_path: Path):
    found = explain(write_task_model(model, tmp_path / "t", "tagging", units=8), TEXT)
    assert found.gradients is None
    assert found.occlusion.any()
    assert "only occlusion" in found.notes[0]
    assert "Occlusion" in found.html()
    assert "Integrated" not in found.html()


def test_a_pretrained_model(model: Path, tmp_path: Path):
    found = explain(model, "the [MASK] was good")
    assert found.answer[0][0] in found.explained
    assert found.word_gradients[2] == found.occlusion[2] == 0, (
        "the mask itself is in the baseline too"
    )
    assert found.gradients.attributions.any()
    assert "“film”" in explain(model, "the [MASK] was good", target="film").explained
    with pytest.raises(UsageError, match="tokens: expected a single token"):
        explain(model, "the [MASK] was good", target="storytown")
    plain = explain(model, "the film", "men")
    assert (plain.explained, plain.gradients, plain.occlusion) == ("", None, None)
    assert "put [MASK]" in plain.notes[0]
    assert "Attention" in plain.html()
    config, state, t = load_model(model)
    body = {name: value for name, value in state.items() if name.startswith("encoder.")}
    save_model(tmp_path / "body", body, config, t, card="body")
    assert "does not fill masks" in explain(tmp_path / "body", "the [MASK]").notes[0]
    with pytest.raises(UsageError, match="3 texts"):
        explain(model, "a", "b", "c")
    with pytest.raises(UsageError, match="'zebra' is not in the vocabulary"):
        explain(model, "the [MASK]", target="zebra")
    with pytest.raises(UsageError, match="3 is not a text"):
        explain(model, 3)


def test_an_answer_that_ends_in_an_accent(model: Path, tmp_path: Path):
    """Which the tokenizer takes away, and which belongs to the answer all the same."""
    answering = write_task_model(model, tmp_path / "qa", "qa")
    assert "the answer “Anna\u0301”" in explain(answering, "who ?", "Anna\u0301").explained


@pytest.mark.parametrize(
    "text", ["", " ", "🦊 日本", "\x00 men", "men \ud800", "مرحبا", "men " * 300, ATTACK]
)
def test_texts_at_every_edge(text: str, reviews: Path, model: Path, tmp_path: Path):
    for folder in (reviews, model):
        explain(folder, text).save(tmp_path / "why.html")
        # which refuses what is not closed, or loads anything
        page = Page((tmp_path / "why.html").read_text())
        assert "Attention" in page.said


# --- the page


class Page(HTMLParser):
    """Every element is closed; nothing is loaded from anywhere."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.said = ""
        self.feed(text)
        self.close()
        assert self.open == []
        for tag, attributes in self.tags:
            assert tag not in ("link", "img", "iframe", "object", "base", "form")
            assert not {"src", "href", "action", "srcset"} & set(attributes)
            assert not any(name.startswith("on") for name in attributes)
        assert "http" not in re.sub(r"http-equiv", "", text)
        assert not re.search(r"url\(|@import", text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.said += data


def test_text_never_becomes_markup(model: Path, tmp_path: Path):
    folder = write_task_model(
        model, tmp_path / ATTACK.replace("/", ""), "classification", [ATTACK, "b", "c"]
    )
    page = Page(explain(folder, ATTACK, target=ATTACK).html())
    assert page.said.count(ATTACK) >= 3, "the text, the label and the input"
    assert [tag for tag, _ in page.tags].count("script") == 2


def test_the_page_lets_only_its_own_script_run(found: Explanation):
    html = found.html()
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert script.startswith((MAPS / "maps.js").read_text())
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in html
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|fetch\(", script
    )


def test_all_labels_have_bars(model: Path, tmp_path: Path):
    labels = [f"label {n}" for n in range(9)]
    for task in ("classification", "multilabel"):
        folder = write_task_model(model, tmp_path / task, task, labels)
        html = explain(folder, TEXT).html()
        scores = Predictor(folder, device="cpu").predict([TEXT], probabilities=True)[0]["scores"]
        bars = re.findall(
            r'<li style="--share: ([\d.]+)"><bdi>(.*?)</bdi><span class="figure">(.*?)</span>', html
        )
        assert {name: float(share) for share, name, _ in bars} == pytest.approx(scores, abs=6e-4)
        assert [figure for *_, figure in bars] == [
            f"{p:.1%}" for p in sorted(scores.values(), reverse=True)
        ]
    for task in ("regression", "tagging"):
        assert (
            '<ul class="bars">'
            not in explain(write_task_model(model, tmp_path / task, task), TEXT).html()
        )


def test_what_is_on_the_page(found: Explanation):
    said = " ".join(Page(found.html()).said.split())
    assert NOT_ATTRIBUTION in said
    assert SIMILARITY in said
    assert found.completeness in said
    assert TEXT in said
    for word, value in zip(found.words, found.word_gradients, strict=True):
        assert word in said
        assert not value or f"{value:+.2f}" in said


def with_values(
    e: Explanation, gradients: Sequence[float] | None, occlusion: Sequence[float]
) -> Explanation:
    """An explanation of a word of each token with these values."""
    spans = tuple((n, n + 1) for n in range(len(occlusion)))
    sums = None
    if gradients is not None:
        sums = IntegratedGradients(np.array(gradients), 0.0, float(np.sum(gradients)), 32)
    words = ("[CLS]", "how", "many", "men", "how")[: len(spans)]
    return replace(e, words=words, spans=spans, gradients=sums, occlusion=np.array(occlusion))


@pytest.mark.parametrize(
    ("gradients", "occlusion", "sentence"),
    [
        ([0, 4, 1, -3], [0, 6, 1, 1], "“how” made it “pos”."),
        ([0, 2, 2, 1], [0, 2, 2, 1], "“how” and “many” made it “pos”."),
        ([0, 2, 0, 0, 2], [0, 2, 0, 1, 2], "“how” made it “pos”."),
        (None, [0, 1, 3, -9], "“many” made it “pos”."),
        ([0, -1, -2, 0], [0, 0, -1, -1], "No word raises the label “pos”."),
        ([0, -1, -2, 0], [0, 0, 0, 5], "“men” made it “pos”."),
    ],
)
def test_the_sentence_names_the_words_that_count_most(
    found: Explanation, gradients: Any, occlusion: Any, sentence: str
):
    """Those that have half of all that raises the output, as the mean over both methods."""
    e = replace(found, explained="the label “pos” (log-odds)", answer=(("pos", "90.0%"),))
    e = with_values(e, gradients, occlusion)
    assert e.sentence == sentence
    assert e.as_dict()["sentence"] == sentence
    assert f"\n{sentence}\n" in str(e)
    assert sentence in Page(e.html()).said


def test_the_sentence_of_another_output_and_of_many_words(found: Explanation):
    named = replace(found, explained="the label “neg” (log-odds)", answer=(("pos", "90.0%"),))
    assert with_values(named, [0, 3, 1], [0, 1, 0]).sentence == "“how” raises the label “neg” most."
    words = tuple(f"w{n}" for n in range(20))
    even = replace(named, words=words, spans=tuple((n, n + 1) for n in range(20)), gradients=None)
    even = replace(even, occlusion=np.linspace(1.2, 1.0, 20))
    start = "Many words together raise the label “neg”, most of all “w0”, “w1” and “w2”."
    assert even.sentence == start
    assert replace(even, explained="").sentence == ""


def test_long_texts_are_running_text(found: Explanation):
    text = "(men and dogs) ran, 東京で! "
    words = ("[CLS]", "(", "men", "and", "dogs", ")", "ran", ",", "東京", "で", "!", "done")
    e = replace(found, words=words, gradients=None, occlusion=np.arange(12.0) - 3, replaced=None)
    assert "".join(space + word for space, word in e.running_words) == f"[CLS] {text}done"
    assert 'class="flow"' not in e.html()
    many = replace(e, words=words * 4, occlusion=np.tile(e.occlusion, 4))
    html = many.html()
    assert 'class="chip ' not in html
    flow = re.search(r'<p class="flow".*?</p>', html, re.DOTALL)[0]
    assert f"[CLS] {text}done [CLS] (men" in Page(flow).said
    assert flow.count('title="+8.00"') == flow.count("--share: 1.000") == 4


def shown(html: str) -> dict[str, list[str]]:
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])


def test_the_numbers_of_the_maps(found: Explanation):
    data, n = shown(found.html()), len(found.tokens)
    for ours, packed in zip(found.attention, data["attention"], strict=True):
        values = np.frombuffer(base64.b64decode(packed), np.uint8).reshape(-1, n, n) / 255
        assert np.abs(values - ours).max() <= 0.5 / 255 + 1e-6
    for ours, packed in zip(found.similarity, data["similarity"], strict=True):
        values = (np.frombuffer(base64.b64decode(packed), np.uint8).reshape(n, n) - 127.0) / 127
        assert np.abs(values - ours).max() <= 0.5 / 127 + 1e-6


def test_a_page_of_a_long_text_stays_small(found: Explanation, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bertworks.inference.explain.MOST_CELLS", 4 * 25)
    html = found.html()
    assert shown(html)["tokens"] == list(found.tokens[:5])
    assert "The first 5 of" in Page(html).said


def test_the_command(reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "why.html"
    assert main(["explain", str(reviews), TEXT, "-o", str(page), "--target", "neg"]) == 0
    out, err = capsys.readouterr()
    assert "“neg” (log-odds)" in out
    assert "completeness error" in out
    assert f"written to {page}" in err
    assert page.read_text() == explain(reviews, TEXT, target="neg").html()
    assert main(["explain", str(reviews), TEXT, "--baseline", "pad", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["baseline"] == "[PAD]"
    assert main(["explain", str(reviews), "a", "b", "c"]) == 2


@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")
def test_in_a_browser(found: Explanation, tmp_path: Path):
    """The script runs under the page's policy and draws every number."""
    found.save(tmp_path / "why.html")
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    drawn = subprocess.run(
        [*command, "--dump-dom", (tmp_path / "why.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    heads, layers, n = found.attention[0].shape[0], len(found.attention), len(found.tokens)
    assert drawn.count("<canvas") == heads * layers
    assert drawn.count("→") >= (1 + heads + 1 + layers) * n
    assert drawn.count('role="radio"') == 2 * n


@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")
def test_with_the_keyboard_alone(found: Explanation, tmp_path: Path):
    """Every token and every layer is reached, the focus is where the eye is, and the tables
    follow."""
    playwright = pytest.importorskip("playwright.sync_api")
    found.save(tmp_path / "why.html")
    n = len(found.tokens)
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((tmp_path / "why.html").as_uri())
        for name in ("Attention", "Similarity of tokens after each layer", "Who reads whom"):
            assert not page.locator(f"details:has(summary:text-is('{name}'))").get_attribute("open")
            page.focus(f"summary:text-is('{name}')")
            page.keyboard.press("Enter")
        page.evaluate("document.activeElement.blur()")
        stops: list[str] = []
        while stops[-1:] != ["Similarity by layer"] and len(stops) < 20:
            page.keyboard.press("Tab")
            where = (
                "(e => e.closest('[aria-label]')?.ariaLabel ?? e.labels?.[0]?.textContent ?? '')"
            )
            stops.append(page.evaluate(f"{where}(document.activeElement)"))
        looking, alike = "The token that attends", "The token that is compared"
        layers = "Layer " + "".join(str(n + 1) for n in range(len(found.attention)))
        wanted = ["All heads", layers, looking, "Attention by head", alike, "Similarity by layer"]
        assert [stop for stop in stops if stop] == wanted
        for picker, table in ((looking, "Attention by head"), (alike, "Similarity by layer")):
            chosen = f"[aria-label='{picker}'] [aria-checked=true]"
            page.focus(chosen)
            seen = []
            for key, number in (
                ("End", n - 1),
                ("ArrowRight", 0),
                ("ArrowLeft", n - 1),
                ("Home", 0),
                ("ArrowDown", 1),
            ):
                page.keyboard.press(key)
                assert page.locator(chosen).count() == 1
                siblings = "[...document.activeElement.parentElement.children]"
                focused = f"{siblings}.indexOf(document.activeElement)"
                assert page.evaluate(focused) == number
                assert page.locator(f"[aria-label='{picker}'] [tabindex='0']").count() == 1
                seen.append(page.inner_text(f"[aria-label='{table}']"))
            assert len(set(seen)) == 3, "first, last and second"
        figures = "[aria-label='Attention by head']"
        page.focus("select")
        before = page.inner_text(figures)
        page.keyboard.press("ArrowUp")
        assert page.inner_text(figures) != before
        page.focus("[aria-label='All heads']")
        for key, layer in (
            ("ArrowDown", "1"),
            ("ArrowDown", "1"),
            ("ArrowUp", "0"),
            ("ArrowUp", "0"),
            ("x", "0"),
        ):
            page.keyboard.press(key)
            assert page.input_value("select") == layer
        assert page.inner_text(figures) != before
        assert errors == []
        browser.close()


# --- who reads whom


DIRECTIONS = {
    "bidirectional": np.ones((6, 6), bool),
    "left_to_right": np.tri(6, dtype=bool),
    "right_to_left": np.tri(6, dtype=bool).T,
}


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_who_reads_whom(direction: Any, double: bool):
    """Figure 3 of Devlin et al. 2019: BERT all tokens, GPT those before, after every layer.
    Embeddings read nothing else. Against the gradients of the embedding matrix, one state at a
    time."""
    torch.manual_seed(0)
    network = Encoder(
        EncoderConfig(
            vocab_size=20,
            hidden_size=8,
            num_hidden_layers=3,
            num_attention_heads=2,
            max_position_embeddings=8,
            direction=direction,
            pooler="last_tanh" if direction == "left_to_right" else "first_tanh",
        )
    ).eval()
    for parameter in network.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.2)
    network = network.double() if double else network
    ids = np.array([3, 7, 7, 1, 0, 5])
    example = Example(ids, np.array([0, 0, 0, 1, 1, 1]), {})
    assert np.array_equal(read_tokens(network, example, 0), np.eye(6, dtype=bool))
    for layer in (1, 2, 3, -1):
        assert np.array_equal(read_tokens(network, example, layer), DIRECTIONS[direction])
    table, layout = network.embeddings.token, Layout.of([6])
    states = network(torch.from_numpy(ids), layout, torch.from_numpy(example.token_type_ids))
    for i, row in enumerate(DIRECTIONS[direction]):
        (gradient,) = torch.autograd.grad(
            states[-1][i].pow(3).sum(), table.weight, retain_graph=True
        )
        assert {*ids[row].tolist()} == {*gradient.abs().sum(-1).nonzero()[:, 0].tolist()}


@pytest.mark.parametrize("write", [write_gpt, write_gpt2])
def test_gpt_reads_what_is_before(write: Any, tmp_path: Path):
    """On the page, of the first tokens of a longer text; there is no prediction to attribute."""
    write(tmp_path / "gpt")
    result = explain(tmp_path / "gpt", "a text of thirty bytes or more!", device="cpu")
    assert len(result.tokens) == 31
    assert np.array_equal(result.reads, np.tri(24, dtype=bool))
    html = result.html()
    assert html.count('class="cell"') == 24 * 25 // 2
    assert html.count('class="cell blank"') == 24 * 23 // 2
    assert "The first 24 of 31 tokens, read as a text." in html
    assert "A row reads the filled columns" in html


def test_bert_reads_everything(found: Explanation):
    n = len(found.tokens)
    assert found.reads is not None
    assert found.reads.shape == (n, n)
    assert found.reads.all()
    assert found.html().count('class="cell"') == n * n


def test_a_discriminator_explains_only_words(tmp_path: Path):
    config = EncoderConfig(
        vocab_size=tokenizer().vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        family="electra",
        embedding_size=16,
        pooler="first_gelu",
        pooler_dropout=True,
    )
    torch.manual_seed(0)
    weights = Discriminator(config).state_dict()
    save_model(tmp_path, weights, config, tokenizer(32), card="tiny")
    with refusal("the text has no words", "give a text"):
        explain(tmp_path, " ", device="cpu")


def number_of(
    network: transformers.BertForSequenceClassification, label: int, **inputs: torch.Tensor
) -> torch.Tensor:
    return log_odds(network(**inputs).logits, label)


def baseline_of(ids: torch.Tensor, other: int) -> torch.Tensor:
    t = tokenizer()
    return torch.where((ids == t.cls_id) | (ids == t.sep_id), ids, torch.tensor(other))


@pytest.mark.parametrize("baseline", ["mask", "pad"])
def test_integrated_gradients_are_those_of_a_plain_sum(reviews: Path, baseline: str):
    """The definition, by transformers' network: 300 steps, their midpoints."""
    ours = explain(reviews, TEXT, baseline=baseline)
    t, network = tokenizer(), theirs(reviews)
    label = LABELS["classification"].index(ours.answer[0][0])
    ids = torch.tensor([t.encode(TEXT).ids])
    other = baseline_of(ids, t.mask_id if baseline == "mask" else t.pad_id)
    words = network.bert.embeddings.word_embeddings.weight.detach()
    base, difference = words[other], words[ids] - words[other]
    x = (base + (torch.arange(300)[:, None, None] + 0.5) / 300 * difference).requires_grad_()
    number_of(network, label, inputs_embeds=x).sum().backward()
    expected = (difference * x.grad.mean(0)).sum(-1)[0].numpy()
    assert ours.gradients is not None
    assert ours.gradients.attributions == pytest.approx(expected, abs=2e-3)
    assert abs(ours.gradients.error) <= TOLERANCE * np.abs(ours.gradients.attributions).sum()
    with torch.no_grad():
        ends = [float(number_of(network, label, input_ids=one)) for one in (other, ids)]
    assert [ours.gradients.start, ours.gradients.end] == pytest.approx(ends, abs=1e-4)


def test_occlusion_is_the_fall_without_each_word(reviews: Path, found: Explanation):
    t, network = tokenizer(), theirs(reviews)
    label = LABELS["classification"].index(found.answer[0][0])
    ids = torch.tensor([t.encode(TEXT).ids])
    with torch.no_grad():
        whole = float(number_of(network, label, input_ids=ids))
        for (first, end), fall in zip(found.spans, found.occlusion, strict=True):
            hidden = ids.clone()
            hidden[0, first:end] = baseline_of(ids, t.mask_id)[0, first:end]
            assert fall == pytest.approx(
                whole - float(number_of(network, label, input_ids=hidden)), abs=1e-4
            )


def test_log_odds_do_not_change_with_what_is_added_to_all():
    logits = torch.randn(3, 4)
    p = logits.softmax(-1)[:, 2]
    assert torch.allclose(log_odds(logits, 2), (p / (1 - p)).log(), atol=1e-5)
    assert torch.allclose(log_odds(logits, 2), log_odds(logits + 5, 2), atol=1e-5)
    assert torch.equal(log_odds(logits[:, :1], 0), logits[:, 0])
