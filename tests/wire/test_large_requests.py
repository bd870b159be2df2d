"""Large requests delay no other request and take little memory."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.examples import is_nightly
from tests.patience import attempts
from workshop.attack.costly import COSTLY
from workshop.attack.setups import Running, Setup, running
from workshop.attack.stalls import SERVERS, Bounds, measure

SECONDS = 0.8
"""Duration of each client's load."""

KINDS = (
    *("n chat stream", "n long", "n logprobs", "turns", "bad turns", "prompt logprobs n", "echo stream", "bad words"),
    *("detokenize", "beams", "responses items", "json values", "pictures", "template loop"),
    *("million embeddings", "million documents"),
)
SMALLER = (
    *("n", "n long stream", "prompt logprobs", "batch chat", "json lists", "template text", "embeddings", "score"),
)
"""Variants of the others, on the same paths, which the nightly run adds."""
BY_NAME = {each.name: each for each in COSTLY}


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[str], tuple[Running, Setup]]]:
    """A server for each kind of request, started when the first one needs it."""
    with ExitStack() as stack:
        started: dict[str, tuple[Running, Setup]] = {}

        def server_for(needs: str) -> tuple[Running, Setup]:
            if needs not in started:
                setup = next(each for each in SERVERS if needs in each.needs)
                started[needs] = stack.enter_context(running(setup)), setup
            return started[needs]

        yield server_for


@pytest.mark.slow
@pytest.mark.parametrize("name", [*KINDS, *SMALLER] if is_nightly() else KINDS)
def test_large_requests_delay_no_other_client(servers: Callable[[str], tuple[Running, Setup]], name: str) -> None:
    """Measure until all bounds hold at once, since a busy machine makes gaps longer; memory must hold at once."""
    kind = BY_NAME[name]
    server, setup = servers(kind.needs)
    for _ in attempts():
        effect, found = measure(server, setup, kind, SECONDS, before_s=0.5)
        assert effect.memory_growth_mb <= Bounds().memory_mb, effect
        assert (found.status or 0) < 500, found
        if effect.gap_worst_growth_ms <= Bounds().gap_worst_ms and effect.health_worst_ms <= Bounds().health_ms:
            return
