"""What Hugging Face and Google call BERT's parameters and settings: tables, each read in both directions.

The only module in which a foreign name may appear; it imports no library of theirs, opens no file, builds no network.
Whatever is read is checked against the configuration first: a name, a shape or a size that does not fit is an error.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bertworks.errors import BertworksError
from bertworks.models.config import LIMITS, EncoderConfig

_QKV = "query", "key", "value"
# Ours; theirs, joined in order along the first axis; the shape of each of theirs.
# "#" is the number of a layer. "*" is weight, or bias, which has only the first axis. Sizes: V words, P positions,
# T token types, H hidden, I inner, C what the classifier reads, L and A any number.
_TABLE: list[tuple[str, list[str], str]] = [
    ("encoder.embeddings.token.weight", ["embeddings.word_embeddings.weight"], "V H"),
    ("encoder.embeddings.position.weight", ["embeddings.position_embeddings.weight"], "P H"),
    ("encoder.embeddings.token_type.weight", ["embeddings.token_type_embeddings.weight"], "T H"),
    ("encoder.embeddings.norm.*", ["embeddings.LayerNorm.*"], "H"),
    ("encoder.blocks.#.attention.qkv.*", [f"encoder.layer.#.attention.self.{part}.*" for part in _QKV], "H H"),
    ("encoder.blocks.#.attention.output.*", ["encoder.layer.#.attention.output.dense.*"], "H H"),
    ("encoder.blocks.#.attention_norm.*", ["encoder.layer.#.attention.output.LayerNorm.*"], "H"),
    ("encoder.blocks.#.feed_forward.up.*", ["encoder.layer.#.intermediate.dense.*"], "I H"),
    ("encoder.blocks.#.feed_forward.down.*", ["encoder.layer.#.output.dense.*"], "H I"),
    ("encoder.blocks.#.feed_forward_norm.*", ["encoder.layer.#.output.LayerNorm.*"], "H"),
    ("pooler.dense.*", ["pooler.dense.*"], "H H"),
    ("lm_head.dense.*", ["cls.predictions.transform.dense.*"], "H H"),
    ("lm_head.norm.*", ["cls.predictions.transform.LayerNorm.*"], "H"),
    ("lm_head.bias", ["cls.predictions.bias"], "V"),
    ("next_sentence.*", ["cls.seq_relationship.*"], "2 H"),
    ("classifier.*", ["classifier.*"], "L C"),
    ("span.*", ["qa_outputs.*"], "2 H"),
]
# Theirs have no such network: this part has our names. Its sizes are its own, and so is then the classifier's input.
_RECURRENT = [
    (f"recurrent.lstm.{kind}_{source}_l{layer}{direction}", axes)
    for layer in range(2)
    for direction in ("", "_reverse")
    for source in ("ih", "hh")
    for kind, axes in (("weight", "A A"), ("bias", "A"))
]
_TABLE += [(name, [name], axes) for name, axes in _RECURRENT]
OWN_TYPE = "bertworks"  # the model_type of networks that theirs cannot compute, so that they are refused there
_PREFIX = "bert."  # before the names of the body, in files that hold a head as well
_BODY = "embeddings.", "encoder.", "pooler."
_TIED = {  # written twice by some versions: the copy, and what it must be equal to
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}  # counters saved by old versions: not parameters
_OLD_NAMES = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}
_OUTPUTS = {  # layers whose name at Google's ends in output_weights and output_bias: what stands before
    "cls.predictions": "cls/predictions/",
    "cls.seq_relationship": "cls/seq_relationship/",
    "classifier": "",
    "qa_outputs": "cls/squad/",
}
_OPTIMIZER = re.compile(r"(.+/)?(adam_m|adam_v|Adam|Adam_1|beta[12]_power|global_step)")  # its variables at Google's

_SETTINGS = {  # ours: theirs, and the value that a file means when it does not say
    "vocab_size": ("vocab_size", 30522),
    "hidden_size": ("hidden_size", 768),
    "num_hidden_layers": ("num_hidden_layers", 12),
    "num_attention_heads": ("num_attention_heads", 12),
    "intermediate_size": ("intermediate_size", 3072),
    "max_position_embeddings": ("max_position_embeddings", 512),
    "type_vocab_size": ("type_vocab_size", 2),
    "hidden_dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "layer_norm_eps": ("layer_norm_eps", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
}
# Theirs: ours. Google's code computes the tanh approximation under the name "gelu"; in these files "gelu" is exact.
_ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu",
    "gelu_python": "gelu", "gelu_fast": "gelu_tanh",
}  # fmt: skip
# Settings that change what is computed, and the only value that is an encoder of ours.
_OTHER_NETWORKS = {"position_embedding_type": "absolute", "is_decoder": False}
_NOT_KEPT = {  # settings of theirs that concern other files than ours, or make their library run a program
    "auto_map", "custom_pipelines", "quantization_config", "transformers_version", "torch_dtype", "_name_or_path",
}  # fmt: skip
_OF_LABELS = {"id2label", "label2id", "num_labels", "_num_labels", "problem_type"}

_CLASSES = {  # the heads that a state holds: the class of theirs that saves exactly these
    frozenset({"lm_head", "next_sentence"}): "BertForPreTraining",
    frozenset({"lm_head"}): "BertForMaskedLM",
    frozenset({"next_sentence"}): "BertForNextSentencePrediction",
    frozenset[str](): "BertModel",
}


@dataclass(frozen=True)
class _Parameter:
    ours: str
    theirs: list[str]
    shape: tuple[int | None, ...]  # of each of theirs; None: any

    @property
    def part(self) -> str:
        return self.ours.split(".", 1)[0]

    def fits(self, shape: Iterable[int], parts: int) -> bool:
        """Whether a tensor of this shape may hold `parts` of theirs, joined along the first axis."""
        sizes = list(shape)
        expected = [size if size is None or axis else size * parts for axis, size in enumerate(self.shape)]
        return len(sizes) == len(expected) and all(e in (None, s) for e, s in zip(expected, sizes))


def component_names(state: Iterable[str]) -> frozenset[str]:
    """The parts that a state of ours holds, of: encoder, pooler, masked_lm, next_sentence, classifier, span,
    recurrent."""
    return frozenset(name.split(".", 1)[0] for name in state)


def components_in_file(theirs: Iterable[str]) -> frozenset[str]:
    """The parts, as in `parts_of`, that a file of theirs with these names holds something of."""
    bare = {name.removeprefix(_PREFIX) for name in theirs}
    found = [
        (ours, name.replace("*", end)) for ours, names, _ in _TABLE for name in names for end in ("weight", "bias")
    ]
    return component_names(ours for ours, name in found if name in bare)


def architecture_of(state: Iterable[str]) -> str:
    """Their class that a pre-trained state of ours is. KeyError for the heads of fine-tuning, which need labels."""
    return _CLASSES[component_names(state) - {"encoder", "pooler"}]


def to_huggingface(state: Mapping[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """Our parameters under their names: the names and shapes that their own class for these parts saves.

    Tied copies are left out and the body has a prefix only beside a head, as in their files. Tensors are views.

    Raises:
        BertworksError: a name has no place there, a shape does not fit, or a part is incomplete.
    """
    head = component_names(state) - {"encoder", "pooler"}
    theirs: dict[str, Tensor] = {}
    table = _parameters(config, state)
    _refuse_unknown(set(state) - {parameter.ours for parameter in table}, None)
    for parameter in table:
        if parameter.ours in state:
            value = state[parameter.ours]
            _check_shape(parameter, parameter.ours, value, None, parts=len(parameter.theirs))
            for name, piece in zip(parameter.theirs, value.chunk(len(parameter.theirs))):
                theirs[_PREFIX + name if head and name.startswith(_BODY) else name] = piece
    begun = component_names(state) | {"encoder"}
    _refuse_missing([p.ours for p in table if p.part in begun and p.ours not in state], None)
    return theirs


def from_huggingface(
    state: Mapping[str, Tensor], config: EncoderConfig, *, where: str | None = None
) -> dict[str, Tensor]:
    """Their parameters under our names, from a file of the body alone or with any head. What it holds: `parts_of`.

    The body must be complete and every head whole or absent. Tied copies must be equal to their original.

    Args:
        where: the file, for messages.

    Raises:
        BertworksError: unknown names (listed), a wrong shape, a part incomplete (what is missing is listed).
    """
    theirs = _untied(_renamed(state, where), where)
    ours: dict[str, Tensor] = {}
    table = _parameters(config, theirs)
    _refuse_unknown(theirs.keys() - {name for parameter in table for name in parameter.theirs}, where)
    begun = {p.part for p in table if not theirs.keys().isdisjoint(p.theirs)} | {"encoder"}
    wanted = [parameter for parameter in table if parameter.part in begun]
    _refuse_missing([name for parameter in wanted for name in parameter.theirs if name not in theirs], where)
    for parameter in wanted:
        for name in parameter.theirs:
            _check_shape(parameter, name, theirs[name], where)
        pieces = [theirs[name] for name in parameter.theirs]
        ours[parameter.ours] = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return ours


def redundant_tensors(names: Collection[str]) -> list[str]:
    """Which of the names in a file `from_huggingface` does without: counters, and copies of what is there as well."""
    bare = {name.removeprefix(_PREFIX): name for name in names}
    return sorted(name for short, name in bare.items() if short in _BUFFERS or _TIED.get(short) in bare)


def names_of_google(config: EncoderConfig) -> dict[str, str]:
    """What Google's code calls the variables of a BERT: their name, and the one in Hugging Face's files.

    A variable that is called `kernel` is the transposed matrix.
    """
    theirs = [name for p in _parameters(config, []) if p.part != "recurrent" for name in p.theirs]
    names = {}
    for name in theirs:
        stem, _, end = name.rpartition(".")
        if stem in _OUTPUTS:
            names[f"{_OUTPUTS[stem]}output_{'weights' if end == 'weight' else end}"] = name
            continue
        stem = f"{_PREFIX if name.startswith(_BODY) else ''}{stem}".replace("layer.", "layer_").replace(".", "/")
        if stem.endswith("LayerNorm"):
            end = {"weight": "gamma", "bias": "beta"}[end]
        elif end == "weight":
            end = "" if stem.endswith("_embeddings") else "kernel"
        names[f"{stem}/{end}".rstrip("/")] = name
    return names


def is_of_optimizer(name: str) -> bool:
    """Whether a variable of Google's is the state of a training, and no parameter."""
    return _OPTIMIZER.fullmatch(name) is not None


