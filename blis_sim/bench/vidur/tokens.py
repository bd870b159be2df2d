"""When tokens were complete: prompts by their tokens, and each decoded token with the time since the one before."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from blis_sim.bench.vidur.batch_log import BatchLog
from blis_sim.bench.vidur.batches import is_ended


@dataclass(frozen=True, slots=True)
class DecodedTokens:
    """Each decoded token: the end of its batch, and the time since the batch of the same request before."""

    ends: npt.NDArray[np.float64]
    gaps: npt.NDArray[np.float64]


def decoded_tokens(logs: Sequence[BatchLog]) -> DecodedTokens:
    """Return the tokens decoded by replicas, whose logs keep the requests of batches, in the order of their ends."""
    ends, gaps, last = list[float](), list[float](), dict[int, float]()
    for log in logs:
        _add(log, last, ends, gaps)
    order = np.argsort(ends, kind="stable")
    return DecodedTokens(np.array(ends)[order], np.array(gaps)[order])


def _add(log: BatchLog, last: dict[int, float], ends: list[float], gaps: list[float]) -> None:
    """Add the tokens of one replica. `last` has the end of the latest batch of each request."""
    ended, place, member = is_ended(log).tolist(), 0, 0
    for number, size, decodes in zip(log.numbers, log.sizes, log.decodes, strict=True):
        of_batches = [log.ends[each] for each in range(place, place + number) if ended[each]]
        jobs = log.jobs[member : member + size]
        place, member = place + number, member + size
        if not of_batches:
            continue
        first = of_batches[0]
        ends += [first] * decodes
        gaps += [first - last.get(job, first) for job in jobs[:decodes]]  # a batch has its decodes first
        for before, end in pairwise(of_batches):
            ends += [end] * decodes
            gaps += [end - before] * decodes
        last.update(dict.fromkeys(jobs, of_batches[-1]))
