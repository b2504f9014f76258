"""Log-likelihoods of causal networks, against the loss of transformers."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import bertworks as bw
from bertworks.cli.main import main
from bertworks.inference.causal_lm import (
    CausalModel,
    SamplingOptions,
    next_token_probabilities,
    random_numbers,
    sampled,
)
from bertworks.inference.engine import LazyModel, open_model
from bertworks.models.cache import KeyValueCache
from bertworks.models.layout import Layout
from bertworks.models.transformer import cpu_supports_int8
from tests.support.gpt import END_ID, POSITIONS, write_gpt, write_gpt2

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


TEXTS = ["the dog", "a", "two hungry cats sleep at night", "é 日", "a", "fish"]


@pytest.fixture(scope="module")
def model(folder: Path) -> CausalModel:
    return CausalModel(open_model(folder, "cpu"), "fp32")


@pytest.mark.parametrize(
    ("seed", "sizes"),
    [(0, {}), (1, {"n_embd": 32, "n_layer": 2, "n_head": 2}), (2, {"n_inner": 40})],
)
def test_greedy_tokens_are_those_of_transformers(seed: int, sizes: dict[str, int], tmp_path: Path):
    network = write_gpt2(tmp_path, seed, **sizes)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    expected = []
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        expected.append(
            network.generate(ids, max_new_tokens=64, do_sample=False)[0, ids.shape[1] :].tolist()
        )
    together = list(bw.generate(tmp_path, TEXTS, max_tokens=64, **EXACT))
    for text, ids, result in zip(TEXTS, expected, together, strict=True):
        ends = END_ID in ids
        assert result["ids"] == (ids[: ids.index(END_ID)] if ends else ids)
        assert result["finish_reason"] == ("end_token" if ends else "max_tokens")
        assert result["continuation"] == tokenizer.decode(result["ids"])
        assert result["text"] == text
        assert list(bw.generate(tmp_path, [text], max_tokens=64, **EXACT)) == [result]
    assert max(len(result["ids"]) for result in together) == 64


def test_gpt_and_its_converted_folder(tmp_path: Path):
    network = write_gpt(tmp_path / "gpt")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "gpt")
    bw.load(tmp_path / "gpt").save(tmp_path / "converted")
    theirs = transformers.OpenAIGPTLMHeadModel.from_pretrained(tmp_path / "converted")
    results = list(bw.generate(tmp_path / "gpt", TEXTS, max_tokens=64, **EXACT))
    assert list(bw.generate(tmp_path / "converted", TEXTS, max_tokens=64, **EXACT)) == results
    for text, result in zip(TEXTS, results, strict=True):
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        for model in (network, theirs):
            made = model.generate(**inputs, max_new_tokens=64, do_sample=False)[
                0, inputs["input_ids"].shape[1] :
            ]
            assert result["ids"] == [number for number in made.tolist() if number != END_ID]


def exact_probabilities(
    logits: np.ndarray, temperature: float, top_k: int | None, top_p: float | None
) -> np.ndarray:
    """[V] -> [V], by the definitions, in float64."""
    p = np.exp(logits / temperature - (logits / temperature).max())
    order = np.argsort(-p)
    if top_k is not None:
        p[order[top_k:]] = 0
    p /= p.sum()
    if top_p is not None:
        kept = next(n for n in range(1, len(p) + 1) if p[order[:n]].sum() >= top_p - 1e-12)
        p[order[kept:]] = 0
    return p / p.sum()


FILTERS = [
    (1.0, None, None),
    (0.7, 5, None),
    (1.3, None, 0.8),
    (0.9, 20, 0.6),
    (2.0, 9999, 1.0),
    (1.0, 1, 0.5),
]


@pytest.mark.parametrize("size", [50, 3000])
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), FILTERS)
def test_probabilities_are_exact(
    temperature: float, top_k: int | None, top_p: float | None, size: int
):
    logits = torch.randn(4, size, generator=torch.Generator().manual_seed(size)) * 1.5
    p, tokens = next_token_probabilities(logits, temperature, top_k, top_p)
    ours = p if tokens is None else torch.zeros(4, size, dtype=torch.float64).scatter(1, tokens, p)
    expected = [
        exact_probabilities(row, temperature, top_k, top_p) for row in logits.double().numpy()
    ]
    np.testing.assert_allclose(ours, np.stack(expected), atol=1e-6, rtol=1e-5)
    processors = [transformers.TemperatureLogitsWarper(temperature)]
    processors += [transformers.TopKLogitsWarper(top_k)] if top_k else []
    processors += [transformers.TopPLogitsWarper(top_p)] if top_p else []
    theirs = transformers.LogitsProcessorList(processors)(None, logits.double()).softmax(-1)
    np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=1e-5)


def test_what_is_drawn_has_these_probabilities():
    """Numbers that fill the interval evenly: every token has its probability up to one of them. One
    of probability 0 is never drawn, also not by the largest number below 1."""
    p = torch.tensor([0.0, 0.5, 0.0, 0.125, 0.375, 0.0], dtype=torch.float64)
    count = 8000
    numbers = torch.cat(
        [(torch.arange(count) + 0.5).double() / count, torch.tensor([0.0, 1 - 2**-53])]
    )
    drawn = sampled(p.expand(len(numbers), -1), numbers)
    assert torch.bincount(drawn[:-2], minlength=6).tolist() == (p * count).long().tolist()
    assert drawn[-2:].tolist() == [1, 4]


def test_first_tokens_are_drawn_from_the_softmax(folder: Path, model: CausalModel):
    """Of many equal prompts, each with its own random numbers."""
    network = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    count = 3000
    for options in (
        {"temperature": 1.0},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 0.8, "top_p": 0.5},
    ):
        drawn = [
            one["ids"]
            for one in bw.generate(folder, ["the dog"] * count, max_tokens=1, **options, **EXACT)
        ]
        found = np.bincount([ids[0] if ids else END_ID for ids in drawn], minlength=257) / count
        with torch.no_grad():
            logits = (
                network(torch.tensor([model.prompt("the dog", 1)])).logits[0, -1].double().numpy()
            )
        p = exact_probabilities(
            logits, options["temperature"], options.get("top_k"), options.get("top_p")
        )
        assert not found[p == 0].any()
        assert np.all(np.abs(found - p) <= 5 * np.sqrt(p * (1 - p) / count) + 1 / count)


def test_the_same_seed_gives_the_same_text_in_any_batch(folder: Path):
    options = {"max_tokens": 40, "temperature": 1.0, "top_p": 0.9, **EXACT}
    alone = {text: next(bw.generate(folder, [text], seed=3, **options)) for text in TEXTS}
    together = list(bw.generate(folder, TEXTS, seed=3, **options))
    assert together[:4] == [alone[text] for text in TEXTS[:4]]
    assert together[5] == alone["fish"]
    assert together[4]["text"] == together[1]["text"]
    assert together[4]["ids"] != together[1]["ids"]  # a copy of a text has other numbers
    assert next(bw.generate(folder, ["fish", *TEXTS[:3]], seed=3, **options)) == alone["fish"]
    assert next(bw.generate(folder, ["fish"], seed=4, **options)) != alone["fish"]
    short = next(bw.generate(folder, ["fish"], seed=3, **options | {"max_tokens": 7}))
    assert short["ids"] == alone["fish"]["ids"][:7]
    assert len({tuple(random_numbers(0, [1, 2], copy, 3)) for copy in range(50)}) == 50


def test_many_texts_are_continued_in_several_batches(folder: Path, monkeypatch: pytest.MonkeyPatch):
    texts = [f"{'x' * (n % 13)} text {n}" for n in range(40)]
    expected = list(bw.generate(folder, texts, max_tokens=9, **EXACT))
    monkeypatch.setattr("bertworks.inference.causal_lm.AT_ONCE", 7)
    monkeypatch.setattr("bertworks.inference.causal_lm.CACHE_BYTES", 3 * 2 * 24 * 4 * 60)
    assert list(bw.generate(folder, iter(texts), max_tokens=9, **EXACT)) == expected
    assert [one["text"] for one in expected] == texts


def test_a_continuation_ends_at_a_stop_string(folder: Path):
    (free,) = bw.generate(folder, ["the dog"], max_tokens=60, temperature=1.0, seed=5, **EXACT)
    text = free["continuation"]
    stop = next(
        text[n : n + 2]
        for n in range(4, 50)
        if text[n : n + 2].isascii() and text[n : n + 2].isprintable()
    )
    options = {"max_tokens": 60, "temperature": 1.0, "seed": 5, **EXACT}
    one, other = bw.generate(folder, ["the dog", "a"], stop=["never found", stop], **options)
    assert one["continuation"] == text[: text.index(stop)]
    assert one["finish_reason"] == "stop"
    assert one["ids"] == free["ids"][: len(one["ids"])]
    assert len(one["ids"]) < len(free["ids"])
    assert other == next(bw.generate(folder, ["a"], stop=[stop], **options))


def test_the_end_token_of_the_model_ends_a_text(folder: Path, tmp_path: Path):
    """Of generation_config.json, which comes first; of config.json, also several; without both, of
    the tokenizer."""
    (free,) = bw.generate(folder, ["the dog"], max_tokens=30, temperature=1.0, **EXACT)
    end = free["ids"][10]
    expected = free["ids"][: free["ids"].index(end)]
    places = [("config.json", end), ("config.json", [300, end]), ("tokenizer_config.json", None)]
    for place, value in [
        *places,
        ("generation_config.json", end),
        ("generation_config.json", [256, 300, end]),
    ]:
        write_gpt2(tmp_path)
        if place == "generation_config.json":
            (tmp_path / place).write_text(json.dumps({"eos_token_id": value}))
            (one,) = bw.generate(tmp_path, ["the dog"], max_tokens=30, temperature=1.0, **EXACT)
            assert (one["ids"], one["finish_reason"]) == (expected, "end_token")
            continue
        (tmp_path / "generation_config.json").unlink()
        settings = json.loads((tmp_path / "config.json").read_text())
        settings["eos_token_id"] = value
        if value is None:
            del settings["eos_token_id"]
            named = json.loads((tmp_path / place).read_text())
            named["eos_token"] = json.loads((tmp_path / "tokenizer.json").read_text())["model"][
                "vocab"
            ]
            named["eos_token"] = next(
                token for token, number in named["eos_token"].items() if number == end
            )
            (tmp_path / place).write_text(json.dumps(named))
        (tmp_path / "config.json").write_text(json.dumps(settings))
        (one,) = bw.generate(tmp_path, ["the dog"], max_tokens=30, temperature=1.0, **EXACT)
        assert (one["ids"], one["finish_reason"]) == (expected, "end_token")


@pytest.mark.parametrize("kept", [0.0, 0.75])
def test_a_finished_text_never_runs_out_of_positions(
    kept: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It stays in the cache for a while, and is longer than the others."""
    texts, options = ["x" * 90, "short", "a text"], {"max_tokens": 40, "temperature": 1.0, **EXACT}
    write_gpt2(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": []}')
    free = list(bw.generate(tmp_path, texts, **options))
    end = next(
        number for number in free[0]["ids"][:5] if number not in free[1]["ids"] + free[2]["ids"]
    )
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    monkeypatch.setattr("bertworks.inference.causal_lm._KEPT", kept)
    first, *others = bw.generate(tmp_path, texts, **options)
    assert (first["ids"], first["finish_reason"]) == (
        free[0]["ids"][: free[0]["ids"].index(end)],
        "end_token",
    )
    assert others == free[1:]
    assert [len(one["ids"]) for one in others] == [40, 40]


def test_a_context_is_never_cropped(folder: Path, capsys: pytest.CaptureFixture[str]):
    texts = ["x" * 95, "y" * 99, "short"]
    results = list(bw.generate(folder, texts, max_tokens=12, temperature=1.0, **EXACT))
    assert [(len(one["ids"]), one["finish_reason"]) for one in results] == [
        (5, "context"),
        (1, "context"),
        (12, "max_tokens"),
    ]
    assert (
        main(
            [
                "generate",
                str(folder),
                texts[0],
                texts[2],
                "--max-tokens",
                "12",
                "--temperature",
                "1",
            ]
        )
        == 0
    )
    output = capsys.readouterr()
    assert output.err.startswith(
        "text 1 ends here: with its continuation it has as many tokens as the model reads"
    )
    assert main(["generate", str(folder), "x" * 100]) == 1
    assert (
        "text 1 has 100 tokens: the model reads 100, with those that it adds"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0"),
        ({"temperature": 1.0, "top_p": 0.0}, r"top_p is 0\.0"),
        ({"top_p": 0.5}, "top_k and top_p change nothing"),
        ({"seed": -1}, "seed is -1"),
        ({"stop": ("",)}, "a stop string is empty"),
    ],
)
def test_options_outside_their_range_are_refused(options: dict, message: str):
    with pytest.raises(bw.UsageError, match=message):
        replace(SamplingOptions(), **options)


