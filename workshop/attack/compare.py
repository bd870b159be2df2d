"""Compares how two servers answered the same hostile requests.

    python -m workshop.attack.compare GENUINE.jsonl OURS.jsonl [--texts]

The files are written by `bodies.py --replies`, with equal --count, --seed and --setups. Requests that were answered
with different statuses are listed, and with --texts those whose error messages differ, too. The exit code is 1 when
there are any.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any, TypeAlias

from workshop.ending import run_command

Row: TypeAlias = dict[str, Any]

_VARYING = re.compile(r"[0-9a-f]{8,}|0x[0-9a-f]+|\d{10}")
"""Names and instants that no two replies share."""


def rows(file: str) -> dict[tuple[str, int], Row]:
    """Exchanges by set-up and number; the last of those that were sent several times."""
    found = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
    return {(each["setup"], each["index"]): each for each in found}


def answer(row: Row, with_text: bool) -> str:
    """The compared parts of an exchange."""
    status = row["status"] or row["outcome"]
    if not with_text or not isinstance(status, int) or status < 400:
        return str(status)
    return f"{status} {_VARYING.sub('_', row['reply'])}"


def main() -> None:
    """Print the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("genuine")
    parser.add_argument("ours")
    parser.add_argument("--texts", action="store_true", help="compare the texts of errors, too")
    given = parser.parse_args()
    genuine, ours = rows(given.genuine), rows(given.ours)
    shared = sorted(genuine.keys() & ours.keys())
    different = [key for key in shared if answer(genuine[key], given.texts) != answer(ours[key], given.texts)]
    for key in different:
        row = genuine[key]
        print(f"{key[0]} {key[1]}: {row['kind']} {row['route']}\n  sent    {row['sent']!r}")
        print(f"  genuine {row['status'] or row['outcome']} {row['reply'][:400]!r}")
        print(f"  ours    {ours[key]['status'] or ours[key]['outcome']} {ours[key]['reply'][:400]!r}")
    print(f"{len(shared):,} requests compared, {len(different):,} answered differently")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    run_command(main)
