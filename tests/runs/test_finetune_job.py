"""Methods of fine-tuning: a linear head on frozen vectors, pairs by their cosine, and the choice
between methods."""

import inspect
import io
import json
import re
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.preprocessing import StandardScaler

import bertworks as bw
from bertworks.batching.batch import LabelledBatches
from bertworks.batching.examples import ExampleGroup
from bertworks.checkpoints.model_folder import ModelFolder
from bertworks.errors import BertworksError, UsageError
from bertworks.events import Event
from bertworks.inference.embedder import Embedder
from bertworks.inference.predictor import Predictor
from bertworks.interop.export import export
from bertworks.metrics.intervals import learning_curve
from bertworks.runs.baselines import baseline_answers
from bertworks.runs.data_splits import EVALUATED, FOLDS, PARTS
from bertworks.runs.finetune import (
    _fit_budget as fit_budget,
    _without_folds as without_folds,
    choose_method,
    finetune_events,
    make_finetune_request,
    sufficient_accuracy,
    trainings,
)
from bertworks.runs.finetune_job import (
    FinetuneJob,
    FinetuneRequest,
    Forecast,
    TaskTeacher,
    VocabSubset,
    forecast,
    prepare_finetuning,
)
from bertworks.runs.trials import plan_trials, run_trials
from bertworks.tasks import linear_head
from bertworks.tasks.heads import TEACHER, TaskModel
from bertworks.tasks.linear_head import SEQUENCE_DEVIATION
from bertworks.tasks.outputs import Classification
from bertworks.tasks.scores import row_sums
from bertworks.tasks.task import softmax
from bertworks.training.loop import make_optimizer, train
from bertworks.training.recipe import OptimizerConfig, load_finetune_recipe
from tests.scenarios.test_same_probabilities import CPU, calibrated as calibrated, job_of
from tests.support.fine import (
    read_data,
    write_conll,
    write_multilabel,
    write_pairs,
    write_reviews,
    write_squad,
)
from tests.support.heads import CONFIG, example
from tests.support.refusals import refusal

FAST = ("optimizer.learning_rate=2e-3", "epochs=2", "precision=fp32")


def run(data: Path, output: Path, model: Path, **options: Any) -> tuple[Event, list[Event]]:
    overrides = options.pop("overrides", FAST[2:] if options.get("method") == "frozen" else FAST)
    request = make_finetune_request(data, model=model, overrides=overrides, **options)
    *events, last = finetune_events(output, request, device="cpu")
    assert last.kind == "done"
    return last, events


def value_of(events: Generator[Event, None, FinetuneJob]) -> FinetuneJob:
    """Return what a generator returns after its last event."""
    while True:
        try:
            next(events)
        except StopIteration as end:
            return end.value


def end_after_stops(output: Path, request: FinetuneRequest, stops: Sequence[int]) -> Event:
    """Return the last event of a run that was stopped after these numbers of checkpoints."""
    for stop in stops:
        stream = finetune_events(output, request, device="cpu")
        saved = 0
        for event in stream:
            saved += event.kind == "saved"
            if saved == stop:
                break
        stream.close()
    *_, done = finetune_events(output, request, device="cpu")
    return done


def logistic(x: np.ndarray, labels: list[str]) -> Callable[[np.ndarray], np.ndarray]:
    """The probabilities of scikit-learn's logistic regression with the same prior."""
    scaler = StandardScaler().fit(x)
    fitted = LogisticRegression(C=SEQUENCE_DEVIATION**2 / x.shape[1], max_iter=1000, tol=1e-8)
    fitted.fit(scaler.transform(x), labels)
    return lambda new: fitted.predict_proba(scaler.transform(new))


def vectors_of(model: Path, texts: list[str]) -> np.ndarray:
    return (
        Embedder(model, pooling="mean", normalize=False, device="cpu", precision="fp32")
        .embed(texts)
        .astype(float)
    )


def test_pairs_have_the_difference_product_and_cosine_of_their_vectors(
    model: Path, tmp_path: Path
) -> None:
    data = write_pairs(tmp_path / "pairs.tsv", 80)
    run(data, tmp_path / "out", model, method="frozen")
    rows = read_data(data, validation="folds").train
    sides = [vectors_of(model, [item.texts[n] for item in rows]) for n in (0, 1)]
    u, v = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides)
    x = np.concatenate([abs(u - v), u * v, (u * v).sum(1, keepdims=True)], 1)
    scaler = StandardScaler().fit(x)
    fitted = RidgeCV(alphas=np.logspace(-1, 5, 25)).fit(
        scaler.transform(x), [item.label for item in rows]
    )
    answers = Predictor(tmp_path / "out", device="cpu", precision="fp32").predict(
        [item.texts for item in rows[:20]]
    )
    assert [a["value"] for a in answers] == pytest.approx(
        fitted.predict(scaler.transform(x[:20])), abs=1e-3
    )


