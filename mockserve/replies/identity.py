"""What tells a reply from others: an id that nobody can guess, and when it was made."""

import os
import time
from collections.abc import Iterator

ID_BYTES = 8
IDS_AT_A_TIME = 256


def random_ids() -> Iterator[str]:
    """Sixteen hexadecimal digits each, as vLLM's ids have, without end.

    The system is asked for many at a time: each asking is a call of the kernel.
    """
    while True:
        digits = os.urandom(ID_BYTES * IDS_AT_A_TIME).hex()
        width = 2 * ID_BYTES
        yield from (digits[start : start + width] for start in range(0, len(digits), width))


def new_id() -> str:
    """Such an id alone."""
    return os.urandom(ID_BYTES).hex()


def unix_time() -> int:
    """Seconds since 1970, for the `created` fields."""
    return int(time.time())
