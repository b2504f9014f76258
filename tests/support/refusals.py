"""What a refusal says: its text, and a hint that leads on."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bertworks.errors import BertworksError


@contextmanager
def refusal(what: str, hint: str) -> Iterator[None]:
    """Expect an error with this text and this hint, parts of each."""
    with pytest.raises(BertworksError) as error:
        yield
    assert what in str(error.value), str(error.value)
    assert hint in str(error.value.hint), str(error.value.hint)
