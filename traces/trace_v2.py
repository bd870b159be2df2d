"""A trace as files: a YAML header, a CSV with one row per request (TraceV2), and one with token times."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

from blis_sim.options.file_fields import Amount, Bounds, Count, number_text, shortened
from blis_sim.options.kv_offload import KVOffload
from blis_sim.options.option import LATEST_US
from blis_sim.options.yaml_text import Dumper, dump_yaml
from traces.append_file import AppendFile, RowWriter, complete_records, open_with_header
from traces.collector import gc_disabled
from traces.graph import check_graph
from traces.packed import PackedRows
from traces.rows import TRACE_COLUMNS, TraceRow
from traces.slo import SloTargets
from traces.table import Column, Table, portions, read_table, table_of
from traces.text_file import (
    TraceError,
    naming_write_errors,
    open_for_writing,
    read_keys,
    read_yaml,
    replacing,
    write_text,
)

# The header of a trace: where it comes from and what of that matters later. YAML, read strictly.


class ServerFacts(TypedDict, total=False):
    """Facts of a recording about its server."""

    type: str
    model: str
    tensor_parallel: Count
    max_num_seqs: Count
    block_size: Count
    gpu_memory_utilization: Amount
    max_model_len: Count


class ObservedKVMetrics(TypedDict, total=False):
    """Counters of a server's prefix cache over the recording."""

    source: str
    hit_rate: Amount
    block_hits: Amount
    block_queries: Amount
    read_time_total: Amount
    write_time_total: Amount
    vllm_commit: str


class NetworkFacts(TypedDict, total=False):
    """The way between client and server."""

    measured_rtt_ms: Amount


class HeaderFile(TypedDict, total=False):
    """The keys of the header of a trace."""

    trace_version: Annotated[int, Bounds(at_least=1, at_most=3)]
    time_unit: Annotated[str, Bounds(choices=("us", "microseconds", ""))]
    created_at: str
    mode: Annotated[str, Bounds(choices=("real", "generated", "replayed", ""))]
    warm_up_requests: Count
    workload_seed: int
    workload_spec: str
    session_context_growth: Annotated[str, Bounds(choices=("", "accumulate"))]
    server: ServerFacts
    network: NetworkFacts
    goodput_slo_targets: Mapping[str, SloTargets]
    kv_offload: KVOffload
    observed_kv_metrics: ObservedKVMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHeader:
    """Facts about a trace as a whole. `measured_rtt_ms` is `network.measured_rtt_ms` of the file.

    `mode` is real (recorded), generated or replayed. `server`, `kv_offload` and `observed_kv_metrics` are as
    written.
    """

    trace_version: int = 3
    time_unit: str = "microseconds"
    created_at: str = ""
    mode: str = "generated"
    warm_up_requests: int = 0
    workload_seed: int | None = None
    workload_spec: str = ""
    session_context_growth: str = ""
    server: Mapping[str, Any] = field(default_factory=dict)
    measured_rtt_ms: float | None = None
    goodput_slo_targets: Mapping[str, SloTargets] = field(default_factory=dict)
    kv_offload: Mapping[str, Any] | None = None
    observed_kv_metrics: Mapping[str, Any] | None = None


_TAPPED = ".link.jsonl"


def read_header(path: Path | str) -> TraceHeader:
    """Read a header. Raises TraceError for what is not YAML, an unknown key or a value of the wrong kind.

    A file needs only one key; a missing mode or version stays empty (`""`, 0).
    """
    path = Path(path)
    if path.name.endswith(_TAPPED):
        prefix = str(path).removesuffix(_TAPPED)
        raise TraceError(f"{path}: blis tap wrote it, make a trace of it: blis convert tap {path} --output {prefix}")
    loaded = read_yaml(path)
    if loaded is None:
        raise TraceError(f"{path}: the file is empty, expected a trace header such as `trace_version: 3`")
    if not isinstance(loaded, dict):
        raise TraceError(f"{path}: expected a trace header (YAML keys and values), got {_start_of(loaded)}")
    values: dict[str, Any] = read_keys(path, HeaderFile, loaded)
    rtt_ms = values.pop("network", {}).get("measured_rtt_ms")
    return TraceHeader(measured_rtt_ms=rtt_ms, **{"trace_version": 0, "time_unit": "", "mode": "", **values})


