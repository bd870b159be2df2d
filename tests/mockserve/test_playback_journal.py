from typing import Any

from mockserve.playback.playback import MOST_BYTES, Journal, JournalEntry


def noted(number: int, **members: Any) -> JournalEntry:
    given: dict[str, Any] = {"model": "m", "body_bytes": 10, "body": {}, "last_user": "hi", "answered_by": "playback"}
    given |= {"number": number, "at_s": 1.0, "method": "POST", "path": "/p", "headers": {}, "matched_by": "exact"}
    return JournalEntry(**{**given, **members})


def test_requests_are_found_by_their_fields() -> None:
    journal = Journal()
    for number, members in enumerate(({}, {"path": "/q"}, {"last_user": "the weather"}, {"answered_by": "error"})):
        journal.note(noted(number, **members))
    assert [each["number"] for each in journal.found({"path": "/q"})] == [1]
    assert [each["number"] for each in journal.found({"contains": "weather"})] == [2]
    assert [each["number"] for each in journal.found({"answered_by": "playback", "path": "/p"})] == [0, 2]
    journal.reset()
    assert (journal.found({}), journal.num_seen) == ([], 0)


def test_the_oldest_requests_are_dropped() -> None:
    journal = Journal()
    for number in range(30):
        journal.note(noted(number, body_bytes=MOST_BYTES // 80))
    kept = journal.found({})
    assert kept[-1]["number"] == 29
    assert len(kept) < 10
    assert journal.num_seen == 30
