"""Differences between a captured reply and ours, place by place."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.wire.captured.case_files import Case
from tests.wire.captured.events import events_of
from tests.wire.captured.normal import normal, normal_text
from tests.wire.captures import Capture
from tests.wire.plain_http import PlainReply

UNCOMPARED_HEADERS = frozenset({"date", "server", "content-length"})
MAX_SHOWN_CHARS = 160
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """One place of one reply: a path such as `body.choices[0].text`, what vLLM has there and what we have."""

    setup: str
    case: str
    place: str
    theirs: str
    ours: str

    def __str__(self) -> str:
        return f"{self.setup} / {self.case} / {self.place}: vLLM {self.theirs}, ours {self.ours}"


def differences(setup: str, case: Case, capture: Capture, reply: PlainReply) -> list[Difference]:
    """Return all differences; a different status is the only difference reported."""
    if reply.status != capture.status:
        found = [("status", str(capture.status), str(reply.status))]
    else:
        found = [*_header_differences(capture.reply_headers, reply.headers), *_body_differences(case, capture, reply)]
    return [Difference(setup, case.name, *each) for each in found]


def _header_differences(theirs: Mapping[str, str], ours: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in sorted({*theirs, *ours} - UNCOMPARED_HEADERS):
        yield from _walk(f"header {name}", normal_text(theirs.get(name, "none")), normal_text(ours.get(name, "none")))
    if ("content-length" in theirs) != ("content-length" in ours):
        yield "header content-length", str("content-length" in theirs), str("content-length" in ours)


def _body_differences(case: Case, capture: Capture, reply: PlainReply) -> Iterator[tuple[str, str, str]]:
    ours = reply.body.decode("utf-8", "replace")
    is_cut = _is_cut(case, capture)
    if capture.reply_headers.get("content-type", "").startswith("text/event-stream"):
        theirs_events = events_of(capture.reply, is_cut)
        our_events = events_of(ours, is_cut=False)
        yield from _walk("events", theirs_events, our_events[: len(theirs_events)] if is_cut else our_events)
    elif is_cut or not capture.reply.startswith(("{", "[")):
        # The rest of a reply that was cut is unknown, and what there is of it is no JSON.
        if not is_cut:
            yield from _walk("body", normal_text(capture.reply), normal_text(ours.rstrip("\n")))
    else:
        yield from _walk("body", normal(json.loads(capture.reply)), normal(_parsed(ours)))


def _is_cut(case: Case, capture: Capture) -> bool:
    """Whether the capture is only the beginning of a reply. Paths in it were shortened afterwards."""
    is_object = capture.reply.startswith("{")
    return len(capture.reply) >= case.limit_chars or (is_object and isinstance(_parsed(capture.reply), str))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _walk(place: str, theirs: Any, ours: Any) -> Iterator[tuple[str, str, str]]:
    """Every leaf at which two normal forms differ."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        yield from _walk_objects(place, theirs, ours)
    elif isinstance(theirs, list) and isinstance(ours, list):
        if len(theirs) != len(ours):
            yield f"{place}.length", f"{len(theirs)} {_shown(theirs)}", f"{len(ours)} {_shown(ours)}"
            return
        for index, (their, our) in enumerate(zip(theirs, ours, strict=True)):
            yield from _walk(f"{place}[{index}]", their, our)
    elif theirs != ours or type(theirs) is not type(ours):
        yield place, _shown(theirs), _shown(ours)


def _walk_objects(place: str, theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name in [*theirs, *(each for each in ours if each not in theirs)]:
        yield from _walk(f"{place}.{name}", theirs.get(name, _MISSING), ours.get(name, _MISSING))
    if set(theirs) == set(ours) and list(theirs) != list(ours):
        yield f"{place} order", str(list(theirs)), str(list(ours))


def _shown(value: Any) -> str:
    text = "nothing" if value is _MISSING else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "..."
