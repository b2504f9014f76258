"""docs/finetune.md does what it says: its samples are guessed as it tells, its commands are understood, its table has
every field."""

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

import bertworks
from bertworks.cli.main import make_app
from bertworks.datasets.infer_schema import infer_schema
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import items
from bertworks.training.finetune_recipe import RECIPES, FinetuneRecipe
from bertworks.training.optimization import OptimizerConfig

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "finetune.md").read_text(encoding="utf-8")
SAMPLES = re.findall(r"^### ([^\n]+)\n`([\w.]+)`\n```\w+\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
TASKS = dict(re.findall(r"\(#([\w-]+)\)[^|]*\| `(\w+)` \|", PAGE))


def test_there_is_a_sample_of_every_task():
    assert set(TASKS.values()) == {"classification", "multilabel", "regression", "tagging", "spans", "qa", "choice"}
    assert len(SAMPLES) == len(TASKS) + 1, "pairs are classes of two texts"


@pytest.mark.parametrize(("heading", "name", "content"), SAMPLES, ids=[sample[0] for sample in SAMPLES])
def test_samples_are_guessed_as_the_page_tells(heading: str, name: str, content: str, tmp_path: Path):
    (tmp_path / name).write_text(content, encoding="utf-8")
    reader = RowReader(tmp_path / name)
    schema, _ = infer_schema(reader)
    assert schema.task == {**TASKS, "pairs": "classification"}[heading.lower().replace(" ", "-")]
    assert len(list(items(reader, schema))) >= 2


def test_commands_are_understood():
    commands = [line.removeprefix("$ ") for line in PAGE.splitlines() if re.match(r"(\$ )?bertworks ", line)]
    assert len(commands) > 10
    app = make_app()
    for command in commands:
        app.parse_args(shlex.split(command)[1:])


def test_every_field_and_recipe_is_told():
    told = set(re.findall(r"`([\w.]+)`", "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))))
    fields = {field.name for field in dataclasses.fields(FinetuneRecipe)} - {"optimizer"}
    fields |= {f"optimizer.{field.name}" for field in dataclasses.fields(OptimizerConfig)}
    assert fields <= told
    assert set(RECIPES) <= told


def test_defaults_are_those_of_the_stable_recipe():
    rows = re.findall(r"^\| (`.+?) \| (.*?) \| .* \|$", PAGE, re.MULTILINE)
    stable, checked = RECIPES["stable"], 0
    for names, values in rows:
        found = re.findall(r"`([\w.]+)`", names)
        if not all(name.split(".")[0] in FinetuneRecipe.__dataclass_fields__ for name in found):
            continue
        for name, value in zip(found, values.split(", "), strict=True):
            owner, _, field = name.rpartition(".")
            expected = getattr(stable.optimizer if owner else stable, field)
            checked += 1
            if isinstance(expected, bool | str):
                assert value.strip("`") == str(expected).lower()
            else:
                assert float(value) == expected, name
    assert checked == len(dataclasses.fields(FinetuneRecipe)) - 1 + len(dataclasses.fields(OptimizerConfig))


def test_python_names_are_public():
    names = set(re.findall(r"bertworks\.(\w+)\(", PAGE))
    assert names
    assert names <= set(bertworks.__all__)


def test_links_lead_somewhere():
    headings = {
        re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in re.findall(r"^#+ (.+)$", PAGE, re.M)
    }
    for link in re.findall(r"\]\(([^)]+)\)", PAGE):
        assert link[1:] in headings if link.startswith("#") else (DOCS / link).is_file(), link
