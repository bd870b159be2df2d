"""The steps of an engine, `TRACE.steps.csv` beside a recording: a row for each, and the lines of vLLM that tell of one.

vLLM 0.33 publishes single steps in its log alone (`--enable-logging-iteration-details`): the sequences and tokens of a
batch, and how long its execution took. Its metrics have sums over steps, and its spans nothing of steps.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from blis_sim.options.option import LATEST_US, MOST_TOKENS
from traces.append_file import RowWriter, complete_lines, open_with_header
from traces.table import Column, read_table
from traces.text_file import TraceError

MOST_WORK = 10**18
"""No sum of products of tokens is larger."""


class Step(NamedTuple):
    """One step of an engine core. Sums are over the sequences of its batch, as they stand before the step.

    A prefill is a sequence without an output token yet, with `t` new tokens, `c` tokens computed before and a prompt of
    `s` tokens. None stands for what the source of a step does not know.
    """

    step: int
    duration_us: int
    prefill_requests: int
    prefill_tokens: int
    decode_requests: int
    decode_tokens: int
    engine: int = 0
    started_us: int | None = None
    prefill_context_tokens: int | None = None
    decode_context_tokens: int | None = None
    prefill_tokens_squared: int | None = None
    prefill_context_work: int | None = None
    prefill_prompt_work: int | None = None
    kv_usage: float | None = None


def _count(name: str, help: str, at_most: int = MOST_TOKENS, *, required: bool = False) -> Column:
    return Column(name, int, help, required=required, at_least=0, at_most=at_most)


STEP_COLUMNS = (
    _count("step", "the step's number in its engine", 10**15, required=True),
    _count("duration_us", "from the beginning of its execution until its tokens are known", LATEST_US, required=True),
    _count("prefill_requests", "sequences that have no output token yet", required=True),
    _count("prefill_tokens", "sum of t, the tokens it computes of them", required=True),
    _count("decode_requests", "all other sequences", required=True),
    _count("decode_tokens", "tokens it computes of those, drafts included", required=True),
    Column("engine", int, "the engine core, by its data-parallel rank", default=0, at_least=0, at_most=10**6),
    _count("started_us", "when its execution began, on the clock of send_time_us", LATEST_US),
    _count("prefill_context_tokens", "sum of c, the tokens of prefills computed or found before", MOST_WORK),
    _count("decode_context_tokens", "sum of the tokens of decoding sequences computed before", MOST_WORK),
    _count("prefill_tokens_squared", "sum of t*t", MOST_WORK),
    _count("prefill_context_work", "sum of t*c", MOST_WORK),
    _count("prefill_prompt_work", "sum of t*s", MOST_WORK),
    Column("kv_usage", float, "share of the KV blocks in use after the step", at_least=0, at_most=1),
)
"""The columns, in the order of the fields of `Step`. What is unknown is empty; further columns are ignored."""


def read_steps(path: Path | str) -> list[Step]:
    """Read steps, in the order of the file. Raises TraceError."""
    columns = read_table(Path(path), STEP_COLUMNS).columns
    return [Step(*values) for values in zip(*(columns[column.name] for column in STEP_COLUMNS), strict=True)]


class StepWriter(RowWriter):
    """Appends steps to a new file, or with `resume` to one that is there, each piece on disk before the next.

    Raises TraceError when the file cannot be made, and OSError when a piece cannot be written.
    """

    def __init__(self, path: Path | str, *, resume: bool = False) -> None:
        earlier = complete_lines(Path(path)) if resume and Path(path).is_file() else []
        self._file = open_with_header(Path(path), ",".join(column.name for column in STEP_COLUMNS), earlier[1:] or None)

    def write(self, steps: Iterable[Step]) -> None:
        """Append steps; all of them, or none if there is no room."""
        self._file.write("".join([_line(step) for step in steps]))


def _line(step: Step) -> str:
    return (
        ",".join(["" if value is None else f"{value:g}" if type(value) is float else str(value) for value in step])
        + "\n"
    )


_COUNTS = ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")
_STEP_LINE = re.compile(
    r"Engine (?P<engine>\d{1,6}): Iteration\((?P<step>\d{1,15})\): "
    r"(?P<prefill_requests>\d{1,9}) context requests, (?P<prefill_tokens>\d{1,9}) context tokens, "
    r"(?P<decode_requests>\d{1,9}) generation requests, (?P<decode_tokens>\d{1,9}) generation tokens, "
    r"iteration elapsed time: (?P<ms>\d{1,9}\.\d\d) ms, \S+ KV cache usage: (?P<percent>\d{1,3}\.\d)%"
)


def step_of_line(line: str) -> Step | None:
    """Return the step in a line of vLLM's log; None for other lines, and for counts that no engine has."""
    found = _STEP_LINE.search(line)
    if found is None or max(int(found[name]) for name in _COUNTS) > MOST_TOKENS:
        return None
    return Step(
        **{name: int(found[name]) for name in ("step", *_COUNTS, "engine")},
        duration_us=round(float(found["ms"]) * 1000),
        kv_usage=min(1.0, round(float(found["percent"]) / 100, 3)),
    )


STEP_ENDINGS = (".steps.csv", ".steps.csv.gz")


def header_of_steps(path: Path) -> Path:
    """Return where the header of the recording is that a file of steps belongs to, if there is one."""
    ending = next(each for each in STEP_ENDINGS if path.name.endswith(each))
    return path.with_name(path.name.removesuffix(ending) + ".yaml")


def steps_beside(header: Path) -> Path | None:
    """Return the file of steps beside a recording's header; None without one."""
    beside = [header.with_name(header.stem + ending) for ending in STEP_ENDINGS]
    return next((path for path in beside if path.is_file()), None)


class StepTotals(NamedTuple):
    """Steps that brought tokens, and the tokens of prompts and replies in them."""

    num_steps: int
    num_tokens: int


_HISTOGRAM = "vllm:iteration_tokens_total"


def step_totals(path: Path) -> StepTotals | None:
    """Return the totals of a recording's server by its metrics, from the first reading to the last.

    `path` is a file of `blis observe --scrape-metrics`. None where it has not two readings with the histogram of steps,
    or where the server began to count anew. Raises TraceError for a line that is no JSON object.
    """
    readings = [_totals(path, number, line) for number, line in enumerate(complete_lines(path), start=1)]
    known = [each for each in readings if each is not None]
    if len(known) < 2:
        return None
    first, last = known[0], known[-1]
    totals = StepTotals(last.num_steps - first.num_steps, last.num_tokens - first.num_tokens)
    return totals if totals.num_steps > 0 and totals.num_tokens >= 0 else None


def _totals(path: Path, number: int, line: str) -> StepTotals | None:
    try:
        entry = json.loads(line)
        samples = entry.get("samples", {})
        sums = [
            sum(int(value) for name, value in samples.items() if name.startswith(_HISTOGRAM + ending))
            for ending in ("_count", "_sum")
        ]
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise TraceError(f"{path} line {number}: expected a reading of metrics as a JSON object") from error
    return StepTotals(*sums) if any(name.startswith(_HISTOGRAM) for name in samples) else None
