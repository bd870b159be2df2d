"""Writes `open_cases.txt` and `coverage.csv` anew from the server's present answers, and prints how many are open.

python -m tests.wire.captured.renew SHARED_FOLDER
"""

import sys
from pathlib import Path

from tests.wire.captured.coverage import write_coverage
from tests.wire.captured.expected import unexpected
from tests.wire.captured.expected_table import TABLE
from tests.wire.captured.open_cases import FILE, case_of
from tests.wire.captured.replay import found_differences
from tests.wire.captured.setups import SETUPS


def main() -> int:
    """Ask everything."""
    shared = Path(sys.argv[1])
    lines: list[str] = []
    for setup in SETUPS:
        lines += dict.fromkeys(case_of(each) for each in unexpected(found_differences(setup, shared), TABLE))
    FILE.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    write_coverage(shared, frozenset(lines))
    sys.stdout.write(f"{len(lines)} open requests\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
