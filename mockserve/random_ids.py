"""Ids that nobody can guess, asked of the system many at a time: each asking is a call of the kernel."""

import os
from collections.abc import Iterator

ID_BYTES = 8
IDS_AT_A_TIME = 256


def random_ids() -> Iterator[str]:
    """Sixteen hexadecimal digits each, as vLLM's ids have, without end."""
    while True:
        digits = os.urandom(ID_BYTES * IDS_AT_A_TIME).hex()
        width = 2 * ID_BYTES
        yield from (digits[start : start + width] for start in range(0, len(digits), width))