def write_header(path: Path | str, header: TraceHeader, *, in_place: bool = False) -> None:
    """Write a header, keys in the order of the format, what is empty left out. Raises TraceError.

    With `in_place` the file stays the one that is there, which may be locked.
    """
    path = Path(path)
    text = dump_yaml(_plain(_content(header)), _Dumper, indent=4, width=1 << 20)
    if not in_place:
        write_text(path, text)
        return
    with naming_write_errors(path), open_for_writing(path) as file:
        file.write(text)


def _start_of(loaded: Any) -> str:
    return f"{shortened(repr(loaded))}; a trace is named by its .yaml file, the rows are in the .csv beside it"


def _content(header: TraceHeader) -> dict[str, Any]:
    """The header as the mapping a file holds. A recording always has `network`, if empty."""
    network = {"measured_rtt_ms": header.measured_rtt_ms} if header.measured_rtt_ms else {}
    targets = {
        name: {key: getattr(limits, key) for key in ("ttft_ms", "itl_ms", "e2e_ms") if getattr(limits, key)}
        for name, limits in sorted(header.goodput_slo_targets.items())
    }
    written = {"created_at": _Quoted(header.created_at), "measured_rtt_ms": network, "goodput_slo_targets": targets}
    content = {
        "network" if each.name == "measured_rtt_ms" else each.name: written.get(each.name, getattr(header, each.name))
        for each in fields(header)
    }
    always = {"trace_version", "time_unit", "mode", "warm_up_requests", "workload_seed"}
    always |= {"network"} if header.mode == "real" else set()
    return {key: value for key, value in content.items() if value is not None and (value or key in always)}


def _plain(value: Any) -> Any:
    """Mappings as dicts, and floats that are whole as integers, which is how the format writes them."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


class _Quoted(str):
    """Text that is written in double quotes, so that a date stays text."""

    __slots__ = ()


class _Dumper(Dumper):
    """YAML in which `_Quoted` text is quoted."""


_Dumper.add_representer(
    _Quoted, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style='"')
)

# A trace as files: a YAML header, a CSV with one row per request (TraceV2), and one with token times.
#
# Columns are found by name, so any order, additional columns and the layouts of earlier versions (22, 25 and 26
# columns) load. Files are written in the one order that readers by position expect.

ITL_COLUMNS = (
    Column("request_id", int, "the request's number, as in the trace", required=True),
    Column("chunk_index", int, "the chunk's place in the reply, from 0", required=True, at_least=0),
    Column(
        "timestamp_us",
        int,
        "when it arrived, on the clock of send_time_us",
        required=True,
        at_least=0,
        at_most=LATEST_US,
    ),
)
_HEADER = ",".join(column.name for column in ITL_COLUMNS)


def read_itl(path: Path | str) -> dict[int, list[int]]:
    """Chunk times in microseconds per request, requests in the order of the file, chunks by their index.

    Raises TraceError.
    """
    return _chunks(read_table(Path(path), ITL_COLUMNS))


def read_cut_itl(path: Path | str) -> dict[int, list[int]]:
    """Read the chunk times of a file whose writer may have been killed. The last request may lack chunks. Raises
    TraceError."""
    text = complete_records(Path(path))
    return _chunks(read_table(Path(path), ITL_COLUMNS, text)) if text else {}


def _chunks(table: Table) -> dict[int, list[int]]:
    columns = table.columns
    import numpy as np  # most readers and writers of a trace do not need numpy

    request_ids = np.array(columns["request_id"], dtype=np.int64)
    timestamps = np.array(columns["timestamp_us"], dtype=np.int64)
    order = np.lexsort((np.array(columns["chunk_index"], dtype=np.int64), request_ids))
    ids, starts = np.unique(request_ids[order], return_index=True)
    pieces = np.split(timestamps[order], starts[1:]) if len(ids) else []
    chunks = {int(request_id): piece.tolist() for request_id, piece in zip(ids, pieces, strict=True)}
    return {request_id: chunks[request_id] for request_id in dict.fromkeys(columns["request_id"])}


class ItlWriter(RowWriter):
    """Appends the chunk times of whole requests to a new file, each with the operating system before the next.

    With `kept` it takes the place of a file that has these chunks per request. Raises TraceError when the file cannot
    be made. With `is_shared` it appends to a file that another writer has made, along with others.
    """

    def __init__(
        self, path: Path | str, kept: Mapping[int, Sequence[int]] | None = None, *, is_shared: bool = False
    ) -> None:
        if is_shared:
            self._file = AppendFile(Path(path), is_shared=True)
            return
        pieces = None if kept is None else (_piece(*each) for each in kept.items())
        self._file = open_with_header(Path(path), _HEADER, pieces)

    def write(self, request_id: int, timestamps_us: Sequence[int]) -> None:
        """Append the chunks of one request, in the order they arrived."""
        self._file.write(_piece(request_id, timestamps_us))

    def write_all(self, requests: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Append the chunks of several requests; all of them, or none if there is no room."""
        self._file.write("".join([_piece(*each) for each in requests]))


