"""How much load `blis serve` carries and how well it keeps time, beside a plain aiohttp handler and other mocks.

    python -m workshop.server [--only events,time,arrivals,admission] [--repetitions 3] [--share 1]

Server and client have a core each, one server runs at a time, repetitions take turns and medians are shown. Figures
compare within one run, not with other machines. The reference does per token what any handler must do (one JSON object,
one write), keeps no books and simulates nothing; what the client and the machine add to times is in its rows as well.
guidellm's mock server is measured where its executable is found, or named by the variable GUIDELLM.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

from workshop.processes import cpu_s
from workshop.server_load.client import Case, Measured
from workshop.server_load.peers import Pace, Peer, blis, guidellm, reference, running

STEPS = ("--latency-model", "blackbox", "--alpha-coeffs", "0,0,0", "--beta-coeffs", "20000,0,0")
"""Steps of 20 ms, whatever requests they serve."""
STEPS_NAME = "blis, steps"
SET_TIMES = ("--latency-calculator", "constant")
ROOM = ("--total-kv-blocks", "60000")
"""Enough KV blocks for all streams at once."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A case as the client saw it, and what it cost the server."""

    measured: Measured
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Bench:
    """Repetitions and processor cores of a measurement."""

    repetitions: int
    share: float
    server_core: int | None
    client_core: int | None

    def of(self, number: int) -> int:
        """The share of a number of streams or requests."""
        return max(1, round(number * self.share))

    def costs(self, peers: Sequence[Peer], case: Case, ttft_ms: float = 0.0) -> dict[str, list[Cost]]:
        """`case` on each of `peers` in turn, so many times; a server lives for one case."""
        pace = Pace(ttft_ms, case.gap_ms, case.num_tokens)
        found: dict[str, list[Cost]] = {peer.name: [] for peer in peers}
        for _ in range(self.repetitions):
            for peer in peers:
                found[peer.name].append(self._cost(peer, pace, case))
        return found

    def _cost(self, peer: Peer, pace: Pace, case: Case) -> Cost:
        with running(peer, pace, self.server_core) as server:
            # What is only done once is done now.
            self._run(Case(num_requests=4, num_tokens=8), server.port)
            before_s = cpu_s(server.pid)
            measured = self._run(case, server.port)
            return Cost(measured, cpu_s(server.pid) - before_s)

    def _run(self, case: Case, port: int) -> Measured:
        command = [sys.executable, "-m", "workshop.server_load.client", str(port), json.dumps(asdict(case))]
        client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if self.client_core is not None:
            os.sched_setaffinity(client.pid, {self.client_core})
        output, _ = client.communicate()
        if client.returncode:
            raise SystemExit("the client failed")
        return Measured(**json.loads(output))


def median(costs: Sequence[Cost], field: str) -> float:
    """Percentile of a field of the client's samples."""
    return float(statistics.median(getattr(cost.measured, field) for cost in costs))


def rate(cost: Cost) -> float:
    """Events per second."""
    return cost.measured.num_events / cost.measured.wall_s if cost.measured.wall_s else 0.0


Costs: TypeAlias = Mapping[str, Sequence[Cost]]
"""Repeated measurements by the name of a server."""


def print_head(title: str, names: str) -> None:
    """Print the title of a table, and the names of its columns after the server, separated by `|`."""
    columns = ["server", *names.split("|")]
    print(f"\n## {title}\n\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")


def print_rows(costs: Costs, figures: Callable[[str, Sequence[Cost]], Sequence[str]]) -> None:
    """Print the row of each server, which names the streams that did not come to their end."""
    for name, each in costs.items():
        number = sum(cost.measured.num_failed for cost in each)
        remark = f" ({number} streams failed)" if number else ""
        print(f"| {name}{remark} | {' | '.join(figures(name, each))} |", flush=True)


def cpu_us_per_event(costs: Sequence[Cost]) -> str:
    return f"{statistics.median(cost.cpu_s / cost.measured.num_events for cost in costs) * 1e6:.1f}"


def cpu_ms_per_request(costs: Sequence[Cost], number: int) -> str:
    return f"{statistics.median(cost.cpu_s for cost in costs) / number * 1000:.3f}"