def test_a_validated_row_is_predicted_by_a_head_that_did_not_see_it(
    model: Path, tmp_path: Path
) -> None:
    data = write_reviews(tmp_path / "reviews.csv", 80)
    request = make_finetune_request(data, model=model, overrides=FAST[2:], method="frozen")
    job = FinetuneJob(prepare_finetuning(request, torch.device("cpu")))
    logits = job.logits_of_evaluated_parts
    assert len(job.data.parts) == PARTS
    assert sorted(n for part in job.data.parts for n in part) == list(range(len(job.train)))
    rows = job.data.train
    x, labels = (
        vectors_of(model, [item.texts[0] for item in rows]),
        np.array([item.label for item in rows]),
    )
    assert [len(one) for one in logits] == [len(part) for part in job.data.parts[:EVALUATED]]
    assert job.data.dev == job.data.train
    assert len(job.data.tenths) == FOLDS
    assert sorted(n for part in job.data.tenths for n in part) == list(range(len(job.train)))
    by_tenths = [[job.logits_of_tenths[n] for n in part] for part in job.data.tenths]
    for part, outputs in [*zip(job.data.parts, logits), *zip(job.data.tenths, by_tenths)]:
        others = [n for n in range(len(rows)) if n not in set(part)]
        expected = logistic(x[others], labels[others].tolist())(x[part])
        assert softmax(np.concatenate(outputs)) == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize(
    ("write", "name"), [(write_multilabel, "topics.jsonl"), (write_conll, "names.conll")]
)
def test_frozen_heads_of_other_tasks_learn(
    write: Any, name: str, model: Path, tmp_path: Path
) -> None:
    done, _ = run(write(tmp_path / name, 80), tmp_path / "out", model, method="frozen")
    assert done.fields["score"] > 0.5
    assert ModelFolder(tmp_path / "out").task_config.task in ("multilabel", "tagging")


@pytest.mark.slow
def test_cosine_starts_from_the_cosine_and_is_trained(model: Path, tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "pairs.tsv", 80)
    request = make_finetune_request(data, model=model, overrides=FAST, method="cosine")
    job = FinetuneJob(prepare_finetuning(request, torch.device("cpu")))
    network, _ = job.initial_network()
    start = job.evaluate(network.eval())
    u, v = (vectors_of(model, [item.texts[n] for item in job.data.dev]) for n in (0, 1))
    cosine = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    gold = np.array([item.label for item in job.data.dev])
    assert abs(start["pearson"]) == pytest.approx(abs(np.corrcoef(cosine, gold)[0, 1]), abs=1e-4)
    done, _ = run(data, tmp_path / "out", model, method="cosine", overrides=(*FAST, "epochs=10"))
    assert done.fields["score"] > start["spearman"] + 0.1


def test_auto_takes_the_method_that_is_best_on_unseen_rows_and_resumes(
    model: Path, tmp_path: Path
) -> None:
    data = write_pairs(tmp_path / "pairs.tsv")
    whole, events = run(data, tmp_path / "out", model)
    note = next(event for event in events if event.text.startswith("method: "))
    assert set(note.fields["methods"]) == {"full", "frozen", "untrained", "cosine"}
    assert (
        note.fields["method"]
        == max(note.fields["methods"], key=note.fields["methods"].get)
        == whole.fields["method"]
    )
    card = (tmp_path / "out" / "README.md").read_text()
    assert "\nScored by 10-fold cross-validation on all" in card
    assert not (tmp_path / "out" / "folds").exists()
    request = make_finetune_request(data, model=model, overrides=FAST)
    # in the first fold, then in a later one
    done = end_after_stops(tmp_path / "again", request, (2, 6))
    assert done.fields["figures"] == whole.fields["figures"]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "again")]
    assert weights[0] == weights[1]


def test_methods_that_do_not_apply(model: Path, tmp_path: Path) -> None:
    reviews = write_reviews(tmp_path / "reviews.csv", 80)
    squad = write_squad(tmp_path / "squad.json")
    with pytest.raises(
        UsageError, match="the method 'cosine' is not for classification of single texts"
    ):
        run(reviews, tmp_path / "out", model, method="cosine")
    with pytest.raises(UsageError, match="the method 'frozen' is not for qa") as caught:
        run(squad, tmp_path / "out", model, method="frozen")
    assert caught.value.hint == "use --method full"
    with pytest.raises(UsageError, match="has no LSTM"):
        run(
            write_conll(tmp_path / "names.conll"),
            tmp_path / "out",
            model,
            method="frozen",
            recipe="feature_based",
        )
    assert not (tmp_path / "out").exists()


def test_export_of_a_frozen_model(model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "reviews.csv", 80)
    run(data, tmp_path / "out", model, method="frozen")
    *_, done = export(tmp_path / "out", tmp_path / "onnx", data=data)
    assert done.fields["figures"] == done.fields["figures_ours"]
    assert json.loads((tmp_path / "onnx" / "task.json").read_text())["vectors"] == "mean"
    run(write_pairs(tmp_path / "pairs.tsv", 80), tmp_path / "pairs", model, method="frozen")
    with pytest.raises(BertworksError, match="compares the vectors of two texts"):
        list(export(tmp_path / "pairs", tmp_path / "onnx-2"))


def test_rows_of_one_group_are_trained_beside_a_dev_file(model: Path, tmp_path: Path) -> None:
    """They cannot be divided, so that no methods are compared; alone they cannot be evaluated."""
    (tmp_path / "one.csv").write_text(
        "text,author,label\n" + "a film,me,pos\nthe town,me,neg\n" * 20
    )
    dev = write_reviews(tmp_path / "dev.csv", 20)
    request = {"group": "author", "text": ["text"], "label": "label"}
    done, events = run(tmp_path / "one.csv", tmp_path / "out", model, dev=dev, **request)
    assert done.fields["method"] == "full"
    assert done.fields["choice"] == "full; no other one was compared"
    assert not any(event.text.startswith("method: ") for event in events)
    with pytest.raises(BertworksError, match="too few to train and to evaluate"):
        run(tmp_path / "one.csv", tmp_path / "alone", model, **request)