def _piece(request_id: int, timestamps_us: Sequence[int]) -> str:
    return "".join([f"{request_id},{place},{time}\n" for place, time in enumerate(timestamps_us)])


_DATA_SUFFIXES = (".csv", ".csv.gz")
_OTHER_SUFFIXES = (
    ".itl.csv",
    ".itl.csv.gz",
    ".steps.csv",
    ".steps.csv.gz",
    ".metrics.jsonl",
    ".content.jsonl",
    ".server.yaml",
)
_QUOTED = frozenset(',"\r\n')


class Trace(NamedTuple):
    """A header and its rows, in the order of the file, with the paths they were read from."""

    header: TraceHeader
    rows: Sequence[TraceRow]
    header_path: Path
    data_path: Path


def read_trace(
    header_path: Path | str, data_path: Path | str | None = None, *, distinct: bool = False, is_packed: bool = False
) -> Trace:
    """Read a trace; without a data path its rows are looked for beside the header, under the same stem.

    With `distinct` no two rows may have one request_id. With `is_packed` rows are kept by columns, each made when it is
    asked for. A file with a header row only gives no rows. Raises TraceError for the first thing that cannot be used.
    """
    header_path = Path(header_path)
    header = read_header(header_path)
    found = _data_beside(header_path) if data_path is None else Path(data_path)
    rows = read_rows(found, distinct=distinct, is_whole=header.mode != "real")
    return Trace(header, rows if is_packed else list(rows), header_path, found)


def beside(*paths: Path | str | None) -> list[Path]:
    """The files that may belong to recordings of which one file is named: rows, token times, metrics of the server."""
    stems = [Path(str(path).removesuffix(".gz")) for path in paths if path]
    suffixes = (".yaml", *_DATA_SUFFIXES, *_OTHER_SUFFIXES)
    return [stem.with_suffix(suffix) for stem in stems if stem.name for suffix in suffixes]


def read_rows(data_path: Path | str, *, distinct: bool = False, is_whole: bool = False) -> PackedRows[TraceRow]:
    """Read the rows of a trace. With `distinct` no two may have one request_id. With `is_whole` each row that another
    one names must be there. Raises TraceError."""
    table = table_of(Path(data_path))
    rows = _packed(table)
    if distinct or any(rows.distinct("parents")) or any(rows.distinct("context_of")):
        _check_distinct(table, rows)
    check_graph(table, rows, is_whole=is_whole)
    _check_deadlines(table, rows)
    return rows


def read_cut_rows(data_path: Path | str) -> list[TraceRow]:
    """The complete rows of a file whose writer may have been killed; none when it has no header. Raises TraceError."""
    text = complete_records(Path(data_path))
    if not text:
        return []
    table = table_of(Path(data_path), text)
    rows = _packed(table)
    _check_deadlines(table, rows)
    return list(rows)


def _packed(table: Table) -> PackedRows[TraceRow]:
    rows = PackedRows(TraceRow)
    with gc_disabled():
        for columns in portions(table, TRACE_COLUMNS):
            rows.add_columns(columns)
    return rows


