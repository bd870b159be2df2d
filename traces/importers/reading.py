"""Rows of a file that another program wrote: values of a known kind, selection, arrival times, and counts of tokens."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import orjson

from blis_sim.options import OptionError
from blis_sim.options.limits import LATEST_US
from traces.graph import restricted_to
from traces.importers.registry import ConvertOptions, in_order
from traces.rows import TraceRow
from traces.text_file import TraceError, read_bytes

MAX_S = 9_000_000_000
"""Times in seconds are below: in microseconds they fit into the columns of a trace."""


def drawn_arrivals_us(options: ConvertOptions, count: int) -> list[int]:
    """Poisson arrivals at --rate, the first at 0. Raises OptionError without a rate."""
    if options.rate is None:
        raise OptionError(f"--rate is required, as {options.name} has no arrival times")
    random = Random(f"{options.seed}/arrivals")
    gaps_us = (1e6 * random.expovariate(options.rate) for _ in range(count - 1))
    arrivals_us = [round(at) for at in accumulate(gaps_us, initial=0.0)][:count]
    if arrivals_us and arrivals_us[-1] > LATEST_US:
        raise OptionError(f"--rate is too low for {count} requests: the last would come after {LATEST_US:.2g} us")
    return arrivals_us


def sendable_rows(options: ConvertOptions, rows: Sequence[TraceRow], left_out: Counter[str]) -> list[TraceRow]:
    """The first rows by arrival that can be sent; adds the others to `left_out`."""
    has_tokens = [row for row in rows if row.input_tokens + row.prefix_length > 0 and row.output_tokens > 0]
    usable = in_order(restricted_to(rows, has_tokens))
    if usable and usable[-1].arrival_time_us > LATEST_US:
        raise OptionError(f"{options.name}: the last request would come after {LATEST_US:.2g} us")
    left_out["requests without prompt or output tokens"] += len(rows) - len(usable)
    first = usable[: options.num_requests]
    left_out["requests beyond --num-requests"] += len(usable) - len(first)
    return first


_NUMBERS = {
    "a number": 2**53,
    "a whole number": 2**53,
    "a time in seconds": MAX_S,
    "a time in milliseconds": MAX_S * 1000,
    "a time in nanoseconds": 2**63,
}
"""By kind what all numbers are below."""
_KINDS = {
    "a number": (int, float),
    "a whole number": (int,),
    "a time in seconds": (int, float),
    "a time in milliseconds": (int, float),
    "a time in nanoseconds": (int,),
    "a list": (list,),
    "an object": (dict,),
    "text": (str,),
}


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON-lines file, each with its place for errors. Raises TraceError."""
    for number, line in enumerate(read_bytes(path).split(b"\n"), start=1):
        place = f"{path} line {number}"
        if not line.strip():
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise TraceError(f"{place}: expected a JSON object, {error.msg}") from error
        yield place, expect(place, "an object", value)


def at(place: str, holder: Mapping[str, Any], key: str, kind: str) -> Any:
    """The value of a key that must be there. Raises TraceError."""
    if key not in holder:
        raise TraceError(f"{place}: the key {key} is missing, found {', '.join(map(str, holder)) or 'none'}")
    return expect(f"{place} key {key}", kind, holder[key])


def expect(place: str, kind: str, value: Any) -> Any:
    """The value, if it is of this kind; numbers are not negative. Raises TraceError."""
    fits = isinstance(value, _KINDS[kind]) and not isinstance(value, bool)
    if not fits or (kind in _NUMBERS and not 0 <= value < _NUMBERS[kind]):
        shown = repr(value)
        raise TraceError(f"{place}: expected {kind}, got {shown if len(shown) <= 60 else shown[:57] + '...'}")
    return value


_CHARACTERS_PER_TOKEN = 4


def token_counter(options: ConvertOptions) -> tuple[Callable[[str], int], str]:
    """Return the function that counts the tokens of a text, and a note about it. Raises OptionError."""
    if options.tokenizer is None:
        return _estimate, f"tokens are estimated as one per {_CHARACTERS_PER_TOKEN} characters, give --tokenizer"
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(options.tokenizer)
    except Exception as error:  # the library raises nothing more precise
        raise OptionError(f"--tokenizer must be a tokenizer.json, got {options.tokenizer}: {error}") from error
    return (lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)), "tokens are those of --tokenizer"


def _estimate(text: str) -> int:
    return -(-len(text) // _CHARACTERS_PER_TOKEN)
