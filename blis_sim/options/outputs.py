"""Checks of output paths before a command begins: no overwriting of inputs or other outputs, no missing folder."""

import re
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from os import stat
from os.path import (  # which take any text for a path  # which take any text for a path
    basename,
    dirname,
    exists,
    isdir,
    isfile,
    islink,
    realpath,
)
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from blis_sim.options.option import OptionError, options_of

_LOOK_BYTES = 1 << 16
_STREAMS = ("/dev/", "/proc/")
"""Folders with names of open files and devices, such as /dev/stdout."""
_GZIP = 31
"""The window bits that make zlib read gzip."""


class FileKind(NamedTuple):
    """Description of a kind of file for error messages, and a pattern that the beginning of each such file has."""

    words: str
    pattern: str


KINDS: Mapping[str, FileKind] = {
    "header": FileKind("the header of a trace", r"^(trace_version|time_unit|workload_seed) *:"),
    "rows": FileKind("rows of a trace", r"\A\s*(?=.*\brequest_id\b)(?=.*\b(input|output)_tokens\b)"),
    "requests": FileKind(
        "requests of a trace in another format",
        r'\A\s*(\{"timestamp"[^{}]*"input_length"|timestamp,contexttokens|arrived_at,num_prefill_tokens)',
    ),
    "token times": FileKind("token times of a trace", r"\A\s*request_id,chunk_index,timestamp_us\b"),
    "server metrics": FileKind("readings of a server's metrics", r'\A\s*\{"(server|at_us)"'),
    "content": FileKind("contents of recorded requests", r'\A\s*\{"blis_content"'),
    "server settings": FileKind("settings of a recorded server", r"^server_settings *:"),
    "spec": FileKind("a workload spec", r"^(clients|cohorts|inference_perf|vidur|scenario|aggregate_rate) *:"),
    "latencies": FileKind("latencies per request", r'\A\s*\[\s*(\]|\{[^{}]*"(ttft_us|e2e_us)")'),
    "run metrics": FileKind("metrics of a run", r'\A\s*\{.*"completed_requests"'),
    "request graphs": FileKind("graphs of requests", r'\A\s*\[\s*(\]|\{"directed")'),
    "decisions": FileKind("decisions of a cluster", r'\A\s*\[\s*(\]|\{[^{}]*"(at_us|regret)")'),
    "saturation": FileKind("a report of saturation detectors", r'\A\s*\{\s*"(final|trace|labels)"'),
    "calibration": FileKind(
        "a report of a calibration", r'\A\s*\{.*"(trace_info|all_within_threshold|mape_threshold)"'
    ),
    "page": FileKind("a page of a calibration", r"\A\s*<!doctype html>.{0,400}<title>Calibration"),
    "coefficients": FileKind("coefficients of blis fit", r"^latency_model *:"),
    "kernel times": FileKind("kernel times of blis kernels bake", r'\A\s*\{\s*"kernel_profile"'),
    "layer table": FileKind("a table of AICB", r"\Alayer_id\tlayer_name\t"),
    "drift metrics": FileKind("metrics of a watched server", r"\A# HELP blis_watch_"),
    "comparison page": FileKind("a page of a comparison", r"\A\s*<!doctype html>.{0,400}<title>Comparison"),
    "run page": FileKind("a page of a run", r"\A\s*<!doctype html>.{0,400}<title>Run of"),
    "sweep page": FileKind("a page of a sweep", r"\A\s*<!doctype html>.{0,400}<title>Sweep of"),
    "plan page": FileKind("a page of a plan", r"\A\s*<!doctype html>.{0,400}<title>Plan for"),
    "tune page": FileKind("a page of a search", r"\A\s*<!doctype html>.{0,400}<title>Engine settings for"),
    "load page": FileKind("a page of a load", r"\A\s*<!doctype html>.{0,400}<title>Load on"),
    "points": FileKind("points of a sweep", r"\A\s*(?=.*\bcompleted_requests\b)(?=.*\btotal_output_tokens\b)"),
    "simulations": FileKind("simulations of a plan", r'\A\{"file": "simulations of blis plan"\}'),
    "offline results": FileKind("results of an offline benchmark", r'\A\s*\{\s*"(model_id|avg_latency|elapsed_time)"'),
    "benchmark results": FileKind("results of a benchmark", r'\A\s*\{.*"(request_throughput|endpoint_type|backend)"'),
    "picture": FileKind("a picture", r"\A(\x89PNG|%PDF|\s*<\?xml|\s*<svg)"),
    "provenance": FileKind("the origin of a result", r'\A\s*\{\s*"blis_version"'),
    "parquet": FileKind("Parquet", r"\APAR1"),
}
"""Patterns see the first 64 KiB as Latin-1 text; `.` matches line ends only where the kind is JSON or HTML."""

