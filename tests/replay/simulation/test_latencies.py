"""Outcomes of many requests at once equal the outcomes of each."""

import pytest
from hypothesis import given, settings

from blis_sim.engine.events import Finished
from blis_sim.engine.sequence import NOWHERE, Outcome, Sequence
from replay.simulation.record import NEVER, NO_OUTCOME, OUTCOMES, ClientView, outcome_columns
from tests.examples import examples
from tests.fakes import request
from tests.replay.labelled_runs import ran
from tests.replay.step_by_step import drained
from tests.strategies import Workload, workloads


@pytest.mark.parametrize("scheduling", ["blis", "vllm"])
@given(workload=workloads(with_hang_ups=False, with_speculation=False))
@settings(max_examples=examples(60), deadline=None)
def test_latencies_of_many_are_those_of_each(scheduling: str, workload: Workload) -> None:
    workload.settings["engine"] = scheduling
    if scheduling == "vllm":
        workload.settings["total_kv_blocks"] = int(workload.settings["total_kv_blocks"]) + 1
    engine, events = drained(workload)
    ended = [event for event in events if isinstance(event, Finished)]
    if not ended:
        return
    view = ClientView(engine)
    reported = outcome_columns([event.sequence for event in ended], [event.at for event in ended], [view])
    columns = (
        reported.ttft_us,
        reported.e2e_us,
        reported.itl_mean_us,
        reported.scheduling_delay_us,
        reported.output_tokens,
    )
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [
        view.latencies(event.sequence, event.at) for event in ended
    ]
    assert [OUTCOMES[code] for code in reported.outcome] == [event.outcome for event in ended]


def test_a_request_on_no_instance_has_an_outcome_only() -> None:
    turned_away, waiting = Sequence(request("a"), 7), Sequence(request("b"), 9)
    turned_away.outcome, turned_away.instance, waiting.instance = Outcome.REJECTED, NOWHERE, NOWHERE
    reported = outcome_columns([turned_away, waiting], [8, 8], [ClientView(ran().engine)])
    assert reported.outcome.tolist() == [OUTCOMES.index(Outcome.REJECTED), NO_OUTCOME]
    assert reported.instance.tolist() == [NOWHERE, NOWHERE]
    for column in (reported.ttft_us, reported.e2e_us, reported.scheduling_delay_us):
        assert column.tolist() == [NEVER, NEVER]
    assert reported.output_tokens.tolist() == [0, 0]
