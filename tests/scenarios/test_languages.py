"""Pre-training on several languages and on translations: the sequences, the draws, a resumed run,
figures, refusals."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import bertworks as bw
from bertworks.batching.batch import collate
from bertworks.batching.examples import Example
from bertworks.batching.sampling import SamplingConfig, make_sampler
from bertworks.checkpoints.model_folder import load_model
from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.models.config import EncoderConfig
from bertworks.models.layout import Layout
from bertworks.models.transformer import Encoder
from bertworks.runs.pretrain_job import PretrainJob, Text, in_languages
from bertworks.serve.endpoints import Abilities
from bertworks.text.shards import Shards, TokenStore
from bertworks.text.tokenizer import Template
from bertworks.text.translations import read_translations
from bertworks.training.recipe import OptimizerConfig, load_recipe
from tests.runs.test_pretrain import finish, torchrun
from tests.support.refusals import refusal
from tests.support.served import Local
from tests.support.tiny import documents, metrics, write_recipe

XLM = [
    ("size = 300", 'size = 300\nalgorithm = "bpe"\nlowercase = false\nspecial_tokens = "xlm"'),
    (
        "[encoder]",
        '[encoder]\nfamily = "xlm"\ntype_vocab_size = 0\nlm_head = "bias"\npooler = "first"\n'
        "sequence_dropout = 0.1",
    ),
    (
        "[optimizer]",
        '[sampling]\nformat = "stream"\nlanguage_power = 0.7\nparallel_rate = 0.5\n\n[optimizer]',
    ),
    ("num_steps = 40", "num_steps = 14"),
]


@pytest.fixture(scope="module")
def request_of_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("languages")
    texts = {"en": documents(60, 0), "de": documents(30, 1)}
    for name, some in texts.items():
        (folder / f"{name}.txt").write_text("\n\n".join(some) + "\n")
        lines = [" ".join(text.split()[:2]) for text in documents(60, 2)]
        (folder / f"pairs.{name}").write_text("".join(f"{line} {name}\n" for line in lines))
    return {
        "inputs": [str(folder / "en.txt"), str(folder / "de.txt")],
        "languages": ["en", "de"],
        "workers": 1,
        "parallel": [str(folder / "pairs.de"), str(folder / "pairs.en")],
        "recipe": str(write_recipe(folder / "recipe.toml", *XLM)),
    }


@pytest.fixture(scope="module")
def run(request_of_run: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run") / "m"
    list(bw.pretrain(output=output, **request_of_run))
    return output


def job_of(run: Path) -> PretrainJob:
    texts = [
        Text(tuple(n.split("-")), Shards.open(run / "shards" / n), is_parallel="-" in n)
        for n in ("en", "de", "de-en")
    ]
    return PretrainJob(load_recipe(str(run / "recipe.toml")), texts[0].shards, texts=texts)


END = Template((2,), (2, 2), (2,))


def test_a_translation_written_out_by_hand():
    store = TokenStore(np.arange(10, 20), np.array([0, 2, 5, 6, 10]), np.array([0, 2, 4]))
    sampler = make_sampler(store, SamplingConfig(format="parallel"), 9, END, 0)
    sampler.plan = sampler.make_plan(np.array([0, 1]))
    first, second = sampler[0], sampler[1]
    assert first.input_ids.tolist() == [2, 10, 11, 2, 2, 12, 13, 14, 2]
    assert second.input_ids.tolist() == [2, 15, 2, 2, 16, 17, 18, 19, 2]
    assert first.special.tolist() == [True, False, False, True, True, False, False, False, True]
    batch = collate([Example(s.input_ids, s.token_type_ids, {}) for s in (first, second)])
    batch = in_languages(batch, [3, 1])
    assert batch.token_type_ids is not None
    assert batch.token_type_ids.tolist() == [3, 3, 3, 3, 1, 1, 1, 1, 1, 3, 3, 3, 1, 1, 1, 1, 1, 1]
    assert batch.layout.position_ids.tolist() == [
        0,
        1,
        2,
        3,
        0,
        1,
        2,
        3,
        4,
        0,
        1,
        2,
        0,
        1,
        2,
        3,
        4,
        5,
    ]
    # A pair that is longer than a sequence is left out.
    short = make_sampler(store, SamplingConfig(format="parallel"), 8, END, 0)
    with pytest.raises(BertworksError, match="too short for a single sequence"):
        short.make_plan(np.array([0, 1]))


def test_packed_equals_alone_with_positions_that_restart():
    torch.manual_seed(0)
    c = EncoderConfig(
        vocab_size=50,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        type_vocab_size=3,
        languages=("a", "b", "c"),
    )
    encoder = Encoder(c).eval()
    lengths, firsts = [9, 4, 30, 12], [4, 2, 17, 3]
    parts = []
    for n, first in zip(lengths, firsts, strict=True):
        types = (np.arange(n) >= first).astype(np.int64)
        parts.append(Example(np.random.default_rng(n).integers(5, 50, n), types, {}))
    together = in_languages(collate(parts), [2, 0])
    states = encoder(together.input_ids, together.layout, together.token_type_ids)[-1].split(
        lengths
    )
    for part, packed in zip(parts, states, strict=True):
        one = in_languages(collate([part]), [2, 0])
        assert (
            encoder(one.input_ids, one.layout, one.token_type_ids)[-1] - packed
        ).abs().max() < 2e-6
        plain = encoder(one.input_ids, Layout.of([len(part.input_ids)]), one.token_type_ids)[-1]
        assert (plain - packed).abs().max() > 1e-2  # the positions count


def test_texts_are_drawn_by_their_tokens_to_a_power_and_every_second_step_is_of_translations(
    run: Path,
):
    job = job_of(run)
    steps = [job.text_of(n) for n in range(4000)]
    assert all((text == 2) == (n % 2 == 1) for n, text in enumerate(steps))
    again = job_of(run)
    assert steps == [again.text_of(n) for n in range(4000)]
    sizes = np.array([text.shards.manifest.tokens for text in job.texts[:2]], float)
    expected = sizes**0.7 / (sizes**0.7).sum()
    count = Counter(steps)
    assert abs(count[0] / 2000 - expected[0]) < 4 * (expected[0] * expected[1] / 2000) ** 0.5
    assert abs(expected[0] - 0.5) > 0.05  # another power would be seen


def test_batches_have_the_language_of_their_text(run: Path, tmp_path: Path):
    job = job_of(run)
    batches, seen = job.batches(tmp_path, 0, 1, print), set()
    for step in range(12):
        (batch,) = batches(step)
        types = batch.token_type_ids
        assert types is not None
        seen.add(number := job.text_of(step))
        assert set(types.tolist()) == [{0}, {1}, {0, 1}][number]
        restarts = int((batch.layout.position_ids == 0).sum())
        assert restarts == batch.layout.num_sequences * (2 if number == 2 else 1)
        if number == 2:  # files in the order de, en; both sides are masked
            assert set(types[batch.layout.first.long()].tolist()) == {1}
            assert set(types[batch.targets["masked_lm"].positions].tolist()) == {0, 1}
        again = batches(step)[0]
        assert torch.equal(batch.input_ids, again.input_ids)
    assert seen == {0, 1, 2}


def test_a_run_that_is_resumed_equals_one_that_is_not(
    run: Path, request_of_run: dict[str, Any], tmp_path: Path
):
    events = bw.pretrain(output=tmp_path / "m", **request_of_run)
    for event in events:
        if event.kind == "step" and event.fields["step"] >= 7:
            break
    events.close()  # type: ignore[attr-defined]
    assert list(bw.pretrain(output=tmp_path / "m", **request_of_run))[-1].kind == "done"
    for name in ("model.safetensors", "config.json", "recipe.toml", "plans/de-en/phase-0.npy"):
        assert (tmp_path / "m" / name).read_bytes() == (run / name).read_bytes(), name
    assert metrics(tmp_path / "m") == metrics(run)


@pytest.mark.slow
def test_two_processes_get_the_numbers_of_one(
    run: Path, request_of_run: dict[str, Any], tmp_path: Path
):
    plain = [f"encoder.{name}_dropout=0" for name in ("hidden", "attention", "sequence")] + [
        "train.precision=fp32"
    ]
    arguments = request_of_run | {"overrides": plain}
    list(bw.pretrain(output=tmp_path / "one", **arguments))
    finish(torchrun({"arguments": arguments | {"output": str(tmp_path / "two")}}))
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert [row.keys() for row in two] == [row.keys() for row in one]
    for row, other in zip(one, two, strict=True):
        names = [name for name in row if name == "tokens" or "loss" in name]
        assert [other[name] for name in names] == pytest.approx(
            [row[name] for name in names], rel=1e-3
        )


def test_a_server_of_a_language(run: Path, tmp_path: Path):
    with pytest.raises(
        UsageError, match="the model has the languages en, de: which one are the texts in"
    ) as refusal:
        Abilities(run, device="cpu")
    assert "--language en" in str(refusal.value.hint)
    texts = documents(2, 3)
    for language in ("en", "de"):
        list(bw.convert(run, tmp_path / language, language=language))
        vectors = bw.load(tmp_path / language, device="cpu", precision="fp32").embed(texts)
        with Local(tmp_path / language, precision="fp32") as server:
            found = server.post("/embed", {"inputs": texts, "normalize": False}).json()
            filled = server.post("/fill", {"inputs": [f"{texts[0][:20]} <mask>"], "top_k": 2})
        np.testing.assert_allclose(found, vectors, atol=1e-5)
        assert filled.status_code == 200, filled.text


def test_figures_of_each_language_and_of_translations(run: Path):
    last = [row for row in metrics(run) if "masked_lm_loss_in_en" in str(row)][-1]
    assert all(f"masked_lm_loss_in_{name}" in str(last) for name in ("en", "de", "de-en"))


def test_the_language_of_texts(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    c = load_model(run).config
    assert (c.languages, c.language) == (("en", "de"), "")
    with pytest.raises(
        UsageError, match="the model has the languages en, de: which one are the texts in"
    ):
        bw.embed(run, ["text"])
    with pytest.raises(UsageError, match="the model has the languages"):
        bw.evaluate_mlm(run, [run.parent / "none.txt"])
    with pytest.raises(UsageError, match="no language 'fr'"):
        bw.load(run, language="fr")
    vectors = {name: bw.load(run, language=name).embed(["bada", "keli"]) for name in ("en", "de")}
    assert np.abs(vectors["en"] - vectors["de"]).max() > 1e-3
    assert main(["convert", str(run), "-o", str(tmp_path / "de"), "--language", "de"]) == 0
    assert np.array_equal(bw.embed(tmp_path / "de", ["bada", "keli"]), vectors["de"])
    assert load_model(tmp_path / "de").config == replace(c, language="de")
    capsys.readouterr()


def test_retrieval_of_translations(run: Path, tmp_path: Path):
    (tmp_path / "pairs.tsv").write_text("bada keli\tbada keli\nmomo\tmomo\nsisi kuku\tsisi kuku\n")
    result = bw.evaluate_pairs(run, [tmp_path / "pairs.tsv"], languages=["de", "de"])
    assert (result["pairs"], result["forward"], result["backward"]) == (3, 1.0, 1.0)
    (tmp_path / "pairs.tsv").write_text("bada keli\tmomo\nmomo\tbada keli\nsisi kuku\tsisi kuku\n")
    result = bw.evaluate_pairs(run, [tmp_path / "pairs.tsv"], languages=["de", "de"])
    assert result["correct"] == {"forward": [False, False, True], "backward": [False, False, True]}
    with pytest.raises(UsageError, match="which one are the texts in"):
        bw.evaluate_pairs(run, [tmp_path / "pairs.tsv"])
    with pytest.raises(UsageError, match="1 languages: expected those of the two sides"):
        bw.evaluate_pairs(run, [tmp_path / "pairs.tsv"], languages=["de"])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": "x\ny\n", "b": "x\n"}, r"b:2: .*a has 2 lines, .*b has 1: expected the same number"),
        ({"a": "x\n\n", "b": "x\ny\n"}, "a:2: no text on one side of a translation"),
        ({"a": "x\ty\nz\n"}, "a:2: 1 columns: expected two, separated by a tab"),
        ({"a": "x\ty\n \tz\n"}, "a:2: no text on one side of a translation"),
        (
            {"a": "x\n", "b": "x\n", "c": "x\n"},
            "3 files of translations: expected a table of two columns, or two files",
        ),
    ],
)
def test_translations_that_do_not_fit(files: dict[str, str], message: str, tmp_path: Path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(BertworksError, match=message):
        read_translations([tmp_path / name for name in files])


def test_a_side_of_a_translation_without_tokens_is_refused(
    request_of_run: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As a tokenizer from elsewhere may leave it."""
    manifest = SimpleNamespace(load=lambda _: SimpleNamespace(documents=119))
    monkeypatch.setattr("bertworks.runs.pretrain.Manifest", manifest)
    with refusal("119 sides of translations have tokens: expected two", "leave out such pairs"):
        list(bw.pretrain(output=tmp_path / "m", **request_of_run))