_PAGES = ("page", "comparison page", "run page", "sweep page", "plan page", "tune page", "load page")
_ACROSS_LINES = ("run metrics", "calibration", "benchmark results", *_PAGES)


def reason_not_writable(path: str, kind: str) -> str | None:
    """Return the reason why a file of this kind cannot be written to `path`; None where it can.

    An earlier file of the same kind and an empty one may be replaced, and so may devices and pipes be written.
    """
    is_link = islink(path) and not path.startswith(_STREAMS)
    where = f"{realpath(path)}, where the link {path} leads to" if is_link else path
    if is_link and not exists(path):
        return f"{where}, which does not exist"
    start = _beginning(path) if isfile(path) else b""
    return None if not start or is_of_kind(start, kind) else f"{where}, which does not hold {KINDS[kind].words}"


def is_of_kind(start: bytes, kind: str) -> bool:
    """Whether a file that begins in this way is of this kind."""
    flags = re.MULTILINE | (re.DOTALL if kind in _ACROSS_LINES else 0)
    text = start.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    return re.search(KINDS[kind].pattern, text, flags | re.IGNORECASE) is not None


def _beginning(path: str) -> bytes:
    """The first bytes of a file, unzipped; none of one that cannot be read, which its writer will report."""
    try:
        with open(path, "rb") as file:
            start = file.read(_LOOK_BYTES)
    except OSError:
        return b""
    if not path.endswith(".gz"):
        return start
    try:
        return zlib.decompressobj(_GZIP).decompress(start, _LOOK_BYTES) or start
    except zlib.error:
        return start


_NAMELESS = (".yaml", ".csv", ".itl.csv")
"""Files of a prefix that is empty behind its folder: hidden files, of which none is found beside another."""


Output: TypeAlias = tuple[str, str] | tuple[str, str, str]
"""A file that is written, the flag to name, and the kind of the file where an earlier one of that kind may be there."""


def check_outputs(options: Any, *also_read: Path, also_written: Iterable[Output] = ()) -> None:
    """Raise OptionError for a file that is to be written although another setting names it too, or has no folder,
    or is one.

    Every value of another setting that names a file counts as read; `also_read` are files that no value names, and
    `also_written` those, each with the flag to name. Devices and pipes may be written by several.
    """
    check_written([*_written(options), *also_written], _read(options, also_read))


def check_written(written: Iterable[Output], read: Iterable[tuple[str, str]]) -> None:
    """Raise OptionError for output files that cannot be written; each file of `read` has a reason such as
    `--trace reads`.

    A file of another kind than the one to be written is never replaced, nor is what a link leads to.
    """
    outputs = list(written)
    if not outputs:
        return
    reasons = {_identity(path): reason for path, reason in read if isfile(path)}
    labels: dict[Hashable, str] = {}
    for path, label, *kind in outputs:
        if isdir(path):
            raise OptionError(f"{label} must be a file, got the folder {path}")
        if basename(path) in _NAMELESS:
            raise OptionError(f"{label} must name files, got only the folder {dirname(path)}/")
        if exists(path) and not isfile(path):
            continue
        if not isdir(dirname(path) or "."):
            raise OptionError(f"{label} must be in a folder that exists, got {path}")
        file = _identity(path)
        if file in reasons:
            raise OptionError(f"{label} would write over {path}, which {reasons[file]}")
        if file in labels:
            raise OptionError(f"{labels[file]} and {label} would both write {path}")
        labels[file] = label
        problem = reason_not_writable(path, kind[0]) if kind else None
        if problem is not None:
            raise OptionError(f"{label} would write over {problem}")


def _identity(path: str) -> Hashable:
    """Return an identity that all names of a file share, links of both kinds among them."""
    if not exists(path):
        return realpath(path)
    found = stat(path)
    return found.st_dev, found.st_ino


def _written(options: Any) -> Iterator[Output]:
    for setting in options_of(type(options)):
        value, writes = setting.of(options), setting.option.writes
        for suffix in writes if value else ():
            path = f"{value}{suffix}"
            yield (path, setting.label, writes[suffix]) if isinstance(writes, Mapping) else (path, setting.label)


def _read(options: Any, also_read: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    for path in also_read:
        yield str(path), "belongs to what is read"
    for setting in options_of(type(options)):
        value = setting.of(options)
        if setting.option.writes or not value:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, str):
                yield each, f"{setting.label} reads"
