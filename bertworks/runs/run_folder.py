"""The request that a run folder belongs to, in run.json: the same one resumes, another one is refused."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertworks.errors import UsageError
from bertworks.io.atomic_write import write_json
from bertworks.runs.training_run import versions
from bertworks.text.tokenizer_folder import TOKENIZER_FILES

FILES = (  # of a run folder, besides run.json
    "recipe.toml", "metrics.jsonl", "report.html", "config.json", "model.safetensors", "README.md", "task.json",
    *TOKENIZER_FILES,
    "data.json", "result.json", "errors.csv", "finished.json", "trials.json",
)  # fmt: skip
FOLDERS = ("checkpoints", "plans", "shards", "tokenizer")


def check_same_request(output: Path, now: Mapping[str, Any]) -> bool:
    """True if the folder holds this request already; False if it is empty.

    Raises:
        UsageError: it holds another run, or other files.
    """
    path = output / "run.json"
    if path.exists():
        old = _read_request(path)
        if differing := [name for name in now if old.get(name) != now[name]]:
            lines = "".join(
                f"\n  {name}: {_show_value(old, name)} there, {_show_value(now, name)} now" for name in differing
            )
            raise UsageError(
                f"the folder holds a run with other settings:{lines}",
                where=str(output),
                hint="-o ANOTHER-FOLDER keeps both; --overwrite deletes the present run",
            )
        return True
    strange = [p.name for p in output.iterdir() if not p.name.startswith(".")] if output.is_dir() else []
    if strange:
        raise UsageError(
            f"the folder is not empty and holds no run: {', '.join(sorted(strange)[:5])}",
            where=str(output),
            hint="-o ANOTHER-FOLDER, or empty this one",
        )
    return False


def create_run_folder(output: Path, request: Mapping[str, Any]) -> None:
    """Writes the request into a folder that is empty, or whose run was deleted."""
    write_json(output / "run.json", {"request": request, "versions": versions()})


def delete_run(output: Path) -> bool:
    """Deletes the run in a folder and no other files; False: there is no run. Its run.json stays until the next request
    replaces it, so that the remains of a killed process can be deleted again."""
    if not (output / "run.json").exists():
        return False
    for name in FOLDERS:
        shutil.rmtree(output / name, ignore_errors=True)
    for name in FILES:
        (output / name).unlink(missing_ok=True)
    return True


def absolute(path: str | Path) -> str:
    """A path or a glob that means the same from every folder; "-" is standard input."""
    return str(path) if str(path) == "-" else os.path.abspath(Path(path).expanduser())  # noqa: PTH100 - it keeps links


def _read_request(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["request"])
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            "this is not what a run writes about itself",
            where=str(path),
            hint="-o ANOTHER-FOLDER; or --overwrite, which deletes the run that is there",
        ) from None


def _show_value(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    return f"{value[:12]}..." if name.endswith("sha256") and value else repr(value)
