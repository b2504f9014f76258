"""Log-likelihoods of causal networks, against the loss of transformers."""

import json
from pathlib import Path

import pytest
import torch
import transformers

import bertworks as bw
from bertworks.cli.main import main
from bertworks.inference.engine import LazyModel
from tests.support.gpt import END_ID, POSITIONS, write_gpt2

SENTENCES = ["the dogs bark", "é 日", "a", f"the <|endoftext|> {'x' * 70}", "the dogs barks"]
EXACT = {"device": "cpu", "precision": "fp32"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpt2")
    write_gpt2(path)
    return path


def ids_of(folder: Path, text: str) -> list[int]:
    return bw.load(folder).tokenizer.ids([text])[0]


def test_scores_are_the_loss_of_transformers(folder: Path):
    """Of the end token and the sentence."""
    network = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    for text, found in zip(SENTENCES, bw.score(folder, SENTENCES, **EXACT), strict=True):
        ids = torch.tensor([[END_ID, *ids_of(folder, text)]])
        with torch.no_grad():
            output = network(ids, labels=ids)
        count = ids.shape[1] - 1
        assert found["score"] == pytest.approx(-float(output.loss) * count, rel=1e-5)
        logs = output.logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        assert found["log_probabilities"] == pytest.approx(logs.tolist(), abs=2e-5)
        assert (found["text"], found["measure"]) == (text, "log_likelihood")
        assert len(found["tokens"]) == count
        assert END_ID not in ids[0, 1:]  # it is ordinary text


def test_without_an_end_token_the_first_token_is_not_predicted(folder: Path, tmp_path: Path):
    network = write_gpt2(tmp_path)
    for name, key in (("config.json", "eos_token_id"), ("tokenizer_config.json", "eos_token")):
        settings = json.loads((tmp_path / name).read_text())
        del settings[key]
        (tmp_path / name).write_text(json.dumps(settings))
    (found,) = bw.score(tmp_path, ["the dogs"], **EXACT)
    ids = torch.tensor([ids_of(tmp_path, "the dogs")])
    with torch.no_grad():
        loss = float(network(ids, labels=ids).loss)
    assert found["score"] == pytest.approx(-loss * 7, rel=1e-5)
    assert found["tokens"] == ["h", "e", "Ġ", "d", "o", "g", "s"]
    with pytest.raises(
        bw.BertworksError,
        match=r"sentence 2 has no tokens to predict: 'a'\n  hint: give a longer one",
    ):
        list(bw.score(tmp_path, ["ab", "a"], **EXACT))


def test_long_sentences_are_computed_in_windows(folder: Path):
    """The first window is exact; later tokens read half of the maximum or more."""
    network = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    text = "".join(chr(97 + n * n % 23) for n in range(270))
    (found,) = bw.score(folder, [text], **EXACT)
    assert len(found["log_probabilities"]) == 270
    ids = torch.tensor([END_ID, *ids_of(folder, text)])
    begins = [(0, 1, POSITIONS), (50, 101, 150), (100, 151, 200), (150, 201, 250), (200, 251, 270)]
    for begin, first, last in begins:
        with torch.no_grad():
            logits = network(ids[None, begin:last]).logits[0]
        logs = logits.log_softmax(-1).gather(1, ids[begin + 1 : last + 1, None])[:, 0]
        assert found["log_probabilities"][first - 1 : last] == pytest.approx(
            logs[first - 1 - begin :].tolist(), abs=2e-5
        )


def test_few_logits_at_a_time_and_batches_change_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    expected = list(bw.score(folder, SENTENCES * 20, **EXACT))
    monkeypatch.setattr("bertworks.inference.causal_lm.MAX_SCORES", 257 * 3)
    monkeypatch.setattr("bertworks.inference.causal_lm.AT_ONCE", 7)
    for one, other in zip(expected, bw.score(folder, iter(SENTENCES * 20), **EXACT), strict=True):
        assert one["log_probabilities"] == pytest.approx(other["log_probabilities"], abs=1e-5)
        assert one["text"] == other["text"]


def test_what_is_measured_is_stated(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["score", str(folder), *SENTENCES[:2]]) == 0
    output = capsys.readouterr()
    assert output.err == "log-likelihood: each token is predicted from the tokens before it\n"
    head, line, _ = output.out.splitlines()
    (expected,) = bw.load(folder, precision="fp32").score(SENTENCES[:1])
    assert head.split() == ["sum", "mean"]
    assert line.split()[0] == f"{expected['score']:.2f}"
    assert line.split()[1] == f"{expected['score'] / len(expected['tokens']):.3f}"


def test_what_cannot_be_scored(folder: Path):
    with pytest.raises(bw.BertworksError, match="sentence 2 has no tokens: ''"):
        list(bw.score(folder, ["a", ""]))
    with pytest.raises(bw.UsageError, match="reads from left to right and masks nothing"):
        list(bw.score(LazyModel(folder), ["a"], within_word=True))
