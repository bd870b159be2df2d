"""Times of collectives from SimAI's packet simulation: a program that is run for each size, and its cached results."""

import csv
import hashlib
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.collectives.network import Collective, Group
from blis_sim.engine.latency.collectives.workload import all_reduce_workload, expert_workload

TIMEOUT_S = 3600
"""After this a run of the program is given up."""
_SETTINGS = {"AS_SEND_LAT": "6", "AS_NVLS_ENABLE": "1"}
"""Environment that SimAI sets: the latency of a send in nanoseconds, and NVLink SHARP."""


@dataclass(slots=True)
class PacketSimulation:
    """All-reduces of tensor parallelism and exchanges of experts, simulated by a program for powers of two.

    Sizes between two of them lie on the line between their times.
    """

    command: str
    topology_of: Callable[[int], str]
    """The text of a topology with at least so many GPUs."""
    config: str
    """The text of SimAI.conf."""
    pp: int
    cache: Path
    """The folder of results of earlier runs, by content."""
    _known: dict[tuple[Collective, int, int], float] = field(default_factory=dict)

    def time_ns(self, collective: Collective, group: Group, num_gpus: int, size_bytes: int) -> float:
        if num_gpus < 2 or not size_bytes:
            return 0.0
        if group not in (Group.TP, Group.EP):
            raise EngineError(f"--collectives ns3 simulates groups TP and EP only, got {group.value}")
        low = 1 << (size_bytes.bit_length() - 1)
        low_ns = self._simulated_ns(collective, group, num_gpus, low)
        if low == size_bytes:
            return low_ns
        high_ns = self._simulated_ns(collective, group, num_gpus, 2 * low)
        return low_ns + (high_ns - low_ns) * (size_bytes - low) / low

    def _simulated_ns(self, collective: Collective, group: Group, num_gpus: int, size_bytes: int) -> float:
        known = self._known.get((collective, num_gpus, size_bytes))
        if known is None:
            if group is Group.TP:
                workload, least = all_reduce_workload(num_gpus, self.pp, size_bytes), num_gpus * self.pp
            else:
                workload, least = expert_workload(collective, num_gpus, size_bytes), num_gpus
            text = self.topology_of(least)
            digest = hashlib.sha256("\0".join((self.command, workload, text, self.config)).encode()).hexdigest()
            path = self.cache / f"{digest[:32]}.csv"
            if path.is_file():
                result = path.read_text()
            else:
                result = self._run(workload, text)
                self.cache.mkdir(parents=True, exist_ok=True)
                aside = path.with_suffix(".part")
                aside.write_text(result)
                aside.replace(path)
            known = self._known[collective, num_gpus, size_bytes] = exposed_us(result, str(path)) * 1e3
        return known

    def _run(self, workload: str, topology: str) -> str:
        """Run the program in a folder of its own. Returns the text of its result."""
        with tempfile.TemporaryDirectory(prefix="blis-ns3-") as place:
            folder = Path(place)
            files = {"workload.txt": workload, "topology.txt": topology, "SimAI.conf": self.config}
            for name, text in files.items():
                (folder / name).write_text(text)
            (folder / "results").mkdir()
            words = shlex.split(self.command)
            settings = [f"{name}={value}" for name, value in _SETTINGS.items()]
            arguments = ["-t", "16", "-w", "workload.txt", "-n", "topology.txt", "-c", "SimAI.conf"]
            try:
                ended = subprocess.run(
                    ["/usr/bin/env", *settings, *words, *arguments],
                    cwd=folder,
                    capture_output=True,
                    timeout=TIMEOUT_S,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise EngineError(f"--collectives ns3: {self.command} cannot be run: {error}") from None
            results = sorted(folder.rglob("*EndToEnd*.csv"))
            if ended.returncode or not results:
                said = ended.stderr.decode(errors="replace").strip().splitlines()
                why = said[-1][:200] if said else "it wrote no EndToEnd.csv"
                raise EngineError(f"--collectives ns3: {self.command} ended with code {ended.returncode}: {why}")
            return results[-1].read_text()


def exposed_us(result: str, where: str) -> float:
    """Return the exposed communication of a result, in microseconds: the second cell of its last row."""
    rows = [row for row in csv.reader(result.splitlines()) if any(row)]
    try:
        found = float(rows[-1][1])
    except (IndexError, ValueError):
        raise EngineError(f"{where}: expected a last row `total exposed comm,MICROSECONDS,...`") from None
    if found < 0:
        raise EngineError(f"{where}: expected microseconds of at least 0 in the last row, got {found}")
    return found