def test_trainings_from_a_fitted_head_are_shorter_and_gentler(model: Path, tmp_path: Path) -> None:
    """Unless the request names other settings; the recipe of a resumed run is taken as it is."""
    data, cpu = write_pairs(tmp_path / "pairs.tsv"), torch.device("cpu")
    job = FinetuneJob(prepare_finetuning(make_finetune_request(data, model=model), cpu))
    cosine = job.variant("cosine")
    assert (job.recipe.epochs, cosine.recipe.epochs) == (31, 10)
    assert cosine.recipe.optimizer.learning_rate == pytest.approx(
        0.3 * job.recipe.optimizer.learning_rate
    )
    direct = FinetuneJob(
        prepare_finetuning(make_finetune_request(data, model=model, method="cosine"), cpu)
    )
    assert direct.recipe == cosine.recipe
    assert (
        FinetuneJob(prepare_finetuning(direct.request, cpu, direct.recipe)).recipe == direct.recipe
    )
    assert (
        FinetuneJob(prepare_finetuning(job.request, cpu, job.recipe)).variant("cosine").recipe
        == cosine.recipe
    )
    named = FinetuneJob(
        prepare_finetuning(
            make_finetune_request(data, model=model, epochs=30, learning_rate=1e-3), cpu
        )
    ).variant("cosine")
    assert (named.recipe.epochs, named.recipe.optimizer.learning_rate) == (30, 1e-3)


def test_a_new_classifier_starts_with_weights_of_the_deviation_of_the_recipe(
    model: Path, tmp_path: Path
) -> None:
    """Of texts, not of numbers, and not in the recipe of the paper."""
    reviews, pairs, cpu = (
        write_reviews(tmp_path / "a.csv", 80),
        write_pairs(tmp_path / "b.tsv", 80),
        torch.device("cpu"),
    )
    stds = []
    for data, recipe in (
        (reviews, "paper"),
        (reviews, "stable"),
        (pairs, "paper"),
        (pairs, "stable"),
    ):
        job = FinetuneJob(
            prepare_finetuning(
                make_finetune_request(data, model=model, recipe=recipe, method="full"), cpu
            )
        )
        stds.append(job.initial_network()[0].get_parameter("classifier.weight").std().item())
    ratio = 6 / 32**0.5 / job.model.config.initializer_range
    assert stds[1] / stds[0] == pytest.approx(ratio, rel=1e-5)
    assert stds[2] == stds[3]


