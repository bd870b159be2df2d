"""Dollars per GPU and hour: the table that ships, and the one of a user."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from blis_sim.bench import BenchError
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue.entries import load_gpu
from traces.text_file import read_yaml

SHIPPED = Path(__file__).parent / "prices.yaml"
HOURS_PER_MONTH = 730
NO_DATE = "no date"
_KEYS = ("per_hour", "source", "as_of")


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars of one GPU for an hour, and where and when the figure comes from."""

    per_hour: float
    source: str
    as_of: str

    @property
    def origin(self) -> str:
        """Return source and date."""
        return f"{self.source}, {self.as_of}"


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices by name of the GPU, as the catalogue spells it."""

    by_gpu: Mapping[str, Price]

    def of(self, gpu: str) -> Price:
        """Return the price of a GPU. Raises BenchError when the list has none."""
        if gpu not in self.by_gpu:
            known = ", ".join(sorted(self.by_gpu))
            raise BenchError(f"no price is known for {gpu}, only for {known}; --prices FILE states others")
        return self.by_gpu[gpu]


def read_prices(path: str | None) -> Prices:
    """Return the prices that ship, with those of a user's file in their place where it has some. Raises BlisError."""
    shipped = _read(SHIPPED)
    if path is None:
        return shipped
    own = _read(Path(path))
    return Prices({**shipped.by_gpu, **own.by_gpu})


def _read(path: Path) -> Prices:
    found = read_yaml(path)
    if not isinstance(found, dict) or not isinstance(found.get("gpus"), dict):
        raise BenchError(f"{path} key gpus: expected names of GPUs with prices, such as gpus: {{H100: 2.99}}")
    unknown = [key for key in found if key not in ("as_of", "gpus")]
    if unknown:
        raise BenchError(f"{path} key {unknown[0]}: unknown, known are as_of and gpus")
    as_of = str(found.get("as_of", NO_DATE))
    return Prices({_name(str(name)): _price(path, name, value, as_of) for name, value in found["gpus"].items()})


def _name(name: str) -> str:
    """Return the name as the catalogue spells it; a GPU of a --hardware-config keeps the name it has there."""
    try:
        return load_gpu(name).name
    except EngineError:
        return name


def _price(path: Path, name: Any, value: Any, as_of: str) -> Price:
    entry = value if isinstance(value, dict) else {"per_hour": value}
    unknown = [key for key in entry if key not in _KEYS]
    if unknown:
        raise BenchError(f"{path} key gpus.{name}.{unknown[0]}: unknown, known are {', '.join(_KEYS)}")
    per_hour = entry.get("per_hour")
    if isinstance(per_hour, int | float) and not isinstance(per_hour, bool) and 0 < per_hour < inf:
        return Price(float(per_hour), str(entry.get("source", path.name)), str(entry.get("as_of", as_of)))
    raise BenchError(f"{path} key gpus.{name}: expected dollars per hour above 0, got {per_hour!r}")
