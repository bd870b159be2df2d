"""Workloads and recordings of other programs, as ours. One file per program.

`registry.py` lists the formats, and has the settings and the result of a conversion.
"""

from traces.importers.registry import FORMATS, ConvertOptions, Imported, import_from

__all__ = ["FORMATS", "ConvertOptions", "Imported", "import_from"]
