"""Filling blanks: as transformers does it in the same folder, and for texts at every edge."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from bertworks.checkpoints.hf_mapping import to_huggingface
from bertworks.checkpoints.model_folder import save_model
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.explain import explain
from bertworks.inference.masked_lm import Filler, fill, score
from bertworks.models.config import EncoderConfig
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import VocabularyConfig, train_vocabulary
from bertworks.training.objectives import PretrainingModel
from tests.support.fine import tokenizer
from tests.support.gpt import write_gpt2
from tests.support.refusals import refusal
from tests.support.tiny import documents, write_pretrained


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained for a moment: enough for answers that differ from place to place."""
    folder = tmp_path_factory.mktemp("model")
    return write_pretrained(folder, ("learning_rate = 1e-3", "learning_rate = 1e-2"))


@pytest.fixture(scope="module")
def theirs(model: Path) -> transformers.FillMaskPipeline:
    return transformers.pipeline("fill-mask", model=str(model), device="cpu")


SENTENCE = documents(1)[0].split(".")[0] + "."
WORDS = SENTENCE.split()


@pytest.mark.parametrize("place", range(len(WORDS)))
def test_the_same_answers_as_transformers(
    place: int, model: Path, theirs: transformers.FillMaskPipeline
):
    text = " ".join([*WORDS[:place], "[MASK]", *WORDS[place + 1 :]])
    (ours,) = Filler(model)(text)
    expected = theirs(text)
    assert [answer["token"] for answer in ours] == [answer["token"] for answer in expected]
    assert [answer["token_str"] for answer in ours] == [answer["token_str"] for answer in expected]
    assert [a["score"] for a in ours] == pytest.approx([a["score"] for a in expected], rel=1e-4)
    assert [a["sequence"] for a in ours] == [a["sequence"] for a in expected]


def test_several_masks(model: Path, theirs: transformers.FillMaskPipeline):
    text = f"[MASK] {' '.join(WORDS[1:3])} [MASK] [MASK] {WORDS[4]} [MASK]"
    ours = Filler(model)(text, 7)
    expected = theirs(text, top_k=7)
    assert [[a["token"] for a in answers] for answers in ours] == [
        [a["token"] for a in one] for one in expected
    ]
    assert ours[1][0]["sequence"].count("[MASK]") == 3


def test_only_masks(model: Path):
    ours = Filler(model)("[MASK][MASK]")
    assert len(ours) == 2
    assert all(sum(answer["score"] for answer in answers) <= 1 for answers in ours)


def test_a_text_longer_than_the_model_reads(model: Path):
    """Each mask is read with what stands around it, however far it is from the beginning."""
    words = " ".join(documents(20)).replace(".", " .").split()[:300]
    filler = Filler(model)
    assert filler.longest == 64
    for places in ([0], [299], [0, 150, 299], [31, 32, 33]):
        text = " ".join("[MASK]" if place in places else word for place, word in enumerate(words))
        answers = filler(text, 3)
        assert len(answers) == len(places)
        ids = filler.tokenizer.encode(text).ids[1:-1]
        requested = [n for n, token in enumerate(ids) if token == filler.tokenizer.mask_id]
        for at, answer in zip(requested, answers, strict=True):
            begin = min(max(0, at - 31), len(ids) - 62)
            window = [filler.tokenizer.cls_id, *ids[begin : begin + 62], filler.tokenizer.sep_id]
            assert [a["token"] for a in answer] == top(filler, window, at - begin + 1, 3)


