"""Read generation_config.json, in which the publisher of a model describes how to generate.

It says where a text ends, and how the next token is sampled.

generation_config.toml lists every field of transformers and what becomes of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertworks.checkpoints.storage import read_json
from bertworks.config import packaged_table
from bertworks.errors import require

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
