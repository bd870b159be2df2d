"""Large requests delay no other request and take little memory."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.patience import attempts
from workshop.attack.large_bodies import CASES
from workshop.attack.stalls import measure, server_for
from workshop.server_load.peers import Pace, Running, running

pytestmark = pytest.mark.slow

MOST_GAP_GROWTH_MS = 100.0
MOST_HEALTH_MS = 100.0
MOST_MEMORY_MIB = 200.0

SECONDS = 4.0
"""Duration of each client's load."""

GENERATING = (
    "n", "n chat stream", "n long", "n long stream", "n logprobs", "turns", "bad turns", "prompt logprobs",
    "prompt logprobs n", "echo stream", "bad words", "detokenize", "batch chat", "beams", "responses items",
    "json values", "json lists",
)  # fmt: skip
WITH_FLAGS = ("pictures", "template loop", "template text", "embeddings", "score")


@pytest.fixture(scope="module", params=WITH_FLAGS)
def special(request: pytest.FixtureRequest) -> Iterator[tuple[str, Running]]:
    with running(server_for(CASES[request.param]().flags), Pace(), None) as server:
        yield request.param, server


@pytest.fixture(scope="module")
def generating() -> Iterator[Running]:
    with running(server_for(()), Pace(), None) as server:
        yield server


def check_bounds(server: Running, name: str) -> None:
    """Measure until all bounds hold at once, since a busy machine makes gaps longer; memory must hold at once."""
    for _ in attempts():
        stall = asyncio.run(measure(server.port, server.pid, CASES[name](), SECONDS, before_s=1.0))
        assert stall.memory_mib <= MOST_MEMORY_MIB, stall
        assert not stall.status.startswith("5"), stall
        if stall.gap_max_growth_ms <= MOST_GAP_GROWTH_MS and stall.health_max_ms <= MOST_HEALTH_MS:
            return


@pytest.mark.parametrize("name", GENERATING)
def test_large_requests_delay_no_other_client(generating: Running, name: str) -> None:
    check_bounds(generating, name)


def test_large_requests_to_optional_routes_delay_no_other_client(special: tuple[str, Running]) -> None:
    name, server = special
    check_bounds(server, name)
