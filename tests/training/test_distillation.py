"""Distillation (Sanh et al. 2019): the three losses, the start from the teacher's layers, whole
runs."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import bertworks
from bertworks.batching.batch import Batch, Batches, collate
from bertworks.batching.examples import TokenSequence
from bertworks.batching.sampling import ExampleStream, Masker, MaskingConfig
from bertworks.checkpoints.model_folder import load_model, save_model
from bertworks.config import override
from bertworks.errors import BertworksError, UsageError
from bertworks.models.config import PRESETS, EncoderConfig
from bertworks.models.transformer import Encoder, select_layers, student_layers
from bertworks.runs.prepare import make_shards, make_vocabulary, read_text
from bertworks.runs.pretrain import estimate, pretrain
from bertworks.tasks.heads import teacher_loss
from bertworks.tasks.outputs import Classification, MultiLabel, Regression, TaskHead
from bertworks.training.budget import Measurement, measure_steps
from bertworks.training.loop import make_optimizer, train
from bertworks.training.objectives import (
    PretrainingModel,
    Teacher,
    TeacherStates,
    student_config,
    student_state,
)
from bertworks.training.recipe import ObjectiveKind, OptimizerConfig, load_recipe
from tests.batching.test_batch import Numbers
from tests.support.fine import write_reviews
from tests.support.tiny import write_corpus, write_recipe
from tests.training.test_loop import SMALL

KINDS: dict[ObjectiveKind, float] = {"masked_lm": 2.0, "distillation": 5.0, "cosine": 1.0}
TEACHER = replace(SMALL, vocab_size=1000, num_hidden_layers=4)
OWN = replace(
    PRESETS["distilbert-base"], num_hidden_layers=2, hidden_dropout=0.0, attention_dropout=0.0
)
STUDENT = student_config(OWN, TEACHER)


def make_state(c: EncoderConfig = TEACHER, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random parameters, also biases and norms."""
    torch.manual_seed(seed)
    model = PretrainingModel(c, {"masked_lm": 1.0})
    return {name: p.detach() + 0.1 * torch.randn_like(p) for name, p in model.named_parameters()}


def make_student(dtype: torch.dtype = torch.float32) -> PretrainingModel:
    model = PretrainingModel(STUDENT, KINDS, temperature=2.0)
    model.load_state_dict(make_state(STUDENT, 1))
    model.to(dtype)
    teacher = Teacher(TEACHER, make_state(), dtype)
    teacher.parts.to(dtype)
    model.teacher = teacher
    return model.eval()


def stream() -> ExampleStream:
    return ExampleStream(Numbers(50), Masker(MaskingConfig(), 4, np.ones(1000, bool)))


def batch_of(numbers: range) -> Batch:
    examples = stream()
    return collate([examples[n] for n in numbers])


def written_out(model: PretrainingModel, batch: Batch) -> dict[str, torch.Tensor]:
    """The means of the three losses by torch's functions, on the logits of all tokens."""
    assert isinstance(model.teacher, Teacher)
    assert model.lm_head is not None
    states = model.encoder(batch.input_ids, batch.layout, batch.token_type_ids)[-1]
    theirs = model.teacher.encoder(batch.input_ids, batch.layout, batch.token_type_ids)[-1]
    logits = model.lm_head(states, model.encoder.embeddings.token.weight)
    other = model.teacher.lm_head(theirs, model.teacher.encoder.embeddings.token.weight)
    target = batch.targets["masked_lm"]
    divergence = torch.nn.KLDivLoss(reduction="batchmean")(
        F.log_softmax(logits / 2, -1), F.softmax(other / 2, -1)
    )
    ones = torch.ones(len(states), dtype=states.dtype)
    return {
        "masked_lm": F.cross_entropy(logits[target.positions], target.labels),
        "distillation": 4 * divergence,
        "cosine": torch.nn.CosineEmbeddingLoss()(states, theirs, ones),
    }


