"""The tables of the page on compatibility: routes, fields of requests, and how replies differ.

Routes come from the server, and how many captured requests they have from `tests/wire/captured`, where tests keep the
counts. Fields come from `request-fields.csv`, parsers from `tests/wire/parser_shapes.csv`.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

from mockserve.protocol.completions import ChatCompletionRequest, CompletionRequest
from mockserve.routes.table import Route, routes_under
from mockserve.serving.model import RouteCondition

FOLDER = Path(__file__).resolve().parent
WIRE_TESTS = FOLDER.parent / "tests/wire"
WING_TESTS = FOLDER.parent / "tests/wings"
CAPTURED = WIRE_TESTS / "captured"


def compared_routes() -> Sequence[Sequence[str]]:
    """Method, path, replies, the number of captured requests that agree, and the tests of each route."""
    # Of several rows for one route the first is what it does, the others stand in for it where it is not offered.
    described = {(each.method, each.path): _offer(each) for each in reversed(routes_under(list(RouteCondition)))}
    counts = {(row["method"], row["path"]): row for row in _rows(CAPTURED / "coverage.csv")}
    files = sorted([*WIRE_TESTS.glob("test_*.py"), *WING_TESTS.rglob("test_*.py")], key=lambda path: path.stem)
    tests = {path.stem: path.read_text(encoding="utf-8") for path in files}
    rows = []
    for method, path in sorted({*described, *counts}, key=lambda route: (route[1], route[0])):
        asking = [name for name, text in tests.items() if f'"{path}"' in text]
        if (method, path) in counts:
            asking.insert(0, "test_captures_replayed")
        count = counts.get((method, path))
        answer = described.get((method, path)) or _absence(count)
        rows.append((method, f"`{path}`", answer, _agreement(count), _names(asking)))
    return rows


def request_fields() -> Sequence[Sequence[str]]:
    """Groups of fields, their effect, how it differs, and which tests look at them, then fields without a row.

    Raises ValueError for a field that is there twice, or that no body has.
    """
    rows = _rows(FOLDER / "request-fields.csv")
    listed = [field for row in rows for field in row["fields"].split(", ")]
    known = {**ChatCompletionRequest.model_fields, **CompletionRequest.model_fields}
    wrong = {field for field in listed if field not in known or listed.count(field) > 1}
    if wrong:
        raise ValueError(f"request-fields.csv must name fields of a body, each once; wrong: {sorted(wrong)}")
    described = [
        (
            ", ".join(f"`{field}`" for field in row["fields"].split(", ")),
            row["what becomes of them"],
            row["how it differs from vLLM"],
            _names(row["checked by"].split()),
        )
        for row in rows
    ]
    others = [field for field in known if field not in listed]
    return [*described, *((f"`{field}`", "as `/openapi.json` says", "", "") for field in others)]


def meant_differences() -> Sequence[Sequence[str]]:
    """Captured requests that are answered differently on purpose, and why."""
    return [
        (f"{row['setup']}: {row['cases']}", f"`{row['places']}`", row["reason"])
        for row in _rows(CAPTURED / "meant.csv")
    ]


def parser_differences() -> Sequence[Sequence[str]]:
    """Parsers under which replies differ on purpose, to which requests, and why."""
    found: dict[str, dict[str, set[str]]] = {}
    for row in _rows(WIRE_TESTS / "parser_shapes.csv"):
        if row["reason"]:
            of_reason = found.setdefault(row["reason"], {})
            of_reason.setdefault(f"`{row['parser']}` ({row['kind']})", set()).add(row["question"])
    rows = []
    for reason, by_parser in found.items():
        questions = sorted(set().union(*by_parser.values()))
        rows.append((", ".join(by_parser), "; ".join(questions), reason))
    return rows


def open_requests() -> str:
    """How many captured requests are answered differently for no good reason, and which."""
    lines = (CAPTURED / "open_cases.txt").read_text(encoding="utf-8").splitlines()
    total = sum(int(row["num_requests"]) for row in _rows(CAPTURED / "coverage.csv"))
    if not lines:
        return f"All {total} captured requests are answered as vLLM answers them, but for the differences above."
    cases = [line.partition(" / ")[2] for line in lines]
    return f"{len(lines)} of {total} captured requests are answered differently still: {', '.join(cases)}."


def _offer(route: Route) -> str:
    summary = _summary(route.handler.__doc__)
    return (
        summary
        if route.condition in (RouteCondition.ALWAYS, RouteCondition.GENERATION)
        else f"{summary} Needs {route.condition}."
    )


def _agreement(row: dict[str, str] | None) -> str:
    if row is None:
        return ""
    return f"{int(row['num_requests']) - int(row['num_open'])} of {row['num_requests']}"


def _absence(row: dict[str, str] | None) -> str:
    """A route that the server does not have: nor has vLLM, or so it seems, where all replies agree."""
    return "Refused, as by vLLM." if row is not None and row["num_open"] == "0" else "Not served."


def _summary(doc: str | None) -> str:
    return (doc or "").strip().partition("\n")[0]


def _names(tests: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in tests)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))
