"""Workload specs small enough to read, built as a file would be."""

from typing import Any

import yaml

from traces.workload.generate import generate
from traces.workload.request import Workload
from traces.workload.spec import WorkloadSpec, parse_spec

CONSTANT_10 = {"type": "constant", "params": {"value": 10}}
MULTI_TURN = {"multi_turn": {"max_rounds": 3, "think_time_us": 1_000, "context_growth": "accumulate"}}


def client(name: str = "c", **keys: Any) -> dict[str, Any]:
    """A client of 10 input and 10 output tokens at Poisson arrivals, unless given."""
    given: dict[str, Any] = {
        "id": name,
        "rate_fraction": 1.0,
        "arrival": {"process": "poisson"},
        "input_distribution": CONSTANT_10,
        "output_distribution": CONSTANT_10,
        **keys,
    }
    return {key: value for key, value in given.items() if value is not None}


def users(name: str = "u", concurrency: int = 3, **keys: Any) -> dict[str, Any]:
    """A client of concurrency users."""
    return client(name, rate_fraction=None, arrival=None, concurrency=concurrency, **keys)


def cohort(name: str = "h", population: int = 2, **keys: Any) -> dict[str, Any]:
    """A cohort of such clients."""
    return client(name, population=population, **keys)


def window(start_us: int, end_us: int, **keys: Any) -> dict[str, Any]:
    """A window, for a client's lifecycle."""
    return {"start_us": start_us, "end_us": end_us, **keys}


def lifecycle(*windows: dict[str, Any]) -> dict[str, Any]:
    """The windows in which a client is active."""
    return {"windows": list(windows)}


def spec(*clients: dict[str, Any], **keys: Any) -> WorkloadSpec:
    """A spec of 10 requests per second, 100 requests in all, unless given."""
    given: dict[str, Any] = {
        "version": "2",
        "seed": 1,
        "aggregate_rate": 10.0,
        "num_requests": 100,
        "clients": list(clients),
        **keys,
    }
    return parse_spec(yaml.safe_dump({key: value for key, value in given.items() if value is not None}), "spec.yaml")


def generated(*clients: dict[str, Any], **keys: Any) -> Workload:
    """Return the requests that such a spec generates."""
    return generate(spec(*clients, **keys))
