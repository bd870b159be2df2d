"""Memory of what large bodies had is the system's again once it is freed."""

import subprocess
import sys

import pytest

from mockserve.executor.memory import _glibc

MEASURE = """
from pathlib import Path
from mockserve.executor.memory import return_free_pages, return_large_blocks

def resident_mb():
    _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(shared)) * 4096 / 1e6

{setup}
bytearray(b"x") * (30 << 20)  # glibc takes the size of a large block that is freed for its threshold
before_mb = resident_mb()
{work}
print(resident_mb() - before_mb)
"""

LARGE_BLOCKS = """
blocks, kept = [], []
for _ in range(20):
    blocks.append(bytearray(b"x") * (3 << 20))
    kept.append([bytes(600) for _ in range(100)])
blocks.clear()
"""

SMALL_BLOCKS = """
small = [bytes(600) for _ in range(50_000)]
kept = small[::100]
del small
"""


def kept_mb(setup: str, work: str) -> float:
    """Megabytes that a process keeps of what it has used meanwhile."""
    program = MEASURE.format(setup=setup, work=work)
    return float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


needs_glibc = pytest.mark.skipif(_glibc() is None, reason="the C library is not glibc")


@pytest.mark.slow
@needs_glibc
def test_large_blocks_are_returned_when_they_are_freed() -> None:
    assert kept_mb("", LARGE_BLOCKS) > 50
    assert kept_mb("return_large_blocks()", LARGE_BLOCKS) < 10


@pytest.mark.slow
@needs_glibc
def test_pages_between_small_blocks_are_returned() -> None:
    assert kept_mb("", SMALL_BLOCKS) > 25
    assert kept_mb("", SMALL_BLOCKS + "return_free_pages()") < 10
