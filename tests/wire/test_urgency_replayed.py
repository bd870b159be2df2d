"""Four served instances finish a burst of several priorities in the order of the replay of its recording."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.deployment import resolve
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.units import Micros
from blis_sim.options import options_from
from mockserve.realtime.cluster import ClusterDriver
from mockserve.realtime.in_flight import InFlightRequest
from observe.command import run as observe
from observe.options import ObserveOptions
from replay.command import run as replay
from replay.replay_options import ReplayOptions
from tests.wire.serving import running_server
from traces import SloTargets, TraceHeader, TraceRow, read_trace, write_trace

NUM_INSTANCES, NUM_BURST, GAP_US = 4, 20, 20_000
FLAGS: dict[str, Any] = {
    "model": "qwen/qwen3-14b",
    "hardware": "H100",
    "tp": 1,
    "num_instances": NUM_INSTANCES,
    "max_num_seqs": 1,
    "max_model_len": 2048,
    "enable_prefix_caching": False,
    "priority_policy": "slo-urgency",
    "urgency_window": 180_000,
    "urgency_step": 5,
    "preemption_policy": "gap",
}


def row(number: int, at_us: Micros, output_tokens: int, **urgency: Any) -> TraceRow:
    return TraceRow(
        request_id=number, input_tokens=40, output_tokens=output_tokens, arrival_time_us=at_us, status="ok", **urgency
    )


def burst(folder: Path) -> str:
    """A trace in which a request on each instance loses its place, and a queue forms behind those that took it.

    Places change hands long after the last arrival, so a server that is a few milliseconds late has the same order.
    """
    rows = [row(each, each * GAP_US, 80, slo_class="batch", vllm_priority=8) for each in range(NUM_INSTANCES)]
    kinds: list[dict[str, Any]] = [
        {"slo_class": "batch"},
        {"slo_class": "standard", "vllm_priority": 9, "slo_e2e_us": 200_500},  # rises to 4, before the 5 of batch
        {"slo_class": "critical"},
    ]
    for each in range(NUM_INSTANCES + NUM_BURST):
        takes_place = each < NUM_INSTANCES
        urgency = {"slo_class": "critical"} if takes_place else kinds[each * 7 // NUM_INSTANCES % len(kinds)]
        at_us = (each + 2 * NUM_INSTANCES) * GAP_US
        rows.append(row(len(rows), at_us, 64 if takes_place else 3, **urgency))
    header = TraceHeader(time_unit="us", mode="generated", goodput_slo_targets={"critical": SloTargets(e2e_ms=5000)})
    write_trace(folder / "burst.yaml", header, rows, ("vllm_priority", "slo_e2e_us"))
    return str(folder / "burst.yaml")


def by_instance(ends: dict[int, Micros]) -> list[list[int]]:
    """The requests in the order in which they ended on each instance, which take arrivals in turn."""
    order = sorted(ends, key=ends.__getitem__)
    return [[each for each in order if each % NUM_INSTANCES == instance] for instance in range(NUM_INSTANCES)]


@dataclass(frozen=True)
class Recording:
    """A recording, and the requests as the server took them, in its order."""

    rows: list[TraceRow]
    flights: list[InFlightRequest]

    @property
    def is_punctual(self) -> bool:
        """Whether the server took requests in the order in which they were sent, each before the next was sent."""
        late_us = [flight.arrived_at - each.send_time_us for each, flight in zip(self.rows, self.flights, strict=True)]
        taken = all(each.x_request_id in one.request.id for each, one in zip(self.rows, self.flights, strict=True))
        return taken and max(late_us) - min(late_us) < GAP_US


def record(folder: Path, latency: LatencyModel, taken: list[InFlightRequest]) -> Recording:
    """Send the burst to a server; a machine that holds processes up for long has to try again."""
    for _ in range(5):
        taken.clear()
        with running_server(latency, speed=1.0, **FLAGS) as server:
            options = ObserveOptions(url=server.url, trace=burst(folder), output=str(folder / "served"), overwrite=True)
            assert observe(options) == 0
        rows = sorted(read_trace(folder / "served.yaml").rows, key=lambda each: each.send_time_us)
        recording = Recording(rows, taken[-len(rows) :])
        if recording.is_punctual:
            return recording
    pytest.skip("the machine is too busy for a server in real time")


@pytest.mark.slow
def test_a_served_burst_ends_in_the_order_of_the_replay_of_its_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[InFlightRequest] = []
    submit = ClusterDriver.submit

    def noting(driver: ClusterDriver, flight: InFlightRequest, *given: Any) -> None:
        submit(driver, flight, *given)
        taken.append(flight)

    monkeypatch.setattr(ClusterDriver, "submit", noting)
    recording = record(tmp_path, resolve(options_from(ClusterOptions, **FLAGS).deployment).latency, taken)
    rows = recording.rows
    assert {each.status for each in rows} == {"ok"}
    assert {(each.slo_class, each.vllm_priority, each.slo_e2e_us) for each in rows} == {
        *(("batch", 8, 0), ("batch", 0, 0), ("standard", 9, 200_500), ("critical", 0, 0)),
    }
    served: dict[int, Micros] = {}
    for each, flight in zip(rows, recording.flights, strict=True):
        assert flight.last_token_at is not None
        served[each.request_id] = flight.last_token_at
        assert flight.request.slo_e2e_us == (5_000_000 if each.slo_class == "critical" else each.slo_e2e_us)

    again = str(tmp_path / "again")
    assert replay(options_from(ReplayOptions, trace=str(tmp_path / "served.yaml"), trace_output=again, **FLAGS)) == 0
    capsys.readouterr()
    replayed = {each.request_id: each.last_chunk_time_us for each in read_trace(f"{again}.yaml").rows}
    assert by_instance(served) == by_instance(replayed)
    assert by_instance(served) != by_instance({each.request_id: each.send_time_us for each in rows})
    assert all(order[-1] < NUM_INSTANCES for order in by_instance(served)), "the first keep their places"
