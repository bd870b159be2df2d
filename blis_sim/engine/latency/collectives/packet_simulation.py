"""Times of collectives from SimAI's packet simulation: a program that is run for each size, and its cached results."""

import csv
import hashlib
import shlex
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.collectives.network import Collective, Group
from blis_sim.engine.latency.collectives.workload import all_reduce_workload

TIMEOUT_S = 3600
"""After this a run of the program is given up."""
_SETTINGS = {"AS_SEND_LAT": "6", "AS_NVLS_ENABLE": "1"}
"""Environment that SimAI sets: the latency of a send in nanoseconds, and NVLink SHARP."""


@dataclass(slots=True)
class PacketSimulation:
    """All-reduces of tensor parallelism, simulated by the program `command` for powers of two.

    Sizes between two of them lie on the line between their times.
    """

    command: str
    topology: str
    config: str
    """The text of SimAI.conf."""
    pp: int
    cache: Path
    """The folder of results of earlier runs, by content."""
    _known: dict[tuple[int, int], float] = field(default_factory=dict)

    def time_ns(self, collective: Collective, group: Group, num_gpus: int, size_bytes: int) -> float:
        if num_gpus < 2 or not size_bytes:
            return 0.0
        if collective is not Collective.ALL_REDUCE or group is not Group.TP:
            raise EngineError(
                f"--collectives ns3 simulates the all-reduce of tensor parallelism only, got {collective.value}"
            )
        low = 1 << (size_bytes.bit_length() - 1)
        low_ns = self._simulated_ns(num_gpus, low)
        if low == size_bytes:
            return low_ns
        return low_ns + (self._simulated_ns(num_gpus, 2 * low) - low_ns) * (size_bytes - low) / low

    def _simulated_ns(self, num_gpus: int, size_bytes: int) -> float:
        known = self._known.get((num_gpus, size_bytes))
        if known is None:
            workload = all_reduce_workload(num_gpus, self.pp, size_bytes)
            digest = hashlib.sha256(
                "\0".join((self.command, workload, self.topology, self.config)).encode()
            ).hexdigest()
            path = self.cache / f"{digest[:32]}.csv"
            if path.is_file():
                result = path.read_text()
            else:
                result = self._run(workload)
                self.cache.mkdir(parents=True, exist_ok=True)
                aside = path.with_suffix(".part")
                aside.write_text(result)
                aside.replace(path)
            known = self._known[num_gpus, size_bytes] = exposed_us(result, str(path)) * 1e3
        return known

    def _run(self, workload: str) -> str:
        """Run the program in a folder of its own. Returns the text of its result."""
        with tempfile.TemporaryDirectory(prefix="blis-ns3-") as place:
            folder = Path(place)
            files = {"workload.txt": workload, "topology.txt": self.topology, "SimAI.conf": self.config}
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