def test_a_budget_limits_the_epochs(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the recipe, if there is time for them; a resumed run keeps its epochs."""
    data, request = (
        write_reviews(tmp_path / "reviews.csv", 80),
        {"model": model, "method": "full", "validation": "split"},
    )
    monkeypatch.setattr(
        "bertworks.runs.finetune.forecast", lambda job, *_: Forecast(10.0 * job.recipe.epochs, 0.0)
    )

    def epochs(output: str) -> int:
        requested = make_finetune_request(data, budget="1m", **request)
        *_, done = finetune_events(tmp_path / output, requested, device="cpu")
        assert done.kind == "done"
        return load_finetune_recipe(str(tmp_path / output / "recipe.toml")).epochs

    fitted = epochs("a")
    assert fitted in (3, 4, 5)
    monkeypatch.setattr(
        "bertworks.runs.finetune.forecast", lambda job, *_: Forecast(99.0 * job.recipe.epochs, 0.0)
    )
    assert epochs("a") == fitted
    monkeypatch.setattr(
        "bertworks.runs.finetune.forecast", lambda job, *_: Forecast(0.01 * job.recipe.epochs, 0.0)
    )
    plenty = make_finetune_request(data, budget="1m", epochs=None, **request)
    planned = next(
        e for e in finetune_events(tmp_path / "b", plenty, device="cpu") if e.kind == "plan"
    )
    default = FinetuneJob(
        prepare_finetuning(make_finetune_request(data, **request), torch.device("cpu"))
    ).recipe.epochs
    assert planned.fields["recipe"]["epochs"] == default > fitted


def test_a_budget_too_short_for_an_epoch(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_reviews(tmp_path / "reviews.csv", 80)
    monkeypatch.setattr(
        "bertworks.runs.finetune.forecast", lambda job, *_: Forecast(100.0 * job.recipe.epochs, 0.0)
    )
    request = make_finetune_request(
        data, model=model, method="full", validation="split", budget="1m"
    )
    with pytest.raises(UsageError, match="a budget of 60 s is too short") as caught:
        list(finetune_events(tmp_path / "out", request, device="cpu"))
    assert caught.value.hint == "--budget 3m or --method frozen"
    assert not (tmp_path / "out").exists()
    longer = make_finetune_request(
        data, model=model, method="full", validation="split", budget="3m"
    )
    assert any(
        event.kind == "plan" for event in finetune_events(tmp_path / "longer", longer, device="cpu")
    )
    frozen = make_finetune_request(data, model=model, method="frozen", budget="1m")
    *_, done = finetune_events(tmp_path / "frozen", frozen, device="cpu")
    assert done.fields["method"] == "frozen"


def test_a_budget_and_epochs_contradict() -> None:
    for options in ({"epochs": 3}, {"overrides": ["epochs=3"]}):
        with pytest.raises(UsageError, match="a budget decides the number of epochs"):
            make_finetune_request("reviews.csv", budget="5m", **options)


def test_figures_of_a_cross_validation_say_so(model: Path, tmp_path: Path) -> None:
    """In the last message, on the page and in the card; those of a dev file say that."""
    data, dev = write_pairs(tmp_path / "pairs.tsv", 80), write_pairs(tmp_path / "other.tsv", 40)
    for name, options in (("folds", {}), ("dev", {"dev": dev})):
        folder = tmp_path / name
        done, _ = run(data, folder, model, method="frozen", **options)
        page, card = (folder / "report.html").read_text(), (folder / "README.md").read_text()
        said = [done.text, page.partition("<details>")[0], card.partition("## Use")[0]]
        for text in said:
            assert ("n cross-validation" in text) == (name == "folds"), text
            assert ("n dev" in text) == (name == "dev"), text
        assert "Numbers " + {"folds": "in cross-validation", "dev": "on dev"}[name] in page
        assert "linear head" in done.text
        assert "advantage of the linear head" in said[1]
        assert "fine-tuning is" not in done.text + page + card


def test_trials_compute_their_baselines_once(model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "reviews.csv", 40)
    request = make_finetune_request(
        data, model=model, overrides=["epochs=1"], method="full", validation="split"
    )
    calls = []

    def counted(*values: Any, **options: Any) -> Any:
        calls.append(1)
        return baseline_answers(*values, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertworks.runs.finetune.baseline_answers", counted)
        *_, done = run_trials(
            tmp_path / "out",
            plan_trials(request, seeds=2, sweep=["max_length=16,32"]),
            device="cpu",
        )
        assert len(calls) == 2  # texts are cut in two ways
        methods = [
            {one["method"]: one["score"] for one in trial["baselines"]["methods"][1:]}
            for trial in done.fields["trials"]
        ]
        assert methods[0] == methods[1]
        assert methods[2] == methods[3]
        parts = plan_trials(make_finetune_request(data, model=model, method="frozen"), folds=3)
        list(run_trials(tmp_path / "folds", parts, device="cpu"))
        assert len(calls) == 5  # each fold has its own rows


# Rows that share a text


def test_the_report_of_a_linear_head_has_its_figures_and_no_steps(
    model: Path, tmp_path: Path
) -> None:
    done, _ = run(
        write_reviews(tmp_path / "reviews.csv", 80),
        tmp_path / "out",
        model,
        method="frozen",
        overrides=(),
    )
    page = (tmp_path / "out" / "report.html").read_text()
    assert "steps" not in page.partition("<details>")[0]
    assert "Nothing has been measured" not in page
    assert f"accuracy {100 * done.fields['figures']['accuracy']:.1f}%" in page


def test_trials_are_always_compared_with_simple_methods() -> None:
    """The report of several trainings shows the comparisons; without them it ended in a
    KeyError."""
    assert {*inspect.signature(run_trials).parameters} == {
        "output",
        "trials",
        "device",
        "overwrite",
        "data",
        "log_to",
    }


WORDS = "encoder.embeddings.token.weight"
SUBSET_SETTINGS = OptimizerConfig(learning_rate=1e-3, weight_decay=0.5, warmup=0.1)


def some_units(count: int = 24) -> list[ExampleGroup]:
    generator = np.random.default_rng(0)
    lengths = generator.integers(3, 12, count).tolist()
    return [[example("classification", length, 0, generator)] for length in lengths]


def trained(
    network: TaskModel, units: Sequence[ExampleGroup], *, damaged: int | None = None
) -> dict[str, torch.Tensor]:
    """The state after two epochs; one step's gradient is made no number, and so it is skipped."""
    network.dropout = 0.0
    batches = LabelledBatches(units, batch_size=8, micro_batch_tokens=64, seed=1)
    steps = 2 * batches.steps_per_epoch
    loop = train(network, make_optimizer(network, SUBSET_SETTINGS), batches, SUBSET_SETTINGS, steps)
    for step in loop:
        bias = network.classifier.bias  # type: ignore[union-attr]
        if step.number == damaged:
            handle = bias.register_hook(lambda gradient: gradient * torch.nan)
        elif step.number == (damaged or -1) + 1:
            handle.remove()
            assert step.skipped.item() == 1
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


@pytest.mark.parametrize("damaged", [None, 2])
def test_a_shortlist_learns_what_the_whole_table_does(damaged: int | None) -> None:
    units, task = some_units(), Classification(outputs=3)
    torch.manual_seed(0)
    whole = TaskModel(CONFIG, task)
    begun = {name: value.clone() for name, value in whole.state_dict().items()}
    shortlist = VocabSubset(units, CONFIG.vocab_size)
    assert shortlist.has_unused
    assert len(shortlist.ids) < CONFIG.vocab_size
    small = TaskModel(replace(CONFIG, vocab_size=len(shortlist.ids)), task)
    small.load_state_dict(begun | {WORDS: shortlist.rows(begun[WORDS])})
    shortlist.attach(small.encoder.embeddings.token)
    expected = trained(whole, units, damaged=damaged)
    found = trained(small, units, damaged=damaged)
    found[WORDS] = shortlist.merge(begun[WORDS], found[WORDS])
    assert not torch.allclose(
        expected[WORDS][shortlist.ids[-1]], begun[WORDS][shortlist.ids[-1]], rtol=1e-4
    )
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-7, msg=name)


