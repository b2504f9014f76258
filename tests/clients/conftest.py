"""What the tests of other programs share: the addresses of the servers that `run.py` has started."""

import json
import os
from collections.abc import Mapping

import pytest


@pytest.fixture(scope="session")
def servers() -> Mapping[str, str]:
    """Return the address of each server, without a slash at its end, by the name of its model in `run.MODELS`."""
    addresses: dict[str, str] = json.loads(os.environ["BERTWORKS_SERVERS"])
    return addresses
