"""The header that tells a load balancer how busy the server is (ORCA), on request."""

import json
from collections.abc import Mapping

from engine.stats import EngineStats

ASKED_BY = "endpoint-load-metrics-format"
ANSWERED_IN = "endpoint-load-metrics"


def load_headers(asked: str | None, stats: EngineStats) -> Mapping[str, str]:
    """The header in the format asked for, `TEXT` or `JSON`; none for any other."""
    metrics = {
        "num_requests_waiting": float(stats.num_waiting),
        "kv_cache_usage_perc": float(stats.kv_usage_fraction),
    }
    wanted = (asked or "").upper()
    if wanted == "TEXT":
        named = ", ".join(f"named_metrics.{name}={value}" for name, value in metrics.items())
        return {ANSWERED_IN: f"TEXT {named}"}
    if wanted == "JSON":
        return {ANSWERED_IN: f"JSON {json.dumps({'named_metrics': metrics})}"}
    return {}
