"""Read generation_config.json, in which the publisher of a model describes how to generate.

It says where a text ends, and how the next token is sampled.

generation_config.toml lists every field of transformers and what becomes of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertworks.checkpoints.storage import read_json
from bertworks.config import packaged_table
from bertworks.errors import require
from bertworks.events import JsonObject

GENERATION_FILE = "generation_config.json"
_FIELDS = packaged_table(__file__, "generation_config.toml")
_TOP_K = 50  # the default of transformers for a file that samples and has no top_k
_CORRECT = "correct the file, or get it again"


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """The content of a generation_config.json; without a file everything is empty.

    path: the file.
    end_ids: the ids of the tokens that end a text; None if the file does not have the field.
    sampling: `do_sample`, `temperature`, `top_k` and `top_p`, as far as the file has them.
    not_computed: values that change which tokens are chosen, in ways that bertworks does not
        compute.
    """

    path: Path
    end_ids: tuple[int, ...] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    not_computed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def temperature(self) -> float:
        """The temperature of the sampling, or 0 if the most probable token is taken each time.

        Like transformers, this ignores a temperature without do_sample.
        """
        if not self.sampling.get("do_sample"):
            return 0.0
        return float(self.sampling.get("temperature", 1.0))

    @property
    def top_k(self) -> int | None:
        """How many of the most probable tokens are sampled from.

        None if tokens are sampled from the whole vocabulary, or the most probable token is taken.
        """
        if self.temperature == 0:
            return None
        return self.sampling.get("top_k", _TOP_K) or None

    @property
    def top_p(self) -> float | None:
        """The probability of the tokens that are sampled from, or None as for `top_k`."""
        top_p = self.sampling.get("top_p", 1.0)
        if self.temperature == 0 or top_p == 1:
            return None
        return float(top_p)

    def notes(self, sampling: str) -> list[str]:
        """Return notes on the sampling that the file describes and on whether it is used.

        If it describes none there are no notes.

        Args:
            sampling: "model" if the sampling of the file is used; "options" if the user's options
                replace it.
        """
        if sampling == "model":
            names = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
            settings = ", ".join(
                f"{name} {value}" for name, value in names.items() if value is not None
            )
            return [
                f"sampling of the model: {settings}"
                if self.temperature
                else "the model does not sample"
            ]
        values: dict[str, Any] = {}
        if self.sampling.get("do_sample"):
            values.update(self.sampling)
        values.update(self.not_computed)
        if not values:
            return []
        text = ", ".join(f"{name} {str(value).lower():.40}" for name, value in values.items())
        return [f"{self.path.name} of the model has {text}: not used without --sampling model"]

    def require_computed(self) -> None:
        """Raise BertworksError if bertworks does not compute the sampling of the model."""
        text = ", ".join(
            f"{name} {str(value).lower():.40}" for name, value in self.not_computed.items()
        )
        require(
            not text,
            f"the model samples with {text}, which bertworks does not compute",
            self.path,
            "leave --sampling out, and choose --temperature, --top-k and --top-p",
        )


def read_generation_config(folder: Path) -> GenerationConfig:
    """Read the file of a model folder.

    Fields that transformers does not have are ignored.

    Raises:
        BertworksError: a damaged file, or values of a wrong type or outside their range.
    """
    path = folder / GENERATION_FILE
    if not path.is_file():
        return GenerationConfig(path=path)
    content = {name: value for name, value in read_json(path).items() if value is not None}
    sampling = {name: content[name] for name in _FIELDS["sampling"] if name in content}
    for name, value in sampling.items():
        is_number = type(value) in (int, float)
        if name == "do_sample":
            expected = "true or false"
            is_valid = type(value) is bool
        elif name == "temperature":
            expected = "a number above 0"
            is_valid = is_number and 0 < value < float("inf")
        elif name == "top_k":
            expected = "a whole number from 0"
            is_valid = type(value) is int and value >= 0
        else:
            expected = "a number above 0, up to 1"
            is_valid = is_number and 0 < value <= 1
        require(is_valid, f"{name} is {value!r:.60}: expected {expected}", path, _CORRECT)
    not_computed = {
        name: content[name]
        for name, neutral in _FIELDS["not_computed"].items()
        if name in content and content[name] != neutral and content[name] != []
    }
    end_ids = None
    value = content.get("eos_token_id")
    if value is not None:
        end_ids = tuple(value) if isinstance(value, list) else (value,)
        is_valid = all(type(number) is int and number >= 0 for number in end_ids)
        require(
            is_valid,
            f"eos_token_id is {value!r:.60}: expected the number of a token, or a list of them",
            path,
            _CORRECT,
        )
    return GenerationConfig(
        path=path,
        end_ids=end_ids,
        sampling=sampling,
        not_computed=not_computed,
    )


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """What the files of a network with a decoder say about translating.

    rules: fields of `inference.translation.DecodingRules`.
    max_tokens: of a translation; None: they do not say it.
    start: the token from which the first one is predicted; None: they do not say it.
    ends: the tokens that end a translation.
    """

    rules: Mapping[str, Any]
    max_tokens: int | None
    start: int | None
    ends: tuple[int, ...]


def read_decoding(folder: Path, settings: Mapping[str, Any]) -> Decoding:
    """Read how a network with a decoder translates.

    generation_config.json says it; in folders without this file config.json does, as in old
    versions of transformers.

    Args:
        settings: the content of config.json.

    Raises:
        BertworksError: a value of a wrong type, or one that changes which tokens are chosen in a
            way that is not computed here.
    """
    path = folder / GENERATION_FILE
    known = {*_FIELDS["decoding"], *_FIELDS["not_computed"], *_FIELDS["end_tokens"]}
    content = _FIELDS["decoding_defaults"] | settings
    content = {name: value for name, value in content.items() if name in known}
    if path.is_file():
        content = dict(read_json(path))
    else:
        path = folder / "config.json"
    content = {name: value for name, value in content.items() if value not in (None, [])}
    for name, neutral in _FIELDS["not_computed"].items():
        require(
            name in _FIELDS["decoding"] or content.get(name, neutral) == neutral,
            f"{name} is {content.get(name)!r:.60}, which is not computed in translations",
            path,
            f"remove {name} from the file, if it is not needed",
        )
    require(
        not content.get("do_sample"),
        "do_sample is true: translations are not sampled",
        path,
        "set do_sample to false",
    )
    values: JsonObject = {}
    for name, kind in _FIELDS["decoding"].items():
        if name in content:
            value = content[name]
            require(
                _DECODING_TYPES[kind](value),
                f"{name} is {value!r:.60}: expected {kind}",
                path,
                _CORRECT,
            )
            values[name] = value
    rules = {rule: values[name] for name, rule in _RULES.items() if name in values}
    ends = _numbers(values["eos_token_id"])
    forbidden = (ids[0] for ids in values.get("bad_words_ids", ()))
    # As in transformers, the tokens that end a text cannot be forbidden.
    rules["forbidden"] = tuple(number for number in forbidden if number not in ends)
    if "forced_eos_token_id" in values:
        rules["forced_end"] = _numbers(values["forced_eos_token_id"])[0]
    max_tokens = values.get("max_new_tokens")
    if max_tokens is None and "max_length" in values:
        max_tokens = max(1, values["max_length"] - 1)  # it counts the token from which it starts
    return Decoding(
        rules=rules,
        max_tokens=max_tokens,
        start=values.get("decoder_start_token_id"),
        ends=ends,
    )


# field of the file: field of `inference.translation.DecodingRules`
_RULES = {
    "num_beams": "beam",
    "length_penalty": "length_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "early_stopping": "early_stopping",
    "renormalize_logits": "renormalize",
}


def _numbers(value: int | list[int]) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def _is_token(value: object) -> bool:
    return type(value) is int and value >= 0


# The kinds of values in the table "decoding": in words, and what holds for them.
_DECODING_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "a whole number from 0": _is_token,
    "a whole number from 1": lambda value: type(value) is int and value >= 1,
    "a number": lambda value: type(value) in (int, float),
    "true or false": lambda value: type(value) is bool,
    "true, false or never": lambda value: value in (True, False, "never"),
    "a token, or a list of tokens": lambda value: all(map(_is_token, _numbers(value))),
    "a list of lists with one token each": lambda value: (
        isinstance(value, list)
        and all(isinstance(ids, list) and len(ids) == 1 and _is_token(ids[0]) for ids in value)
    ),
}
