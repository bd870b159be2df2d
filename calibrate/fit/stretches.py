"""Stretches of measured steps around prompts: how long each took, and how that depends on each coefficient.

Only a stretch is as long as what it held makes it. Single steps borrow time from each other: tokens are handed out late
while the server takes in a prompt, and steps right after one are slower.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape, RecentPrompts
from calibrate.fit.steps import Steps

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STEPS_BEFORE = 2
"""A stretch begins so many steps before its first prompt."""
LEAST_STEPS_AFTER = 3
"""Least steps of a stretch after its last prompt, unless another prompt comes sooner, which then belongs to it."""
MOST_STEPS_AFTER = 8
_FIELDS = len(BatchShape._fields)
_DECODES, _CONTEXT = BatchShape._fields.index("decode_requests"), BatchShape._fields.index("decode_context_tokens")


@dataclass(frozen=True, slots=True)
class Stretches:
    """Stretches of `steps`, each with at least one prompt in it, in order."""

    steps: Steps
    first: Ints
    """The first step of each."""
    last: Ints
    first_prompt: Ints
    """Place of the first prompt of each stretch among the prompts of the steps."""
    last_prompt: Ints

    def __len__(self) -> int:
        return len(self.first)

    @property
    def durations_us(self) -> Floats:
        durations: Floats = self.steps.ends_us[self.last] - self.steps.ends_us[self.first - 1]
        return durations

    @property
    def requests(self) -> Ints:
        """The request of the first prompt in each stretch, by the place of its arrival."""
        places: Ints = self.steps.prompt_requests[self.first_prompt]
        return places

    def only(self, kept: Bools) -> "Stretches":
        """Stretches whose prompts all belong to the first requests that are `kept`."""
        prompt_kept = _of_prompts(self.steps, kept.astype(np.int64)) > 0
        lost = np.concatenate([[0], np.cumsum(~prompt_kept)])
        whole = lost[self.last_prompt + 1] == lost[self.first_prompt]
        return Stretches(
            self.steps, self.first[whole], self.last[whole], self.first_prompt[whole], self.last_prompt[whole]
        )

    def shapes(self, cached_tokens: Ints) -> tuple[Ints, Ints]:
        """A row of `BatchShape` for each step of the stretches, and where in them each stretch begins.

        `cached_tokens` is what the first requests have found in the cache of their prompts.
        """
        steps = self.steps
        every = np.zeros((len(steps.ends_us), _FIELDS), np.int64)
        every[:, _DECODES], every[:, _CONTEXT] = steps.decodes, steps.context_tokens
        for step, shape in _with_prompts(steps, _of_prompts(steps, cached_tokens)):
            every[step] = shape
        lengths = self.last - self.first + 1
        begins = np.cumsum(lengths) - lengths
        return every[np.arange(lengths.sum()) + np.repeat(self.first - begins, lengths)], begins


def stretches_of(steps: Steps) -> Stretches:
    """Return the stretches that consist of plain steps only."""
    found = [
        (first, last, *prompts)
        for first, last, *prompts in _cut(steps.prompt_steps, len(steps.ends_us))
        if first > 0 and steps.plain[first : last + 1].all()
    ]
    return Stretches(steps, *np.array(found, np.int64).reshape(-1, 4).T)


def _cut(prompt_steps: Ints, num_steps: int) -> Iterator[tuple[int, int, int, int]]:
    """First and last step, first and last prompt of each stretch."""
    apart = np.diff(prompt_steps) > STEPS_BEFORE + LEAST_STEPS_AFTER
    begins = np.concatenate([[0], np.flatnonzero(apart) + 1])
    for first, end in zip(begins.tolist(), [*begins[1:].tolist(), len(prompt_steps)], strict=True):
        next_step = int(prompt_steps[end]) - STEPS_BEFORE if end < len(prompt_steps) else num_steps
        last_step = min(int(prompt_steps[end - 1]) + MOST_STEPS_AFTER, next_step - 1, num_steps - 1)
        yield int(prompt_steps[first]) - STEPS_BEFORE, last_step, first, end - 1


def _of_prompts(steps: Steps, of_requests: Ints) -> Ints:
    """The figures of the first requests, for each prompt; 0 for prompts of others."""
    known = steps.prompt_requests < len(of_requests)
    return np.where(known, of_requests[np.where(known, steps.prompt_requests, 0)], 0)


def _with_prompts(steps: Steps, cached_tokens: Ints) -> Iterator[tuple[int, BatchShape]]:
    """Each step that holds prompts, with its shape."""
    recent = RecentPrompts()
    begins = np.flatnonzero(np.diff(steps.prompt_steps, prepend=-1))
    new = steps.prompt_tokens - cached_tokens
    of_each = (np.ones_like(new), new, new * new, cached_tokens, new * cached_tokens, new * steps.prompt_tokens)
    numbers = steps.prompt_steps[begins]
    sums = [*(np.add.reduceat(each, begins) for each in of_each), steps.decodes[numbers], steps.context_tokens[numbers]]
    rows = np.pad(np.column_stack(sums), ((0, 0), (0, 1))).tolist()
    for step, shape in zip(numbers.tolist(), map(BatchShape._make, rows), strict=True):
        yield step, recent.with_recent(shape, int(steps.ends_us[max(0, step - 1)]))
        recent.add(shape.prefill_tokens, int(steps.ends_us[step]))
