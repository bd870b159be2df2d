"""Waiting for what must happen, however busy the machine is."""

import time
from collections.abc import Callable, Iterator, Sequence

PATIENCE_S = 120.0
"""More than anything takes on the busiest machine."""
ATTEMPTS_S = 300.0
"""Half of what a test may take. Other tests keep the cores busy for minutes, and then there is a quiet moment."""


def wait_until(is_so: Callable[[], object], complaint: Callable[[], str] | str = "it never came about") -> None:
    """Look again and again whether something is so; fails with the complaint when patience ends."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, complaint if isinstance(complaint, str) else complaint()
        time.sleep(0.01)


def attempts(seen: Sequence[object] = ()) -> Iterator[None]:
    """For measuring again what a busy machine can only make worse; fails with what was `seen` when patience ends."""
    deadline = time.monotonic() + ATTEMPTS_S
    while True:
        yield
        assert time.monotonic() < deadline, f"the machine may be busy, but not as busy as that all the time: {seen}"
