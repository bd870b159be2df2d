"""Checks of the host: Python, cores, timer, limits, memory, libraries of extras."""

import asyncio
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

OK, WARNING, FAILED = "ok", "warning", "failed"

_SLEEP_S = 0.001
_NUM_SLEEPS = 200
_LATE_MS = 2.0
"""Lateness of a sleep at the 99th percentile that a client notices in times between tokens."""
_FAR_TOO_LATE_MS = 20.0
_FILES_PER_STREAM = 2
"""A connection of the server, and one of a load generator beside it."""
_OTHER_FILES = 100
_LEAST_FREE_MIB = 512
_KIB_PER_STREAM = 64
_EXTRAS = {
    "tokenizers": ("tokenizers", "jinja2"),
    "plots": ("matplotlib",),
    "fit": ("scipy",),
    "kernels": ("aiconfigurator_core",),
    "operators": ("sklearn",),
    "kv-events": ("cbor2", "msgspec", "zmq", "xxhash"),
    "pandas": ("pandas",),
    "parquet": ("pyarrow",),
    "ray": ("ray",),
}
"""Extra to the modules that it brings."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, with advice where it is not well."""

    check: str
    found: str
    verdict: str = OK
    advice: str = ""


def findings(num_streams: int | None) -> list[Finding]:
    """All checks, for so many streams at once where a load is given."""
    return [_python(), _cores(), _load(), _timer(), _open_files(num_streams), _memory(num_streams), _extras()]


def _python() -> Finding:
    core = find_spec("blis_sim.engine.core")
    is_compiled = core is not None and core.origin is not None and not core.origin.endswith(".py")
    build = "compiled engine" if is_compiled else "plain engine"
    return Finding("Python", f"{platform.python_version()} on {sys.platform} {platform.machine()}, {build}")


def available_cores() -> float:
    """The cores that this process may use: those it may run on, within the quota of its control group."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    quota = _number_pair(Path("/sys/fs/cgroup/cpu.max"))
    return cores if quota is None else min(cores, quota[0] / quota[1])


def _number_pair(path: Path) -> tuple[float, float] | None:
    try:
        first, second = path.read_text().split()[:2]
        return float(first), float(second)
    except (OSError, ValueError):  # no such file, or no quota
        return None


def _cores() -> Finding:
    cores = available_cores()
    if cores < 1:
        return Finding("cores", f"{cores:.2g}", WARNING, "tokens are late with less than a whole core")
    if cores < 2:
        advice = "a load generator on this host takes time from the server"
        return Finding("cores", f"{cores:.2g}", WARNING, advice)
    return Finding("cores", f"{cores:.2g}")


def _load() -> Finding:
    try:
        busy = os.getloadavg()[0]
    except OSError:
        return Finding("load average", "unknown")
    cores = available_cores()
    text = f"{busy:.1f} on {cores:.2g} cores"
    if busy > 0.7 * cores:
        return Finding("load average", text, WARNING, "other programs take time from the server")
    return Finding("load average", text)


def _timer() -> Finding:
    late_ms = sorted(asyncio.run(_lateness_ms()))
    p50, p99 = late_ms[len(late_ms) // 2], late_ms[int(0.99 * len(late_ms))]
    text = f"sleeps end {p50:.2f} ms late, {p99:.2f} ms at p99"
    if p99 > _FAR_TOO_LATE_MS:
        return Finding("timer", text, FAILED, "times between tokens mean nothing here")
    if p99 > _LATE_MS:
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


def _memory(num_streams: int | None) -> Finding:
    free_mib = min(_free_mib(), default=None)
    if free_mib is None:
        return Finding("memory", "unknown")
    needed_mib = _LEAST_FREE_MIB + (num_streams or 0) * _KIB_PER_STREAM / 1024
    text = f"{free_mib / 1024:.1f} GiB free"
    if free_mib < needed_mib:
        return Finding("memory", text, WARNING, f"{needed_mib / 1024:.1f} GiB are safe")
    return Finding("memory", text)


def _free_mib() -> Iterator[float]:
    """Yield what the machine and the control group have left, where that is known."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        yield float(lines["MemAvailable"].split()[0]) / 1024
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / name).read_text() for name in ("memory.max", "memory.current"))
        yield (float(limit) - float(used)) / 1024**2
    except (OSError, ValueError, KeyError):  # another system, or no limit
        return


def _extras() -> Finding:
    missing = [name for name, modules in _EXTRAS.items() if any(find_spec(each) is None for each in modules)]
    there = [name for name in _EXTRAS if name not in missing]
    text = ", ".join(there) or "none"
    if missing:
        return Finding("extras", text, OK, f"not installed: {', '.join(missing)} (pip install 'blis-mockserve[NAME]')")
    return Finding("extras", text)
