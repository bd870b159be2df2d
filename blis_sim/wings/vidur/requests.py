"""The requests of a run: recorded ones of a file, or those that Vidur's generators draw."""

import math
from itertools import islice, takewhile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from blis_sim.options import OptionError
from blis_sim.wings.vidur import settings as vidur
from blis_sim.wings.vidur.replica import TimedJob
from blis_sim.wings.vidur.settings import chosen, is_original, values_of
from traces.table import Column, read_table
from traces.text_file import TraceError
from traces.workload.spec import Vidur, VidurInterval, VidurLength, problem_of_vidur
from traces.workload.vidur import LONGEST_POISSON_GAP, arrivals_s

_COLUMNS = (
    Column("arrived_at", float, required=True, at_least=0),
    Column("num_prefill_tokens", float, required=True, at_least=0),
    Column("num_decode_tokens", float, required=True, at_least=0),
)


def requests_of(options: Any, draws: Random) -> list[TimedJob]:
    """Return the requests in the order of their numbers. Raises BlisError.

    `draws` has Vidur's state of Python's `random`, which generators share with the random scheduler of replicas.
    """
    group = chosen(options, vidur.REQUESTS)
    values = values_of(options, group)
    made = _recorded(values) if group.name == "trace_replay" else _drawn(options, values, draws)
    if not made:
        raise OptionError("the run has no requests")
    return [TimedJob(index, *each) for index, each in enumerate(made)]


def max_tokens_of(options: Any) -> int:
    """Return the most tokens that a request may have."""
    group = chosen(options, vidur.REQUESTS)
    source = group if group.name == "trace_replay" else chosen(options, vidur.LENGTHS)
    return int(values_of(options, source)["max_tokens"])


def _recorded(values: dict[str, Any]) -> list[tuple[float, int, int]]:
    """The rows of a trace; what exceeds the longest request is taken from its prompt."""
    path, most = Path(values["trace_file"]), values["max_tokens"]
    columns = read_table(path, _COLUMNS).columns
    prefill = _scaled(columns["num_prefill_tokens"], values["prefill_scale_factor"])
    decode = _scaled(columns["num_decode_tokens"], values["decode_scale_factor"])
    prefill -= np.maximum(prefill + decode - most, 0)
    if len(prefill) and prefill.min() < 1:
        row = int(np.argmax(prefill < 1))
        expected = f"at most {most - 1} tokens, as --trace_request_generator_config_max_tokens leaves room for a prompt"
        raise TraceError(f"{path} row {row + 1} column num_decode_tokens: expected {expected}, got {decode[row]}")
    arrivals = np.array(columns["arrived_at"], np.float64) * values["time_scale_factor"]
    return list(zip(arrivals.tolist(), prefill.tolist(), decode.tolist(), strict=True))


def _scaled(tokens: list[float], factor: float) -> "np.typing.NDArray[np.int64]":
    return np.maximum((np.array(tokens, np.float64) * factor).astype(np.int64), 1)


def _drawn(options: Any, values: dict[str, Any], draws: Random) -> list[tuple[float, int, int]]:
    seed = values["seed"]
    draws.seed(seed)  # as Vidur does once more before it draws
    lengths = chosen(options, vidur.LENGTHS)
    given = values_of(options, lengths)
    if given.pop("scramble", False):
        raise OptionError(
            "--zipf_request_length_generator_config_scramble cannot be followed: it depends on hashes of Python that "
            "differ from one process to the next"
        )
    length_seed = given.pop("seed")
    if lengths.name in ("zipf", "trace") and length_seed != seed:
        raise OptionError(
            f"--{lengths.prefix}_seed must be --synthetic_request_generator_config_seed, {seed}, got {length_seed}"
        )
    if lengths.name == "fixed":
        del given["max_tokens"]
    gaps = chosen(options, vidur.INTERVALS)
    between = {name: value for name, value in values_of(options, gaps).items() if name != "seed"}
    section = Vidur(interval=VidurInterval(type=gaps.name, **between), length=VidurLength(type=lengths.name, **given))
    problem = problem_of_vidur(section)
    if problem is not None:
        raise OptionError(problem)
    # The original cuts the gaps of Poisson arrivals, so the rate is 5 % above its setting.
    longest_gap = LONGEST_POISSON_GAP if is_original(options) else math.inf
    arrivals = arrivals_s(section, draws, seed, longest_gap)
    if values["duration"] is not None:
        until = values["duration"]
        arrivals = takewhile(lambda each: each[0] < until, arrivals)
    else:
        arrivals = islice(arrivals, values["num_requests"])
    return [(at, prefill, decode) for at, (prefill, decode) in arrivals]
