"""Messages of libraries lose what vLLM takes out of them, in time that grows with their length alone."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mockserve.protocol.errors import sanitized

PIECES = (
    *("/", "a", "-", ".", "x9", "/home", "/usr/lib", "/a.b", "/é", " ", "\n", "\t", '"', 'File "'),
    *('File "a", line 3, in f', ", line 3", ", in ", "code", " at 0x", "1F>", ">", "\\", "\u2003", "/srv/x", "_"),
)  # fmt: skip


def vllm_sanitized(message: str) -> str:
    """The substitutions of vLLM 0.33, one after the other."""
    message = re.sub(r" at 0x[0-9a-fA-F]+>", ">", message)
    message = re.sub(r'\n?\s*File "[^"]+", line \d+, in \S+(\n\s+.*)?', "", message)
    message = re.sub(r"/(?:home|usr|opt|var|tmp|root|lib|mnt|srv)(?:/[\w.\-]+)+", "<path>", message)
    message = re.sub(r"(?:/[\w\-]+)+/[\w\-]+\.\w+", "<path>", message)
    return message.strip()


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_messages_are_sanitized_like_in_vllm(message: str) -> None:
    assert sanitized(message) == vllm_sanitized(message)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("no /home/me/model here", "no <path> here"),
        ("read src/a/b.py and /a.b", "read src<path> and /a.b"),
        ('Error\n  File "/x.py", line 3, in f\n    g()\nend', "Error\nend"),
        ("<A object at 0x7f00>", "<A object>"),
    ],
)
def test_paths_tracebacks_and_addresses_are_taken_out(message: str, expected: str) -> None:
    assert sanitized(message) == vllm_sanitized(message) == expected


@pytest.mark.parametrize(
    "piece",
    ["/a", "/home", "/home/a", "/", "-/", "/a.", "/aaaaaaaaaaaaaaaa", " ", "\n", 'File "', 'File "a', " at 0x1"],
)
def test_a_long_message_is_sanitized_within_a_second(piece: str) -> None:
    """vLLM's patterns take 6 s for 5,000 names with slashes between."""
    message = piece * 20_000
    before_s = time.process_time()
    sanitized(message)
    assert time.process_time() - before_s < 1.0
