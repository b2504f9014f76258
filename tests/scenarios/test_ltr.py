"""BERT that reads from left to right: pre-trained, fine-tuned, against transformers. See also
test_families."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import bertworks
from bertworks.batching.batch import Batch, BatchTarget
from bertworks.checkpoints.hf_config import config_from_huggingface
from bertworks.checkpoints.hf_mapping import from_huggingface
from bertworks.checkpoints.model_folder import ModelFolder, load_model, save_model
from bertworks.checkpoints.task_config import task_settings
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.predictor import Predictor
from bertworks.interop.convert import convert
from bertworks.interop.export import export
from bertworks.models.config import EncoderConfig
from bertworks.models.layout import Layout
from bertworks.models.transformer import cpu_supports_int8
from bertworks.runs.pretrain import pretrain
from bertworks.runs.pretrain_job import PretrainJob
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.outputs import Classification
from bertworks.tasks.registry import task_of
from bertworks.tasks.settings import TaskConfig
from bertworks.text.shards import Shards
from bertworks.training.objectives import PretrainingModel
from bertworks.training.recipe import load_recipe
from tests.support.fine import (
    PEOPLE,
    tokenizer,
    write_choices,
    write_conll,
    write_pairs,
    write_reviews,
)
from tests.support.gpt import causal_loss, held_out_of
from tests.support.tiny import write_corpus

SIZES = (
    "encoder.hidden_size=32",
    "encoder.num_hidden_layers=2",
    "encoder.num_attention_heads=2",
    "vocabulary.size=400",
    "train.held_out_sequences=16",
    "train.precision=fp32",
    "optimizer.learning_rate=1e-3",
    *(f"train.phases.{n}.{field}" for n in (0, 1) for field in ("num_steps=4", "batch_size=8")),
)
FAST = ["epochs=2", "precision=fp32", "optimizer.learning_rate=1e-3"]
SENTENCES = [["the", "film", PEOPLE[0], "was", "in", "this", "town"], ["Oslo"]]


@pytest.fixture(scope="module")
def ltr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of random weights, every one perturbed."""
    t = tokenizer()
    c = EncoderConfig(
        vocab_size=t.vocab_size,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=64,
        direction="left_to_right",
        pooler="last",
    )
    torch.manual_seed(0)
    network = PretrainingModel(c, {"causal_lm": 1.0})
    state = {
        name: p.detach() + 0.15 * torch.randn_like(p) for name, p in network.named_parameters()
    }
    folder = tmp_path_factory.mktemp("model") / "ltr"
    save_model(folder, state, c, t, card="ltr")
    return folder


def test_from_text_it_is_the_decoder_of_transformers(tmp_path: Path) -> None:
    text, out = write_corpus(tmp_path / "text.jsonl"), tmp_path / "out"
    events = list(pretrain(text, out, recipe="bert-ltr", overrides=SIZES, workers=1, device="cpu"))
    settings = json.loads((out / "config.json").read_text())
    assert (settings["architectures"], settings["is_decoder"]) == (["BertLMHeadModel"], True)
    reference, loading = transformers.AutoModelForCausalLM.from_pretrained(
        out, output_loading_info=True
    )
    assert type(reference) is transformers.BertLMHeadModel
    assert not any(loading.values())
    job = PretrainJob(load_recipe(str(out / "recipe.toml")), Shards.open(out / "shards"))
    assert job.recipe.weights == {"causal_lm": 1.0}
    assert events[-1].fields["evaluation"]["causal_lm_loss"] == pytest.approx(
        causal_loss(reference, held_out_of(job)), abs=2e-5
    )


def test_recipe_is_that_of_bert_base() -> None:
    recipe, base = load_recipe("bert-ltr"), load_recipe("bert-base")
    assert (recipe.train, recipe.optimizer, recipe.vocabulary) == (
        base.train,
        base.optimizer,
        base.vocabulary,
    )
    settings, published = vars(recipe.encoder), vars(base.encoder)
    assert {name for name in settings if settings[name] != published[name]} == {
        "direction",
        "pooler",
    }


