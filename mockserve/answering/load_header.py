"""The header that tells a load balancer how busy the server is (ORCA), on request."""

import json
from collections.abc import Mapping
from typing import Protocol

from multidict import istr

from blis_sim.engine.stats import EngineStats

ASKED_BY = istr("endpoint-load-metrics-format")
ANSWERED_IN = "endpoint-load-metrics"


class Counted(Protocol):
    """What has figures of itself, which cost something to find."""

    @property
    def stats(self) -> EngineStats: ...


def load_headers(asked: str | None, engine: Counted) -> Mapping[str, str]:
    """The header in the format asked for, `TEXT` or `JSON`; none for any other."""
    if not asked:
        return {}
    stats = engine.stats
    metrics = {
        "num_requests_waiting": float(stats.num_waiting),
        "kv_cache_usage_perc": float(stats.kv_usage_fraction),
    }
    wanted = asked.upper()
    if wanted == "TEXT":
        named = ", ".join(f"named_metrics.{name}={value}" for name, value in metrics.items())
        return {ANSWERED_IN: f"TEXT {named}"}
    if wanted == "JSON":
        return {ANSWERED_IN: f"JSON {json.dumps({'named_metrics': metrics})}"}
    return {}
