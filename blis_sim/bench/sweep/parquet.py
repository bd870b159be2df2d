"""The rows of a sweep as a Parquet file."""

from collections.abc import Sequence
from pathlib import Path

from blis_sim.bench.errors import BenchError
from blis_sim.bench.sweep.rows import Row, Table
from traces.text_file import replacing


def write_parquet(path: str, table: Table, rows: Sequence[Row]) -> None:
    """Write all rows, whole numbers and others as such, lists as lists. Raises BenchError."""
    import pyarrow
    from pyarrow import parquet

    cells = [table.cells(row) for row in rows]
    columns = {
        name: [list(each[name]) if isinstance(each[name], tuple) else each[name] for each in cells]
        for name in table.columns
    }
    try:
        with replacing(Path(path)) as place:
            parquet.write_table(pyarrow.table(columns), place)
    except OSError as error:
        raise BenchError(f"cannot write {path}: {' '.join(str(error).split()).lower()}") from error
