"""A request inside the engine: how far it is, which blocks it holds, in which steps it produced tokens."""

from engine.request import Request
from engine.units import Micros


class Sequence:
    """The mutable life of one request. Owned by the engine; everybody else only reads it.

    Token times are not stored: a token's time is the end of the step that produced it, and `token_runs` says which
    steps those were.
    """

    __slots__ = (
        "arrived_at",
        "block_ids",
        "context_before_step",
        "enqueued_at",
        "finished",
        "first_token_at",
        "first_token_step",
        "new_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "priority",
        "request",
        "running",
        "scheduled_at",
        "token_runs",
    )

    def __init__(self, request: Request, arrived_at: Micros) -> None:
        self.request = request
        self.arrived_at = arrived_at
        self.enqueued_at: Micros | None = None
        self.scheduled_at: Micros | None = None
        """The latest admission into the running batch; None before the first."""
        self.priority = 0
        """Smaller is more urgent."""
        self.running = False
        self.finished = False
        self.num_computed_tokens = 0
        """Prompt tokens with KV, then one more for each decode step; it never counts the step under way."""
        self.new_tokens = 0
        """Granted in the step under way."""
        self.context_before_step = 0
        self.block_ids: list[int] = []
        self.first_token_at: Micros | None = None
        """End of the step that (last) completed the prompt; survives a preemption until it is overwritten."""
        self.first_token_step: int | None = None
        """Index of that step; None again while the prompt is being recomputed after a preemption."""
        self.token_runs: list[tuple[int, int]] = []
        """Steps that decoded: (first step, number of consecutive steps), ascending. Excludes the first token's."""
        self.num_preemptions = 0

    def tokens_at(self, step_index: int) -> int:
        """Output tokens produced up to and including step `step_index`, since the last (re)computation began."""
        if self.first_token_step is None or step_index < self.first_token_step:
            return 0
        decoded = sum(min(count, step_index - first + 1) for first, count in self.token_runs if first <= step_index)
        return 1 + decoded

    def __repr__(self) -> str:
        return f"Sequence({self.request.id!r}, computed={self.num_computed_tokens}, blocks={len(self.block_ids)})"
