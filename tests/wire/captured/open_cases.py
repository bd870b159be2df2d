"""The requests whose replies are not those of vLLM, one `setup / case` per line of `open_cases.txt`.

A request that is answered as vLLM answers it must not be listed; `renew.py` writes the file anew.
"""

from pathlib import Path

from tests.wire.captured.differences import Difference

FILE = Path(__file__).with_name("open_cases.txt")


def read_open_cases() -> frozenset[str]:
    """The lines of the file."""
    return frozenset(FILE.read_text(encoding="utf-8").splitlines())


def case_of(difference: Difference) -> str:
    """A difference's line in the file."""
    return case_line(difference.setup, difference.case)


def case_line(setup: str, case: str) -> str:
    """The line of one request."""
    return f"{setup} / {case}"
