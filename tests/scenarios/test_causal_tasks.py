"""Fine-tuned GPT and GPT-2: against transformers, in all batchings, through the commands."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

import bertworks as bw
from bertworks.batching.batch import Batch, collate
from bertworks.batching.examples import Example, Target
from bertworks.checkpoints.model_folder import load_model
from bertworks.inference.engine import compute_logits
from bertworks.inference.predictor import Predictor, item_of
from bertworks.models.config import PRESETS
from bertworks.models.transformer import cpu_supports_int8
from bertworks.runs.finetune import finetune_events, make_finetune_request
from bertworks.runs.finetune_job import FinetuneJob, prepare_finetuning
from bertworks.serve.endpoints import Abilities
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.outputs import Classification, Regression
from bertworks.training.loop import make_optimizer, train
from bertworks.training.recipe import load_finetune_recipe
from tests.support.fine import write_choices, write_conll, write_spans, write_squad
from tests.support.gpt import END, END_ID, POSITIONS, write_gpt, write_gpt2

TEXTS = ["the dog is good", "a", "é 日", "two hungry cats sleep", "", "fish"]
PAIRS = [("a dog", "the dog sleeps"), ("é", "日"), ("", "fish"), ("the hungry cat", "a")]
ONE = [
    {"text": f"{animal} {word}", "label": label}
    for animal in ("dog", "cat", "é 日", "fish", "two cats")
    for word, label in (("bad", "neg"), ("good", "pos"), ("awful", "neg"), ("nice", "pos"))
]
TWO = [
    {"sentence1": row["text"], "sentence2": f"is {row['text']}?", "label": row["label"]}
    for row in ONE
]
NUMBERS = [{"text": row["text"], "score": 1.0 + len(row["text"]) / 10} for row in ONE]
SEVERAL = [{"text": row["text"], "labels": [row["label"]] * (len(row["text"]) > 6)} for row in ONE]
DATA = {"texts": ONE, "pairs": TWO, "numbers": NUMBERS, "several": SEVERAL}
CPU: dict[str, Any] = {"device": "cpu", "method": "full", "precision": "fp32"}


@pytest.fixture(scope="module", params=["gpt", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param) / request.param
    {"gpt": write_gpt, "gpt2": write_gpt2}[request.param](path)
    return path


def tuned(data: Any, model: Path, output: Path, **options: Any) -> Path:
    sets = [
        "optimizer.learning_rate=3e-3",
        "batch_size=4",
        "epochs=2",
        *options.pop("overrides", []),
    ]
    bw.finetune(data, model=model, output=output, recipe="gpt", overrides=sets, **(CPU | options))
    return output


@pytest.mark.parametrize("kind", DATA)
def test_a_fine_tuned_folder_is_that_of_transformers(kind: str, folder: Path, tmp_path: Path):
    """Its tokenizer and its network: one text at a time, and several with padding."""
    out = tuned(DATA[kind], folder, tmp_path / "out")
    theirs, found = transformers.AutoModelForSequenceClassification.from_pretrained(
        out, output_loading_info=True
    )
    assert (
        type(theirs).__name__
        == ("OpenAIGPT" if folder.name == "gpt" else "GPT2") + "ForSequenceClassification"
    )
    assert not any(found.values())
    assert theirs.config.pad_token_id == END_ID
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    predictor = Predictor(out, device="cpu", precision="fp32")
    texts: list[Any] = PAIRS if kind == "pairs" else TEXTS
    items = [item_of(text, number, predictor.task) for number, text in enumerate(texts, 1)]
    units = [features.unit for features in predictor.reading(items)]
    ours = np.concatenate(predictor.logits(units))
    each = [tokenizer(*([text] if isinstance(text, str) else text))["input_ids"] for text in texts]
    assert [unit[0].input_ids.tolist() for unit in units] == each
    marks = [ids.count(END_ID) for ids in each]
    assert marks == [1 + (kind == "pairs")] * len(each)
    assert all(ids[0] == END_ID for ids in each)
    with torch.no_grad():
        alone = torch.cat([theirs.eval()(input_ids=torch.tensor([ids])).logits for ids in each])
        padded = tokenizer.pad({"input_ids": each}, return_tensors="pt")
        together = theirs(
            input_ids=padded["input_ids"], attention_mask=padded["attention_mask"]
        ).logits
    np.testing.assert_allclose(ours, alone, atol=2e-5, rtol=0)
    np.testing.assert_allclose(ours, together, atol=2e-5, rtol=0)
    assert np.ptp(ours, axis=0).min() > 1e-3


def test_a_folder_of_transformers_reads_the_last_token(tmp_path: Path):
    """Its tokenizer puts nothing around a text, and is left as it is."""
    write_gpt2(tmp_path)
    config = transformers.GPT2Config.from_pretrained(
        tmp_path, num_labels=3, id2label={0: "a", 1: "b", 2: "c"}
    )
    torch.manual_seed(0)
    theirs = transformers.GPT2ForSequenceClassification(config).eval()
    for parameter in theirs.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.15)
    theirs.save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = [text for text in TEXTS if text]
    with torch.no_grad():
        expected = torch.cat(
            [theirs(**tokenizer(text, return_tensors="pt")).logits for text in texts]
        ).softmax(-1)
    found = Predictor(tmp_path, device="cpu", precision="fp32").predict_proba(texts)
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)
    assert float(expected.std(0).min()) > 1e-3
    bw.load(tmp_path).save(tmp_path / "converted")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "converted")
    torch.testing.assert_close(again.score.weight, theirs.score.weight, rtol=0, atol=0)


def random_batch(lengths: list[int], seed: int = 0) -> list[Example]:
    draw = np.random.default_rng(seed)
    target = [Target(np.zeros(1, np.int64), np.array([n % 3])) for n in range(len(lengths))]
    return [
        Example(draw.integers(0, 256, n), np.zeros(n, np.int64), {"task": target[k]})
        for k, n in enumerate(lengths)
    ]


def perturbed(folder: Path, *, lm_weight: float = 0.5) -> TaskModel:
    """A network with three labels, without dropout. In float64 but for its last layer, which is
    always in fp32."""
    model = load_model(folder)
    torch.manual_seed(1)
    config = replace(model.config, hidden_dropout=0.0, attention_dropout=0.0)
    network = TaskModel(config, Classification(outputs=3), lm_weight=lm_weight)
    network.load_state_dict(model.state, strict=False)
    torch.nn.init.normal_(network.classifier.weight)
    network.double().classifier.float()
    return network


def total(network: TaskModel, batch: Batch) -> Tensor:
    counts, losses = network.counts(batch), network(batch)
    return torch.stack(
        [network.weights[name] * loss / counts[name] for name, (loss, _) in losses.items()]
    ).sum()


def test_the_loss_and_its_gradients_are_those_of_transformers(folder: Path):
    """Equation 5 of Radford et al. 2018: cross-entropy of the labels + 0.5 of the next tokens."""
    network, examples = perturbed(folder), random_batch([7, 20, 1, 3])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    tasks, nexts, count = [], [], 0
    for example in examples:
        ids = torch.from_numpy(example.input_ids)[None]
        state = theirs.transformer(ids).last_hidden_state[0]
        label = torch.from_numpy(example.target.labels)
        tasks.append(
            F.cross_entropy(network.classifier.weight.detach().double() @ state[-1], label[0])
        )
        nexts.append(F.cross_entropy(theirs.lm_head(state)[:-1], ids[0, 1:], reduction="sum"))
        count += ids.shape[1] - 1
    expected = torch.stack(tasks).mean() + 0.5 * torch.stack(nexts).sum() / count
    found = total(network, collate(examples))
    torch.testing.assert_close(found.double(), expected.detach(), rtol=0, atol=2e-5)
    loss = network(collate(examples))["causal_lm"].loss
    # a sum in fp32
    torch.testing.assert_close(loss.double(), torch.stack(nexts).sum().detach(), rtol=1e-6, atol=0)
    found.backward()
    expected.backward()
    body = theirs.transformer
    table = body.wte if folder.name == "gpt2" else body.tokens_embed
    blocks = zip(network.encoder.blocks, body.h, strict=True)
    pairs = [(network.encoder.embeddings.token.weight.grad, table.weight.grad)]
    for ours, other in blocks:
        pairs += [
            (ours.attention.qkv.weight.grad, other.attn.c_attn.weight.grad.t()),
            (ours.feed_forward.down.bias.grad, other.mlp.c_proj.bias.grad),
        ]
    for mine, their in pairs:
        torch.testing.assert_close(mine, their, rtol=1e-4, atol=1e-7)
    assert network.classifier.bias is None


def test_packed_padded_and_one_by_one_agree(folder: Path):
    network, examples = perturbed(folder).eval(), random_batch([5, 17, 1, 9, 30])
    units = [[example] for example in examples]
    packed = network(collate(examples))
    sums = [network(collate(unit)) for unit in units]
    for name in ("task", "causal_lm"):
        loss = sum(part[name].loss for part in sums)
        torch.testing.assert_close(packed[name].loss, loss, rtol=1e-6, atol=0)
        assert int(packed[name].correct) == sum(int(part[name].correct) for part in sums)
    together = np.concatenate(compute_logits(network, units))
    alone = np.concatenate([compute_logits(network, [unit])[0] for unit in units])
    np.testing.assert_allclose(together, alone, atol=2e-5, rtol=0)
    # those of the network without the other loss, which computes fewer states
    with torch.no_grad():
        rows = perturbed(folder, lm_weight=0.0).eval().logits(collate(examples))
        # the head is in fp32
        torch.testing.assert_close(rows, network.logits(collate(examples)), rtol=0, atol=1e-5)


def test_parts_of_a_batch_add_up(folder: Path):
    """The loss of the language model is a mean over all its tokens, not over parts."""
    config = load_finetune_recipe("gpt").optimizer
    examples, gradients, sums = (
        random_batch([5, 17, 1, 9, 30]),
        list[list[Tensor]](),
        list[Tensor](),
    )
    for parts in ([examples], [examples[:2], examples[2:3], examples[3:]]):
        network, batches = perturbed(folder).float(), [collate(part) for part in parts]

        def keep(network: TaskModel = network) -> None:
            gradients.append([p.grad.clone() for p in network.parameters() if p.grad is not None])

        optimizer = make_optimizer(network, config)
        (step,) = train(network, optimizer, lambda _, b=batches: b, config, 1, before_update=keep)
        assert step.counts == {"task": 5, "causal_lm": 62 - 5}
        sums.append(torch.stack([step.sums[name] for name in ("task", "causal_lm")]))
    torch.testing.assert_close(*sums, rtol=1e-6, atol=0)
    assert len(gradients[0]) == len(list(perturbed(folder).parameters()))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_vocabulary_without_the_mark_gets_it(folder: Path, tmp_path: Path):
    """As that of the released GPT. All other rows of the embeddings keep their places."""
    copy = tmp_path / "copy"
    network = {"gpt": write_gpt, "gpt2": write_gpt2}[folder.name](copy)
    text = (copy / "tokenizer.json").read_text().replace(END, "<unk>")
    (copy / "tokenizer.json").write_text(text)
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(
        json.dumps({"unk_token": "<unk>", "model_max_length": POSITIONS})
    )
    assert END in settings.values()
    request = make_finetune_request(
        ONE, model=copy, recipe="gpt", overrides=["epochs=1"], **_request()
    )
    events = list(finetune_events(tmp_path / "out", request, device="cpu"))
    assert any("<|endoftext|> is added to the vocabulary" in event.text for event in events)
    theirs, found = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(found.values())
    assert (theirs.config.vocab_size, theirs.config.pad_token_id) == (258, 257)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("a")["input_ids"][0] == 257 == len(tokenizer) - 1
    before = network.get_input_embeddings().weight
    moved = (theirs.get_input_embeddings().weight[:257] - before).detach().abs().max()
    assert 0 < float(moved) < 0.01
    found = Predictor(tmp_path / "out", device="cpu", precision="fp32").predict_proba(TEXTS)
    with torch.no_grad():
        inputs = tokenizer(TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False)
        expected = theirs.eval()(**inputs).logits.softmax(-1)
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)


def _request() -> dict[str, Any]:
    return {"method": "full", "precision": "fp32", "validation": "split"}


def test_a_run_that_is_interrupted_ends_with_the_same_weights(folder: Path, tmp_path: Path):
    overrides = ["epochs=3", "batch_size=4", "save_every=2", "optimizer.learning_rate=1e-3"]
    request = make_finetune_request(
        TWO, model=folder, recipe="gpt", overrides=overrides, **_request()
    )
    list(finetune_events(tmp_path / "whole", request, device="cpu"))
    events = finetune_events(tmp_path / "parts", request, device="cpu")
    saved = 0
    for event in events:
        saved += event.kind == "saved" or "step-0000000" in event.text
        if saved == 3:
            break
    events.close()
    assert saved == 3
    assert not (tmp_path / "parts" / "finished.json").exists()
    list(finetune_events(tmp_path / "parts", request, device="cpu"))
    one, other = (load_model(tmp_path / name).state for name in ("whole", "parts"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_language_model_is_trained_over_the_whole_vocabulary(folder: Path):
    jobs = {}
    for weight in ("0", "0.5"):
        request = make_finetune_request(
            ONE, model=folder, recipe="gpt", overrides=[f"lm_weight={weight}"], **_request()
        )
        jobs[weight] = FinetuneJob(prepare_finetuning(request, torch.device("cpu")))
    used = {
        number
        for group in jobs["0"].groups
        for example in group
        for number in example.input_ids.tolist()
    }
    assert jobs["0"].config.vocab_size <= len(used) + 20 < 100
    assert jobs["0.5"].config.vocab_size == 257
    assert jobs["0"].network().weights == {"task": 1.0}
    assert jobs["0.5"].network().weights == {"task": 1.0, "causal_lm": 0.5}
    assert jobs["0.5"].flops_per_token > jobs["0"].flops_per_token


def test_a_number_has_no_bias_to_start_from():
    network = TaskModel(
        replace(PRESETS["gpt2"], vocab_size=5, num_hidden_layers=1), Regression(mean=3.0)
    )
    assert network.classifier.bias is None


@pytest.mark.parametrize("task", ["tagging", "spans", "qa", "choice"])
def test_other_tasks_are_refused_before_anything_is_written(
    task: str, folder: Path, tmp_path: Path
):
    write = {
        "tagging": write_conll,
        "spans": write_spans,
        "qa": write_squad,
        "choice": write_choices,
    }[task]
    suffix = {"tagging": "conll", "choice": "csv"}.get(task, "json")
    data = write(tmp_path / f"data.{suffix}", 20)
    match = rf"reads left to right, cannot be fine-tuned for {task}\n  hint: --model minilm"
    with pytest.raises(bw.UsageError, match=match):
        tuned(data, folder, tmp_path / "out", task=task)
    assert not (tmp_path / "out").exists()


def test_only_causal_models_have_the_loss(model: Path, tmp_path: Path):
    with pytest.raises(
        bw.UsageError, match=r"lm_weight is 0.5: only GPT and GPT-2 .*\n  hint: --set lm_weight=0"
    ):
        tuned(ONE, model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    tuned(ONE, model, tmp_path / "out", overrides=["lm_weight=0"])


def test_the_frozen_method_reads_the_mean_of_all_tokens(folder: Path, tmp_path: Path):
    """A network that transformers does not have, with a bias, on an encoder that it opens."""
    predictor = bw.finetune(
        ONE, model=folder, output=tmp_path / "out", method="frozen", device="cpu", precision="fp32"
    )
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settings["architectures"] == ["BertworksVectorClassifier"]
    assert settings["model_type"] == predictor.network.encoder.config.family
    assert predictor.network.classifier.bias is not None
    assert predictor.score([row["text"] for row in ONE], [row["label"] for row in ONE]) > 0.7
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")


@pytest.fixture(scope="module")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tuned(ONE, folder, tmp_path_factory.mktemp("finished") / "out")


def test_a_fine_tuned_model_is_served_evaluated_and_explained(finished: Path, tmp_path: Path):
    texts, labels = [row["text"] for row in ONE], [row["label"] for row in ONE]
    loaded = bw.load(finished, device="cpu", precision="fp32")
    assert loaded.can == ("embed", "explain", "generate", "score", "predict")
    (tmp_path / "test.csv").write_text(
        "text,label\n" + "".join(f"{a},{b}\n" for a, b in zip(texts, labels, strict=True))
    )
    figures = bw.evaluate_task(finished, tmp_path / "test.csv", device="cpu")
    assert figures["figures"]["accuracy"] == loaded.predictor().score(texts, labels)
    assert "predict" in Abilities(finished, device="cpu").endpoints
    explanation = loaded.explain("dog good", baseline="pad")
    gradients = explanation.gradients
    assert gradients is not None
    assert abs(gradients.error) < 1e-3 * max(1, abs(gradients.start))
    assert explanation.words[0] == END
    with pytest.raises(
        bw.UsageError,
        match="the baseline 'mask' is not known to this tokenizer\n  hint: use mask or pad",
    ):
        loaded.explain("dog good")


def test_its_onnx_file_gives_the_same_logits(finished: Path, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    list(bw.export(finished, tmp_path / "onnx"))
    exact, exported = (Predictor(path, device="cpu") for path in (finished, tmp_path / "onnx"))
    np.testing.assert_allclose(
        exported.predict_proba(TEXTS), exact.predict_proba(TEXTS), atol=2e-5, rtol=0
    )
    list(bw.export(finished, tmp_path / "int8", int8=True))
    small = Predictor(tmp_path / "int8", device="cpu").predict_proba(TEXTS)
    np.testing.assert_allclose(small, exact.predict_proba(TEXTS), atol=0.05, rtol=0)
    assert bw.load(tmp_path / "onnx").can == ("predict",)


@pytest.mark.skipif(not cpu_supports_int8(), reason="this processor has no VNNI")
def test_int8_is_near(finished: Path):
    exact, small = (
        Predictor(finished, device="cpu", precision=p).predict_proba(TEXTS)
        for p in ("fp32", "int8")
    )
    assert 0 < np.abs(exact - small).max() < 0.05


def test_without_a_task_only_vectors_are_served_and_nothing_is_exported(
    folder: Path, tmp_path: Path
):
    served = Abilities(folder, device="cpu")
    assert {"embed", "similarity", "embeddings"} <= served.endpoints.keys()
    assert "fill" not in served.endpoints
    for encoder in (False, True):
        with pytest.raises(
            bw.BertworksError,
            match="only fine-tuned models are exported of those that read left to right",
        ):
            list(bw.export(folder, tmp_path / "onnx", encoder=encoder))
    assert not (tmp_path / "onnx").exists()
    vectors = bw.load(folder, device="cpu", precision="fp32").embed(["a dog", "é"])
    network = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text, vector in zip(["a dog", "é"], vectors, strict=True):
        with torch.no_grad():
            state = network(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
        np.testing.assert_allclose(vector, state.mean(0), atol=2e-5, rtol=0)
