"""Workloads and recordings of other programs, as ours. One file per format; `registry.py` lists them.

`settings.py` has the settings of a conversion, `imported.py` the result of an importer.
"""

from traces.importers.imported import Imported
from traces.importers.registry import FORMATS, import_from
from traces.importers.settings import ConvertOptions

__all__ = ["FORMATS", "ConvertOptions", "Imported", "import_from"]