def config_to_huggingface(
    config: EncoderConfig, *, architectures: Collection[str], pad_token_id: int = 0
) -> dict[str, Any]:
    """The content of config.json, every field written, with real types.

    Args:
        architectures: their class that the saved parameters are of, such as `BertForPreTraining`.
        pad_token_id: of the tokenizer that is saved beside.
    """
    settings = {theirs: getattr(config, ours) for ours, (theirs, _) in _SETTINGS.items()}
    activations = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
    settings |= {"intermediate_size": config.ffn_size, "hidden_act": activations[config.hidden_act]}
    settings |= {"model_type": "bert", "architectures": list(architectures), "pad_token_id": pad_token_id}
    settings |= {"bos_token_id": None, "eos_token_id": None, "classifier_dropout": None, "use_cache": True}
    settings |= {"is_decoder": False, "add_cross_attention": False, "tie_word_embeddings": True, "dtype": "float32"}
    return dict(sorted(settings.items()))


def config_from_huggingface(settings: Mapping[str, Any], *, where: str | None = None) -> EncoderConfig:
    """The encoder that a config.json describes. Keys that do not concern an encoder are ignored.

    Args:
        where: the file, for messages.

    Raises:
        BertworksError: it is not a BERT, or not one that we compute; a value of the wrong type or an absurd size.
    """
    kind = _kind(settings) if isinstance(settings, Mapping) else None
    if kind not in ("bert", OWN_TYPE):
        found = f"model_type is {_shown(kind)}" if kind is not None else "there is no model_type"
        raise BertworksError(
            f"{found}: expected the configuration of a BERT",
            where=where,
            hint='choose a folder whose config.json says "model_type": "bert" (add the line to a file of Google\'s)',
        )
    for name, value in _OTHER_NETWORKS.items():
        if settings.get(name, value) != value:
            raise BertworksError(
                f"{name} is {_shown(settings[name])}: this network is not a BERT encoder as we compute it, "
                f"where it is {_shown(value)}",
                where=where,
            )
    values: dict[str, Any] = {
        ours: _number(settings.get(theirs, default), theirs, type(default), where)
        for ours, (theirs, default) in _SETTINGS.items()
    }
    activation = settings.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise BertworksError(f"hidden_act is {_shown(activation)}: expected one of {known}", where=where)
    try:
        return EncoderConfig(hidden_act=_ACTIVATIONS[activation], **values)  # type: ignore[arg-type]
    except ValueError as error:
        raise BertworksError(str(error), where=where, hint="correct the file, or get it again") from error


