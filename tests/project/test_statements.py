"""How the package is written: names that say what the value is, and one statement per line."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.project.test_measures import write_package
from tests.support import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import names
import statements

Search = Callable[[Path], list[names.Place]]
SEARCHES: list[Search] = [
    names.refused_names,
    statements.joined_assignments,
    statements.multiplied_texts,
    statements.assigning_comparisons,
]
# Modules that are not held to these rules yet.
UNFINISHED = frozenset(
    """
    batching.batch batching.masking batching.sampling checkpoints.hf_mapping
    checkpoints.sentence_transformers checkpoints.task_config checkpoints.tensorflow
    checkpoints.training_state cli.console cli.training config datasets.annotations
    datasets.infer_schema datasets.reader datasets.schema datasets.treebank datasets.values
    datasets.writer evaluation.evaluate evaluation.mlm_portions inference.attribution
    inference.causal_lm inference.detect inference.embed inference.engine inference.explain
    inference.generation inference.masked_lm inference.predict inference.predictor
    inference.word_states io.atomic_write io.binary_files io.class_names io.options io.portions
    io.processes io.remote io.tables io.text_files models.attention models.cache models.config
    models.heads models.kernels models.layers models.layout models.packed_linear models.transformer
    reports.svg retrieval.index retrieval.store runs.adaptation runs.data_splits runs.dataset_report
    runs.finetune runs.finetune_job runs.joint runs.launch runs.prepare runs.pretrain
    runs.pretrain_job runs.processes runs.report runs.request runs.run_folder runs.task_teacher
    runs.training_run runs.trials runs.validation serve.application serve.batching serve.endpoints
    serve.openai_errors serve.openapi serve.server tasks.calibration tasks.decoding tasks.features
    tasks.heads tasks.linear_head tasks.scores text.corpus text.file_groups text.shard_writer
    text.shards text.tokenizer_folder text.tokenizer_pipeline training.budget training.device
    training.distillation training.loop training.objectives training.optimization training.probes
    training.recipe training.vocab_subset
    """.split()
)


@pytest.mark.parametrize("search", SEARCHES)
def test_the_package_has_none(search: Search) -> None:
    places = search(names.ROOT)
    wrong = [place for place in places if place.module not in UNFINISHED]
    assert not wrong


@pytest.mark.parametrize(
    ("search", "statement", "is_found"),
    [
        (statements.joined_assignments, "a, b = 1, 2", True),
        (statements.joined_assignments, "self.a, self.b = a, b", True),
        (statements.joined_assignments, "a, b = b, a", False),
        (statements.joined_assignments, "a, b = a + b, 0", False),
        (statements.joined_assignments, "a, b = pair", False),
        (statements.joined_assignments, "a = 1, 2", False),
        (statements.multiplied_texts, "a = 'x' * (b > 1)", True),
        (statements.multiplied_texts, "a = any(b) * f'{c}'", True),
        (statements.multiplied_texts, "a = 'x' * b.startswith('c')", True),
        (statements.multiplied_texts, "a = ' ' * (b + 2)", False),
        (statements.multiplied_texts, "a = b * (c > 1)", False),
        (statements.assigning_comparisons, "if (a := b) > 1: pass", True),
        (statements.assigning_comparisons, "while a and (b := c) is not None: pass", True),
        (statements.assigning_comparisons, "d = [a for b in c if (a := b) != 1]", True),
        (statements.assigning_comparisons, "if a := b: pass", False),
        (statements.assigning_comparisons, "if a := [b for b in c if b != 1]: pass", False),
        (names.refused_names, "one = 1", True),
        (names.refused_names, "first = 1", False),
    ],
)
def test_statements(search: Search, statement: str, is_found: bool, tmp_path: Path) -> None:
    package = write_package(tmp_path, {"module.py": f"{statement}\n"})
    assert [(place.module, place.line) for place in search(package)] == [("module", 1)] * is_found
