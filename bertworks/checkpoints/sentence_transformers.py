"""The files of sentence-transformers: pooling, maximum length, prompts.

- `read_sentence_transformer`: reads both layouts. Without such files: the mean, as in sentence-transformers.
- `write_sentence_transformer`: writes the older layout, which every version reads.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from bertworks.checkpoints.storage import read_json, read_json_value
from bertworks.errors import BertworksError
from bertworks.io.atomic_write import write_text
from bertworks.models.encoder import Pooling

MODEL_FILE = "config_sentence_transformers.json"  # of the whole model: prompts and similarity
_MODULES, _TRANSFORMER = "modules.json", "sentence_bert_config.json"
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
_OLD_POOLINGS = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
_WRITTEN = {"max_seq_length", "do_lower_case", "word_embedding_dimension", "embedding_dimension"}
_SUPPORTED = "use a model with the modules Transformer, Pooling (mean, cls or max) and Normalize"


@dataclass(frozen=True, kw_only=True)
class SentenceTransformerSettings:
    """How a text becomes a vector.

    max_length: the most tokens that are read; None: the maximum of the tokenizer.
    lowercase: lowercase texts before tokenization.
    prompts: prefixes of texts, by name.
    default_prompt: the name of the prompt that is used by default.
    similarity: cosine, dot, euclidean or manhattan. Kept for other programs; bertworks uses the cosine.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    max_length: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: str = "cosine"

    def prompt(self, *names: str) -> str:
        """The first of these prompts that the model has; without names, the default prompt; "" if there is none."""
        candidates = names or ((self.default_prompt,) if self.default_prompt else ())
        return next((self.prompts[name] for name in candidates if name in self.prompts), "")


class SentenceTransformer(NamedTuple):
    """What the files of sentence-transformers say.

    weights_folder: of the network and the tokenizer: the model folder, or a subfolder.
    unwritten: settings that `write_sentence_transformer` does not write, as "file: names".
    """

    weights_folder: Path
    settings: SentenceTransformerSettings
    unwritten: tuple[str, ...] = ()


def read_sentence_transformer(folder: str | Path) -> SentenceTransformer:
    """Read the settings of a folder, each file once. A folder without such files has the defaults.

    Raises:
        BertworksError: a module that bertworks does not compute, or damaged files.
    """
    folder = Path(folder)
    modules = _modules(folder)
    if modules is None:
        return SentenceTransformer(folder, SentenceTransformerSettings())
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise BertworksError(
            f"unsupported modules of sentence-transformers: {', '.join(kinds)[:200] or 'none'}",
            where=str(folder / _MODULES),
            hint=_SUPPORTED,
        )
    inner, pooling, *normalize = [_subfolder(folder, module) for module in modules]
    paths = [inner / _TRANSFORMER, *(path / "config.json" for path in (pooling, *normalize) if path != folder)]
    contents = {path: read_json(path) for path in paths if path.is_file()}
    transformer = contents.get(inner / _TRANSFORMER, {})
    length = transformer.get("max_seq_length")
    if length is not None and (type(length) is not int or length < 3):
        raise BertworksError(
            f"max_seq_length is {length!r:.40}", where=str(inner / _TRANSFORMER), hint="write 3 or more"
        )
    prompts, default, similarity = _prompts_and_similarity(folder / MODEL_FILE)
    pooling_path = pooling / "config.json"
    pooling_settings = contents[pooling_path] if pooling_path in contents else read_json(pooling_path)
    settings = SentenceTransformerSettings(
        pooling=_pooling(pooling_settings, pooling_path, prompted=any(prompts.values())),
        normalize="Normalize" in kinds,
        max_length=length,
        lowercase=transformer.get("do_lower_case") is True,
        prompts=prompts,
        default_prompt=default,
        similarity=similarity,
    )
    unwritten = []
    for path, content in contents.items():
        names = sorted(name for name, value in content.items() if not _is_written(name, value))
        unwritten += [f"{path.relative_to(folder).as_posix()}: {', '.join(names)}"] * bool(names)
    return SentenceTransformer(inner, settings, tuple(unwritten))


