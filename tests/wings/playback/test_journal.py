from typing import Any

import pytest

from blis_sim.wings.playback import recordings as module
from blis_sim.wings.playback.recordings import Journal, JournalEntry, matching
from mockserve.protocol.json_text import compact_json, json_array_of_blocks, json_blocks


def noted(number: int, **members: Any) -> JournalEntry:
    given: dict[str, Any] = {"model": "m", "body_bytes": 10, "body": b"{}", "last_user": "hi"}
    given |= {"number": number, "at_s": 1.0, "method": "POST", "path": "/p", "headers": {}, "matched_by": "exact"}
    return JournalEntry(**{"answered_by": "playback", **given, **members})


def numbers(journal: Journal, **requested: str) -> list[int]:
    return [each.number for each in matching(journal.entries, requested)]


def test_requests_are_found_by_their_fields() -> None:
    journal = Journal()
    for number, members in enumerate(({}, {"path": "/q"}, {"last_user": "the weather"}, {"answered_by": "error"})):
        journal.note(noted(number, **members))
    assert numbers(journal, path="/q") == [1]
    assert numbers(journal, contains="weather") == [2]
    assert numbers(journal, answered_by="playback", path="/p") == [0, 2]
    journal.reset()
    assert (numbers(journal), journal.num_seen) == ([], 0)


@pytest.mark.parametrize(
    "large",
    [
        {"body": bytes(30_000)},
        {"headers": {"x": "y" * 30_000}},
        {"path": "/" * 30_000},
        {"last_user": "\u20ac" * 15_000},
    ],
)
def test_the_oldest_requests_are_dropped(large: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 100_000)
    journal = Journal()
    for number in range(30):
        journal.note(noted(number, **large))
    assert numbers(journal) == [27, 28, 29]
    assert journal.num_seen == 30


def test_bodies_are_shown_as_they_came() -> None:
    bodies = (b'{"a": [1, {"a": 2}]}', None, b"[]")
    entries = [noted(number, body=body) for number, body in enumerate(bodies)]
    text = b"".join(json_blocks({"requests": json_array_of_blocks(lambda: (each.shown() for each in entries))}))
    assert [part in text for part in (b'"body":{"a": [1, {"a": 2}]}', b'"body":null', b'"body":[]')] == [True] * 3
    assert compact_json(noted(0, body=None).shown()).startswith(b'{"number":0,"at_s":1.0,"method":"POST"')
