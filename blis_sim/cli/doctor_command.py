"""`blis doctor`: the resources of this host, and whether it sustains a load."""

import asyncio
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from blis_sim.bench.cores import available_cores
from blis_sim.installation import install_command
from blis_sim.options import OptionError, option
from blis_sim.options.option import LEAST_RATE, MOST_REQUESTS
from blis_sim.options.printing import check_printed, format_option, json_option, printed_format
from blis_sim.options.provenance import Provenance, command_line
from blis_sim.report.report import Report, Section
from blis_sim.report.tables import TextTable
from blis_sim.testing import Server, ServerError, server

OK, WARNING, FAILED = "ok", "warning", "failed"

_SLEEP_S = 0.001
_NUM_SLEEPS = 200
_LATE_TIMER_MS = 2.0
"""Lateness of a sleep at the 99th percentile that a client notices in times between tokens."""
_FAR_TOO_LATE_TIMER_MS = 20.0
_FILES_PER_STREAM = 2
"""A connection of the server, and one of a load generator beside it."""
_OTHER_FILES = 100
_LEAST_FREE_MIB = 512
_KIB_PER_STREAM = 64
_EXTRAS = {
    "tokenizers": ("tokenizers", "jinja2"),
    "plots": ("matplotlib",),
    "operators": ("sklearn",),
    "kv-events": ("cbor2", "msgspec", "zmq", "xxhash"),
    "pandas": ("pandas",),
    "parquet": ("pyarrow",),
    "ray": ("ray",),
}
"""Extra to the modules that it brings."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, with advice for a warning or a failure."""

    check: str
    found: str
    verdict: str = OK
    advice: str = ""


def findings(num_streams: int | None) -> list[Finding]:
    """Run all checks, with the needs of `num_streams` concurrent streams."""
    return [
        _check_python(),
        _check_cores(),
        _check_load(),
        _check_timer(),
        _open_files(num_streams),
        _check_memory(num_streams),
        _check_extras(),
    ]


def _check_python() -> Finding:
    core = find_spec("blis_sim.engine.core")
    is_compiled = core is not None and core.origin is not None and not core.origin.endswith(".py")
    build = "compiled engine" if is_compiled else "plain engine"
    return Finding("Python", f"{platform.python_version()} on {sys.platform} {platform.machine()}, {build}")


def _check_cores() -> Finding:
    cores = available_cores()
    if cores < 1:
        return Finding("cores", f"{cores:.2g}", WARNING, "tokens are late with less than a whole core")
    if cores < 2:
        advice = "a load generator on this host takes time from the server"
        return Finding("cores", f"{cores:.2g}", WARNING, advice)
    return Finding("cores", f"{cores:.2g}")


def _check_load() -> Finding:
    try:
        busy = os.getloadavg()[0]
    except OSError:
        return Finding("load average", "unknown")
    cores = available_cores()
    text = f"{busy:.1f} on {cores:.2g} cores"
    if busy > 0.7 * cores:
        return Finding("load average", text, WARNING, "other programs take time from the server")
    return Finding("load average", text)