def test_next_sentences_have_no_place_in_its_files(tmp_path: Path) -> None:
    text = write_corpus(tmp_path / "text.jsonl")
    with pytest.raises(
        UsageError, match="next_sentence: files of bert have no place for these heads together"
    ) as error:
        list(
            pretrain(
                text,
                tmp_path / "out",
                recipe="bert-ltr",
                overrides=[*SIZES, "sampling.format=next_sentence"],
            )
        )
    assert "sampling.format=full_sentences" in str(error.value.hint)
    assert not (tmp_path / "out").exists()
    config = transformers.BertConfig(
        vocab_size=90, hidden_size=24, num_hidden_layers=1, num_attention_heads=2, is_decoder=True
    )
    state = transformers.BertForPreTraining(config).state_dict()
    with pytest.raises(BertworksError, match=r"cls\.seq_relationship\.bias.*no place for this"):
        from_huggingface(state, config_from_huggingface(config.to_dict()))


def test_it_continues_and_scores_as_transformers_does(ltr: Path) -> None:
    reference, loading = transformers.BertLMHeadModel.from_pretrained(ltr, output_loading_info=True)
    assert not any(loading.values())
    loaded = bertworks.load(ltr, device="cpu", precision="fp32")
    assert loaded.can == ("embed", "explain", "generate", "score")
    ids = load_model(ltr).tokenizer.encode("the film was in Oslo").ids[:-1]
    with torch.no_grad():
        logits = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
        expected = [float(logits[n, token]) for n, token in enumerate(ids[1:])]
        for _ in range(8):
            ids.append(int(reference(torch.tensor([ids])).logits[0, -1].argmax()))
    (score,) = loaded.score(["the film was in Oslo"])
    np.testing.assert_allclose(score["log_probabilities"], expected, atol=2e-5)
    assert score["measure"] == "log_likelihood"
    (continuation,) = loaded.generate(["the film was in Oslo"], max_tokens=8, temperature=0)
    assert continuation["ids"] == ids[-8:]
    assert continuation["finish_reason"] == "max_tokens"
    with pytest.raises(BertworksError, match="reads from left to right"):
        loaded.fill(["the [MASK]"])


def test_a_continuation_ends_at_the_token_after_a_text(ltr: Path, tmp_path: Path) -> None:
    reference, tokenizer = (
        transformers.BertLMHeadModel.from_pretrained(ltr),
        load_model(ltr).tokenizer,
    )
    with torch.no_grad():
        reference.cls.predictions.bias[tokenizer.sep_id] += 100.0
    reference.save_pretrained(tmp_path)
    tokenizer.save(tmp_path, has_types=True)
    (continuation,) = bertworks.generate(tmp_path, ["the film was in Oslo"], device="cpu")
    assert (continuation["ids"], continuation["finish_reason"]) == ([], "end_token")


def test_a_pooler_of_transformers_is_kept_and_not_used(ltr: Path, tmp_path: Path) -> None:
    reference = transformers.BertModel.from_pretrained(ltr)
    for p in reference.pooler.parameters():
        p.data.normal_()
    reference.save_pretrained(tmp_path / "theirs")
    load_model(ltr).tokenizer.save(tmp_path / "theirs", has_types=True)
    list(convert(str(tmp_path / "theirs"), tmp_path / "ours"))
    read, loading = transformers.BertModel.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(loading.values())
    assert read.config.is_decoder
    assert all(
        torch.equal(p, reference.state_dict()[name]) for name, p in read.state_dict().items()
    )


