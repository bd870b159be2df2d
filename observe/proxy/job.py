"""Messages between the forwarding process and the recording process: a job, and reports."""

from collections import Counter
from dataclasses import dataclass, field

from observe.clock import Clock
from observe.output_paths import OutputPaths
from traces import TraceHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Description of a recording: its files, and the rules for them."""

    paths: OutputPaths
    header: TraceHeader
    clock: Clock
    upstreams: tuple[str, ...]
    redact: tuple[str, ...]
    tenant_header: str
    tenant_salt: str
    rotate_bytes: float
    rotate_s: float
    resumes: bool


@dataclass(slots=True)
class RecordingReport:
    """Figures of a recording. `problem` is why it could not begin, `failure` why it ended early."""

    num_requests: int = 0
    num_earlier: int = 0
    by_status: Counter[str] = field(default_factory=Counter)
    num_sessions: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    num_other_exchanges: int = 0
    num_parts: int = 0
    problem: str = ""
    failure: str = ""
