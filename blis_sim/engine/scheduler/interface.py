"""The seam between the life of a request and the scheduling of steps: whose rules compose and execute the batches."""

from collections.abc import Container, KeysView
from enum import Enum, auto
from typing import Protocol

from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros


class PauseState(Enum):
    """Steps under way always end, and requests are always taken into the wait queue."""

    NONE = auto()
    ADMISSIONS = auto()
    """No request joins the running batch; those in it go on."""
    EVERYTHING = auto()
    """No step is composed."""


class Findable(Protocol):
    """The content of a KV cache."""

    def identities(self) -> KeysView[object]:
        """Return the identities of the blocks that can be found: a view, which changes with the cache."""
        ...

    def found_now(self) -> Container[object]:
        """Return the identities of the blocks that can be found at this instant."""
        ...


class KVUsage(Protocol):
    """Usage figures of every KV cache."""

    @property
    def index(self) -> Findable: ...

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
        """Tokens looked for."""
        ...

    def check(self) -> None:
        """Raise AssertionError unless every block is either free or held."""
        ...

    def forget(self) -> bool:
        """Let nothing be found any more. False, and nothing changed, while any block is held."""
        ...


class Scheduler(Protocol):
    """One way to turn waiting requests into steps. The engine calls it at the instants it asked for."""

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
        """How many steps have begun, though the log may lack the latest of them. While the latency model is asked how
        long a step takes, that is the number of this step."""
        ...

    @property
    def rests(self) -> bool:
        """Whether every step is empty until something other than a step is due."""
        ...

    def enqueue(self, sequence: Sequence, at: Micros) -> None:
        """A request that passed the guards joins the wait queue."""
        ...

    def remove(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        """A request leaves before it is done: its client hung up or its deadline passed."""
        ...

    def step(self, at: Micros) -> None:
        """The instant planned for a step has come."""
        ...

    def step_ended(self, report: object, at: Micros) -> None:
        """A step this scheduler planned to end at `at` has ended; `report` is what it left for itself."""
        ...

    def set_hold(self, hold: PauseState, at: Micros) -> None:
        """Suspend or resume scheduling. Fast steppings, which take many steps at once, cannot."""
        ...

    def preempt_all(self, at: Micros) -> None:
        """Send all that runs back to the front of the wait queue, in order. Fast steppings cannot."""
        ...
