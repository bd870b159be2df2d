"""Workloads: what is sent, when. A spec (YAML) is read, then generated; nothing is sent or simulated here.

Reading order: `spec.py` (the model, and reading it), `sources.py` (sources of requests and their times),
`distributions.py` (what is drawn), `generate.py` (all in order of arrival), `request.py` (the result). `generate` is
imported from its module, because it imports numpy, which reading a spec does not need.
"""

from traces.workload.presets import DISTRIBUTION, PRESETS, Lengths, Preset, rate_spec, users_spec
from traces.workload.request import Round, Session, Workload, WorkloadRequest
from traces.workload.spec import Arrival, WorkloadSpec, parse_spec, read_spec, spec_text

__all__ = [
    "DISTRIBUTION",
    "PRESETS",
    "Arrival",
    "Lengths",
    "Preset",
    "Round",
    "Session",
    "Workload",
    "WorkloadRequest",
    "WorkloadSpec",
    "parse_spec",
    "rate_spec",
    "read_spec",
    "spec_text",
    "users_spec",
]