def test_whole_texts_are_read_at_their_last_token() -> None:
    c = EncoderConfig(
        vocab_size=90,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        direction="left_to_right",
        pooler="last",
    )
    network, lengths = TaskModel(c, Classification(outputs=3)).eval(), [5, 9, 2]
    ids, layout = torch.randint(5, 90, (16,)), Layout.of(lengths)
    first = layout.first.long()
    batch = Batch(
        ids, layout, torch.zeros_like(ids), {"task": BatchTarget(first, torch.tensor([0, 1, 2]))}
    )
    states = network.encoder(ids, layout, batch.token_type_ids)[-1]
    expected = network.get_submodule("classifier")(states[[4, 13, 15]])
    torch.testing.assert_close(network.logits(batch), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("write", [write_reviews, write_pairs, write_choices])
def test_fine_tuned_for_texts_it_is_a_network_of_its_own(write, ltr: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "data.csv", 40)
    bertworks.finetune(
        data, output=tmp_path / "out", model=ltr, method="full", overrides=FAST, device="cpu"
    )
    folder = ModelFolder(tmp_path / "out")
    assert folder.config.direction == "left_to_right"
    assert folder.settings["model_type"] == "bertworks"
    with pytest.raises(ValueError, match="bertworks"):
        transformers.AutoModel.from_pretrained(tmp_path / "out")
    assert "transformers has no such network" in (tmp_path / "out/README.md").read_text()
    list(convert(str(tmp_path / "out"), tmp_path / "again"))
    d = folder.task_config
    choices = ("a film", *["is good", "is bad"] * 2)[: d.num_choices + 1]
    example = {"classification": "a film", "regression": ("a film", "it"), "choice": choices}
    exact, again = (
        Predictor(tmp_path / name, device="cpu", precision="fp32").predict([example[d.task]])
        for name in ("out", "again")
    )
    assert exact == again
    if cpu_supports_int8():
        small = Predictor(tmp_path / "out", device="cpu", precision="int8")
        assert small.predict([example[d.task]])[0].keys() == exact[0].keys()
    list(export(tmp_path / "out", tmp_path / "onnx"))
    exported = Predictor(tmp_path / "onnx", device="cpu").predict([example[d.task]])
    for name, value in exact[0].items():
        assert exported[0][name] == (
            pytest.approx(value, abs=1e-4) if isinstance(value, float) else value
        )


def test_tags_depend_on_what_is_before_and_are_those_of_transformers(
    ltr: Path, tmp_path: Path
) -> None:
    data = write_conll(tmp_path / "names.conll", 60)
    bertworks.finetune(
        data, output=tmp_path / "out", model=ltr, method="full", overrides=FAST, device="cpu"
    )
    reference, loading = transformers.BertForTokenClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(loading.values())
    assert reference.config.is_decoder
    model = load_model(tmp_path / "out")
    network = TaskModel(
        model.config, task_of(ModelFolder(tmp_path / "out").task_config).head()
    ).eval()
    network.load_state_dict(model.state)
    long, short = (
        torch.tensor(model.tokenizer.encode(text).ids)
        for text in ("the film in Oslo", "the film in dogs")
    )
    logits = []
    for ids in (long, short):
        positions = torch.arange(len(ids))
        batch = Batch(
            ids,
            Layout.of([len(ids)]),
            torch.zeros_like(ids),
            {"task": BatchTarget(positions, positions)},
        )
        logits.append(network.logits(batch).detach())
        with torch.no_grad():
            assert (reference(ids[None]).logits[0] - logits[-1]).abs().max() <= 2e-5
    same = int((long[: len(short)] == short[: len(long)]).long().cumprod(0).sum())
    torch.testing.assert_close(logits[0][:same], logits[1][:same])
    answers = Predictor(tmp_path / "out", device="cpu").predict(SENTENCES)
    assert [len(answer["tags"]) for answer in answers] == [7, 1]


def test_a_classifier_of_transformers_reads_the_first_token_and_is_refused(
    ltr: Path, tmp_path: Path
) -> None:
    reference = transformers.BertForSequenceClassification.from_pretrained(ltr, num_labels=3)
    reference.save_pretrained(tmp_path)
    load_model(ltr).tokenizer.save(tmp_path, has_types=True)
    with pytest.raises(
        BertworksError,
        match="reads the first token of a text, which from left to right has read noth",
    ):
        Predictor(tmp_path, device="cpu")


def test_settings_of_heads() -> None:
    ltr = EncoderConfig(direction="left_to_right", pooler="last")
    assert "model_type" not in task_settings(TaskConfig(task="classification", labels=("a", "b")))
    assert (
        task_settings(TaskConfig(task="classification", labels=("a", "b")), ltr)["model_type"]
        == "bertworks"
    )
    assert "model_type" not in task_settings(TaskConfig(task="qa"), ltr)
