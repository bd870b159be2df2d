"""How many captured requests each route has, and how many of them are open: `coverage.csv`."""

import csv
import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from tests.wire.captured.open_cases import case_line
from tests.wire.captured.setups import SETUPS
from tests.wire.captures import captures_by_name

FILE = Path(__file__).with_name("coverage.csv")


def write_coverage(shared: Path, open_lines: Collection[str]) -> None:
    """Count anew."""
    total: Counter[tuple[str, str]] = Counter()
    still_open: Counter[tuple[str, str]] = Counter()
    for setup in SETUPS:
        for capture in captures_by_name(shared / setup.capture_file).values():
            route = capture.method, re.sub(r"/resp_\w+", "/{response_id}", capture.path.partition("?")[0])
            total[route] += 1
            still_open[route] += case_line(setup.name, capture.name) in open_lines
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("method", "path", "num_requests", "num_open"))
        writer.writerows((*route, total[route], still_open[route]) for route in sorted(total))
