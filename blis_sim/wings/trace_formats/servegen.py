"""ServeGen: a folder with the rates and lengths of many clients over a day, as cohorts of a spec.

Three periods of the day are taken, of each ten minutes. The clients that are active then are dealt to the service
classes. Each class becomes a cohort with the average of its clients' fits. Its files are `chunk-N-trace.csv` (arrivals
of a client) and `chunk-N-dataset.json` (lengths).
"""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from blis_sim.options.addition import sequential_sum
from blis_sim.options.file_fields import shortened
from traces.importers.reading import Unread, at, expect, json_value
from traces.importers.registry import ConvertOptions, Imported
from traces.text_file import TraceError, read_text
from traces.workload.spec import MODALITIES, Arrival, Cohort, Distribution, Multimodal, Spike, WorkloadSpec


@dataclass(frozen=True, slots=True)
class Fit:
    """A lognormal distribution of token counts."""

    mu: float
    sigma: float


def lognormal_fit(weights: Mapping[int, float]) -> Fit:
    """Mean and standard deviation of the logarithms of lengths, which must be above 0, by their weights."""
    total = sequential_sum(weights.values())
    mu = sequential_sum(weight * math.log(length) for length, weight in weights.items()) / total
    variance = sequential_sum(weight * (math.log(length) - mu) ** 2 for length, weight in weights.items()) / total
    return Fit(mu, math.sqrt(variance))


def mean_fit(fits: Sequence[Fit]) -> Fit:
    """The average of the parameters."""
    return Fit(
        sequential_sum(fit.mu for fit in fits) / len(fits), sequential_sum(fit.sigma for fit in fits) / len(fits)
    )


_PROCESSES = {"gamma": "gamma", "weibull": "weibull"}
_NUMBER = r"\s*(\d+\.?\d*|\.\d+)"
_ENTRY = re.compile(rf"{_NUMBER}\s*:{_NUMBER}([eE][+-]?\d+)?\s*", re.ASCII)
_NUM_CELLS = 6
_MAX_TOKENS = 2**31


@dataclass(frozen=True, slots=True)
class RateSegment:
    """Rate of a client from one instant on, and the distribution of its gaps."""

    start_s: float
    rate: float
    cv: float
    process: str
    shape: float
    scale_s: float


@dataclass(frozen=True, slots=True)
class Items:
    """Images, or items of another kind: the tokens of one, and how many a prompt has, each number with its share."""

    tokens: Fit
    count: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Length distributions of the prompts (of their text, where there are items) and the replies of a client."""

    input: Fit
    output: Fit
    items: Mapping[str, Items] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One client of the folder. `lengths` has what holds from each instant (seconds) on."""

    segments: Sequence[RateSegment]
    lengths: Mapping[float, Lengths]

    def lengths_at(self, time_s: float) -> Lengths:
        """The lengths that hold at an instant: the last ones before it, else the first ones."""
        before = [start_s for start_s in self.lengths if start_s <= time_s]
        return self.lengths[max(before) if before else min(self.lengths)]


def read_chunks(folder: Path, left_out: Counter[str], unread: Unread | None = None) -> list[Chunk]:
    """The clients of a folder, by their numbers; counts what cannot be used. Raises TraceError."""
    paths = sorted(folder.glob("chunk-*-trace.csv"), key=_number)
    if not paths:
        raise TraceError(f"{folder}: expected a folder with files chunk-*-trace.csv, found none")
    chunks = []
    for path in paths:
        dataset = path.with_name(path.name.replace("-trace.csv", "-dataset.json"))
        segments = _moments(path, left_out)
        lengths = _lengths(dataset, left_out, unread or Unread())
        if segments and lengths:
            chunks.append(Chunk(segments, lengths))
        else:
            left_out["clients without a usable row or lengths"] += 1
    return chunks


def _number(path: Path) -> tuple[int, str]:
    digits = re.search(r"chunk-(\d+)-", path.name)
    return (int(digits[1]) if digits else -1, path.name)


def _moments(path: Path, left_out: Counter[str]) -> list[RateSegment]:
    """The rows of a file; raises TraceError for one that has not six cells, and counts those with empty cells."""
    segments = []
    for line, cells in _lines(path):
        if len(cells) != _NUM_CELLS:
            raise TraceError(f"{path} line {line}: expected {_NUM_CELLS} cells, got {len(cells)}")
        if not all(map(str.strip, cells)) or cells[3].strip().lower() not in _PROCESSES:
            left_out["rows of chunk-*-trace.csv with an empty cell, or another process than gamma or weibull"] += 1
            continue
        start_s, rate, cv, shape, scale_s = (
            _number_in(f"{path} line {line} cell {place}", cells[place - 1]) for place in (1, 2, 3, 5, 6)
        )
        segments.append(RateSegment(start_s, rate, cv, _PROCESSES[cells[3].strip().lower()], shape, scale_s))
    return segments