Change = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"languages": ["en"]}, "2 inputs and the languages en: expected a name for each input"),
        ({"languages": ()}, "2 inputs and the languages none: expected a name for each input"),
        (
            {"recipe": "bert-tiny", "parallel": ()},
            "models of the family bert have no table of languages",
        ),
        ({"parallel": ()}, "sampling.parallel_rate is 0.5, and there are 0 files of translations"),
        (
            {"recipe": "xlm-mlm"},
            "sampling.parallel_rate is 0.0, and there are 2 files of translations",
        ),
        (
            {"overrides": ["sampling.format=next_sentence", "encoder.type_vocab_size=2"]},
            "sampling.format is 'next_sentence': it is not for text of several languages",
        ),
        ({"languages": ["fr", "it"]}, "which of the languages fr, it are the two sides"),
    ],
)
def test_requests_that_are_refused(
    changes: dict[str, Any], message: str, request_of_run: dict[str, Any], tmp_path: Path
):
    if "fr" in changes.get("languages", ()):
        names = [tmp_path / "pairs.fr", tmp_path / "pairs"]
        for name in names:
            name.write_text("x\n")
        changes = changes | {"parallel": [str(name) for name in names]}
    with pytest.raises(UsageError, match=message):
        list(islice(bw.pretrain(output=tmp_path / "m", **request_of_run | changes), 1))


