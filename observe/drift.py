"""`blis playback check` sends recorded requests to a server and compares the shapes of its replies."""

import http.client
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from blis_sim.options import option
from blis_sim.options.printing import check_printed, format_option, json_option, printable, printed_format
from blis_sim.options.provenance import Provenance, command_line, input_hashes
from blis_sim.report.report import Report, Section
from blis_sim.report.tables import TextTable
from observe.errors import print_message
from observe.http import Server, check_header, parse_server, tls_context
from traces.content import RecordedExchange, read_content

__all__ = ["DriftOptions", "run"]

Shape: TypeAlias = Mapping[str, frozenset[str]]
"""Types by path; a path has names of members, and `[]` for the items of a list."""

_TYPES = {dict: "object", list: "list", str: "text", bool: "true or false", type(None): "null"}


def shape_of(status: int, content_type: str, body: bytes) -> Shape:
    """The shape of a reply; that of a stream has all its events together, below `event`."""
    found: dict[str, set[str]] = {"status": {str(status)}, "content type": {content_type.partition(";")[0].strip()}}
    if content_type.startswith("text/event-stream"):
        for line in body.replace(b"\r\n", b"\n").split(b"\n"):
            if line.startswith(b"data:"):
                _collect_types(_parsed(line[5:].strip()), "event", found)
    else:
        _collect_types(_parsed(body), "body", found)
    return {path: frozenset(types) for path, types in found.items()}


def differences(recorded: Shape, seen: Shape) -> list[str]:
    """The differences in words, by path. A null fits whatever else stands there, as most members may be null."""
    lines = []
    for path in sorted({*recorded, *seen}):
        then, now = recorded.get(path, frozenset()), seen.get(path, frozenset())
        if not now:
            if not _is_below_missing(path, seen, recorded):
                lines.append(f"{path} is missing, recorded as {_listed(then)}")
        elif not then:
            if not _is_below_missing(path, recorded, seen):
                lines.append(f"{path} is new, {_listed(now)}")
        elif not _agree(then - {"null"}, now - {"null"}):
            lines.append(f"{path} is {_listed(now)}, recorded as {_listed(then)}")
    return lines


def _agree(then: frozenset[str], now: frozenset[str]) -> bool:
    return not then or not now or then == now


def _is_below_missing(path: str, lacking: Shape, other: Shape) -> bool:
    """Return whether the value around this path is missing or null on one side, which is reported alone."""
    parent, _, _ = path.rpartition(".")
    if not parent or parent not in other:
        return False
    return lacking.get(parent, frozenset({"null"})) <= {"null"}


def _collect_types(value: Any, path: str, found: dict[str, set[str]]) -> None:
    left = [(path, value)]
    while left:
        at, each = left.pop()
        found.setdefault(at, set()).add(_TYPES.get(type(each), "number"))
        if isinstance(each, Mapping):
            left += [(f"{at}.{name}", member) for name, member in each.items()]
        elif isinstance(each, list):
            left += [(f"{at}.[]", member) for member in each]


def _parsed(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return data.decode("utf-8", "replace")


def _listed(types: Sequence[str] | frozenset[str]) -> str:
    return " or ".join(sorted(types))


_PROPAGATED_ERRORS = frozenset({"content-type", "accept", "anthropic-version", "openai-beta"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftOptions:
    """One check of a recording against a server."""

    recording: str = option(
        help="Contents of a recording: PREFIX.content.jsonl of blis observe --proxy.", positional=True, metavar="FILE"
    )
    url: str = option(help="Base URL of the server, such as http://localhost:8000.")
    api_key: str | None = option(None, "Send this as bearer token.")
    num_requests: int | None = option(None, "Check the first so many requests only.", at_least=1)
    timeout: float = option(300.0, "Seconds until a request is given up.", above=0, at_most=86400)
    insecure: bool = option(False, "Take any certificate of an https server.")
    ca_file: str | None = option(None, "Trust these certificates (PEM) of an https server.", metavar="FILE")
    format: str = format_option()
    json: bool = json_option()

    def __post_init__(self) -> None:
        check_printed(self)
        parse_server(self.url)
        if self.api_key is not None:
            check_header("--api-key", "authorization", self.api_key)


def run(options: DriftOptions) -> int:
    """Print each difference, then how many replies have one. Exit codes: 0 none has, 1 some have, or none was checked.

    Raises BlisError for a recording or an address that cannot be used.
    """
    recording = read_content(Path(options.recording))
    server = parse_server(options.url)
    tls = tls_context(options.ca_file, insecure=options.insecure) if server.tls else None
    asked = [each for each in recording.exchanges if each.method == "POST" and each.status and each.is_complete]
    asked = asked[: options.num_requests]
    if not asked:
        print_message(f"blis playback check: error: {options.recording} has no whole reply to a POST request")
        return 1
    found_by_request: list[tuple[int, str, list[str]]] = []
    for number, exchange in enumerate(asked):
        recorded = shape_of(exchange.status, exchange.reply_header("content-type"), exchange.reply_body)
        try:
            found = differences(recorded, _server_shape(options, server, tls, exchange))
        except (OSError, http.client.HTTPException) as error:
            found = [f"no reply: {error}"]
        if found:
            found_by_request.append((number, printable(exchange.path), [printable(line) for line in found]))
    _report(options, len(asked), found_by_request).print(printed_format(options))
    return 1 if found_by_request else 0


def _report(options: DriftOptions, num_checked: int, different: Sequence[tuple[int, str, list[str]]]) -> Report:
    """Return the answer: a row for each difference."""
    rows = [
        {"request": number, "path": path, "difference": line} for number, path, lines in different for line in lines
    ]
    table = TextTable.of([{title: str(each) for title, each in row.items()} for row in rows], num_left_aligned=3)
    return Report(
        title="Recorded replies",
        origin=lambda: Provenance(command=command_line("blis playback check", options), inputs=input_hashes(options)),
        data=lambda: {"num_checked": num_checked, "num_different": len(different), "differences": rows},
        sections=lambda: [Section(table=table)] if rows else [],
        remarks=lambda: [f"{num_checked} replies checked, {len(different)} differ in shape"],
        rows=lambda: rows,
    )


def _server_shape(
    options: DriftOptions, server: Server, tls: ssl.SSLContext | None, exchange: RecordedExchange
) -> Shape:
    if tls is None:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=options.timeout)
    else:
        connection = http.client.HTTPSConnection(server.host, server.port, timeout=options.timeout, context=tls)
    headers = {name: value for name, value in exchange.headers if name.lower() in _PROPAGATED_ERRORS}
    if options.api_key is not None:
        headers["Authorization"] = f"Bearer {options.api_key}"
    try:
        connection.request("POST", server.prefix + exchange.path, exchange.body, headers)
        reply = connection.getresponse()
        return shape_of(reply.status, reply.getheader("content-type", ""), reply.read())
    finally:
        connection.close()
