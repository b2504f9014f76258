"""What all tests share: the folder of real data, and one thread per test process so that timings do not matter."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin starve the other tests' processes
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder named by BERTWORKS_DATA; tests that need real data are skipped without it."""
    folder = os.environ.get("BERTWORKS_DATA")
    if not folder:
        pytest.skip("BERTWORKS_DATA is unset: this test needs the real corpora")
    return Path(folder)
