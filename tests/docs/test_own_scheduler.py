"""The example of a scheduler of one's own keeps its two rules."""

import pytest

from blis_sim.engine.core import Engine
from blis_sim.engine.events import BatchDone, Event, Finished, Scheduled
from blis_sim.engine.simulation import run_virtual
from tests.docs.pages import PROJECT
from tests.fakes import TestLatency, config, request

PROMPTS = {"long": 2_000, "middle": 900, "short": 100, "shortest": 40}


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """A run in which the prompts arrive one right after the other, the longest first."""
    monkeypatch.syspath_prepend(str(PROJECT / "examples"))
    rules = config(
        10_000, 16, engine="short_prompts_first:ShortPromptsFirst", max_num_batched_tokens=2_048, max_num_seqs=64
    )
    engine = Engine(rules, TestLatency(prefill_token_us=10), reports_batches=True)
    arrivals = [(at, request(name, num_tokens, 20)) for at, (name, num_tokens) in enumerate(PROMPTS.items())]
    return list(run_virtual(engine, arrivals))


def test_a_step_computes_at_most_so_many_prompt_tokens(events: list[Event]) -> None:
    prompt_tokens = [event.shape.prefill_tokens for event in events if isinstance(event, BatchDone)]
    assert max(prompt_tokens) == 512
    assert sum(prompt_tokens) == sum(PROMPTS.values())
    assert sum(isinstance(event, Finished) for event in events) == len(PROMPTS)


def test_short_prompts_overtake_longer_ones(events: list[Event]) -> None:
    admitted = [event.sequence.request.id for event in events if isinstance(event, Scheduled)]
    assert admitted == ["long", "short", "shortest", "middle"]