def test_shards_and_rows_have_no_languages(
    run: Path, request_of_run: dict[str, Any], tmp_path: Path
):
    for inputs in ([str(run / "shards" / "en")] * 2, ["-", "-"]):
        with pytest.raises(UsageError, match="languages are for files and folders of text"):
            list(bw.pretrain(output=tmp_path / "m", **request_of_run | {"inputs": inputs}))


def test_inverse_square_root_of_the_step():
    c = OptimizerConfig(learning_rate=2.0, warmup=0.1, schedule="inverse_sqrt")
    assert [c.rate(n, 40) for n in (0, 2, 4, 16, 36)] == [0.0, 1.0, 2.0, 1.0, 2 / 3]


@pytest.mark.parametrize(
    "name", [pytest.param("xlm-mlm", marks=pytest.mark.slow), "xlm-tlm", "xlm-small"]
)
def test_an_estimate_of_each_recipe(name: str, request_of_run: dict[str, Any]):
    request = {n: v for n, v in request_of_run.items() if n != "workers"} | {"recipe": name}
    if name != "xlm-tlm":
        request["parallel"] = ()
    small = ["encoder.num_hidden_layers=1", "encoder.hidden_size=64", "vocabulary.size=1000"]
    cost = bw.estimate(**request, overrides=small, budget="60s")
    c = EncoderConfig(
        vocab_size=1000,
        num_hidden_layers=1,
        hidden_size=64,
        num_attention_heads=4,
        type_vocab_size=2,
        lm_head="bias",
    )
    assert cost.parameters == c.num_parameters("lm_head")


def test_more_training_of_a_model_on_some_of_its_languages(
    run: Path, request_of_run: dict[str, Any], tmp_path: Path
):
    given = request_of_run | {
        "init": str(run),
        "inputs": request_of_run["inputs"][1:],
        "languages": ["de"],
    }
    given["parallel"] = ()
    given["overrides"] = ["sampling.parallel_rate=0", "train.phases.0.num_steps=2"]
    with pytest.raises(UsageError, match="the model has the languages en, de, the text has fr"):
        list(bw.pretrain(output=tmp_path / "m", **given | {"languages": ["fr"]}))
    with pytest.raises(
        UsageError, match="the model has the languages en, de, the text has no names of any"
    ):
        list(bw.pretrain(output=tmp_path / "m", **given | {"languages": ()}))
    list(bw.pretrain(output=tmp_path / "m", **given))
    assert load_model(tmp_path / "m").config == load_model(run).config
    assert "masked_lm_loss_in_de" in str(metrics(tmp_path / "m"))
    assert "_in_en" not in str(metrics(tmp_path / "m"))
