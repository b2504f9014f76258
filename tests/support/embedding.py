"""Texts that tests embed, and a mark for tests that need int8."""

import pytest

from bertworks.models.transformer import cpu_supports_int8

needs_int8 = pytest.mark.skipif(
    not cpu_supports_int8(), reason="this processor does not multiply 8 bits"
)
# For a tiny model.
TEXTS = [
    "good film",
    "the men in this town heard some music last night " * 9,
    "",
    "sad dogs . ?",
    "Anna lives in Oslo",
]
# For a published one.
REAL = [
    "The cat sits on the mat.",
    "",
    "Naïve café — 東京 😀 [MASK] it's",
    "A long text that is cut at its end. " * 60,
    "Wings in a slipstream.",
]
