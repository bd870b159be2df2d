"""Kinds of files that commands write, and how an earlier one is told from a file that must not be written over."""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from os.path import exists, isfile, islink, realpath  # which take any text for a path

_LOOK_BYTES = 1 << 16
_STREAMS = ("/dev/", "/proc/")
"""Folders with names of open files and devices, such as /dev/stdout."""
_GZIP = 31
"""The window bits that make zlib read gzip."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """What an error says that such a file holds, and a pattern that the beginning of each such file has."""

    words: str
    pattern: str


KINDS: Mapping[str, FileKind] = {
    "header": FileKind("the header of a trace", r"^(trace_version|time_unit|workload_seed) *:"),
    "rows": FileKind("rows of a trace", r"\A\s*(?=.*\brequest_id\b)(?=.*\b(input|output)_tokens\b)"),
    "token times": FileKind("token times of a trace", r"\A\s*request_id,chunk_index,timestamp_us\b"),
    "server metrics": FileKind("readings of a server's metrics", r'\A\s*\{"(server|at_us)"'),
    "spec": FileKind("a workload spec", r"^(clients|cohorts|inference_perf|vidur|aggregate_rate) *:"),
    "latencies": FileKind("latencies per request", r'\A\s*\[\s*(\]|\{[^{}]*"(ttft_us|e2e_us)")'),
    "run metrics": FileKind("metrics of a run", r'\A\s*\{.*"completed_requests"'),
    "decisions": FileKind("decisions of a cluster", r'\A\s*\[\s*(\]|\{[^{}]*"(at_us|regret)")'),
    "saturation": FileKind("a report of saturation detectors", r'\A\s*\{\s*"(final|trace|labels)"'),
    "calibration": FileKind(
        "a report of a calibration", r'\A\s*\{.*"(trace_info|all_within_threshold|mape_threshold)"'
    ),
    "page": FileKind("a page of a calibration", r"\A\s*<!doctype html>.{0,400}<title>Calibration"),
    "coefficients": FileKind("coefficients of blis fit", r"^latency_model *:"),
    "points": FileKind("points of a sweep", r"\A\s*(?=.*\bcompleted_requests\b)(?=.*\btotal_output_tokens\b)"),
    "offline results": FileKind("results of an offline benchmark", r'\A\s*\{\s*"(model_id|avg_latency|elapsed_time)"'),
    "benchmark results": FileKind("results of a benchmark", r'\A\s*\{.*"(request_throughput|endpoint_type|backend)"'),
    "picture": FileKind("a picture", r"\A(\x89PNG|%PDF|\s*<\?xml|\s*<svg)"),
    "parquet": FileKind("Parquet", r"\APAR1"),
}
"""Patterns see the first 64 KiB as Latin-1 text; `.` matches line ends only where the kind is JSON or HTML."""

_ACROSS_LINES = ("run metrics", "calibration", "page", "benchmark results")


def obstacle(path: str, kind: str) -> str | None:
    """What keeps a file of this kind from being written to `path`, in words; None if nothing does.

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
