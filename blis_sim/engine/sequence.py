"""A request inside the engine: its progress, the blocks it holds, and the steps in which it produced tokens."""

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum

from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros


class ExtraTokens:
    """Tokens beyond one that steps produced, as they may with speculative decoding. A look-up costs O(log steps)."""

    __slots__ = ("_steps", "_totals")

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._totals = [0]
        """Extra tokens before each of the steps, and after the last one."""

    @property
    def total(self) -> int:
        return self._totals[-1]

    def add(self, step_index: int, count: int) -> None:
        """Step `step_index`, later than those before, produced `count` tokens beyond one."""
        self._steps.append(step_index)
        self._totals.append(self._totals[-1] + count)

    def until(self, step_index: int) -> int:
        """Extra tokens up to the end of step `step_index`."""
        return self._totals[bisect_right(self._steps, step_index)]


NO_DEADLINE: Micros = 2**62
"""Later than any instant."""

NOWHERE = -1
"""The instance of a request that a cluster has not routed."""


class Outcome(StrEnum):
    """The ending of a request. Exactly one per request."""

    __hash__ = str.__hash__  # an enum's own is a Python function, and these are looked up for every request

    COMPLETED = "completed"
    LENGTH_CAPPED = "length_capped"
    """Stopped by max_model_len: complete, but shorter than requested."""
    TIMED_OUT = "timed_out"
    ABORTED = "aborted"
    DROPPED = "dropped"
    """Refused before it entered the wait queue: it could never be served."""
    REJECTED = "rejected"
    """Rejected by a cluster before it entered any instance."""
    FAILED = "failed"
    """The instance of the request was killed."""
    EVICTED = "evicted"
    """Evicted from its instance to make room for other requests."""


@dataclass(slots=True)
class DecodeSpan:
    """Consecutive steps in each of which `sequence` decodes one token; the counters of `sequence` follow from them."""

    sequence: "Sequence"
    first_step: int
    last_step: int
    """The step that brings its last token."""
    has_known_end: bool
    """Whether its end is known when steps are composed; otherwise steps include it until its last token has come."""
    is_over: bool = False
    """Whether no further step is composed with it."""
    fills_at: int = -1
    """The steps, modulo the block size, with which a block is full that other requests may find; -1 for none."""