def test_a_shortlist_reads_the_rows_of_the_tokens() -> None:
    units, table = some_units(5), torch.randn(CONFIG.vocab_size, 4)
    shortlist = VocabSubset(units, CONFIG.vocab_size)
    embedding = torch.nn.Embedding.from_pretrained(shortlist.rows(table))
    shortlist.attach(embedding)
    for (one,) in units:
        assert torch.equal(embedding(torch.from_numpy(one.input_ids)), table[one.input_ids])
    # as on a GPU
    assert embedding.to("meta")(torch.from_numpy(units[0][0].input_ids).to("meta")).is_meta
    assert torch.equal(shortlist.merge(table, shortlist.rows(table)), table)  # to the last bit


def test_where_texts_name_every_token_there_is_no_witness() -> None:
    (first,) = some_units(1)[0]
    everything = [first._replace(input_ids=np.arange(7))]
    shortlist = VocabSubset([everything], 7)
    assert not shortlist.has_unused
    assert shortlist.ids.tolist() == list(range(7))
    table = torch.randn(7, 3)
    assert torch.equal(shortlist.merge(table, 2 * table), 2 * table)


def test_a_row_of_zeros_gives_nothing_and_damages_nothing() -> None:
    (first,) = some_units(1)[0]
    shortlist = VocabSubset([[first._replace(input_ids=np.array([0, 2]))]], 4)
    table = torch.ones(4, 2)
    table[1] = 0
    assert torch.equal(shortlist.merge(table, shortlist.rows(table)), table)


def test_a_student_gets_the_logits_of_the_training(
    calibrated: tuple[Path, Path], model: Path
) -> None:
    data, folder = calibrated
    description = ModelFolder(folder).task_config
    job = job_of(data, model)
    teacher = TaskTeacher(str(folder), job.description, job.model.tokenizer, CPU)
    labelled = teacher.label(job.groups, lambda text: None)
    found = torch.stack(
        [torch.as_tensor(group[0].targets[TEACHER].labels)[0] for group in labelled]
    )
    predictor = Predictor(folder, device="cpu", precision="fp32")
    outputs = np.concatenate(predictor.logits(list(job.groups))) * description.weights_temperature
    order = [description.labels.index(label) for label in job.description.labels]
    np.testing.assert_allclose(found.numpy(), outputs[:, order], atol=1e-5)


def test_a_teacher_reads_as_much_as_the_model(calibrated: tuple[Path, Path]) -> None:
    folder = calibrated[1]
    source = ModelFolder(folder)
    d = replace(source.task_config, max_length=source.config.max_position_embeddings + 1)
    with refusal("the teacher reads at most", "set max_length to"):
        TaskTeacher(str(folder), d, source.tokenizer, CPU)


def pipe(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))


