"""A large body that is refused leaves nothing in memory, although the collector never looks at what it was."""

import json
import sys
import time
from typing import Any

import pytest

from tests.wire.plain_http import call
from tests.wire.serving import TestServer

TURNS = [{"role": "user", "content": [{"type": "text", "text": f"word {number}"}]} for number in range(20_000)]
TOOLS = [{"type": "function", "function": {"name": f"f{number}", "parameters": {}}} for number in range(10_000)]
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "too many turns": ("/v1/chat/completions", {"messages": TURNS}),
    "calls without a parser": (
        "/v1/chat/completions",
        {"messages": TURNS[:1], "tools": TOOLS, "tool_choice": "required"},
    ),
    "no messages": ("/v1/messages", {"messages": TURNS}),
    "a response to too much": ("/v1/responses", {"input": TURNS[:600]}),  # each turn makes 240 findings
}
MOST_BLOCKS_LEFT = 20_000
"""Python objects that three refusals may leave: each body has far more."""
FREED_WITHIN_S = 30.0
"""A server frees a body after it has answered: on a busy machine, after its client has read the answer."""


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_body_is_freed(server: TestServer, name: str) -> None:
    path, body = REFUSED[name]
    sent = json.dumps({"model": "m", **body}).encode()
    assert call(server, "POST", path, sent).status == 400
    before = sys.getallocatedblocks()
    for _ in range(3):
        call(server, "POST", path, sent)
    ends = time.monotonic() + FREED_WITHIN_S
    while (left := sys.getallocatedblocks() - before) >= MOST_BLOCKS_LEFT and time.monotonic() < ends:
        time.sleep(0.05)
    assert left < MOST_BLOCKS_LEFT
