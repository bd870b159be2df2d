import pytest

from blis_sim.engine.cluster.freshness import Freshness
from blis_sim.engine.cluster.gateway.saturation import SATURATION_DETECTORS, SaturationLimits
from blis_sim.engine.cluster.snapshot import Snapshot
from blis_sim.engine.cluster.state import RoutingState


def state(*loads: tuple[int, float, int]) -> RoutingState:
    """Instances with so many waiting, so much of the KV cache in use and so many in flight."""
    seen = RoutingState({}, Freshness())
    for number, (num_waiting, kv_usage_fraction, num_in_flight) in enumerate(loads):
        snapshot = Snapshot(number)
        snapshot.num_waiting, snapshot.kv_usage_fraction = num_waiting, kv_usage_fraction
        snapshot.num_in_flight = num_in_flight
        seen.candidates.append(snapshot)
    return seen


def test_each_detector_measures_against_its_limits() -> None:
    seen, limits = state((5, 0.2, 10), (0, 0.4, 30)), SaturationLimits()
    saturation = {name: detector.saturation(seen, limits) for name, detector in SATURATION_DETECTORS.items()}
    assert saturation == {"never": 0.0, "utilization": pytest.approx(0.75), "concurrency": 0.2}


def test_without_instances_nothing_may_be_dispatched() -> None:
    for name in ("utilization", "concurrency"):
        assert SATURATION_DETECTORS[name].saturation(state(), SaturationLimits()) == 1.0