def test_rows_of_standard_input_train_the_model_of_their_file(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows resume the run, others are refused."""
    file = write_reviews(tmp_path / "reviews.csv", 40)
    content = file.read_bytes()
    options: dict[str, Any] = {
        "model": model,
        "epochs": 1,
        "precision": "fp32",
        "validation": "split",
    }
    bw.finetune(file, output=tmp_path / "file", device="cpu", **options)
    for _ in range(2):
        pipe(content, monkeypatch)
        bw.finetune("-", output=tmp_path / "pipe", device="cpu", **options)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("file", "pipe")]
    assert weights[0] == weights[1]
    pipe(content + b"a good film,pos\n", monkeypatch)
    with pytest.raises(bw.UsageError, match=r"other settings:\n  data_sha256"):
        bw.finetune("-", output=tmp_path / "pipe", device="cpu", **options)


def test_processes_do_not_share_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(bw.UsageError, match="standard input can be read only once"):
        bw.make_finetune_request("-")


def test_variants_and_folds_share_the_rows_and_the_model(model: Path, tmp_path: Path) -> None:
    file = write_reviews(tmp_path / "reviews.csv", 40)
    request = bw.make_finetune_request(file, model=model, validation="folds")
    prepared = prepare_finetuning(request, CPU)
    file.unlink()
    job = FinetuneJob(prepared)
    frozen = job.variant("frozen")
    fold = job.fold(0)
    assert job.data is prepared.data
    assert frozen.data.train is prepared.data.train
    assert frozen.model is fold.model is prepared.model
    assert (frozen.method, fold.method) == ("frozen", job.method)
    assert len(fold.dev) == len(job.data.parts[0])
    assert len(fold.train) + len(fold.dev) == len(job.train)


def contrastive_job(data: Path, model: Path, **options: Any) -> FinetuneJob:
    request = make_finetune_request(data, model=model, **{"method": "contrastive", **options})
    return FinetuneJob(prepare_finetuning(request, torch.device("cpu")))


def test_a_contrastive_training_ends_with_a_head_on_its_vectors(
    model: Path, tmp_path: Path
) -> None:
    """The head is fitted to the directions of the vectors of the trained encoder."""
    data = write_reviews(tmp_path / "reviews.csv", 60)
    output = tmp_path / "out"
    overrides = ("optimizer.learning_rate=5e-3", "epochs=60", "precision=fp32")
    done, _ = run(data, output, model, method="contrastive", overrides=overrides)
    assert done.fields["method"] == "contrastive"
    lines = (output / "metrics.jsonl").read_text().splitlines()
    losses = [line["loss"] for line in map(json.loads, lines) if "loss" in line]
    assert losses[-1] < losses[0] - 0.5
    assert (output / "recipe.toml").read_text().startswith('title = "contrastive"')
    rows = read_data(data, validation="folds").train
    texts = [item.texts[0] for item in rows]
    vectors = vectors_of(output, texts)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    probabilities = logistic(vectors * lengths.mean() / lengths, [item.label for item in rows])
    assert ModelFolder(output).task_config.vectors == "mean"
    temperature = ModelFolder(output).task_config.weights_temperature
    logits = np.log(probabilities(vectors))
    predictor = Predictor(output, device="cpu", precision="fp32")
    answers = predictor.predict(texts, probabilities=True)
    expected = softmax(logits / temperature)
    scores = [[a["scores"][label] for label in ("neg", "pos")] for a in answers]
    assert np.array(scores) == pytest.approx(expected, abs=2e-4)
    before = ModelFolder(model).load().state["encoder.embeddings.token.weight"]
    after = ModelFolder(output).load().state["encoder.embeddings.token.weight"]
    assert torch.equal(before, after)
    *_, exported = export(output, tmp_path / "onnx", data=data)
    assert exported.fields["figures"] == exported.fields["figures_ours"]


@pytest.mark.slow
def test_a_contrastive_training_resumes_to_the_same_bits(model: Path, tmp_path: Path) -> None:
    """After steps of a fold, and of the training with all rows."""
    data = write_reviews(tmp_path / "reviews.csv", 90)  # two steps in an epoch
    overrides = (FAST[0], FAST[2], "epochs=3", "save_every=2")
    whole, _ = run(data, tmp_path / "out", model, method="contrastive", overrides=overrides)
    request = make_finetune_request(data, model=model, method="contrastive", overrides=overrides)
    done = end_after_stops(tmp_path / "again", request, (2, 5, 9))
    assert done.fields["figures"] == whole.fields["figures"]
    for name in ("model.safetensors", "recipe.toml", "task.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


@pytest.mark.slow
def test_a_training_of_static_vectors_resumes_to_the_same_bits(model: Path, tmp_path: Path) -> None:
    """The table is made of the encoder again, and the training continues in a fold or after it."""
    data = write_reviews(tmp_path / "reviews.csv", 90)
    overrides = ("epochs=3", "save_every=1", "batch_size=16")
    whole, _ = run(data, tmp_path / "out", model, method="static", overrides=overrides)
    request = make_finetune_request(data, model=model, method="static", overrides=overrides)
    done = end_after_stops(tmp_path / "again", request, (2, 5, 9))
    assert done.fields["figures"] == whole.fields["figures"]
    for name in ("model.safetensors", "recipe.toml", "task.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_the_recipe_of_a_contrastive_training(model: Path, tmp_path: Path) -> None:
    """Twenty steps or two epochs, unless the request names others; folds take as many steps."""
    epochs = {}
    for count in (30, 90, 200):
        job = contrastive_job(write_reviews(tmp_path / f"{count}.csv", count), model)
        epochs[count] = job.recipe.epochs
        fold = job.fold(0)
        assert 0 <= fold.settings.num_steps - job.settings.num_steps < fold.steps_per_epoch
        assert FinetuneJob(prepare_finetuning(job.request, job.device, job.recipe)).recipe == (
            job.recipe
        )
    assert epochs == {30: 20, 90: 10, 200: 5}
    data = write_reviews(tmp_path / "many.csv", 1500)
    assert contrastive_job(data, model).recipe.epochs == 2
    named = contrastive_job(data, model, epochs=7, batch_size=16, learning_rate=3e-4)
    assert (named.recipe.epochs, named.recipe.batch_size) == (7, 16)
    assert named.recipe.optimizer.learning_rate == 3e-4
    paper = contrastive_job(data, model, recipe="paper")
    assert (paper.recipe.title, paper.recipe.epochs, paper.recipe.batch_size) == ("paper", 3, 32)


def test_long_texts_of_a_contrastive_step_are_computed_again(model: Path, tmp_path: Path) -> None:
    """A step is one batch: the loss compares all of its rows."""
    data = write_reviews(tmp_path / "reviews.csv", 200)
    for tokens in (100_000, 64):
        job = contrastive_job(data, model, overrides=(f"micro_batch_tokens={tokens}",))
        network = job.make_network()
        assert network.encoder.gradient_checkpointing == (tokens == 64)
        (batch,) = job.batches(tmp_path, 0, 1, print)(3)
        assert batch.layout.num_sequences == 50


def test_what_a_contrastive_training_is_not_for(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = write_pairs(tmp_path / "pairs.tsv", 80)
    with pytest.raises(UsageError, match="'contrastive' is not for regression") as caught:
        run(pairs, tmp_path / "out", model, method="contrastive")
    assert caught.value.hint == "use --method cosine or full or frozen or untrained or static"
    topics = write_multilabel(tmp_path / "topics.jsonl")
    with pytest.raises(UsageError, match="'contrastive' is not for multilabel"):
        run(topics, tmp_path / "out", model, method="contrastive")
    reviews = write_reviews(tmp_path / "reviews.csv", 80)
    with pytest.raises(UsageError, match="has no LSTM"):
        run(reviews, tmp_path / "out", model, method="contrastive", recipe="bilstm")
    request = make_finetune_request(reviews, model=model, method="contrastive")
    with pytest.raises(UsageError, match="in one process") as caught:
        without_folds(request)
    assert caught.value.hint == "start one process; or use --method full"


def test_the_score_of_a_linear_head_is_that_of_its_learning_curve(
    model: Path, tmp_path: Path
) -> None:
    data = write_reviews(tmp_path / "reviews.csv", 80)
    done, events = run(data, tmp_path / "out", model, method="frozen")
    request = make_finetune_request(data, model=model, overrides=FAST[2:], method="frozen")
    job = FinetuneJob(prepare_finetuning(request, CPU))
    items = [row.item for row in job.train]
    sums = []
    for logits in (job.logits_of_tenths, job.logits_of_parts):
        answers = [{"label": job.description.labels[int(one.argmax())]} for one in logits]
        sums.append(row_sums(job.description, items, answers))
    for name, least in (("accuracy", 0), ("macro_f1", 0), ("matthews_correlation", -1)):
        value, interval = learning_curve(*(side[name] for side in sums), least, job.data.groups)
        assert done.fields["figures"][name] == pytest.approx(value)
        assert done.fields["intervals"][name] == pytest.approx(interval)
    first = next(event for event in events if "intervals" in event.fields)
    assert first.fields["figures"]["accuracy"] == done.fields["figures"]["accuracy"]
    assert "learning curve" in done.fields["certainty"]
    # The table compares models of two thirds of the rows.
    comparison = done.fields["baselines"]
    right = [items[n].label == answers[n]["label"] for part in job.data.parts[:2] for n in part]
    assert comparison["methods"][0]["score"] == pytest.approx(np.mean(right))
    assert "two thirds" in comparison["note"]


def test_the_score_of_a_training_is_moved_as_that_of_the_linear_head(
    model: Path, tmp_path: Path
) -> None:
    data = write_reviews(tmp_path / "reviews.csv", 80)
    done, _ = run(data, tmp_path / "out", model, method="full")
    folds = done.fields["baselines"]["methods"][0]["score"]
    result = json.loads((tmp_path / "out/result.json").read_text())
    evaluations = result["fold_evaluations"]
    sizes = [len(part) for part in read_data(data, validation="folds").parts[:2]]
    last = [evaluated[-1]["accuracy"] for evaluated in evaluations]
    assert [len(evaluated) for evaluated in evaluations] == [2, 2]
    assert np.average(last, weights=sizes) == pytest.approx(folds)
    points = result["map"]["rows"]  # of all rows that are scored
    assert len(points) == sum(sizes)
    right = [point["predicted"] == point["label"] for point in points]
    assert np.mean(right) == pytest.approx(folds)
    request = make_finetune_request(data, model=model, overrides=FAST[2:], method="frozen")
    job = FinetuneJob(prepare_finetuning(request, CPU))
    scores = []
    for logits in (job.logits_of_tenths, job.logits_of_parts):
        right = [
            job.description.labels[int(one.argmax())] == row.item.label
            for one, row in zip(logits, job.train)
        ]
        scores.append(np.arctanh(2 * np.mean(right) - 1))
    moved = np.arctanh(2 * folds - 1) + max(0, scores[0] - scores[1])
    assert done.fields["score"] == pytest.approx((1 + np.tanh(moved)) / 2)
    gain = 100 * (done.fields["score"] - folds)
    assert (
        f"moved by {gain:+.1f} points as for frozen embeddings; approximate"
        in (done.fields["certainty"])
    )


def test_a_label_of_few_rows_has_a_score_without_an_interval(model: Path, tmp_path: Path) -> None:
    for count, words in ((5, "approximate, without an interval"), (2, "no estimate for new rows")):
        rows = [
            f"the town of dogs {n} {word},topic {n}" for n in range(4) for word in "abcde"[:count]
        ]
        data = tmp_path / "d.csv"
        data.write_text("\n".join(["text,label", *rows]) + "\n")
        done, _ = run(data, tmp_path / f"out-{count}", model, method="frozen")
        assert words in done.fields["certainty"]
        interval = done.fields["intervals"]["accuracy"]
        assert interval == (None if count == 5 else [0.0, 1.0])
        page = (tmp_path / f"out-{count}" / "README.md").read_text()
        assert bool(re.search(r"about \d", page)) == (count == 5)
        assert f"how sure: {words}" in page


def test_the_untrained_cosine_has_a_fitted_scale(model: Path, tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "pairs.tsv", 80)
    done, _ = run(data, tmp_path / "out", model, method="untrained", overrides=FAST[2:])
    assert done.fields["method"] == "untrained"
    rows = read_data(data, validation="folds").train
    u, v = (vectors_of(model, [item.texts[n] for item in rows]) for n in (0, 1))
    cosines = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    gold = np.array([item.label for item in rows])
    answers = Predictor(tmp_path / "out", device="cpu", precision="fp32").predict(
        [item.texts for item in rows]
    )
    values = np.array([answer["value"] for answer in answers])
    assert abs(np.corrcoef(values, cosines)[0, 1]) == pytest.approx(1, abs=1e-5)
    assert values.mean() == pytest.approx(gold.mean(), abs=1e-3)
    with pytest.raises(UsageError, match="'untrained' does not use --epochs"):
        make_finetune_request(data, model=model, method="untrained", epochs=3)


def test_a_linear_head_is_forecast_without_a_training(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertworks.runs.finetune_job.time_step", None)  # cannot be called
    data = write_reviews(tmp_path / "reviews.csv", 40)
    request = make_finetune_request(data, model=model, method="frozen")
    times = forecast(FinetuneJob(prepare_finetuning(request, CPU)), 1)
    assert times.training == 0
    assert 0 < times.token < 1


def test_a_head_needs_half_of_the_errors_of_the_most_frequent_label() -> None:
    assert sufficient_accuracy("ab" * 10) == 0.85
    assert sufficient_accuracy("a" * 30 + "b" * 2) == pytest.approx(1 - 2 / 32 / 2)


def test_few_rows_of_many_labels_get_a_head_that_takes_seconds(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_head, "MANY_LABELS", 1)
    data = write_reviews(tmp_path / "reviews.csv", 14)
    monkeypatch.setattr(
        "sklearn.linear_model.LogisticRegression.fit",
        lambda model, x, y: pytest.fail("takes minutes"),
    )
    request = make_finetune_request(data, model=model, precision="fp32", validation="folds")
    job = FinetuneJob(prepare_finetuning(request, CPU))
    assert job.compared_methods == ("frozen",)
    logits = job.variant("frozen").logits_of_tenths
    assert len(logits) == 14
    assert np.isfinite(logits).all()


def test_the_forecast_counts_the_heads_of_a_contrastive_training(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each evaluation encodes the training rows too, unless there is none during the training."""
    monkeypatch.setattr(
        "bertworks.runs.finetune_job.time_step",
        lambda network, optimizer, precision, batch, seconds: (0.003 * len(batch.input_ids), 0.0),
    )
    data = write_reviews(tmp_path / "reviews.csv", 40)
    for validation, fits in (("split", 3), ("folds", 0)):
        request = make_finetune_request(
            data,
            model=model,
            method="contrastive",
            validation=validation,
            epochs=3,
            precision="fp32",
        )
        job = FinetuneJob(prepare_finetuning(request, CPU))
        train = sum(len(one.input_ids) for unit in job.groups for one in unit)
        dev = sum(len(one.input_ids) for unit in job.dev_units for one in unit)
        expected = 0.003 * 3 * train + 0.001 * (3 * dev + fits * train)
        assert forecast(job, 1).training == pytest.approx(expected)


def test_steps_tell_how_far_the_whole_job_is(model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "reviews.csv", 24)
    _, events = run(data, tmp_path / "out", model, method="full")
    steps = [event.fields for event in events if event.kind == "step"]
    assert [*dict.fromkeys(fields["part"] for fields in steps)] == [
        "fold 1/2",
        "fold 2/2",
        "all rows",
    ]
    shares = [fields["job_share"] for fields in steps]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    assert steps[-1]["job_seconds_left"] == pytest.approx(0)
    # Two trainings with two thirds of the rows, and one with all. Each of the two is evaluated
    # twice on a third of the rows, for a third of the work of training steps on them.
    fold = 2 / 3 + 1 / 9
    last_fold = next(fields for fields in reversed(steps) if fields["part"] == "fold 2/2")
    assert last_fold["job_share"] == pytest.approx(2 * fold / (2 * fold + 1))


def test_a_variant_knows_those_of_its_job(model: Path, tmp_path: Path) -> None:
    """So the features of the frozen encoder are computed once."""
    request = make_finetune_request(write_reviews(tmp_path / "reviews.csv", 24), model=model)
    job = FinetuneJob(prepare_finetuning(request, CPU))
    assert job.variant("contrastive").variant("frozen") is job.variant("frozen")


def test_a_budget_does_not_cut_the_few_steps_of_a_contrastive_training(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the method "auto": it is refused if they take longer, and the recipe stays."""
    data = write_reviews(tmp_path / "reviews.csv", 24)
    request = make_finetune_request(data, model=model, budget="1m", precision="fp32")
    job = FinetuneJob(prepare_finetuning(request, CPU))
    passes = trainings(job)
    seconds = 0.8 * 60 / passes
    recipe = job.recipe
    monkeypatch.setattr(
        "bertworks.runs.finetune.forecast", lambda job, processes: Forecast(seconds, 0.0)
    )
    fit_budget(job, time.perf_counter(), 1)
    assert job.recipe == recipe
    assert job.forecast == Forecast(seconds, 0.0)
    seconds *= 1.2
    with pytest.raises(UsageError, match="too short: the training takes about") as caught:
        fit_budget(job, time.perf_counter(), 1)
    assert caught.value.hint == "--budget 2m or --method frozen"


@pytest.mark.parametrize("kind", ["text", "tags"])
def test_a_head_without_an_estimate_is_evaluated_on_two_of_three_parts(
    kind: str, model: Path, tmp_path: Path
) -> None:
    """As other methods are: of several trainings, and of the words of a text."""
    if kind == "text":
        data = write_reviews(tmp_path / "reviews.csv", 80)
    else:
        data = write_conll(tmp_path / "tags.conll", 40)
    request = make_finetune_request(data, model=model, overrides=FAST[2:], method="frozen")
    job = FinetuneJob(prepare_finetuning(request, CPU))
    chosen = value_of(choose_method(job, tmp_path, extrapolates=kind == "tags"))
    assert chosen.validated is not None
    rows = [n for part in job.data.parts[:EVALUATED] for n in part]
    assert [*chosen.validated.numbers] == rows
    assert not chosen.validated.has_curve
    assert any("3-fold" in note for note in chosen.data.notes)
    assert not any("10-fold" in note for note in chosen.data.notes)