def write_trace(
    header_path: Path | str, header: TraceHeader, rows: Iterable[TraceRow], columns: Collection[str] = ()
) -> None:
    """Write both files of a trace, the rows beside the header under the same stem. Raises TraceError."""
    header_path = Path(header_path)
    data_path = header_path.with_suffix(".csv")
    with naming_write_errors(data_path), replacing(data_path) as place:
        with TraceWriter(place, columns) as writer:
            for row in rows:
                writer.write(row)
        write_header(header_path, header)


class TraceWriter(RowWriter):
    """Appends rows to a new CSV, each on disk before the next, so that nothing recorded is lost.

    `columns` names the columns written on request, which are those with `on_request` in `TraceRow`. With `kept` it
    takes the place of a file that has these rows. Raises TraceError when the file cannot be made or a column is not one
    of them. With `is_shared` it appends to a file that another writer with the same columns has made, with others.
    """

    def __init__(
        self,
        path: Path | str,
        columns: Collection[str] = (),
        kept: Iterable[TraceRow] | None = None,
        *,
        is_shared: bool = False,
    ) -> None:
        on_request = [column.name for column in TRACE_COLUMNS if column.on_request]
        unknown = sorted(set(columns) - set(on_request))
        if unknown:
            raise TraceError(f"columns written on request are {', '.join(on_request)}, got {unknown[0]!r}")
        names = [column.name for column in TRACE_COLUMNS if not column.on_request or column.name in columns]
        self._names = names
        self._values = attrgetter(*names)
        if is_shared:
            self._file = AppendFile(Path(path), is_shared=True)
            return
        pieces = None if kept is None else map(self.line, kept)
        self._file = open_with_header(Path(path), ",".join(names), pieces)

    def write(self, row: TraceRow) -> None:
        """Append one row."""
        self._file.write(self.line(row))

    def write_lines(self, lines: Iterable[str]) -> None:
        """Append rows that are lines already, as `line` makes them; all of them, or none if there is no room."""
        self._file.write("".join(lines))

    def line(self, row: TraceRow) -> str:
        """The row as it stands in the file. Requests are streamed unless their source says otherwise."""
        said = row if row.streaming is not None else replace(row, streaming=True)
        return ",".join(map(_cell, self._values(said))) + "\n"

    def form(self, row: TraceRow, numbers: Collection[str], texts: Collection[str]) -> str:
        """The line of this row with places for other values of these columns, for `form % values`.

        Values follow the order of the file. Numbers are whole, and texts such that they need no quotes.
        """
        said = row if row.streaming is not None else replace(row, streaming=True)
        cells = (_cell(value).replace("%", "%%") for value in self._values(said))
        places = {**dict.fromkeys(numbers, "%d"), **dict.fromkeys(texts, "%s")}
        return ",".join(places.get(name, cell) for name, cell in zip(self._names, cells, strict=True)) + "\n"


def _data_beside(header_path: Path) -> Path:
    tried = [header_path.with_suffix(suffix) for suffix in _DATA_SUFFIXES] if header_path.name else []
    for path in tried:
        if path != header_path and path.is_file():
            return path
    names = " and ".join(path.name for path in tried)
    raise TraceError(f"{header_path}: no data file beside it, tried {names}; give its path")


def _check_distinct(table: Table, rows: PackedRows[TraceRow]) -> None:
    if rows.are_distinct("request_id"):
        return
    seen: set[int] = set()
    for row, request_id in enumerate(rows.values("request_id")):
        if request_id in seen:
            raise table.cell_error(row, "request_id", "a number that no row before it has", str(request_id))
        seen.add(request_id)


def _check_deadlines(table: Table, rows: PackedRows[TraceRow]) -> None:
    deadlines, arrivals = rows.values("deadline_us"), rows.values("arrival_time_us")
    for row, (deadline, arrival) in enumerate(zip(deadlines, arrivals, strict=True)):
        if deadline and arrival > 0 and deadline < arrival:
            expected = f"0 or at least the arrival time {arrival}"
            raise table.cell_error(row, "deadline_us", expected, str(deadline))


def _cell(value: Any) -> str:
    """One cell, quoted only where it must be."""
    if type(value) is int:
        return str(value)
    if isinstance(value, str):
        if not value:
            return value
        needs_quotes = not _QUOTED.isdisjoint(value) or value[:1].isspace()
        return '"' + value.replace('"', '""') + '"' if needs_quotes else value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return number_text(value)
    return "0"