def _check_timer() -> Finding:
    late_ms = sorted(asyncio.run(_lateness_ms()))
    p50, p99 = late_ms[len(late_ms) // 2], late_ms[int(0.99 * len(late_ms))]
    text = f"sleeps end {p50:.2f} ms late, {p99:.2f} ms at p99"
    if p99 > _FAR_TOO_LATE_TIMER_MS:
        return Finding("timer", text, FAILED, "times between tokens mean nothing here")
    if p99 > _LATE_TIMER_MS:
        return Finding("timer", text, WARNING, "times between tokens have an error of as much")
    return Finding("timer", text)


async def _lateness_ms() -> list[float]:
    """Measure how late sleeps of a millisecond end."""
    found = []
    for _ in range(_NUM_SLEEPS):
        began = time.perf_counter()
        await asyncio.sleep(_SLEEP_S)
        found.append(1000 * (time.perf_counter() - began - _SLEEP_S))
    return found


def _open_files(num_streams: int | None) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = float("inf") if hard == resource.RLIM_INFINITY else hard
    text = f"at most {'any number' if hard == resource.RLIM_INFINITY else hard} ({soft} by default)"
    needed = _OTHER_FILES + _FILES_PER_STREAM * (num_streams or 0)
    if most < needed:
        return Finding("open files", text, FAILED, f"{num_streams} streams need {needed}: raise ulimit -Hn")
    if num_streams is None and most < 4096:
        return Finding(
            "open files", text, WARNING, f"enough for {int(most - _OTHER_FILES) // 2} streams: raise ulimit -Hn"
        )
    return Finding("open files", text)


def _check_memory(num_streams: int | None) -> Finding:
    free_mib = min(_free_mib(), default=None)
    if free_mib is None:
        return Finding("memory", "unknown")
    needed_mib = _LEAST_FREE_MIB + (num_streams or 0) * _KIB_PER_STREAM / 1024
    text = f"{free_mib / 1024:.1f} GiB free"
    if free_mib < needed_mib:
        return Finding("memory", text, WARNING, f"{needed_mib / 1024:.1f} GiB are safe")
    return Finding("memory", text)


def _free_mib() -> Iterator[float]:
    """Yield the free memory of the machine and of the control group, each where known."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        yield float(lines["MemAvailable"].split()[0]) / 1024
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / name).read_text() for name in ("memory.max", "memory.current"))
        yield (float(limit) - float(used)) / 1024**2
    except (OSError, ValueError, KeyError):  # another system, or no limit
        return


def _check_extras() -> Finding:
    missing = [name for name, modules in _EXTRAS.items() if any(find_spec(each) is None for each in modules)]
    there = [name for name in _EXTRAS if name not in missing]
    text = ", ".join(there) or "none"
    if missing:
        return Finding("extras", text, OK, f"not installed: {', '.join(missing)} ({install_command('NAME')})")
    return Finding("extras", text)


_LATE_S = "0.005"
"""Upper bound of a bucket of the server's lateness, in seconds."""
_LATE_MS = 5.0
_LATE_SHARE = 0.01
_BUSY = 0.8
"""Share of a core above which a process that has one thread is near its limit."""
_PATIENCE_S = 120.0
_SEND_LAG_METRIC = "blis_send_lag_seconds"


def try_load(rate: float, num_streams: int, itl_ms: float, duration_s: float) -> list[Finding]:
    """Send requests at this rate, with outputs so long that `num_streams` are in flight on average."""
    request_s = num_streams / rate
    output_tokens = max(1, round(1000 * request_s / itl_ms))
    times = ("--latency-calculator", "constant", "--inter-token-latency-ms", f"{itl_ms:g}")
    limits = ("--max-num-seqs", str(4 * num_streams), "--time-to-first-token-ms", f"{itl_ms:g}")
    number = max(num_streams, round(rate * duration_s))
    words = ("--rate", f"{rate:g}", "--num-requests", str(number), "--output-tokens", str(output_tokens))
    name = f"load of {rate:g} requests/s, {num_streams} streams, {rate * output_tokens:,.0f} tokens/s"
    try:
        with server("qwen/qwen3-14b", *times, *limits) as running, tempfile.TemporaryDirectory() as folder:
            before_s = _cpu_s(running)
            summary = _run_observe(running, Path(folder), *words, "--prompt-tokens", "64")
            return [Finding("tried", name), *_load_findings(running, summary, _cpu_s(running) - before_s, number)]
    except (ServerError, subprocess.SubprocessError, ValueError) as error:
        return [Finding("tried", name, FAILED, " ".join(str(error).split())[-200:])]


def _run_observe(running: Server, folder: Path, *words: str) -> dict[str, Any]:
    """The summary of `blis observe`. Raises SubprocessError, and ValueError without a summary."""
    command = [sys.executable, "-m", "blis_sim.cli", "observe", "--url", running.url, *words]
    done = subprocess.run(
        [*command, "-o", str(folder / "trace")], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
    )
    if not done.stdout:
        raise ValueError(f"blis observe ended with exit code {done.returncode}: {done.stderr[-200:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _load_findings(running: Server, summary: dict[str, Any], server_cpu_s: float, number: int) -> list[Finding]:
    num_ok = int(summary["completed"])
    late = 1 - running.count(f"{_SEND_LAG_METRIC}_bucket", le=_LATE_S) / max(
        1.0, running.count(f"{_SEND_LAG_METRIC}_count")
    )
    send_lag_ms = float(summary["send_lag_ms"]["p99"])
    busy = server_cpu_s / max(1e-3, float(summary["duration_s"]))
    findings = [
        _new_finding(
            "answered", f"{num_ok} of {number}", num_ok == number, "requests failed, see ulimit -n and the memory"
        ),
        _new_finding(
            "tokens late", f"{late:.2%} by more than {_LATE_MS:g} ms", late <= _LATE_SHARE, "too much for this host"
        ),
        _new_finding(
            "requests late", f"{send_lag_ms:.2f} ms at p99", send_lag_ms <= _LATE_MS, "too much for blis observe"
        ),
    ]
    text = f"{busy:.0%} of a core, of {available_cores():.2g}"
    if busy > _BUSY:
        findings.append(Finding("server's CPU", text, WARNING, "near its limit: --api-server-count shares it out"))
    else:
        findings.append(
            Finding("server's CPU", text, OK, f"room for about {_BUSY / max(busy, 1e-3):.1f} times this load")
        )
    return findings


def _new_finding(check: str, found: str, is_well: bool, advice: str) -> Finding:
    return Finding(check, found) if is_well else Finding(check, found, FAILED, advice)


def _cpu_s(running: Server) -> float:
    """Seconds of CPU that the process of the server has used, 0 where the system does not report them."""
    try:
        fields = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


_MARKS = {OK: "ok", WARNING: "warning", FAILED: "FAILED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """The load to try on the host, if any. Raises OptionError."""

    rate: float | None = option(
        None,
        "Try whether a server and a load generator on this host sustain this rate of requests per second.",
        above=0,
        at_least=LEAST_RATE,
        at_most=100_000,
        heading="Load to try",
    )
    streams: int | None = option(
        None,
        "Concurrent streams of the tried load (default: --rate times two seconds).",
        at_least=1,
        at_most=MOST_REQUESTS,
    )
    itl_ms: float = option(20.0, "Time between the tokens of a stream.", above=0, at_most=10_000)
    duration: float = option(4.0, "Duration of the tried load in seconds.", above=0, at_most=600)
    format: str = format_option(heading="Answer")
    json: bool = json_option()

    def __post_init__(self) -> None:
        check_printed(self)
        if self.has_load and self.num_streams / self.request_rate < self.itl_ms / 1000:
            raise OptionError(
                f"--streams {self.num_streams} at --rate {self.request_rate:g} leave a request "
                f"{self.num_streams / self.request_rate:.3g} s, less than a token of --itl-ms {self.itl_ms:g}"
            )

    @property
    def has_load(self) -> bool:
        """Whether a load is given."""
        return self.rate is not None or self.streams is not None

    @property
    def num_streams(self) -> int:
        """Streams at once."""
        return self.streams or max(1, round(2 * (self.rate or 1)))

    @property
    def request_rate(self) -> float:
        """Requests per second."""
        return self.rate or self.num_streams / 2


def run(options: DoctorOptions) -> int:
    """Run the checks and print the findings. Exit codes: 0 no check failed, 1 a check failed."""

    found = findings(options.num_streams if options.has_load else None)
    if options.has_load:
        found += try_load(options.request_rate, options.num_streams, options.itl_ms, options.duration)
    is_well = all(each.verdict != FAILED for each in found)
    rows = [asdict(each) for each in found]
    cells = [{"check": each.check, "found": each.found, "verdict": _verdict_text(each)} for each in found]
    report = Report(
        title="Resources of this host",
        origin=lambda: Provenance(command=command_line("blis doctor", options)),
        data=lambda: {"ok": is_well, "checks": rows},
        rows=lambda: rows,
        sections=lambda: [Section(table=TextTable.of(cells, 3))],
    )
    report.print(printed_format(options))
    return int(not is_well)


def _verdict_text(finding: Finding) -> str:
    return f"{_MARKS[finding.verdict]}: {finding.advice}" if finding.advice else _MARKS[finding.verdict]