def events(bench: Bench, peers: Sequence[Peer]) -> None:
    """Streamed events per second with no time between tokens."""
    print_head("Events per second, no time between tokens", "streams x tokens|events/s|x reference|CPU per event, us")
    for num_streams, num_tokens in ((1, 4000), (64, 2000), (512, 500), (512, 60)):
        asked = f"{bench.of(num_streams)} x {num_tokens}"
        costs = bench.costs(peers, Case(num_requests=bench.of(num_streams), num_tokens=num_tokens))
        rates = {name: statistics.median(map(rate, each)) for name, each in costs.items()}
        least = rates[reference().name]
        print_rows(
            costs,
            lambda name, each, asked=asked, rates=rates, least=least: (  # type: ignore[misc]
                *(asked, f"{rates[name]:,.0f}", f"{rates[name] / least:.2f}", cpu_us_per_event(each)),
            ),
        )


def timing(bench: Bench, peers: Sequence[Peer]) -> None:
    """Print the errors of gaps of 20 ms."""
    names = "streams|drift, %|error p50, ms|p99, ms|CPU per event, us"
    print_head("20 ms between tokens, 250 tokens a stream, at most 400 starts a second", names)
    for number in sorted({bench.of(number) for number in (1, 100, 500, 1000)}):
        case = Case(num_requests=number, num_tokens=250, spread_s=number / 400, gap_ms=20)
        print_rows(
            bench.costs(peers, case, ttft_ms=20),
            lambda _, each, number=number: (  # type: ignore[misc]
                str(number),
                f"{median(each, 'drift_percent'):+.2f}",
                *(f"{median(each, name):.2f}" for name in ("gap_error_p50_ms", "gap_error_p99_ms")),
                cpu_us_per_event(each),
            ),
        )


def arrivals(bench: Bench, peers: Sequence[Peer]) -> None:
    """Time that the server adds to the time to the first token."""
    names = "TTFT - 50 ms p50, ms|p99, ms|CPU per request, ms"
    print_head("200 requests/s of 10 tokens, first token modelled after 50 ms", names)
    peers = [peer for peer in peers if peer.name != STEPS_NAME]  # whose first token depends on when a step begins
    number = bench.of(600)
    print_rows(
        bench.costs(peers, Case(num_requests=number, num_tokens=10, spread_s=number / 200, gap_ms=20), ttft_ms=50),
        lambda _, each: (
            *(f"{median(each, name) - 50:.2f}" for name in ("ttft_p50_ms", "ttft_p99_ms")),
            cpu_ms_per_request(each, number),
        ),
    )


def admission(bench: Bench, peers: Sequence[Peer]) -> None:
    """Cost of a request beside its tokens."""
    print_head("Requests of one token, 400 requests/s", "CPU per request, ms")
    number = bench.of(1000)
    costs = bench.costs(peers, Case(num_requests=number, num_tokens=1, spread_s=number / 400))
    print_rows(costs, lambda _, each: (cpu_ms_per_request(each, number),))


PARTS = {"events": events, "time": timing, "arrivals": arrivals, "admission": admission}


def main() -> int:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts to measure, of: " + ", ".join(PARTS))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="part of the streams and requests that is sent")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.only.split(",") if name not in PARTS]:
        parser.error(f"--only: {unknown[0]!r} is none of {', '.join(PARTS)}")
    cores = sorted(os.sched_getaffinity(0))
    server_core, client_core = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
    if server_core is None:
        print("Only one core: server and client share it, and figures mean little.")
    bench = Bench(arguments.repetitions, arguments.share, server_core, client_core)
    peers = [
        reference(),
        blis("blis, set times", ("--inter-token-latency-ms", "0"), *SET_TIMES, *ROOM),
        blis(STEPS_NAME, ("--speed", "max"), *STEPS, *ROOM, pace_flags=None),
    ]
    found = guidellm()
    if isinstance(found, str):
        print(f"Not measured: {found}.")
    else:
        peers.append(found)
    for name in arguments.only.split(","):
        PARTS[name](bench, peers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
