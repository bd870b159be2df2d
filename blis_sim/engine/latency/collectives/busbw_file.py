"""busbw.yaml: bandwidths of buses by group and collective, as measured with nccl-tests."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.collectives.network import Collective, Group, moved_share
from blis_sim.options.yaml_text import YamlError, load_yaml


@dataclass(frozen=True, slots=True)
class BusBandwidths:
    """Times by measured bandwidths, in 1e9 bytes per second."""

    path: str
    gb_s: Mapping[Group, Mapping[Collective, float]]

    def time_ns(self, collective: Collective, group: Group, num_gpus: int, size_bytes: int) -> float:
        if num_gpus < 2 or not size_bytes:
            return 0.0
        gb_s = self.gb_s.get(group, {}).get(collective)
        if gb_s is None:
            raise EngineError(f"{self.path}: expected a bandwidth for {group.value}: {collective.value}, found none")
        return size_bytes * moved_share(collective, num_gpus) / gb_s


def read_busbw(path: str) -> BusBandwidths:
    """Read a file with groups such as TP and bandwidths such as `allreduce,: 300`. Raises EngineError.

    The first line may be a name, and what follows a comma is ignored, as older files have a size there.
    """
    try:
        lines = Path(path).read_text().splitlines()
        named = [line for line in lines if line.strip() and (":" in line or line.startswith("#"))]
        content = load_yaml("\n".join(f" {line}" if _is_item(line) else line for line in named))
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{path}: expected a file of bandwidths, {error}") from None
    except YamlError as error:
        raise EngineError(f"{path}: expected YAML, {error.problem}") from None
    if not isinstance(content, Mapping):
        raise EngineError(f"{path}: expected groups such as TP with bandwidths of collectives")
    found: dict[Group, dict[Collective, float]] = {}
    for group in Group:
        for key, value in _items(content.get(group.value), f"{path}: {group.value}"):
            name = str(key).split(",")[0].strip()
            if name not in set(Collective):
                raise EngineError(f"{path}: {group.value} must have {', '.join(Collective)}, got {name!r}")
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise EngineError(f"{path}: {group.value}: {name} must be GB/s above 0 or null, got {value!r}")
            found.setdefault(group, {})[Collective(name)] = float(value)
    if not found:
        raise EngineError(f"{path}: expected a group among {', '.join(Group)} with a bandwidth, found none")
    return BusBandwidths(path, found)


def _is_item(line: str) -> bool:
    """Return whether a line without indentation belongs to the group above it, as in SimAI's own file."""
    return not line.startswith((" ", "#")) and line.split(":")[0].strip() not in (*Group, "PP")


def _items(section: object, where: str) -> list[tuple[object, object]]:
    if section is None:
        return []
    if not isinstance(section, Mapping):
        raise EngineError(f"{where} must have bandwidths of collectives, got {section!r}")
    return list(section.items())
