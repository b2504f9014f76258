"""What tests share: models, data and servers, and the programs that tests start."""

from pathlib import Path

SUPPORT = Path(__file__).parent  # programs that tests start by their path
ROOT = SUPPORT.parents[1]  # of the repository
