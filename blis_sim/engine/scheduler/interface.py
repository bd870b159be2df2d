"""Interface of schedulers, which turn the wait queue of an engine into steps."""

from collections.abc import Container, KeysView
from enum import Enum, auto
from typing import Protocol

from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros


class PauseState(Enum):
    """How far scheduling is suspended. Steps under way always end, and the wait queue always takes requests."""

    NONE = auto()
    ADMISSIONS = auto()
    """No request joins the running batch; those in it go on."""
    EVERYTHING = auto()
    """No step is composed."""


class CacheContent(Protocol):
    """The content of a KV cache."""

    def identities(self) -> KeysView[object]:
        """Return the identities of the blocks that can be found: a view, which changes with the cache."""
        ...

    def identities_now(self) -> Container[object]:
        """Return the identities of the blocks that can be found at this instant."""
        ...


class KVUsage(Protocol):
    """Usage figures of every KV cache."""

    @property
    def index(self) -> CacheContent: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_used_blocks(self) -> int: ...

    @property
    def hit_tokens(self) -> int:
        """Tokens found in the cache instead of computed."""
        ...

    @property
    def queried_tokens(self) -> int:
        """Tokens looked up in the cache."""
        ...

    def check(self) -> None:
        """Raise AssertionError unless every block is either free or held."""
        ...

    def forget(self) -> bool:
        """Empty the prefix cache. Returns False, and changes nothing, while any block is held."""
        ...


class Scheduler(Protocol):
    """Turns waiting requests into steps. The engine calls it at the instants that it has planned."""

    @property
    def kv(self) -> KVUsage: ...

    @property
    def num_running(self) -> int: ...

    @property
    def num_waiting(self) -> int: ...

    @property
    def num_deferred(self) -> int:
        """Number of the waiting requests that a composition has passed over."""
        ...

    @property
    def num_begun_steps(self) -> int:
        """Number of steps that have begun; the log may lack the latest one. While the latency model times a step, this
        is the number of that step."""
        ...

    @property
    def takes_only_empty_steps(self) -> bool:
        """Whether every step is empty until something other than a step is due."""
        ...

    def enqueue(self, sequence: Sequence, at: Micros) -> None:
        """Add a request that passed the admission checks to the wait queue."""
        ...

    def remove(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        """Remove a request that has not completed: its client hung up or its deadline passed."""
        ...

    def step(self, at: Micros) -> None:
        """Take the step that was planned for `at`."""
        ...

    def step_ended(self, report: object, at: Micros) -> None:
        """Process the end of a step at `at`; `report` is the payload with which the scheduler planned the end."""
        ...

    def set_pause_state(self, pause_state: PauseState, at: Micros) -> None:
        """Suspend or resume scheduling. Only for engines that report their steps."""
        ...

    def preempt_all(self, at: Micros) -> None:
        """Preempt all running requests, to the front of the wait queue. Only for engines that report their steps."""
        ...
