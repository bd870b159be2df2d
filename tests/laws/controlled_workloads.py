"""Clusters with a queue in front of the instances, with prompts computed elsewhere than answers, or with both."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.disaggregation import (
    DECIDERS,
    Disaggregation,
    DisaggregationSettings,
    Pools,
    TransferSettings,
)
from blis_sim.engine.cluster.gateway import (
    DISPATCH_ORDERS,
    FAIRNESS,
    SATURATION_DETECTORS,
    FlowControl,
    FlowControlSettings,
    QueueLimits,
    SaturationLimits,
)
from tests.laws.cluster_workloads import ClusterWorkload, cluster_workloads
from tests.strategies import GRID_US

BYTES_PER_BLOCK = 1000.0


@dataclass(frozen=True, slots=True)
class ControlledWorkload(ClusterWorkload):
    """A cluster and what controls it; None for what is not there."""

    flow_control: FlowControlSettings | None = None
    disaggregation: DisaggregationSettings | None = field(default=None)

    def cluster(self, reports_steps: bool = True) -> Cluster:
        cluster = ClusterWorkload.cluster(self, reports_steps)
        if self.flow_control is not None:
            FlowControl(cluster, self.flow_control)
        if self.disaggregation is not None:
            Disaggregation(cluster, self.disaggregation, BYTES_PER_BLOCK)
        return cluster


@st.composite
def controlled_workloads(
    draw: st.DrawFn, /, with_gateway: bool | None = None, with_pools: bool | None = None, **kinds: Any
) -> ControlledWorkload:
    """Each control is there or not, as given or by chance."""
    plain = draw(cluster_workloads(**kinds))
    has_gateway = draw(st.booleans()) if with_gateway is None else with_gateway
    has_pools = draw(st.booleans()) if with_pools is None else with_pools
    return ControlledWorkload(
        **{name: getattr(plain, name) for name in ClusterWorkload.__dataclass_fields__},
        flow_control=draw(flow_controls()) if has_gateway else None,
        disaggregation=draw(disaggregations(plain.num_instances)) if has_pools else None,
    )


@st.composite
def flow_controls(draw: st.DrawFn) -> FlowControlSettings:
    """Small queues and low limits."""
    return FlowControlSettings(
        dispatch_order=draw(st.sampled_from(sorted(DISPATCH_ORDERS))),
        fairness=draw(st.sampled_from(sorted(FAIRNESS))),
        saturation_detector=draw(st.sampled_from(["concurrency", *SATURATION_DETECTORS])),
        queue=QueueLimits(
            max_waiting=draw(st.sampled_from([0, 1, 3])),
            max_waiting_per_band=draw(st.sampled_from([0, 0, 1])),
            sheds=draw(st.booleans()),
            usage_limit=draw(st.sampled_from([1.0, 0.5])),
        ),
        saturation=SaturationLimits(num_waiting=1, kv_usage_fraction=0.5, max_in_flight=draw(st.integers(1, 3))),
        slo_targets_us={"critical": 1000, "batch": 20_000},
        ttl_us=draw(st.sampled_from([0, 0, 1, GRID_US, 5_000])),
        evicts_in_flight=draw(st.booleans()),
        tick_interval_us=draw(st.sampled_from([0, 300, GRID_US, 1000])),
    )


@st.composite
def disaggregations(draw: st.DrawFn, num_instances: int) -> DisaggregationSettings:
    """Pools of any shape that can serve, and slow networks."""
    num_prefill = draw(st.integers(0, num_instances - 1))
    num_decode = draw(st.integers(1, num_instances - num_prefill)) if num_prefill else 0
    most_both = num_instances - num_prefill - num_decode
    num_both = draw(st.integers(0 if num_prefill else 1, most_both))
    return DisaggregationSettings(
        pools=Pools(num_instances, num_prefill, num_decode, num_both),
        decider=draw(st.sampled_from(["always", *DECIDERS])),
        threshold_tokens=draw(st.sampled_from([0, 3, 16])),
        transfer=TransferSettings(
            gb_per_s=draw(st.sampled_from([0.001, 0.01])),
            base_latency_ms=draw(st.sampled_from([0.0, 0.5])),
            is_shared=draw(st.booleans()),
        ),
    )