class Sequence:
    """The mutable state of one request. Owned by the engine; all other code only reads it.

    A step is applied when it starts, so the state of a sequence already includes the step under way. Token times are
    not stored: a token's time is the end of the step that produced it, and `token_runs` holds these steps.
    """

    __slots__ = (
        "arrived_at",
        "block_ids",
        "blocks_aligned",
        "deadline_at",
        "decodes_from",
        "extra_tokens",
        "first_token_at",
        "first_token_step",
        "gateway_wait_us",
        "input_tokens",
        "instance",
        "is_decode_subrequest",
        "is_prefill_subrequest",
        "is_prefilling",
        "max_output_tokens",
        "named_blocks",
        "num_blocks",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_drafts",
        "num_external_tokens",
        "num_found_blocks",
        "num_in_flight_tokens",
        "num_output_tokens",
        "num_placeholders",
        "num_preemptions",
        "num_registered_blocks",
        "num_shareable_blocks",
        "num_stale_tokens",
        "num_stored_tokens",
        "outcome",
        "output_tokens",
        "priority",
        "prompt_part",
        "queued_at",
        "request",
        "running",
        "running_number",
        "scheduled_at",
        "span",
        "superseded_runs",
        "token_runs",
    )

    def __init__(self, request: Request, arrived_at: Micros, instance: int = 0) -> None:
        self.request = request
        # A field of a named tuple takes thrice as long to read.
        self.input_tokens, self.output_tokens = request.input_tokens, request.output_tokens
        self.arrived_at = arrived_at
        self.instance = instance  # of a cluster, by number, or NOWHERE
        self.gateway_wait_us: Micros = 0  # for its turn, in front of a cluster
        self.is_prefill_subrequest = False  # the cluster does not report a sub-request
        self.is_decode_subrequest = False
        """Whether BLIS's scheduling reserved blocks for its prompt, which another instance has computed."""
        self.prompt_part: Sequence | None = None  # the prefill sub-request that computed its prompt
        self.queued_at: Micros | None = None
        """Instant at which it joined the wait queue; None before, and for a request that never did."""
        self.scheduled_at: Micros | None = None
        """The latest admission into the running batch; None before the first."""
        self.priority = 0  # smaller is more urgent; set when the request is queued
        self.deadline_at = NO_DEADLINE
        """Instant by which it should have ended. Only set where scheduling depends on it."""
        self.max_output_tokens = request.max_output_tokens
        """The declared budget; without one, what max_model_len leaves."""
        self.running, self.running_number = False, 0  # the number grows with each admission: it orders what runs
        self.span: DecodeSpan | None = None  # set while in the decode cohort; counters are then derived
        self.outcome: Outcome | None = None
        self.num_computed_tokens = 0
        """Prompt tokens done (cached ones included), then one more for each decode step."""
        self.num_cached_tokens = self.num_external_tokens = 0
        """Prompt tokens found at the first admission, and those of them that another instance has computed."""
        self.block_ids: list[int] = []
        self.blocks_aligned = True
        """Whether block i holds stretch i. Not so after a prompt found whole in the cache: BLIS claims none of it."""
        self.num_blocks = self.num_found_blocks = 0
        """Blocks it holds, where only their number is kept, and how many it found when it joined."""
        self.named_blocks: list[int] = []  # the leading ones, which others may share; those found come first
        self.num_stored_tokens = 0
        """Tokens held in `block_ids`; the last block may be partly full."""
        self.first_token_at: Micros | None = None
        """End of the step that (last) completed the prompt; survives a preemption until it is overwritten."""
        self.first_token_step: int | None = None
        """Index of the step that (last) completed the prompt; None while the prompt is (re)computed."""
        self.token_runs: list[list[int]] = []
        """Steps that decoded: [first step, how many in a row], ascending. Excludes the first token's."""
        self.extra_tokens: ExtraTokens | None = None
        """Tokens beyond one that steps of `token_runs` produced; None without speculative decoding."""
        self.superseded_runs: tuple[tuple[int, list[list[int]]], ...] = ()
        """First token's step and token runs of computations that a preemption threw away, oldest first."""
        self.num_output_tokens = 0
        """Tokens produced. With BLIS's scheduling it is set when the request completes."""
        self.num_in_flight_tokens = 0
        """Tokens granted in steps that have not ended. This and the fields below are for vLLM's scheduling only."""
        self.is_prefilling = False
        """Whether its latest grant left tokens to compute, so that the step samples nothing for it."""
        self.num_placeholders = 0
        """Output tokens that steps under way will produce."""
        self.decodes_from = 0
        """The composition, by number, in which it may decode next. With several pipeline stages only."""
        self.num_drafts = self.num_stale_tokens = 0
        """Tokens proposed for its next step, and tokens in flight that were granted before the latest preemption."""
        self.num_registered_blocks = 0
        """Leading blocks already findable in the prefix cache."""
        self.num_shareable_blocks = request.blocks.num_shareable  # read once, because many callers need it
        self.num_preemptions = 0

    def replace_request(self, request: Request) -> None:
        """Replace the request, which must not have entered an engine yet."""
        self.request = request
        self.input_tokens, self.output_tokens = request.input_tokens, request.output_tokens
        self.num_shareable_blocks = request.blocks.num_shareable

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return self.input_tokens + self.num_output_tokens

    @property
    def num_decoded_tokens(self) -> int:
        """Output tokens after the first one."""
        decoded = sum(count for _, count in self.token_runs)
        return decoded if self.extra_tokens is None else decoded + self.extra_tokens.total

    def tokens_at(self, step_index: int) -> int:
        """Output tokens produced up to the end of step `step_index`, counted anew after a preemption.

        Holds for past steps whatever has happened since.
        """
        if self.first_token_step is not None and self.first_token_step <= step_index:
            runs = self.token_runs
            tokens = 1 + _decoded_until(runs, step_index) if runs else 1
            span = self.span
            if span is not None and span.first_step <= step_index:
                tokens += min(step_index, span.last_step) + 1 - span.first_step
            return tokens if self.extra_tokens is None else tokens + self.extra_tokens.until(step_index)
        for first_token_step, runs in reversed(self.superseded_runs):
            if first_token_step <= step_index:
                return 1 + _decoded_until(runs, step_index)
        return 0

    def add_token_step(self, step_index: int) -> None:
        """Step `step_index` produced another token after the first: extend the last run or begin a new one."""
        runs = self.token_runs
        if runs and (last := runs[-1])[0] + last[1] == step_index:
            last[1] += 1
        else:
            runs.append([step_index, 1])

    def add_token_steps(self, first_step: int, count: int) -> None:
        """`count` steps from `first_step` on each produced another token after the first."""
        runs = self.token_runs
        if not count:
            return
        if runs and (last := runs[-1])[0] + last[1] == first_step:
            last[1] += count
        else:
            runs.append([first_step, count])

    def add_extra_tokens(self, step_index: int, count: int) -> None:
        """Step `step_index`, which produced a token, produced `count` more."""
        if self.extra_tokens is None:
            self.extra_tokens = ExtraTokens()
        self.extra_tokens.add(step_index, count)

    def restart(self) -> None:
        """Forget all that was computed, as a preemption with recomputation does."""
        if self.first_token_step is not None:
            self.superseded_runs += ((self.first_token_step, self.token_runs),)
        self.running = False
        self.blocks_aligned = True
        self.num_computed_tokens = 0
        self.first_token_step = None
        self.token_runs = []
        self.num_preemptions += 1

    def __repr__(self) -> str:
        state = self.outcome or ("running" if self.running else "waiting")
        return f"Sequence({self.request.id!r}, {state}, computed={self.num_computed_tokens})"


def _decoded_until(runs: list[list[int]], step_index: int) -> int:
    if len(runs) == 1:  # the usual case, and this runs for every token
        first, count = runs[0]
        passed = step_index - first + 1
        return count if count <= passed else max(passed, 0)
    return sum(min(count, step_index - first + 1) for first, count in runs if first <= step_index)
