"""The files of a ServeGen folder: `chunk-N-trace.csv` (arrivals of a client) and `chunk-N-dataset.json` (lengths)."""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from blis_sim.options.addition import added_up
from traces.errors import TraceError
from traces.importers.json_fields import at, expect
from traces.text_file import read_json, read_text


@dataclass(frozen=True, slots=True)
class Fit:
    """A lognormal distribution of token counts."""

    mu: float
    sigma: float


def lognormal_fit(weights: Mapping[int, float]) -> Fit:
    """Mean and standard deviation of the logarithms of lengths, which must be above 0, by their weights."""
    total = added_up(weights.values())
    mu = added_up(weight * math.log(length) for length, weight in weights.items()) / total
    variance = added_up(weight * (math.log(length) - mu) ** 2 for length, weight in weights.items()) / total
    return Fit(mu, math.sqrt(variance))


def mean_fit(fits: Sequence[Fit]) -> Fit:
    """The average of the parameters."""
    return Fit(added_up(fit.mu for fit in fits) / len(fits), added_up(fit.sigma for fit in fits) / len(fits))


_PROCESSES = {"gamma": "gamma", "weibull": "weibull"}
_NUMBER = r"\s*(\d+\.?\d*|\.\d+)"
_ENTRY = re.compile(rf"{_NUMBER}\s*:{_NUMBER}([eE][+-]?\d+)?\s*", re.ASCII)
_NUM_CELLS = 6
_MOST_TOKENS = 2**31


@dataclass(frozen=True, slots=True)
class Moment:
    """Rate of a client from one instant on, and the distribution of its gaps."""

    start_s: float
    rate: float
    cv: float
    process: str
    shape: float
    scale_s: float


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long the prompts and the replies of a client are."""

    input: Fit
    output: Fit


@dataclass(frozen=True, slots=True)
class Chunk:
    """One client of the folder. `lengths` has what holds from each instant (seconds) on."""

    moments: Sequence[Moment]
    lengths: Mapping[float, Lengths]

    def lengths_at(self, time_s: float) -> Lengths:
        """The lengths that hold at an instant: the last ones before it, else the first ones."""
        before = [start_s for start_s in self.lengths if start_s <= time_s]
        return self.lengths[max(before) if before else min(self.lengths)]


def read_chunks(folder: Path, left_out: Counter[str]) -> list[Chunk]:
    """The clients of a folder, by their numbers; counts the rows that cannot be used. Raises TraceError."""
    paths = sorted(folder.glob("chunk-*-trace.csv"), key=_number)
    if not paths:
        raise TraceError(f"{folder}: expected a folder with files chunk-*-trace.csv, found none")
    chunks = []
    for path in paths:
        dataset = path.with_name(path.name.replace("-trace.csv", "-dataset.json"))
        moments = _moments(path, left_out)
        lengths = _lengths(dataset, left_out)
        if moments and lengths:
            chunks.append(Chunk(moments, lengths))
        else:
            left_out["clients without a usable row or lengths"] += 1
    return chunks


def _number(path: Path) -> tuple[int, str]:
    digits = re.search(r"chunk-(\d+)-", path.name)
    return (int(digits[1]) if digits else -1, path.name)


def _moments(path: Path, left_out: Counter[str]) -> list[Moment]:
    """The rows of a file; raises TraceError for one that has not six cells, and counts those with empty cells."""
    moments = []
    for line, cells in _lines(path):
        if len(cells) != _NUM_CELLS:
            raise TraceError(f"{path} line {line}: expected {_NUM_CELLS} cells, got {len(cells)}")
        try:
            start_s, rate, cv, process, shape, scale_s = cells
            moments.append(
                Moment(
                    float(start_s), float(rate), float(cv), _PROCESSES[process.lower()], float(shape), float(scale_s)
                )
            )
        except (ValueError, KeyError):
            left_out["rows of chunk-*-trace.csv that are not six fitting cells"] += 1
    return moments


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not empty, each with its number."""
    rows = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        yield from ((rows.line_num, cells) for cells in rows if cells)
    except csv.Error as error:
        raise TraceError(f"{path} line {rows.line_num}: expected comma-separated cells, {error}") from error


def _lengths(path: Path, left_out: Counter[str]) -> dict[float, Lengths]:
    found = {}
    for start, entry in expect(str(path), "an object", read_json(path)).items():
        place = f"{path} key {start}"
        expect(place, "an object", entry)
        if "reason_ratio" in entry:
            left_out["distributions of the share of reasoning"] += 1
        fits = [_fit(place, entry, key, left_out) for key in ("input_tokens", "output_tokens")]
        if fits[0] is not None and fits[1] is not None:
            found[_seconds(place, start)] = Lengths(fits[0], fits[1])
    return found


def _seconds(place: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise TraceError(f"{place}: expected a time in seconds") from None


def _fit(place: str, entry: Mapping[str, Any], key: str, left_out: Counter[str]) -> Fit | None:
    """The fit of a histogram written as `{length: share, ...}`; None when nothing in it can be used."""
    weights = {}
    for item in filter(str.strip, at(place, entry, key, "text").strip().strip("{}").split(",")):
        matched = _ENTRY.fullmatch(item)
        length, weight = (float(matched[1]), float(matched[2] + (matched[3] or ""))) if matched else (0.0, 0.0)
        if 1 <= length < _MOST_TOKENS and 0 < weight < inf:
            weights[int(length)] = weight
        else:
            left_out[f"shares of {key} without a length from 1 on"] += 1
    return lognormal_fit(weights) if weights else None
