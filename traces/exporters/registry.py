"""The formats that `blis convert --to` writes. Adding one is adding its row and its file."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blis_sim.options import OptionError
from blis_sim.options.registry import Registry

if TYPE_CHECKING:
    from traces.exporters.formats import Exported, ToExport


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """The function of `formats.py` that writes a trace."""

    function: str
    help: str


EXPORTERS: Registry[Any] = Registry[Any]("blis.formats") | {
    "azure": ExportFormat("azure", "CSV of Azure's LLM inference traces"),
    "vidur": ExportFormat("vidur", "CSV of Vidur"),
    "mooncake": ExportFormat("mooncake", "JSON lines of Mooncake"),
}


def exporter_of(name: str) -> "Callable[[ToExport], Exported]":
    """Return the function of a format; that of another package is the attribute `export` of what it names.

    Raises KeyError for a name that is not known, OptionError for a format that cannot be loaded or only reads.
    """
    row = EXPORTERS[name]
    if isinstance(row, ExportFormat):
        row = getattr(importlib.import_module("traces.exporters.formats"), row.function)
    else:
        row = getattr(row, "export", None)
    if not callable(row):
        raise OptionError(f"--to {name}: the format has no function export(to_export) to write with")
    exporter: Callable[[ToExport], Exported] = row
    return exporter
