"""The files of sentence-transformers: pooling, maximum length, prompts, and further modules.

- `VectorModule`: a module that comes after the pooling, with its weights
- `read_sentence_transformer`: reads both layouts. Without such files: the mean, as in
  sentence-transformers.
- `SentenceTransformerSettings.save`: writes the older layout, which every version reads.
- `missing_prompts`: those that only the model card shows
- `static_table`: the vectors of a folder with a table instead of a network, as written by
  sentence-transformers or Model2Vec
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

from bertworks.checkpoints.pickled_weights import find_pickle
from bertworks.checkpoints.resolve import WEIGHTS
from bertworks.checkpoints.storage import (
    file_sha256,
    read_json,
    read_tensors,
    write_weights,
)
from bertworks.config import packaged_table
from bertworks.errors import BertworksError, quoted, require
from bertworks.events import JsonObject
from bertworks.io.atomic_write import write_json
from bertworks.models.settings import LIMITS, Pooling

if TYPE_CHECKING:
    from torch import Tensor

MODEL_FILE = "config_sentence_transformers.json"  # of the whole model: prompts and similarity
MODULES_FILE = "modules.json"
_TRANSFORMER = "sentence_bert_config.json"
# Names of the file of the network, which older versions called by its family. The first that exists
# is read.
_TRANSFORMER_FILES = [
    _TRANSFORMER,
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
]
# Modules that are computed, and whether they have weights.
MODULE_KINDS = {"Dense": True, "LayerNorm": True, "Dropout": False, "Normalize": False}
PICKLED_MODULE = "the weights of a module are a pickle, which is not read"
OTHER_MODEL = "use another model"
_FIELDS = packaged_table(__file__, "sentence_transformers.toml")
_FIRST_KINDS = ["Transformer", "Pooling"]  # modules from MODULE_KINDS follow
_STATIC_KIND = "StaticEmbedding"  # it stands in the place of both
_LONGEST_CARD = 1 << 20  # characters of a README.md that are read
_SHOWN_PROMPT = re.compile(r"""["'`]((?:search_query|search_document|query|passage): )""")
TABLE = "embedding.weight"  # of static vectors: a row for each token
_MODEL2VEC_TABLE = "embeddings"
# further tensors of Model2Vec: the number of the row of each token, and a factor for each token
_ROW_OF_TOKEN = "mapping"
_WEIGHT_OF_TOKEN = "weights"
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
_OLD_POOLINGS: dict[str, Pooling] = {  # settings of the older layout
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
_WRITTEN = {"max_seq_length", "do_lower_case", "word_embedding_dimension", "embedding_dimension"}
_SUPPORTED = (
    "use a model with the modules Transformer, Pooling (mean, cls or max), "
    f"{', '.join(MODULE_KINDS)}; or with {_STATIC_KIND} in the place of the first two"
)


@dataclass(frozen=True)
class VectorModule:
    """A module of sentence-transformers between the pooling and the finished vector.

    kind: "Dense", "LayerNorm", "Dropout" or "Normalize".
    settings: the content of its config.json.
    folder: of its config.json and its weights.
    weights: its parameters under the names of sentence-transformers; None: those in the folder.
    """

    kind: str
    settings: Mapping[str, Any]
    folder: Path = field(compare=False)
    weights: Mapping[str, "Tensor"] | None = field(default=None, compare=False, repr=False)

    def output_size(self, input_size: int) -> int:
        """Return the size of the vectors that leave the module.

        Raises:
            BertworksError: it is made for vectors of another size than `input_size`, or a size is
                no number.
        """
        names = {"Dense": ("in_features", "out_features"), "LayerNorm": ("dimension",)}
        for name in names.get(self.kind, ()):
            size = self.settings.get(name)
            is_size = type(size) is int and 1 <= size <= LIMITS["hidden_size"]
            require(
                is_size,
                f"{name} is {size!r:.40}: expected a whole number from 1",
                self.folder / "config.json",
                OTHER_MODEL,
            )
        expected = self.settings.get("in_features", self.settings.get("dimension", input_size))
        require(
            expected == input_size,
            f"the module {self.kind} reads vectors of {expected} numbers, but gets {input_size}",
            self.folder,
            OTHER_MODEL,
        )
        return int(self.settings.get("out_features", input_size))

    def read_weights(self) -> Mapping[str, "Tensor"]:
        """Return the parameters, in any floating-point type.

        Raises:
            BertworksError: no such file, or a damaged or hostile one; only a pickle.
        """
        if self.weights is not None:
            return self.weights
        pickle = find_pickle(self.folder)
        if pickle is not None and not (self.folder / WEIGHTS).exists():
            model = quoted(self.folder.parent)
            raise BertworksError(
                PICKLED_MODULE,
                where=self.folder,
                hint=f"if you trust it: bertworks convert {model} -o ANOTHER-FOLDER --trust-pickle",
            )
        return read_tensors(self.folder / WEIGHTS)

    @property
    def fingerprint(self) -> JsonObject:
        """Everything that the results depend on."""
        settings: JsonObject = {"kind": self.kind, "settings": dict(self.settings)}
        if MODULE_KINDS[self.kind]:
            settings["weights_sha256"] = file_sha256(self.folder / WEIGHTS)
        return settings


@dataclass(frozen=True, kw_only=True)
class SentenceTransformerSettings:
    """How a text becomes a vector.

    modules: what is computed of the pooled vector, in this order, before `normalize`.
    max_length: the most tokens that are read; None: the maximum of the tokenizer.
    lowercase: lowercase texts before tokenization.
    prompts: prefixes of texts, by name.
    default_prompt: the name of the prompt that is used by default.
    truncate_dim: how many of the first numbers of a vector are kept after the normalization; None
        keeps all.
    similarity: cosine, dot, euclidean or manhattan. Kept for other programs; bertworks uses the
        cosine.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    modules: Sequence[VectorModule] = ()
    max_length: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    truncate_dim: int | None = None
    similarity: str = "cosine"

    def prompt(self, *names: str) -> str:
        """Return the first of these prompts that the model has.

        Without names it is the default prompt; "" if there is none.
        """
        candidates = names or ((self.default_prompt,) if self.default_prompt else ())
        return next((self.prompts[name] for name in candidates if name in self.prompts), "")

    def save(self, folder: Path, hidden_size: int, *, is_static: bool = False) -> None:
        """Add the files with which sentence-transformers computes the same vectors.

        Their layout is the older one.

        Args:
            hidden_size: of the network.
            is_static: whether the network is a table of static vectors.

        Raises:
            BertworksError: sentence-transformers lacks the pooling.
        """
        require(
            self.pooling in _OLD_POOLINGS.values(),
            f"sentence-transformers has no pooling {self.pooling!r}",
            hint="take mean, cls or max",
        )
        require(
            self.pooling == "mean" or not is_static,
            f"sentence-transformers has no pooling {self.pooling!r} for static vectors",
            hint="take mean",
        )
        first_kinds = [_STATIC_KIND] if is_static else _FIRST_KINDS
        files: JsonObject = {}
        modules = list(self.modules)
        if self.normalize:
            modules.append(VectorModule("Normalize", {}, folder))
        for number, module in enumerate(modules, len(first_kinds)):
            # also an empty one: Git and the hub keep no empty folders
            files[f"{number}_{module.kind}/config.json"] = dict(module.settings)
            if MODULE_KINDS[module.kind]:
                weights = {name: tensor.float() for name, tensor in module.read_weights().items()}
                inner = folder / f"{number}_{module.kind}"
                inner.mkdir(parents=True, exist_ok=True)
                write_weights(inner / WEIGHTS, weights)
        if not is_static:
            modes = {name: pooling == self.pooling for name, pooling in _OLD_POOLINGS.items()}
            files["1_Pooling/config.json"] = {"word_embedding_dimension": hidden_size, **modes}
            files[_TRANSFORMER] = {
                "max_seq_length": self.max_length,
                "do_lower_case": self.lowercase,
            }
        whole_model: JsonObject = {
            "prompts": dict(self.prompts),
            "default_prompt_name": self.default_prompt,
            "similarity_fn_name": self.similarity,
        }
        if self.truncate_dim is not None:
            whole_model["truncate_dim"] = self.truncate_dim
        files[MODEL_FILE] = whole_model
        kinds = [*first_kinds, *(module.kind for module in modules)]
        entries = []
        for number, kind in enumerate(kinds):
            path = f"{number}_{kind}" if number else ""
            entries.append(
                {
                    "idx": number,
                    "name": str(number),
                    "path": path,
                    "type": f"sentence_transformers.models.{kind}",
                }
            )
        files[MODULES_FILE] = entries  # the last file: readers start from it
        for name, content in files.items():
            write_json(folder / name, content)


class SentenceTransformer(NamedTuple):
    """What the files of sentence-transformers say.

    weights_folder: of the network and the tokenizer: the model folder, or a subfolder.
    unwritten: settings that `SentenceTransformerSettings.save` does not write, as "file: names".
    is_static: whether the first module is a table of static vectors, and there is no network.
    """

    weights_folder: Path
    settings: SentenceTransformerSettings
    unwritten: tuple[str, ...] = ()
    is_static: bool = False


def read_sentence_transformer(folder: str | Path) -> SentenceTransformer:
    """Read the settings of a folder, each file once.

    A folder without such files has the defaults.

    Raises:
        BertworksError: a module that bertworks does not compute, or damaged files.
    """
    folder = Path(folder)
    modules = _modules(folder)
    if not modules:
        return SentenceTransformer(folder, SentenceTransformerSettings())
    kinds = [kind for kind, _ in modules]
    is_static = kinds[0] == _STATIC_KIND
    first_kinds = [_STATIC_KIND] if is_static else _FIRST_KINDS
    num_first = len(first_kinds)
    is_supported = kinds[:num_first] == first_kinds
    is_supported &= MODULE_KINDS.keys() >= {*kinds[num_first:]}
    require(
        is_supported,
        f"unsupported modules of sentence-transformers: {', '.join(kinds)[:200]}",
        folder / MODULES_FILE,
        _SUPPORTED,
    )
    files: list[tuple[Path, JsonObject]] = []  # the path and the settings of each module
    vector_modules: list[VectorModule] = []
    unwritten = []
    for number, (kind, module_folder) in enumerate(modules):
        if kind == _STATIC_KIND:  # it has no settings
            continue
        is_pooling = number == 1 and not is_static
        places = ["config.json"] if number else _TRANSFORMER_FILES
        present = [name for name in places if (module_folder / name).is_file()]
        path = module_folder / [*present, places[0]][0]
        content = read_json(path) if path.is_file() or is_pooling else {}
        files.append((path, content))
        table = f"2_{kind}/config.json"
        if number < num_first:
            table = (_TRANSFORMER, "1_Pooling/config.json")[number]
        _require_computed(content, table, path)
        written = _WRITTEN
        if number >= num_first:
            written = {*_FIELDS[table]["honoured"], *_FIELDS[table]["without_effect"]}
            known = {name: content[name] for name in content if name in written}
            vector_modules.append(VectorModule(kind, known, module_folder))
        unwritten_names = content.keys() - written
        if content.get("include_prompt") is True:
            unwritten_names -= {"include_prompt"}
        names = sorted(name for name in unwritten_names if not name.startswith("pooling_mode"))
        if names:
            unwritten.append(f"{path.relative_to(folder).as_posix()}: {', '.join(names)}")
    normalizes = kinds[-1] == "Normalize"
    if normalizes:
        vector_modules.pop()
    whole_model = _whole_model(folder / MODEL_FILE)
    if is_static:
        settings = SentenceTransformerSettings(
            normalize=normalizes, modules=tuple(vector_modules), **whole_model
        )
        return SentenceTransformer(modules[0][1], settings, tuple(unwritten), is_static=True)
    (transformer_path, transformer), (pooling_path, pooling), *_ = files
    length = transformer.get("max_seq_length")
    is_length = length is None or (type(length) is int and length >= 3)
    require(is_length, f"max_seq_length is {length!r:.40}", transformer_path, "write 3 or more")
    has_prompts = any(whole_model["prompts"].values())
    settings = SentenceTransformerSettings(
        pooling=_pooling(pooling, pooling_path, prompted=has_prompts),
        normalize=normalizes,
        modules=tuple(vector_modules),
        max_length=length,
        lowercase=transformer.get("do_lower_case") is True,
        **whole_model,
    )
    return SentenceTransformer(modules[0][1], settings, tuple(unwritten))


def missing_prompts(folder: Path, settings: SentenceTransformerSettings) -> list[str]:
    """Return the prompts that the model card shows, of a folder that names none.

    They are those of nomic's models and of E5, in the order in which the card shows them. Their
    texts were trained with one of them.
    """
    card = folder / "README.md"
    if any(settings.prompts.values()) or not card.is_file():
        return []
    with card.open(encoding="utf-8", errors="replace") as file:
        text = file.read(_LONGEST_CARD)
    return list(dict.fromkeys(match[1] for match in _SHOWN_PROMPT.finditer(text)))


def static_shape(shapes: Mapping[str, tuple[int, ...]], where: Path) -> tuple[int, int]:
    """Return the number of tokens and the width of a table of static vectors.

    Args:
        shapes: of all tensors of the file; see `static_table`.
        where: the file, for messages.

    Raises:
        BertworksError: there is no such table, or there are tensors that nothing here reads.
    """
    names = {TABLE} if TABLE in shapes else {_MODEL2VEC_TABLE, _ROW_OF_TOKEN, _WEIGHT_OF_TOKEN}
    table = shapes.get(TABLE, shapes.get(_MODEL2VEC_TABLE, ()))
    if len(table) != 2 or shapes.keys() - names:
        raise _no_static_table(shapes, where)
    num_rows, width = table
    # Each token may have the number of its row.
    num_tokens, *_ = shapes.get(_ROW_OF_TOKEN, (num_rows,)) or (num_rows,)
    return num_tokens, width


def _no_static_table(shapes: Mapping[str, tuple[int, ...]], where: Path) -> BertworksError:
    listed = {name: list(shape) for name, shape in shapes.items()}
    return BertworksError(
        f"this is not a table of static vectors: it has {listed!s:.200}, expected {TABLE} or "
        f"{_MODEL2VEC_TABLE} with a row of floating-point numbers for each token",
        where=where,
        hint=OTHER_MODEL,
    )


def static_table(weights: Mapping[str, "Tensor"], where: Path) -> "Tensor":
    """Return the vector of each token, [tokens, width], from the weights of a static folder.

    sentence-transformers writes it as it is. Model2Vec may have several tokens share a row, and may
    have a factor for each token; sentence-transformers 6 multiplies and repeats in the same way.

    Args:
        weights: all tensors of the file.
        where: the file, for messages.

    Raises:
        BertworksError: there is no such table; tensors that do not fit each other, or that nothing
            here reads.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    static_shape(shapes, where)
    table = weights[TABLE] if TABLE in weights else weights[_MODEL2VEC_TABLE]
    if not table.is_floating_point():
        raise _no_static_table(shapes, where)
    rows = weights.get(_ROW_OF_TOKEN)
    if rows is not None:
        is_index = rows.dim() == 1 and not rows.is_floating_point()
        fits = is_index and bool(((rows >= 0) & (rows < len(table))).all())
        require(
            fits,
            f"{_ROW_OF_TOKEN} does not name a row of {_MODEL2VEC_TABLE}, which has "
            f"{len(table):,}, for each token",
            where,
            OTHER_MODEL,
        )
        table = table[rows.long()]
    factors = weights.get(_WEIGHT_OF_TOKEN)
    if factors is not None:
        require(
            factors.shape == (len(table),),
            f"{_WEIGHT_OF_TOKEN} is {list(factors.shape)}: expected a number for each of "
            f"{len(table):,} tokens",
            where,
            OTHER_MODEL,
        )
        table = table.float() * factors.float()[:, None]
    return table


def module_pickles(folder: str | Path) -> list[Path]:
    """Return the weights of modules in a sentence-transformers folder that are pickles.

    Modules that have other weights, too, are left out.

    Raises:
        BertworksError: damaged files.
    """
    pickles: list[Path] = []
    for _, inside in _modules(Path(folder))[1:]:
        pickle = find_pickle(inside)
        if pickle is not None and not (inside / WEIGHTS).exists():
            pickles.append(pickle)
    return pickles


def module_files(folder: str | Path, *, trusts_pickles: bool = False) -> list[str]:
    """Return the names of the settings and weights of modules in a sentence-transformers folder.

    Other folders have none.

    Raises:
        BertworksError: damaged files; a module with weights in a pickle, unless pickles are
            trusted.
    """
    folder = Path(folder)
    pickles = [] if trusts_pickles else module_pickles(folder)
    if pickles:
        raise BertworksError(PICKLED_MODULE, where=pickles[0].parent)
    modules = _modules(folder)
    names = [MODULES_FILE, *_TRANSFORMER_FILES, MODEL_FILE] if modules else []
    for _, inside in modules[1:]:
        names += [f"{inside.name}/{name}" for name in ("config.json", WEIGHTS) if inside != folder]
    return [name for name in names if (folder / name).is_file()]


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Return the kind and the folder of each module."""
    path = folder / MODULES_FILE
    if not path.exists():
        return []
    modules = read_json(path, list)
    is_good = bool(modules) and all(isinstance(module, dict) for module in modules)
    require(is_good, "a list of modules is expected", path)
    for name in [module.get("path") for module in modules]:
        is_inside = isinstance(name, str) and Path(name).name == name and name != ".."
        require(is_inside, f"{name!r:.100} is not the name of a subfolder", path)
    return [
        (str(module.get("type")).rpartition(".")[2], folder / module["path"]) for module in modules
    ]


def _require_computed(content: Mapping[str, Any], fields: str, path: Path) -> None:
    """Raise BertworksError for a value that bertworks does not compute.

    Such a value would change the vectors.

    Args:
        fields: the table of the file in sentence_transformers.toml.
    """
    for name, values in _FIELDS[fields].get("required", {}).items():
        value = content.get(name)
        is_default = value is None or value in ("", [], {})
        expected = " or ".join(map(str, values)) or "no such setting"
        require(
            is_default or value in values,
            f"{name} is {value!r:.80}: only {expected} is supported",
            path,
            "use another model",
        )


def _pooling(content: Mapping[str, Any], path: Path, *, prompted: bool) -> Pooling:
    modes = content.get("pooling_mode")
    if modes is None:
        old = [
            name for name, value in content.items() if name.startswith("pooling_mode_") and value
        ]
        modes = [_OLD_POOLINGS.get(name, name) for name in old] or ["mean"]
    modes = modes if isinstance(modes, list) else [modes]
    is_pooling = len(modes) == 1 and modes[0] in get_args(Pooling)
    require(is_pooling, f"pooling by {', '.join(map(str, modes))[:100]}", path, _SUPPORTED)
    without = prompted and content.get("include_prompt") is False
    require(
        not without,
        "pooling without the tokens of the prompt is not supported",
        path,
        "use another model",
    )
    return cast(Pooling, modes[0])


def _whole_model(path: Path) -> JsonObject:
    """Return the settings of the whole model as fields of SentenceTransformerSettings.

    They are prompts, the default prompt, the size of the vectors and the similarity.
    """
    content = read_json(path) if path.exists() else {}
    _require_computed(content, MODEL_FILE, path)
    size = content.get("truncate_dim")
    if size is not None:
        is_size = type(size) is int and size >= 1
        require(
            is_size,
            f"truncate_dim is {size!r:.40}: expected a whole number from 1",
            path,
            "use another model",
        )
    prompts = content.get("prompts") or {}
    default = content.get("default_prompt_name")
    is_table = isinstance(prompts, dict) and all(isinstance(text, str) for text in prompts.values())
    is_name = default is None or (isinstance(default, str) and default in prompts)
    require(
        is_table and is_name,
        "expected prompts as a table of texts, and default_prompt_name as one of their names",
        path,
    )
    similarity = content.get("similarity_fn_name") or "cosine"
    require(
        similarity in _SIMILARITIES,
        f"similarity_fn_name is {similarity!r:.40}",
        path,
        f"write one of {', '.join(_SIMILARITIES)}",
    )
    return {
        "prompts": prompts,
        "default_prompt": default,
        "truncate_dim": size,
        "similarity": similarity,
    }
