"""Times of collectives from SimAI's packet simulation: workload files, a program run for each, and cached results."""

import csv
import hashlib
import shlex
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.collectives.network import Collective, Group, Network
from blis_sim.options.files import read_given

_FIELDS = 12
_KINDS = {"ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL"}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective of a layer."""

    collective: Collective
    group: Group
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Layer:
    """The forward pass, the gradients of inputs and those of weights, each with its collective."""

    name: str
    compute_ns: tuple[int, int, int]
    exchanges: tuple[Exchange | None, Exchange | None, Exchange | None]


@dataclass(frozen=True, slots=True)
class Workload:
    """All layers, and how they are spread over GPUs."""

    tp: int
    ep: int
    pp: int
    vpp: int
    ga: int
    """Micro-batches of a step."""
    num_gpus: int
    layers: tuple[Layer, ...]

    @property
    def dp(self) -> int:
        return max(1, self.num_gpus // (self.tp * self.pp))

    def group_size(self, group: Group) -> int:
        """Return the number of GPUs of a group."""
        sizes = {Group.TP: self.tp, Group.EP: self.ep, Group.DP: self.dp, Group.DP_EP: max(1, self.dp // self.ep)}
        return sizes[group]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadTime:
    """The parts of a step, in microseconds."""

    compute_us: float
    exchange_us: dict[Group, float]
    bubble_us: float
    """Time in which pipeline stages wait for each other."""

    @property
    def total_us(self) -> float:
        return self.compute_us + sum(self.exchange_us.values()) + self.bubble_us


def workload_time(workload: Workload, network: Network) -> WorkloadTime:
    """Return how long a step takes when nothing overlaps."""
    compute_ns = bubble_ns = 0.0
    exchange_ns = dict.fromkeys(Group, 0.0)
    for layer in workload.layers:
        times = [_time_ns(each, workload, network) for each in layer.exchanges]
        for each, time_ns in zip(layer.exchanges, times, strict=True):
            if each is not None:
                exchange_ns[each.group] += time_ns
        compute_ns += sum(layer.compute_ns)
        if layer.name != "embedding_layer":
            bubble_ns += sum(layer.compute_ns) + times[0] + times[1]
    bubble_ns *= (workload.pp - 1) / (workload.ga * workload.vpp)
    by_group = {group: time_ns / 1e3 for group, time_ns in exchange_ns.items()}
    return WorkloadTime(compute_us=compute_ns / 1e3, exchange_us=by_group, bubble_us=bubble_ns / 1e3)


def all_reduce_workload(tp: int, pp: int, size_bytes: int) -> str:
    """Return the text of a workload that is one all-reduce of tensor parallelism."""
    header = (
        f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {tp} ep: 1 pp: {pp} vpp: 1 ga: 1 "
        f"all_gpus: {tp * pp} checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0"
    )
    return f"{header}\n1\nlayer0\t-1\t1\tALLREDUCE\t{size_bytes}\t0\tNONE\t0\t0\tNONE\t0\t100\n"


def expert_workload(collective: Collective, num_gpus: int, size_bytes: int) -> str:
    """Return the text of a workload that is one exchange among the GPUs that share experts."""
    header = (
        f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 1 ep: {num_gpus} pp: 1 vpp: 1 ga: 1 "
        f"all_gpus: {num_gpus} checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0"
    )
    kind = f"{collective.value.upper()}_EP"
    return f"{header}\n1\nlayer0\t-1\t1\t{kind}\t{size_bytes}\t0\tNONE\t0\t0\tNONE\t0\t100\n"


def read_workload(path: str) -> Workload:
    """Read a workload file, gzipped or not. Raises EngineError that names the line."""
    try:
        text = read_given(path).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise EngineError(f"{path}: expected a workload file, {error}") from None
    lines = text.splitlines()
    if len(lines) < 2 or not lines[1].strip().isdecimal():
        raise EngineError(f"{path} line 2: expected the number of layers")
    settings = dict(_settings(lines[0]))
    layers = tuple(_layer(f"{path} line {number}", line) for number, line in enumerate(lines[2:], 3) if line.strip())
    if len(layers) != int(lines[1]):
        raise EngineError(f"{path}: expected {int(lines[1])} layers, as line 2 says, got {len(layers)}")
    tp, ep, pp = (max(1, settings.get(name, 1)) for name in ("model_parallel_NPU_group", "ep", "pp"))
    vpp, ga, num_gpus = (max(1, settings.get(name, 1)) for name in ("vpp", "ga", "all_gpus"))
    return Workload(tp, ep, pp, vpp, ga, num_gpus, layers)


def _settings(line: str) -> Iterator[tuple[str, int]]:
    words = line.split()
    for name, value in pairwise(words):
        if name.endswith(":") and value.isdecimal():
            yield name[:-1], int(value)


def _layer(where: str, line: str) -> Layer:
    fields = line.split()
    if len(fields) != _FIELDS:
        raise EngineError(f"{where}: expected {_FIELDS} fields, got {len(fields)}")
    try:
        numbers = [int(fields[place]) for place in (2, 4, 5, 7, 8, 10)]
    except ValueError:
        raise EngineError(f"{where}: expected whole nanoseconds and bytes, got {line.strip()[:60]!r}") from None
    forward, forward_bytes, inputs, input_bytes, weights, weight_bytes = numbers
    exchanges = (
        _exchange(where, fields[3], forward_bytes, Group.TP),
        _exchange(where, fields[6], input_bytes, Group.TP),
        _exchange(where, fields[9], weight_bytes, Group.DP),
    )
    return Layer(fields[0], (forward, inputs, weights), exchanges)


def _exchange(where: str, kind: str, size_bytes: int, usual: Group) -> Exchange | None:
    if kind == "NONE":
        return None
    name, _, suffix = kind.partition("_")
    if name not in _KINDS or suffix not in ("", "EP", "DP_EP"):
        raise EngineError(f"{where}: expected NONE or one of {', '.join(sorted(_KINDS))}, got {kind!r}")
    return Exchange(Collective(name.lower()), Group(suffix) if suffix else usual, size_bytes)


def _time_ns(exchange: Exchange | None, workload: Workload, network: Network) -> float:
    if exchange is None:
        return 0.0
    num_gpus = workload.group_size(exchange.group)
    return network.time_ns(exchange.collective, exchange.group, num_gpus, exchange.size_bytes)


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
    """Returns the text of a topology with at least the given number of GPUs."""
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
