"""The files of sentence-transformers: pooling, maximum length, prompts.

Both layouts are read; the older one, which every version reads, is written. A folder without such files gives the mean,
as in sentence-transformers. What cannot be computed is refused, not left out.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from bertworks.checkpoints.storage import read_json, read_json_value
from bertworks.errors import BertworksError, UsageError
from bertworks.io.atomic_write import write_text
from bertworks.models.heads import Pooling

MODEL_FILE = "config_sentence_transformers.json"  # of the whole: prompts, and what else it says
_MODULES, _TRANSFORMER = "modules.json", "sentence_bert_config.json"
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
_OLD_POOLINGS = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
_UNDERSTOOD = {"max_seq_length", "do_lower_case", "word_embedding_dimension", "embedding_dimension"}
_UNKNOWN = "use a model whose modules are Transformer, Pooling (mean, cls or max) and Normalize"


@dataclass(frozen=True, kw_only=True)
class SentenceTransformerSettings:
    """How a text becomes a vector.

    max_length: tokens that are read; None: as many as the tokenizer says.
    lowercase: texts are lower-cased before the tokenizer sees them.
    prompts: what is put before a text, by name.
    default_prompt: the name of the one that is used when none is named.
    similarity: how its vectors are meant to be compared: cosine, dot, euclidean or manhattan. Kept for others; we
        compare by cosine.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    max_length: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: str = "cosine"

    def prompt(self, *names: str) -> str:
        """The first of these that the model has, or else its default one, or else nothing."""
        wanted = [*names, *([self.default_prompt] if self.default_prompt and not names else [])]
        return next((self.prompts[name] for name in wanted if name in self.prompts), "")


def read_sentence_transformer(folder: str | Path) -> tuple[Path, SentenceTransformerSettings]:
    """The folder with weights and tokenizer, which may lie within, and the settings.

    Raises:
        BertworksError: a module that is not computed here, or files that make no sense.
    """
    folder = Path(folder)
    modules = _modules(folder)
    if modules is None:
        return folder, SentenceTransformerSettings()
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise BertworksError(
            f"the vectors of this model are made by {', '.join(kinds)[:200] or 'nothing'}",
            where=str(folder / _MODULES),
            hint=_UNKNOWN,
        )
    inner = _inside(folder, modules[0])
    transformer = read_json(inner / _TRANSFORMER) if (inner / _TRANSFORMER).exists() else {}
    length = transformer.get("max_seq_length")
    if length is not None and (type(length) is not int or length < 3):
        raise BertworksError(
            f"max_seq_length is {length!r:.40}", where=str(inner / _TRANSFORMER), hint="write 3 or more"
        )
    prompts, default, similarity = _of_the_whole(folder / MODEL_FILE)
    return inner, SentenceTransformerSettings(
        pooling=_pooling(_inside(folder, modules[1]) / "config.json", prompted=any(prompts.values())),
        normalize="Normalize" in kinds,
        max_length=length,
        lowercase=transformer.get("do_lower_case") is True,
        prompts=prompts,
        default_prompt=default,
        similarity=similarity,
    )


def weights_folder(folder: Path) -> Path:
    """Where weights and tokenizer of a model folder lie: with sentence-transformers this may be a folder within.

    Raises:
        BertworksError: files that make no sense.
    """
    try:
        return read_sentence_transformer(folder)[0]
    except BertworksError:  # its vectors are made in a way that we do not know: `embedder` will say so
        if not (folder / "config.json").exists():
            raise
        return folder


def refuse_nested(folder: Path) -> None:
    """Raises UsageError where weights lie in a folder within."""
    if weights_folder(folder) != folder:
        hint = f"bertworks convert {shlex.quote(str(folder))} -o ANOTHER-FOLDER, and name that one"
        raise UsageError("its weights lie in a folder within, as sentence-transformers once had them",
                         where=str(folder), hint=hint)  # fmt: skip