def settings_to_keep(settings: Mapping[str, Any], *, head: bool) -> tuple[dict[str, Any], list[str]]:
    """What a config.json of theirs says beyond what an EncoderConfig and a head do, to be written again; names of what
    is left out. head: whether there is one whose labels are told elsewhere."""
    ours = {theirs for theirs, _ in _SETTINGS.values()} | {"hidden_act", "model_type", "architectures", "pad_token_id"}
    ours |= {"is_decoder", "add_cross_attention", "tie_word_embeddings", "dtype"} | _OF_LABELS
    kept = {name: value for name, value in settings.items() if name not in ours | _NOT_KEPT}
    return kept, sorted((_NOT_KEPT | (set() if head else _OF_LABELS)) & settings.keys())


def _kind(settings: Mapping[str, Any]) -> Any:
    """The model_type. The first versions did not write it, but some the name of the class."""
    named = settings.get("architectures")
    old = isinstance(named, list) and all(re.match("Bert(For|Model)", str(name)) for name in named) and named
    return settings.get("model_type", "bert" if old else None)


def _number(value: object, name: str, kind: type, where: str | None) -> int | float:
    if kind is int and type(value) is int and 1 <= value <= LIMITS[name]:
        return value
    if kind is float and isinstance(value, int | float) and type(value) is not bool and 0 <= value <= 1:
        return float(value)
    expected = f"a whole number from 1 to {LIMITS[name]:,}" if kind is int else "a number from 0 to 1"
    raise BertworksError(
        f"{name} is {_shown(value)}: expected {expected}", where=where, hint="correct the file, or get it again"
    )


