"""What the process of the engines and the processes that answer tell each other.

Requests have a number that the process which answers gives them. Instants are simulated microseconds, `due_s` is a
reading of the monotonic clock, which is the same in all processes of a machine.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from blis_sim.engine.request import Request
from blis_sim.engine.stats import EngineStats
from blis_sim.engine.units import Micros
from mockserve.metrics.histogram import Histogram
from mockserve.metrics.http import HttpMetrics
from mockserve.metrics.tool_parsing import ToolParsing

# --- from those who answer ---


class Listening(NamedTuple):
    """It takes connections on this port."""

    host: str
    port: int


class Refused(NamedTuple):
    """Its settings cannot be served."""

    message: str


class Submit(NamedTuple):
    """A request arrives. Choices of one prompt, of which there are `num_siblings`, have the same `prompt_number`."""

    number: int
    request: Request
    arrived_at: Micros
    finish_reason: str
    prompt_number: int
    num_siblings: int
    rank: int | None


class Abort(NamedTuple):
    """The client of a request has gone."""

    number: int


class WantMetrics(NamedTuple):
    """A request for the metrics page, or for the samples named, in the format that an `Accept` header asks for."""

    question: int
    names: tuple[str, ...]
    accept: str


class Figures(NamedTuple):
    """What a process has counted by itself, in answer to `WantFigures`."""

    question: int
    http: HttpMetrics
    rejections: Mapping[str, int]
    lag_s: Histogram
    num_streams_cut: int
    tool_parsing: ToolParsing


class DeathTold(NamedTuple):
    """A client has been told that the engine is dead."""


class UsesBackend(NamedTuple):
    """The engine's backend of structured outputs is this one; both sides send it."""

    name: str


class Stopping(NamedTuple):
    """It takes no new requests any more, and has so many replies open."""

    num_open: int


# --- from the engines ---


class Tokens(NamedTuple):
    """Each of the requests has so many tokens, counted from 1, all due at the same instant."""

    due_s: float
    numbers: list[int]
    counts: list[int]


class Facts(NamedTuple):
    """What a reply tells of its request besides the text."""

    arrived_at: Micros
    queued_at: Micros
    first_scheduled_at: Micros | None
    first_token_at: Micros | None
    last_token_at: Micros
    num_preemptions: int
    num_cached_tokens: int
    num_external_tokens: int


class Finish(NamedTuple):
    """A request has had its last token."""

    due_s: float
    number: int
    num_tokens: int
    facts: Facts


class Fail(NamedTuple):
    """A request gets no more tokens."""

    number: int
    message: str
    status: int


class Broken(NamedTuple):
    """The engines have failed."""

    message: str


class State(NamedTuple):
    """How the engines are by now."""

    stats: EngineStats
    num_flights: int
    num_waiting_tokens: int


class WantFigures(NamedTuple):
    """The engines' process is asked for metrics, and asks all."""

    question: int


class MetricsPage(NamedTuple):
    """The answer to `WantMetrics`."""

    question: int
    page: bytes


class Stop(NamedTuple):
    """End when open replies have, or their time is up, or `at_once`."""

    at_once: bool = False


FromAnswering: TypeAlias = (
    Listening | Refused | Submit | Abort | WantMetrics | Figures | DeathTold | UsesBackend | Stopping
)
FromEngines: TypeAlias = Tokens | Finish | Fail | Broken | State | UsesBackend | WantFigures | MetricsPage | Stop