def write_sentence_transformer(folder: str | Path, settings: SentenceTransformerSettings, hidden_size: int) -> None:
    """Makes a model folder one that sentence-transformers opens, and reads as we do.

    Raises:
        BertworksError: the pooling is none of its own.
    """
    folder = Path(folder)
    if settings.pooling not in _OLD_POOLINGS:
        raise BertworksError(f"sentence-transformers has no pooling {settings.pooling!r}", hint="take mean, cls or max")
    for name, content in _contents(settings, hidden_size).items():
        write_text(folder / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def module_files(folder: str | Path) -> list[str]:
    """The files of a sentence-transformers folder that say how its vectors are made, weights of later modules among
    them, by their names within it. Of another folder, none.

    Raises:
        BertworksError: files that make no sense, or a module whose weights are a pickle.
    """
    folder = Path(folder)
    modules = _modules(folder)
    names = [_MODULES, _TRANSFORMER, MODEL_FILE] if modules else []
    for module in (modules or [])[1:]:
        inside = _inside(folder, module)
        if (inside / "pytorch_model.bin").exists() and not (inside / "model.safetensors").exists():
            raise BertworksError("the weights of a module are a pickle, which is not read", where=str(inside))
        names += [f"{inside.name}/{name}" for name in ("config.json", "model.safetensors") if inside != folder]
    return [name for name in names if (folder / name).is_file()]


def unwritten_settings(folder: str | Path) -> list[str]:
    """Of a folder that `read_sentence` reads: settings that `write_sentence` has no place for, "file: names"."""
    folder = Path(folder)
    others = [folder / name for name in module_files(folder) if name.endswith("/config.json")]
    found = []
    for path in [read_sentence_transformer(folder)[0] / _TRANSFORMER, *others]:
        content = read_json(path) if path.is_file() else {}
        lost = sorted(name for name, value in content.items() if not _is_understood(name, value))
        found += [f"{path.relative_to(folder).as_posix()}: {', '.join(lost)}"] * bool(lost)
    return found


def _is_understood(name: str, value: object) -> bool:
    return name in _UNDERSTOOD or name.startswith("pooling_mode") or (name == "include_prompt" and value is True)


def _contents(settings: SentenceTransformerSettings, hidden_size: int) -> dict[str, Any]:
    """The files that say all this, in the older layout: what is in them."""
    names = ["Transformer", "Pooling", *(["Normalize"] if settings.normalize else [])]
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{name}" if n else "", "type": f"sentence_transformers.models.{name}"}
        for n, name in enumerate(names)
    ]
    poolings = {f"pooling_mode_{theirs}": ours == settings.pooling for ours, theirs in _OLD_POOLINGS.items()}
    files: dict[str, Any] = {
        "1_Pooling/config.json": {"word_embedding_dimension": hidden_size, **poolings},
        _TRANSFORMER: {"max_seq_length": settings.max_length, "do_lower_case": settings.lowercase},
        MODEL_FILE: {
            "prompts": dict(settings.prompts),
            "default_prompt_name": settings.default_prompt,
            "similarity_fn_name": settings.similarity,
        },
        _MODULES: modules,  # the last one: with it the others are read
    }
    # A folder without content would be lost on the way.
    return {"2_Normalize/config.json": {}} | files if settings.normalize else files


def _modules(folder: Path) -> list[dict[str, Any]] | None:
    if not (folder / _MODULES).exists():
        return None
    modules = read_json_value(folder / _MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise BertworksError("a list of modules is expected", where=str(folder / _MODULES))
    return modules


def _inside(folder: Path, module: Mapping[str, Any]) -> Path:
    path = module.get("path")
    if not isinstance(path, str) or Path(path).name != path or path == "..":
        raise BertworksError(f"{path!r:.100} is not the name of a folder beside it", where=str(folder / _MODULES))
    return folder / path


def _pooling(path: Path, *, prompted: bool) -> Pooling:
    content = read_json(path)
    wanted = content.get("pooling_mode")
    if wanted is None:
        chosen = [name.removeprefix("pooling_mode_") for name, value in content.items()
                  if name.startswith("pooling_mode_") and value]  # fmt: skip
        names = {theirs: ours for ours, theirs in _OLD_POOLINGS.items()}
        wanted = [names.get(name, name) for name in chosen] or ["mean"]
    modes = wanted if isinstance(wanted, list) else [wanted]
    if len(modes) != 1 or modes[0] not in get_args(Pooling):
        raise BertworksError(f"pooling by {', '.join(map(str, modes))[:100]}", where=str(path), hint=_UNKNOWN)
    if prompted and content.get("include_prompt") is False:
        raise BertworksError("pooling leaves out the tokens of the prompt", where=str(path), hint="use another model")
    return cast(Pooling, modes[0])


def _of_the_whole(path: Path) -> tuple[dict[str, str], str | None, str]:
    """Prompts, the name of the default one, and how vectors are compared."""
    content = read_json(path) if path.exists() else {}
    prompts, default = content.get("prompts") or {}, content.get("default_prompt_name")
    good = isinstance(prompts, dict) and all(isinstance(text, str) for text in prompts.values())
    if not good or not (default is None or (isinstance(default, str) and default in prompts)):
        raise BertworksError("prompts are texts by name, and the default one is among them", where=str(path))
    similarity = content.get("similarity_fn_name") or "cosine"
    if similarity not in _SIMILARITIES:
        raise BertworksError(
            f"similarity_fn_name is {similarity!r:.40}",
            where=str(path),
            hint=f"write one of {', '.join(_SIMILARITIES)}",
        )
    return prompts, default, similarity