def _shown(value: object) -> str:
    """A value from a file as it may stand in a message: never long."""
    if isinstance(value, str | bool | float | None) or (type(value) is int and abs(value) < 10**20):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return "an enormous number" if isinstance(value, int) else f"a {type(value).__name__}"


def _parameters(config: EncoderConfig, state: Collection[str]) -> list[_Parameter]:
    """The table with its signs replaced: one entry for each of our parameters. state: the names that there are."""
    sizes: dict[str, int | None] = {"V": config.vocab_size, "H": config.hidden_size, "I": config.ffn_size}
    sizes |= {"P": config.max_position_embeddings, "T": config.type_vocab_size, "2": 2, "L": None, "A": None}
    sizes["C"] = None if "recurrent" in component_names(state) else config.hidden_size
    entries = []
    for ours, theirs, axes in _TABLE:
        shape = tuple(sizes[axis] for axis in axes.split())
        for number in map(str, range(config.num_hidden_layers)) if "#" in ours else [""]:
            for end in ("weight", "bias") if "*" in ours else [""]:
                names = [name.replace("#", number).replace("*", end) for name in (ours, *theirs)]
                entries.append(_Parameter(names[0], names[1:], shape[:1] if end == "bias" else shape))
    return entries


def _renamed(state: Mapping[str, Tensor], where: str | None) -> dict[str, Tensor]:
    """Without the prefix, without counters, and with today's names."""
    renamed: dict[str, Tensor] = {}
    for name, value in state.items():
        new = name.removeprefix(_PREFIX)
        for old, today in _OLD_NAMES.items():
            new = new.removesuffix(old) + today if new.endswith(old) else new
        if new in renamed:
            raise BertworksError(f"two tensors are both {new}: {name} is one of them", where=where)
        if new not in _BUFFERS:
            renamed[new] = value
    return renamed


def _untied(theirs: dict[str, Tensor], where: str | None) -> dict[str, Tensor]:
    """Without the copies of tied parameters; an original that is missing is taken from its copy."""
    for copy, original in _TIED.items():
        if copy in theirs and not _equal(theirs[copy], theirs.setdefault(original, theirs[copy])):
            raise BertworksError(
                f"{copy} differs from {original}: the scores of words are not tied to the embeddings, as ours are",
                where=where,
            )
    return {name: value for name, value in theirs.items() if name not in _TIED}


def _equal(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and first.shape == second.shape and torch.equal(first, second)


def _check_shape(parameter: _Parameter, name: str, value: Tensor, where: str | None, parts: int = 1) -> None:
    if not parameter.fits(value.shape, parts) or not value.is_floating_point():
        axes = ["any" if size is None else str(size * parts if not axis else size)
                for axis, size in enumerate(parameter.shape)]  # fmt: skip
        raise BertworksError(
            f"{name} is {value.dtype} {list(value.shape)}, but the configuration asks for floating-point "
            f"numbers of the shape [{', '.join(axes)}]",
            where=where,
            hint="use the config.json that was saved with these weights",
        )


def _refuse_unknown(names: Collection[str], where: str | None) -> None:
    if names:
        raise BertworksError(
            f"{_listed(names)}: no place for this in a BERT of this configuration",
            where=where,
            hint="use the config.json that was saved with these weights; other networks than BERT cannot be read",
        )


def _refuse_missing(names: Collection[str], where: str | None) -> None:
    if names:
        raise BertworksError(
            f"incomplete: {_listed(names)} missing",
            where=where,
            hint="the file was cut, or is not a whole model: get it again",
        )


def _listed(names: Collection[str]) -> str:
    first = [name if len(name) <= 120 else f"{name[:117]}..." for name in sorted(names)[:8]]
    return ", ".join(first) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