def top(filler: Filler, ids: list[int], place: int, k: int) -> list[int]:
    """By transformers' network, with everything written out."""
    network = transformers.BertConfig(
        vocab_size=filler.tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    model = transformers.BertForPreTraining(network)
    theirs = to_huggingface(filler.model.state_dict(), filler.model.encoder.config)
    assert not model.load_state_dict(theirs, strict=False).unexpected_keys
    model.tie_weights()
    with torch.no_grad():
        scores = model.eval()(torch.tensor([ids])).prediction_logits[0, place]
    return scores.topk(k).indices.tolist()


def test_tokens_of_bytes_are_shown_as_text(tmp_path: Path):
    made, _ = train_vocabulary(documents(), VocabularyConfig(size=400, algorithm="bpe"))
    config = EncoderConfig(
        vocab_size=made.vocab_size, hidden_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    torch.manual_seed(0)
    save_model(tmp_path / "m", PretrainingModel(config).state_dict(), config, made, card="tiny")
    theirs = transformers.pipeline("fill-mask", model=str(tmp_path / "m"), device="cpu")
    (ours,) = Filler(tmp_path / "m")("ba [MASK] da.", 20)
    assert [one["token_str"] for one in ours] == [
        one["token_str"] for one in theirs("ba [MASK] da.", top_k=20)
    ]
    assert any(made.tokens[one["token"]] != one["token_str"] for one in ours)


def test_as_many_answers_as_there_are_tokens(model: Path):
    size = Filler(model).tokenizer.vocab_size
    (answers,) = Filler(model)("[MASK]", 10**6)
    assert len(answers) == size
    assert sum(answer["score"] for answer in answers) == pytest.approx(1, abs=1e-4)


def test_only_words_that_the_tokenizer_knows(tmp_path: Path):
    """Of a model whose table of words has more rows, as many have whose number of rows suits a
    machine."""
    t = tokenizer()
    config = EncoderConfig(
        vocab_size=t.vocab_size + 9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    state = PretrainingModel(config).state_dict()
    state["lm_head.bias"][-9:] = 5.0
    save_model(tmp_path, state, config, t, card="tiny")
    (answers,) = Filler(tmp_path)("[MASK]", 10**6)
    assert len(answers) == t.vocab_size
    assert sum(answer["score"] for answer in answers) < 0.5
    assert explain(tmp_path, "[MASK]").explained.startswith(f"“{answers[0]['token_str']}”")


@pytest.mark.parametrize("text", ["", " ", "no blank here", "[ MASK ]", "MASK", "\n"])
def test_nothing_to_fill(text: str, model: Path):
    with pytest.raises(BertworksError, match=r"there is no \[MASK\] in") as raised:
        Filler(model)(text)
    assert "[MASK]" in str(raised.value)


def test_a_long_text_without_a_mask_is_shown_short(model: Path):
    with pytest.raises(BertworksError) as raised:
        Filler(model)("word " * 1000)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    "text",
    [
        "日本の[MASK]は東京です。",
        "한국의 수도는 [MASK]입니다.",
        "🦊 [MASK] 🐻‍❄️",
        "مرحبا [MASK]",
        "é\u0301 [MASK] \u200b",
        "\x00[MASK]",
    ],
)
def test_any_script(text: str, model: Path):
    (answers,) = Filler(model)(text)
    assert len(answers) == 5
    json.dumps(answers)
    assert [a["text"] for a in answers] == [
        text.replace("[MASK]", a["token_str"].removeprefix("##")) for a in answers
    ]


def test_the_text_is_shown_as_it_was_given(model: Path):
    filler = Filler(model)
    text = "  Ka  [MASK]日本[MASK],\tÉ[MASK]\n"
    for number, answers in enumerate(filler(text, filler.tokenizer.vocab_size)):
        parts = text.split("[MASK]")
        before, after = "[MASK]".join(parts[: number + 1]), "[MASK]".join(parts[number + 1 :])
        shown = {answer["token_str"]: answer["text"] for answer in answers}
        assert shown["ka"] == f"{before}ka{after}"
        piece = next(token for token in shown if token.startswith("##"))
        assert shown[piece] == before + piece[2:] + after


def test_a_mask_that_takes_the_space_before_it(model: Path, tmp_path: Path):
    """As in vocabularies that write the space into the token."""
    shutil.copytree(
        model, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoints", "shards")
    )
    file = tmp_path / "model" / "tokenizer.json"
    content = json.loads(file.read_text())
    (mask,) = (token for token in content["added_tokens"] if token["content"] == "[MASK]")
    mask["lstrip"] = True
    file.write_text(json.dumps(content))
    (answers,) = Filler(tmp_path / "model")("ka [MASK]!")
    assert answers[0]["text"] == f"ka {answers[0]['token_str'].removeprefix('##')}!"


def test_a_generator_over_texts(model: Path):
    answers = list(fill(model, iter(["[MASK] one", "two [MASK] [MASK]"]), 2))
    assert [len(one) for one in answers] == [1, 2]
    assert [len(mask) for one in answers for mask in one] == [2, 2, 2]
    with pytest.raises(UsageError, match="k is 0"):
        list(fill(model, ["[MASK]"], 0))
    with pytest.raises(BertworksError, match="no such model folder"):
        list(fill("nowhere", ["[MASK]"]))


def test_a_mask_near_the_end_sees_as_much_as_any(model: Path):
    filler = Filler(model)
    ((tokens, requested),) = filler.read(" ".join(["dogs"] * 299 + ["[MASK]"])).windows
    assert len(tokens) == filler.longest - 2
    assert requested.tolist() == [len(tokens) - 1]


def test_a_long_text_of_masks_is_read_in_little_memory(model: Path):
    """A window around each, which is no copy: a request of 2 MB has 300,000 of them."""
    read = Filler(model).read("[MASK]" * 1000)
    assert len(read.windows) == 1000
    assert all(np.shares_memory(tokens, read.ids) for tokens, _ in read.windows)


def test_a_target_is_one_token_of_the_vocabulary(model: Path):
    filler = Filler(model, device="cpu")
    word = next(token for token in filler.tokenizer.tokens if token.isalpha())
    assert filler.tokenizer.tokens[filler.target(word)] == word
    hint = "give words that the vocabulary has as a whole"
    with refusal("tokens of this model: expected one", hint):
        filler.target(f"{word} {word}")
    with refusal("the target '☃' is not in the vocabulary", hint):
        filler.target("☃")


def test_a_score_is_the_sum_of_its_tokens(model: Path):
    (sentence,) = score(model, ["a sentence of words"], device="cpu", precision="fp32")
    tokenizer = Filler(model, device="cpu").tokenizer
    assert len(sentence["tokens"]) == len(tokenizer.ids(["a sentence of words"])[0])
    assert sentence["score"] == pytest.approx(sum(sentence["log_probabilities"]), abs=1e-4)
    with refusal("expected a list of texts, not one text", "score(model, [text])"):
        next(score(model, "a sentence"))


def test_a_model_without_a_mask_token_fills_nothing(tmp_path: Path):
    network = write_gpt2(tmp_path / "gpt")
    text_config = EncoderConfig(
        vocab_size=network.config.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
    )
    t = Tokenizer.load(tmp_path / "gpt")
    save_model(
        tmp_path / "m", PretrainingModel(text_config).state_dict(), text_config, t, card="tiny"
    )
    with refusal("this model has no mask token", "use a masked language model, such as BERT"):
        list(fill(tmp_path / "m", ["a text"]))