def test_texts_that_cannot_be_continued(folder: Path):
    for texts, message in (
        (["fine", ""], "text 2 has no tokens"),
        ([3], "text 1 is 3: expected a string"),
    ):
        with pytest.raises(bw.BertworksError, match=message):
            list(bw.generate(folder, texts, **EXACT))
    with pytest.raises(bw.UsageError, match="one text"):
        list(bw.generate(folder, "a text", **EXACT))
    assert list(bw.generate(folder, [], **EXACT)) == []


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    command, options = (
        ["generate", str(folder)],
        ["--max-tokens", "8", "--device", "cpu", "--precision", "fp32"],
    )
    expected = list(bw.generate(folder, TEXTS[:2], max_tokens=8, **EXACT))
    assert main([*command, *TEXTS[:2], *options, "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == expected
    assert main([*command, *TEXTS[:2], *options]) == 0
    wholes = [one["text"] + one["continuation"] for one in expected]
    assert capsys.readouterr().out == "\n\n".join(wholes) + "\n"
    for name, content in (
        ("p.txt", "\n".join(TEXTS[:2])),
        ("p.csv", f"id,prompt\n1,{TEXTS[0]}\n2,{TEXTS[1]}\n3,\n"),
    ):
        (tmp_path / name).write_text(content + "\n")
        names = ["--text", "prompt"] if name == "p.csv" else []
        assert main([*command, str(tmp_path / name), *options, "--json", *names]) == 0
        output = capsys.readouterr()
        assert [json.loads(line) for line in output.out.splitlines()] == expected
    assert "rows without text, left out" in output.err
    assert main([*command, "a text", "--text", "prompt"]) == 2
    assert "--text names a column of a file, but the input is texts" in capsys.readouterr().err


def test_abilities_of_a_loaded_model(folder: Path):
    loaded = bw.load(folder, **EXACT)
    assert loaded.can == ("embed", "explain", "generate", "score")
    options = {"max_tokens": 5, "temperature": 0.5, "top_k": 9, "seed": 2, "stop": ["zzz"]}
    assert loaded.generate(TEXTS, **options) == list(bw.generate(folder, TEXTS, **options, **EXACT))
    with pytest.raises(bw.UsageError, match="expected a list of stop strings, not one stop string"):
        loaded.generate(TEXTS, stop="zzz")
    with pytest.raises(
        bw.BertworksError, match=r"cannot fill: it reads from left to right.*\n  hint: use generate"
    ):
        loaded.fill(["a"])


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_other_precisions_are_close(folder: Path, model: CausalModel, precision: str):
    """The probabilities of the next token, with a cache."""
    if precision == "int8" and not cpu_supports_int8():
        pytest.skip("this processor has no instructions for int8")
    other = CausalModel(open_model(folder, "cpu"), precision)
    results = []
    for each in (model, other):
        layout = Layout.of([4, 9])
        cache = KeyValueCache(3, layout, 1)
        ids = torch.arange(13)
        with torch.no_grad():
            each.states(ids, layout, layout.last.long(), cache)
            states = each.states(torch.tensor([7, 8]), cache.next_layout(), cache=cache)
            results.append(each.logits(states).float().softmax(-1))
    assert 0 < (results[0] - results[1]).abs().sum(-1).max() < 0.1