def write_sentence_transformer(folder: str | Path, settings: SentenceTransformerSettings, hidden_size: int) -> None:
    """Add the files with which sentence-transformers computes the same vectors.

    Raises:
        BertworksError: sentence-transformers lacks the pooling.
    """
    folder = Path(folder)
    if settings.pooling not in _OLD_POOLINGS:
        raise BertworksError(f"sentence-transformers has no pooling {settings.pooling!r}", hint="take mean, cls or max")
    for name, content in _file_contents(settings, hidden_size).items():
        write_text(folder / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def module_files(folder: str | Path) -> list[str]:
    """Names of the settings and weights of the modules in a sentence-transformers folder; none in other folders.

    Raises:
        BertworksError: damaged files, or a module with weights in a pickle.
    """
    folder = Path(folder)
    modules = _modules(folder)
    names = [_MODULES, _TRANSFORMER, MODEL_FILE] if modules else []
    for module in (modules or [])[1:]:
        inside = _subfolder(folder, module)
        if (inside / "pytorch_model.bin").exists() and not (inside / "model.safetensors").exists():
            raise BertworksError("the weights of a module are a pickle, which is not read", where=str(inside))
        names += [f"{inside.name}/{name}" for name in ("config.json", "model.safetensors") if inside != folder]
    return [name for name in names if (folder / name).is_file()]


def _is_written(name: str, value: object) -> bool:
    return name in _WRITTEN or name.startswith("pooling_mode") or (name == "include_prompt" and value is True)


def _file_contents(settings: SentenceTransformerSettings, hidden_size: int) -> dict[str, Any]:
    """The content of each file, in the older layout."""
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
        _MODULES: modules,  # last: readers start from it
    }
    # Git and the hub keep no empty folders.
    return {"2_Normalize/config.json": {}} | files if settings.normalize else files


def _modules(folder: Path) -> list[dict[str, Any]] | None:
    if not (folder / _MODULES).exists():
        return None
    modules = read_json_value(folder / _MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise BertworksError("a list of modules is expected", where=str(folder / _MODULES))
    return modules


def _subfolder(folder: Path, module: Mapping[str, Any]) -> Path:
    path = module.get("path")
    if not isinstance(path, str) or Path(path).name != path or path == "..":
        raise BertworksError(f"{path!r:.100} is not the name of a subfolder", where=str(folder / _MODULES))
    return folder / path


def _pooling(content: Mapping[str, Any], path: Path, *, prompted: bool) -> Pooling:
    modes = content.get("pooling_mode")
    if modes is None:
        names = {f"pooling_mode_{theirs}": ours for ours, theirs in _OLD_POOLINGS.items()}
        old = [name for name, value in content.items() if name.startswith("pooling_mode_") and value]
        modes = [names.get(name, name) for name in old] or ["mean"]
    modes = modes if isinstance(modes, list) else [modes]
    if len(modes) != 1 or modes[0] not in get_args(Pooling):
        raise BertworksError(f"pooling by {', '.join(map(str, modes))[:100]}", where=str(path), hint=_SUPPORTED)
    if prompted and content.get("include_prompt") is False:
        raise BertworksError(
            "pooling without the tokens of the prompt is not supported", where=str(path), hint="use another model"
        )
    return cast(Pooling, modes[0])


def _prompts_and_similarity(path: Path) -> tuple[dict[str, str], str | None, str]:
    """Prompts, the name of the default prompt, and the similarity."""
    content = read_json(path) if path.exists() else {}
    prompts, default = content.get("prompts") or {}, content.get("default_prompt_name")
    is_table = isinstance(prompts, dict) and all(isinstance(text, str) for text in prompts.values())
    if not is_table or not (default is None or (isinstance(default, str) and default in prompts)):
        raise BertworksError(
            "expected prompts as a table of texts, and default_prompt_name as one of their names", where=str(path)
        )
    similarity = content.get("similarity_fn_name") or "cosine"
    if similarity not in _SIMILARITIES:
        raise BertworksError(
            f"similarity_fn_name is {similarity!r:.40}",
            where=str(path),
            hint=f"write one of {', '.join(_SIMILARITIES)}",
        )
    return prompts, default, similarity
