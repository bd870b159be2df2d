"""Results of a simulation per request: a JSON array, the input of a calibration."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from traces.text_file import TraceError, read_json, write_json


class ResultRow(NamedTuple):
    """The latencies of one finished request, in microseconds. `input_tokens` counts the shared prefix too.

    `itl_mean_us` is the mean time between tokens, None where there is none. `sent_at_us` is when the simulation sent
    the request, on its own clock; None if the results do not have it.
    """

    request_id: int
    ttft_us: float
    e2e_us: float
    input_tokens: int
    output_tokens: int
    slo_class: str = ""
    model: str = ""
    itl_mean_us: float | None = None
    sent_at_us: float | None = None


def read_results(path: Path | str) -> list[ResultRow]:
    """Read results, in the order of the file; keys it has besides are ignored. Raises TraceError."""
    path = Path(path)
    loaded = read_json(path)
    if not isinstance(loaded, list):
        raise TraceError(f"{path}: expected a JSON array of results, got {_kind(loaded)}")
    return [_row(path, place, item) for place, item in enumerate(loaded)]


def write_results(path: Path | str, rows: Iterable[ResultRow]) -> None:
    """Write results in the order given, one by one, what is empty left out. Raises TraceError."""
    write_json(path, map(_item, rows))


def _item(row: ResultRow) -> dict[str, Any]:
    item: dict[str, Any] = {
        "request_id": row.request_id,
        "ttft_us": row.ttft_us,
        "e2e_us": row.e2e_us,
        "input_tokens": row.input_tokens,
        "output_tokens": row.output_tokens,
    }
    for key in ("slo_class", "model", "itl_mean_us"):
        if getattr(row, key):
            item[key] = getattr(row, key)
    if row.sent_at_us is not None:
        item["sent_at_us"] = row.sent_at_us
    return item


def _row(path: Path, place: int, item: Any) -> ResultRow:
    if not isinstance(item, Mapping):
        raise TraceError(f"{path} item {place}: expected an object with request_id and latencies, got {_kind(item)}")

    def number(key: str) -> float:
        value = item.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise _value_error(path, place, key, "a number of at least 0", item)
        return value

    def count(key: str, default: int | None = None, negative: bool = False) -> int:
        value = item.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or int(value) != value:
            raise _value_error(path, place, key, "a whole number", item)
        if value < 0 and not negative:
            raise _value_error(path, place, key, "a whole number of at least 0", item)
        return int(value)

    def text(key: str) -> str:
        value = item.get(key)
        if value is not None and not isinstance(value, str):
            raise _value_error(path, place, key, "text", item)
        return value or ""

    return ResultRow(
        request_id=count("request_id", negative=True),
        ttft_us=number("ttft_us"),
        e2e_us=number("e2e_us"),
        input_tokens=count("input_tokens", 0),
        output_tokens=count("output_tokens", 0),
        slo_class=text("slo_class"),
        model=text("model"),
        itl_mean_us=None if item.get("itl_mean_us") is None else number("itl_mean_us"),
        sent_at_us=None if item.get("sent_at_us") is None else number("sent_at_us"),
    )


def _value_error(path: Path, place: int, key: str, expected: str, item: Mapping[str, Any]) -> TraceError:
    got = f"got {item[key]!r}" if key in item else "but the key is missing"
    return TraceError(f"{path} item {place} key {key}: expected {expected}, {got}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
