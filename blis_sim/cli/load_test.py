"""A load on this host: a server with set times and `blis observe` beside it, and how late both were."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from blis_sim.cli.host import FAILED, OK, WARNING, Finding, available_cores
from blis_sim.testing import Server, ServerError, server

_LATE_S = "0.005"
"""Upper bound of a bucket of the server's lateness, in seconds."""
_LATE_MS = 5.0
_LATE_SHARE = 0.01
_BUSY = 0.8
"""Share of a core above which a process that has one thread is near its limit."""
_PATIENCE_S = 120.0
_LAG = "blis_send_lag_seconds"


def try_load(rate: float, num_streams: int, itl_ms: float, duration_s: float) -> list[Finding]:
    """Send at this rate for so long, each request as long as it takes for so many streams at once."""
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
            summary = _observed(running, Path(folder), *words, "--prompt-tokens", "64")
            return [Finding("tried", name), *_judged(running, summary, _cpu_s(running) - before_s, number)]
    except (ServerError, subprocess.SubprocessError, ValueError) as error:
        return [Finding("tried", name, FAILED, " ".join(str(error).split())[-200:])]


def _observed(running: Server, folder: Path, *words: str) -> dict[str, Any]:
    """The summary of `blis observe`. Raises SubprocessError, and ValueError without a summary."""
    command = [sys.executable, "-m", "blis_sim.cli", "observe", "--url", running.url, *words]
    done = subprocess.run(
        [*command, "-o", str(folder / "trace")], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
    )
    if not done.stdout:
        raise ValueError(f"blis observe ended with exit code {done.returncode}: {done.stderr[-200:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _judged(running: Server, summary: dict[str, Any], server_cpu_s: float, number: int) -> list[Finding]:
    num_ok = int(summary["completed"])
    late = 1 - running.count(f"{_LAG}_bucket", le=_LATE_S) / max(1.0, running.count(f"{_LAG}_count"))
    send_lag_ms = float(summary["send_lag_ms"]["p99"])
    busy = server_cpu_s / max(1e-3, float(summary["duration_s"]))
    findings = [
        _finding(
            "answered", f"{num_ok} of {number}", num_ok == number, "requests failed, see ulimit -n and the memory"
        ),
        _finding(
            "tokens late", f"{late:.2%} by more than {_LATE_MS:g} ms", late <= _LATE_SHARE, "too much for this host"
        ),
        _finding("requests late", f"{send_lag_ms:.2f} ms at p99", send_lag_ms <= _LATE_MS, "too much for blis observe"),
    ]
    text = f"{busy:.0%} of a core, of {available_cores():.2g}"
    if busy > _BUSY:
        findings.append(Finding("server's CPU", text, WARNING, "near its limit: --api-server-count shares it out"))
    else:
        findings.append(
            Finding("server's CPU", text, OK, f"room for about {_BUSY / max(busy, 1e-3):.1f} times this load")
        )
    return findings


def _finding(check: str, found: str, is_well: bool, advice: str) -> Finding:
    return Finding(check, found) if is_well else Finding(check, found, FAILED, advice)


def _cpu_s(running: Server) -> float:
    """Seconds of CPU that the process of the server has used, 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