def _number_in(place: str, cell: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = -1.0
    if not 0 <= number < inf:
        raise TraceError(f"{place}: expected a number from 0 on, got {shortened(cell)!r}")
    return number


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not empty, each with its number."""
    rows = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        yield from ((rows.line_num, cells) for cells in rows if cells)
    except csv.Error as error:
        raise TraceError(f"{path} line {rows.line_num}: expected comma-separated cells, {error}") from error


_KNOWN_LENGTHS = ("input_tokens", "output_tokens", "text_tokens", "reason_ratio")
_ITEM_KEYS = tuple(f"{kind}_{what}" for kind in MODALITIES for what in ("tokens", "count"))


def _lengths(path: Path, left_out: Counter[str], unread: Unread) -> dict[float, Lengths]:
    """The lengths from each instant on; of a prompt of several kinds of input they are those of its text."""
    found = {}
    for start, entry in expect(str(path), "an object", json_value(path)).items():
        place = f"{path} key {start}"
        expect(place, "an object", entry)
        if "reason_ratio" in entry:
            left_out["distributions of the share of reasoning"] += 1
        is_mixed = "text_tokens" in entry
        unread.add(entry, (*_KNOWN_LENGTHS, *_ITEM_KEYS) if is_mixed else _KNOWN_LENGTHS)
        prompt, reply = (
            _fit(place, entry, key, left_out)
            for key in ("text_tokens" if is_mixed else "input_tokens", "output_tokens")
        )
        if prompt is not None and reply is not None:
            items = dict(_items(place, entry, left_out)) if is_mixed else {}
            found[_seconds(place, start)] = Lengths(prompt, reply, items)
    return found


def _items(place: str, entry: Mapping[str, Any], left_out: Counter[str]) -> Iterator[tuple[str, Items]]:
    """The kinds of input beside text that prompts have."""
    for kind in MODALITIES:
        names = f"{kind}_tokens", f"{kind}_count"
        lengths = _shares(place, entry, names[0], left_out, least=0) if names[0] in entry else {}
        tokens = {length: share for length, share in lengths.items() if length}
        counts = _shares(place, entry, names[1], left_out, least=0) if tokens or names[1] in entry else {}
        if any(counts):
            if not tokens:
                raise TraceError(f"{place} key {names[0]}: expected a length above 0, as {names[1]} has one")
            yield kind, Items(lognormal_fit(tokens), counts)


def _seconds(place: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise TraceError(f"{place}: expected a time in seconds") from None


def _fit(place: str, entry: Mapping[str, Any], key: str, left_out: Counter[str]) -> Fit | None:
    """The fit of a histogram; None of an empty one. Raises TraceError where nothing in it can be used."""
    weights = _shares(place, entry, key, left_out, least=1)
    if not weights and entry[key].strip("{} "):
        raise TraceError(
            f"{place} key {key}: expected lengths with shares as in {{100: 1}}, got {shortened(entry[key])!r}"
        )
    return lognormal_fit(weights) if weights else None


def _shares(place: str, entry: Mapping[str, Any], key: str, left_out: Counter[str], *, least: int) -> dict[int, float]:
    """A histogram written as `{length: share, ...}`, as far as it can be used."""
    weights = {}
    for item in filter(str.strip, at(place, entry, key, "text").strip().strip("{}").split(",")):
        matched = _ENTRY.fullmatch(item)
        length, weight = (float(matched[1]), float(matched[2] + (matched[3] or ""))) if matched else (-1.0, 0.0)
        if least <= length < _MAX_TOKENS and 0 < weight < inf:
            weights[int(length)] = weight
        else:
            left_out[f"shares of {key} without a length from {least} on"] += 1
    return weights


PERIODS: Mapping[str, int] = {"midnight": 0, "morning": 8 * 3600, "afternoon": 14 * 3600}
"""Start of each period, in seconds of the day; a period lasts half an hour."""
WINDOW_S = 600
_NUM_WINDOWS = 3
_CLASSES = ("critical", "standard", "batch", "sheddable", "background")

ClassAssignment = Mapping[str, Sequence[Sequence[tuple[Chunk, RateSegment]]]]
"""For each period the clients of each class, in the order of the classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodTiming:
    """Times of the periods in the converted workload, in seconds."""

    window_s: int
    drain_s: int


def convert(options: ConvertOptions) -> Imported:
    """The cohorts of the periods asked for. Raises TraceError."""
    left_out: Counter[str] = Counter()
    unread = Unread()
    chunks = read_chunks(options.path, left_out, unread)
    assignment = assign_to_classes(chunks, Random(f"{options.seed}/servegen"), left_out)
    timing = PeriodTiming(window_s=options.window_duration_seconds, drain_s=options.drain_timeout_seconds)
    cohorts = cohorts_of(assignment, timing)
    chosen = tuple(cohort for cohort in cohorts if options.time in (None, cohort.id.partition("-")[0]))
    if not chosen:
        raise TraceError(f"{options.path}: expected clients that are active in the chosen periods, got none")
    left_out["cohorts of other periods than --time"] = len(cohorts) - len(chosen)
    is_mixed = any(cohort.multimodal is not None for cohort in chosen)
    spec = WorkloadSpec(version="2", seed=options.seed, category="multimodal" if is_mixed else "", cohorts=chosen)
    notes = ("tokens of images, sounds and videos are taken as those of one of them",) if is_mixed else ()
    return Imported(spec=spec, left_out=left_out, notes=(*notes, *unread.note()))


def assign_to_classes(chunks: Sequence[Chunk], random: Random, left_out: Counter[str]) -> ClassAssignment:
    """One window of each period, its active clients shuffled and dealt to the classes in turn."""
    assignment: dict[str, list[list[tuple[Chunk, RateSegment]]]] = {}
    used = 0
    for period, start_s in PERIODS.items():
        windows_s = [start_s + WINDOW_S * number for number in range(_NUM_WINDOWS)]
        # Rows may be further apart than windows: one without a row says nothing about its period.
        busy_s = [each_s for each_s in windows_s if active_at(chunks, each_s)] or windows_s
        window_s = busy_s[random.randrange(len(busy_s))]
        active = active_at(chunks, window_s)
        used += len(active)
        random.shuffle(active)
        assignment[period] = [active[place :: len(_CLASSES)] for place in range(len(_CLASSES))]
    left_out["moments outside the three windows taken"] = sum(len(chunk.segments) for chunk in chunks) - used
    return assignment


def active_at(chunks: Sequence[Chunk], window_s: int) -> list[tuple[Chunk, RateSegment]]:
    """The clients with requests in the window that begins then, with what they do."""
    return [
        (chunk, moment)
        for chunk in chunks
        for moment in chunk.segments
        if window_s <= moment.start_s < window_s + WINDOW_S and moment.rate > 0
    ]


def cohorts_of(assignment: ClassAssignment, timing: PeriodTiming) -> list[Cohort]:
    """A cohort per period and class that has clients, by period and then by name."""
    cohorts = []
    for number, period in enumerate(PERIODS):
        start_us = number * (timing.window_s + timing.drain_s) * 1_000_000
        for slo_class, clients in sorted(zip(_CLASSES, assignment[period], strict=True)):
            if clients:
                spike = Spike(
                    start_time_us=start_us,
                    duration_us=timing.window_s * 1_000_000,
                    trace_rate=sequential_sum(moment.rate for _, moment in clients),
                )
                cohorts.append(_cohort(period, slo_class, clients, spike))
    return cohorts


def _cohort(period: str, slo_class: str, clients: Sequence[tuple[Chunk, RateSegment]], spike: Spike) -> Cohort:
    lengths = [chunk.lengths_at(moment.start_s) for chunk, moment in clients]
    return Cohort(
        id=f"{period}-{slo_class}",
        population=len(clients),
        slo_class=slo_class,
        rate_fraction=1.0,
        arrival=_arrival([moment for _, moment in clients]),
        input_distribution=_lognormal(mean_fit([each.input for each in lengths])),
        output_distribution=_lognormal(mean_fit([each.output for each in lengths])),
        streaming=True,
        multimodal=_multimodal(lengths),
        spike=spike,
    )


def _multimodal(lengths: Sequence[Lengths]) -> Multimodal | None:
    """The averages of the clients, of which those without items of a kind have 0 of them."""
    kinds = [kind for kind in MODALITIES if any(kind in each.items for each in lengths)]
    if not kinds:
        return None
    found: dict[str, Distribution] = {"text_distribution": _lognormal(mean_fit([each.input for each in lengths]))}
    for kind in kinds:
        items = [each.items[kind] for each in lengths if kind in each.items]
        counts: dict[int, float] = {}
        for each in lengths:
            shares = each.items[kind].count if kind in each.items else {0: 1.0}
            total = sequential_sum(shares.values())
            for number, share in shares.items():
                counts[number] = counts.get(number, 0.0) + share / total / len(lengths)
        found[f"{kind}_distribution"] = _lognormal(mean_fit([each.tokens for each in items]))
        params = {str(number): counts[number] for number in sorted(counts)}
        found[f"{kind}_count_distribution"] = Distribution(type="empirical", params=params)
    return Multimodal(**found)


def _arrival(segments: Sequence[RateSegment]) -> Arrival:
    """The process that most of the clients have, with the averages of all; a draw goes to gamma."""
    num_weibull = sum(moment.process == "weibull" for moment in segments)
    return Arrival(
        process="weibull" if 2 * num_weibull > len(segments) else "gamma",
        cv=_mean([moment.cv for moment in segments]),
        shape=_mean([moment.shape for moment in segments]),
        scale=_mean([moment.scale_s * 1e6 for moment in segments]),
    )


def _lognormal(fit: Fit) -> Distribution:
    return Distribution(type="lognormal", params={"mu": fit.mu, "sigma": fit.sigma})


def _mean(values: Sequence[float]) -> float:
    return sequential_sum(values) / len(values)
