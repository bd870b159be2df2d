"""The expected differences: `meant.csv`, one row each, with its reason."""

import csv
from pathlib import Path

from tests.wire.captured.expected import Expected

FILE = Path(__file__).with_name("meant.csv")

with FILE.open(encoding="utf-8", newline="") as lines:
    TABLE: tuple[Expected, ...] = tuple(Expected(**row) for row in csv.DictReader(lines))