@pytest.mark.parametrize("chunk", [1 << 27, 40_000])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_the_losses_and_their_gradients(
    dtype: torch.dtype, tolerance: float, chunk: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("bertworks.training.objectives.CHUNK_BYTES", chunk)
    model, batch = make_student(dtype), batch_of(range(6))
    result, counts, expected = model(batch), model.counts(batch), written_out(model, batch)
    assert {*counts.values()} == {len(batch.input_ids), len(batch.targets["masked_lm"].labels)}
    gradients = []
    for losses in ({kind: result[kind].loss / counts[kind] for kind in KINDS}, expected):
        model.zero_grad()
        torch.stack([KINDS[kind] * losses[kind] for kind in KINDS]).sum().backward()
        gradients.append(
            {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        )
    for kind in (
        ("distillation", "cosine", "masked_lm")
        if dtype == torch.float32
        else ("distillation", "cosine")
    ):
        assert result[kind].loss.item() / counts[kind] == pytest.approx(
            expected[kind].item(), abs=tolerance
        ), kind
    assert (
        gradients[0].keys() == gradients[1].keys() == {name for name, _ in model.named_parameters()}
    )
    for name, gradient in gradients[0].items():
        limit = (1e-4 if dtype == torch.float32 else 1e-9) * gradients[1][name].abs().max()
        assert (gradient - gradients[1][name]).abs().max() <= limit, name


def test_packed_sequences_have_the_losses_of_single_ones():
    model, examples = make_student(torch.float64), stream()
    whole = model(batch_of(range(5)))
    single = [model(collate([examples[n]])) for n in range(5)]
    for kind, loss in whole.items():
        assert loss.loss.item() == pytest.approx(
            sum(one[kind].loss.item() for one in single), rel=1e-6
        ), kind
    assert model(batch_of(range(4)))["cosine"].loss != whole["cosine"].loss


def trained(micro: int, steps: int = 3) -> dict[str, torch.Tensor]:
    model = make_student()
    c = OptimizerConfig(learning_rate=1e-3, warmup=0.5)
    list(train(model, make_optimizer(model, c), Batches(stream(), 13, micro), c, steps))
    return model.state_dict()


def test_an_accumulated_batch_is_a_large_one():
    one, parts = trained(10_000), trained(40)
    assert all((value - parts[name]).abs().max() <= 2e-5 for name, value in one.items())


def test_the_teacher_is_no_part_of_the_network():
    model, state = make_student(), make_state()
    teacher = model.teacher
    assert isinstance(teacher, Teacher)
    names = {name for name, _ in model.named_parameters()}
    assert names == {*make_state(STUDENT)}
    c = OptimizerConfig(learning_rate=1e-2)
    list(train(model, make_optimizer(model, c), Batches(stream(), 4, 1000), c, 2))
    assert not teacher.encoder.training
    assert all(
        torch.equal(value, state[name]) for name, value in teacher.parts.state_dict().items()
    )
    assert not any(p.requires_grad or p.grad is not None for p in teacher.parts.parameters())


def test_a_teacher_in_bf16_is_rounded_once():
    exact, rounded = (
        Teacher(TEACHER, make_state(), dtype) for dtype in (torch.float32, torch.bfloat16)
    )
    batch = batch_of(range(3))
    one, other = exact(batch), rounded(batch)
    assert isinstance(other, TeacherStates)
    assert {other.states.dtype, other.x.dtype, other.embeddings.dtype} == {torch.bfloat16}
    assert rounded.encoder.embeddings.token.weight.dtype == torch.float32
    assert (one.states - other.states).abs().max() < 0.1
    assert rounded.table.data_ptr() == rounded(batch).embeddings.data_ptr()


def test_the_layers_of_a_student():
    assert student_layers(12, 6) == (0, 2, 4, 7, 9, 11)
    assert student_layers(6, 3) == (0, 2, 4)
    assert student_layers(4, 2) == (0, 2)
    assert student_layers(5, 5) == (0, 1, 2, 3, 4)


def test_a_student_with_all_layers_is_its_teacher():
    """Without token types, where the teacher's types are all 0; with some layers it is not."""
    state, batch = make_state(), batch_of(range(5))
    zeros = torch.zeros_like(batch.input_ids)
    expected = Teacher(TEACHER, state, torch.float32).encoder(batch.input_ids, batch.layout, zeros)[
        -1
    ]
    for layers, same in ((4, True), (2, False)):
        c = student_config(replace(OWN, num_hidden_layers=layers), TEACHER)
        assert (c.type_vocab_size, c.family, c.hidden_size) == (
            0,
            "distilbert",
            TEACHER.hidden_size,
        )
        model = PretrainingModel(c, KINDS)
        model.load_state_dict(student_state((TEACHER, state, None), c))
        states = model.eval().encoder(batch.input_ids, batch.layout, None)[-1]
        assert ((states - expected).abs().max() <= 2e-6) == same


@pytest.mark.parametrize("groups", [1, 2])
def test_layers_that_share_a_block(groups: int):
    c = replace(TEACHER, num_hidden_groups=groups)
    state = {name: value for name, value in make_state(c).items() if name.startswith("encoder.")}
    fewer, selected = select_layers(c, state, student_layers(c.num_hidden_layers, 2))
    one, batch = Encoder(fewer), batch_of(range(3))
    one.load_state_dict({name.removeprefix("encoder."): value for name, value in selected.items()})
    whole = Encoder(c)
    whole.load_state_dict({name.removeprefix("encoder."): value for name, value in state.items()})
    x = whole(batch.input_ids, batch.layout, batch.token_type_ids)[0]
    for layer in (0, 2):
        x = whole.layers[layer](x, batch.layout)
    assert (one(batch.input_ids, batch.layout, batch.token_type_ids)[-1] - x).abs().max() <= 2e-6


def test_rare_tokens_are_masked_more_often():
    """With counts 1 and 1000 and power -0.7, the rare one of two candidates is drawn 1 / (1 + 1000
    ** -0.7) times."""
    counts = np.array([0, 1, 1000], np.int64)
    for power, expected in ((-0.7, 1 / (1 + 1000**-0.7)), (0.7, 1000**-0.7 / (1 + 1000**-0.7))):
        masker = Masker(
            MaskingConfig(rate=0.4, frequency_power=power), 0, np.ones(3, bool), counts=counts
        )
        ids, special = np.array([0, 1, 2]), np.array([True, False, False])
        r = np.random.default_rng(0)
        rare = [
            masker(TokenSequence(ids, ids, special, {}), r).target.positions.tolist() == [1]
            for _ in range(4000)
        ]
        assert np.mean(rare) == pytest.approx(expected, abs=0.02)
    with pytest.raises(ValueError, match=r"frequency_power -0\.7 with unit 'whole_word'"):
        MaskingConfig(frequency_power=-0.7, unit="whole_word")


def test_the_recipe_is_the_published_one():
    r = load_recipe("distilbert")
    assert r.weights == {"masked_lm": 2, "distillation": 5, "cosine": 1}
    assert r.encoder == replace(PRESETS["distilbert-base"], vocab_size=0)
    o, m = r.optimizer, r.masking
    assert (o.learning_rate, o.beta1, o.beta2, o.eps, o.weight_decay) == (
        5e-4,
        0.9,
        0.98,
        1e-6,
        0.0,
    )
    assert (o.max_grad_norm, o.warmup, m.rate, m.frequency_power, r.temperature) == (
        5.0,
        0.05,
        0.15,
        -0.7,
        2.0,
    )
    assert r.train.phases[0].batch_size == 5 * 50
    own = r.encoder.flops_per_token(512, 1.15)
    twelve = replace(r.encoder, num_hidden_layers=12)
    assert r.flops_per_token(512) == pytest.approx(own + twelve.flops_per_token(512, 1.0) / 3)
    assert load_recipe("distilbert-small").encoder.num_hidden_layers == 2


def test_an_estimate_needs_no_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    monkeypatch.setattr("bertworks.runs.pretrain.measure_steps", lambda *_: Measurement([1.0], 0))
    assert estimate([corpus], recipe="distilbert").parameters == 66_985_530
    small = ["train.phases.0.batch_size=1", "encoder.hidden_size=48", "encoder.num_hidden_layers=1"]
    recipe = override(
        load_recipe("distilbert"), [*small, "encoder.vocab_size=99", "train.precision=fp32"]
    )
    monkeypatch.undo()
    assert measure_steps(recipe, torch.device("cpu"), 0.1).step_seconds[0] > 0


TINY = (
    "train.phases.0.num_steps=8",
    "train.phases.0.batch_size=8",
    "train.phases.0.sequence_length=32",
    "train.precision=fp32",
    "train.evaluate_every=4",
    "train.save_every=4",
    "train.held_out_sequences=16",
)
SIZE = (*TINY, "encoder.num_hidden_layers=1")


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A corpus, a teacher with two layers and a student of it."""
    folder = tmp_path_factory.mktemp("taught")
    corpus = write_corpus(folder / "corpus.jsonl")
    recipe = write_recipe(
        folder / "r.toml",
        ("num_hidden_layers = 1", "num_hidden_layers = 2"),
        ("num_steps = 40", "num_steps = 10"),
    )
    list(pretrain([corpus], folder / "teacher", recipe=str(recipe), device="cpu"))
    common = {
        "inputs": [corpus],
        "recipe": "distilbert",
        "teacher": str(folder / "teacher"),
        "device": "cpu",
    }
    events = list(pretrain(**common, output=folder / "student", overrides=SIZE))
    return {"folder": folder, "common": common, "events": events}


def test_a_whole_run(taught: dict[str, Any]):
    folder, done = taught["folder"], taught["events"][-1]
    assert {"masked_lm_loss", "distillation_loss", "cosine_loss"} <= done.fields[
        "evaluation"
    ].keys()
    assert "teacher's logits: loss" in done.text
    assert any("layers 0 of the teacher" in event.text for event in taught["events"])
    student, teacher = load_model(folder / "student"), load_model(folder / "teacher")
    assert (student.config.hidden_size, student.config.family) == (
        teacher.config.hidden_size,
        "distilbert",
    )
    assert student.tokenizer.sha256 == teacher.tokenizer.sha256
    assert not any(
        "teacher" in name for name in load_file(folder / "student" / "model.safetensors")
    )
    assert "teacher_layers = 2" in (folder / "student" / "recipe.toml").read_text()
    assert bertworks.load(folder / "student").fill(["ba [MASK] da."])


def test_a_stopped_run_resumes_to_the_same_bits(taught: dict[str, Any], tmp_path: Path):
    events = pretrain(**taught["common"], output=tmp_path / "student", overrides=SIZE)
    for event in events:
        if event.kind == "saved" and event.fields["step"] == 4:
            break
    events.close()  # type: ignore[attr-defined]
    list(pretrain(**taught["common"], output=tmp_path / "student", overrides=SIZE))
    one, other = (
        load_file(path / "student" / "model.safetensors") for path in (taught["folder"], tmp_path)
    )
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_another_teacher_is_refused_in_the_same_folder(taught: dict[str, Any], tmp_path: Path):
    shutil.copytree(taught["folder"] / "student", tmp_path / "student")
    folder = shutil.copytree(taught["folder"] / "teacher", tmp_path / "teacher")
    m = load_model(folder)
    m.state["encoder.embeddings.norm.bias"] += 1
    run = {**taught["common"], "teacher": str(taught["folder"] / "teacher")}
    files = [taught["folder"] / "teacher" / name for name in ("model.safetensors", "weights.json")]
    before = [path.read_bytes() for path in files]
    try:
        save_model(taught["folder"] / "teacher", m.state, m.config, m.tokenizer, card="")
        with pytest.raises(UsageError, match="teacher_sha256"):
            list(pretrain(**run, output=tmp_path / "student", overrides=SIZE))
    finally:
        for path, content in zip(files, before, strict=True):
            path.write_bytes(content)


def test_a_budget_chooses_half_of_the_layers(taught: dict[str, Any]):
    from bertworks.runs.pretrain import _draft, make_request

    request = make_request(
        taught["common"]["inputs"],
        recipe="distilbert",
        teacher=taught["common"]["teacher"],
        budget="20s",
    )
    recipe = _draft(request, torch.device("cpu")).recipe
    assert (recipe.title, recipe.encoder.num_hidden_layers, recipe.initialization) == (
        "DistilBERT for 20 s",
        1,
        "published",
    )
    assert recipe.optimizer.learning_rate == 5e-4
    assert recipe.weights == KINDS


def without_head(folder: Path, teacher: Path) -> Path:
    m = load_model(teacher)
    state = {name: value for name, value in m.state.items() if name.startswith("encoder.")}
    save_model(folder, state, m.config, m.tokenizer, card="")
    return folder


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"recipe": "bert-tiny"}, "has no objective with a teacher"),
    ({"teacher": None}, "the recipe distilbert learns from a teacher"),
    (
        {"overrides": TINY},
        "the student has 6 layers, the teacher 2: expected encoder.num_hidden_layers = 1",
    ),
    (
        {"overrides": (*SIZE, "encoder.hidden_size=96")},
        "encoder.hidden_size is 96, but 32 in the teacher",
    ),
    (
        {"overrides": (*SIZE, "encoder.type_vocab_size=3")},
        "encoder.type_vocab_size is 3, that of the teacher 2",
    ),
    ({"overrides": (*SIZE, "encoder.direction=right_to_left")}, "the teacher reads bidirectional"),
    ({"tokenizer": "TEACHER"}, "--teacher takes the tokenizer of the model"),
    ({"init": "TEACHER"}, "--teacher takes the tokenizer of the model"),
    ({"teacher": "HEADLESS"}, "this model has no lm_head"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_is_refused(
    changes: dict[str, Any], message: str, taught: dict[str, Any], tmp_path: Path
):
    teacher = taught["folder"] / "teacher"
    make: dict[Any, Callable[[], object]] = {
        "TEACHER": lambda: str(teacher),
        "HEADLESS": lambda: str(without_head(tmp_path / "headless", teacher)),
    }
    given = {
        name: make[value]() if value in ("TEACHER", "HEADLESS") else value
        for name, value in changes.items()
    }
    with pytest.raises(BertworksError, match=message):
        list(
            pretrain(**{**taught["common"], "overrides": SIZE, "output": tmp_path / "out", **given})
        )
    assert not (tmp_path / "out").exists()


def test_shards_of_another_tokenizer_are_refused(taught: dict[str, Any], tmp_path: Path):
    reader = read_text([*map(str, taught["common"]["inputs"])])
    list(make_vocabulary(reader, tmp_path / "other", bertworks.VocabularyConfig(size=250)))
    shards = tmp_path / "shards"
    list(make_shards(reader, shards, bertworks.Tokenizer.load(tmp_path / "other")))
    with pytest.raises(BertworksError, match="these shards were made with another tokenizer"):
        list(
            pretrain(
                **{**taught["common"], "inputs": [shards]}, output=tmp_path / "out", overrides=SIZE
            )
        )


# Fine-tuning
def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p * (p / q).log()).sum()


@pytest.mark.parametrize(
    "task", [Classification(outputs=3), MultiLabel(outputs=3), Regression(mean=2, deviation=4.0)]
)
def test_the_loss_of_a_task_with_a_teacher(task: TaskHead):
    r = torch.Generator().manual_seed(0)
    logits, theirs = (
        torch.randn(7, task.outputs, generator=r, dtype=torch.float64) for _ in range(2)
    )
    x, y = logits / 2, theirs / 2
    if isinstance(task, Classification):
        expected = 4 * kl(y.softmax(-1), x.softmax(-1))
    elif isinstance(task, MultiLabel):
        expected = 4 * (kl(y.sigmoid(), x.sigmoid()) + kl(1 - y.sigmoid(), 1 - x.sigmoid()))
    else:
        expected = F.mse_loss(logits / 4, theirs / 4, reduction="sum")
    assert teacher_loss(task, logits, theirs, 2.0).item() == pytest.approx(
        expected.item(), abs=1e-10
    )


FAST = {"epochs": 1, "method": "full", "validation": "split", "device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def tutor(taught: dict[str, Any]) -> tuple[Path, Path]:
    """Labelled data, and a model that was fine-tuned on it."""
    data = write_reviews(taught["folder"] / "reviews.csv")
    bertworks.finetune(
        data, model=taught["folder"] / "teacher", output=taught["folder"] / "tutor", **FAST
    )
    return data, taught["folder"] / "tutor"


def test_a_student_of_a_fine_tuned_teacher(tutor: tuple[Path, Path], tmp_path: Path):
    """It starts from the layer and the head of the teacher, whose labels are in another order, and
    learns from both."""
    data, teacher = tutor
    rows = data.read_text().splitlines()
    shuffled = tmp_path / "other.csv"
    shuffled.write_text(
        "\n".join([rows[0], *sorted(rows[1:], key=lambda row: "neg" in row)]) + "\n"
    )
    out = tmp_path / "student"
    request = bertworks.make_finetune_request(
        shuffled,
        model=teacher,
        layers=1,
        teacher=teacher,
        **{name: value for name, value in FAST.items() if name not in ("device", "progress")},
    )
    events = list(bertworks.finetune_events(out, request, device="cpu"))
    plan = next(event.text for event in events if event.kind == "plan")
    assert "1 of its layers" in plan
    assert "50% of the loss" in plan
    assert load_model(out).config.num_hidden_layers == 1
    assert '"distillation_loss": ' in (out / "metrics.jsonl").read_text()
    assert any("the teacher has predicted" in event.text for event in events)


def test_a_teacher_of_itself_has_no_loss(tutor: tuple[Path, Path]):
    """The logits of the teacher are those of the network that it is: the loss at the start is 0,
    with the labels in the order of the data."""
    from bertworks.runs.finetune_job import FinetuneJob, prepare_finetuning

    data, teacher = tutor
    request = bertworks.make_finetune_request(
        data, model=teacher, teacher=teacher, overrides=["dropout=0"]
    )
    job = FinetuneJob(prepare_finetuning(request, torch.device("cpu")))
    network, _ = job.initial_network()
    (batch, *_) = job.batches(Path(), 0, 1, lambda text: None)(0)
    losses, counts = network(batch), network.counts(batch)
    assert counts == {"task": len(batch.target.labels), "distillation": len(batch.target.labels)}
    assert losses["distillation"].loss.item() == pytest.approx(0, abs=1e-6)
    assert losses["task"].loss.item() > 0.1
    assert network.weights == {"task": 0.5, "distillation": 0.5}


def test_what_a_fine_tuning_refuses(tutor: tuple[Path, Path], tmp_path: Path):
    data, teacher = tutor

    def refused(message: str, **options: Any) -> None:
        with pytest.raises(BertworksError, match=message):
            bertworks.finetune(
                **{"data": data, "output": tmp_path / "out", "teacher": teacher, **FAST, **options}
            )
        assert not (tmp_path / "out").exists()

    refused("the method 'cosine' does not use --teacher", method="cosine")
    refused("--layers 3: expected a number from 1 to 2", model=teacher, layers=3)
    refused("the teacher has another tokenizer than the model", model="minilm")
    start, other = teacher.parent / "teacher", tmp_path / "other.csv"
    other.write_text(data.read_text().replace(",pos,", ",good,"))
    refused(r"the teacher was fine-tuned for classification \(neg, pos\)", data=other, model=start)
    refused("was not fine-tuned for a task", model=teacher, teacher=start)
