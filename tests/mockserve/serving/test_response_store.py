"""Responses that are kept to be asked for: the latest, and all that are still being made."""

import pytest

from mockserve.protocol.errors import ApiError
from mockserve.serving.response_store import ResponseStore, StoredResponse


def response(name: str, status: str = "completed") -> StoredResponse:
    return StoredResponse({"id": name, "status": status}, [])


async def test_the_oldest_response_is_forgotten_first() -> None:
    store = ResponseStore(is_enabled=True, most=2)
    for name in ("first", "second", "third"):
        store.keep(response(name))
    assert store.find("second").body["id"] == "second"
    with pytest.raises(ApiError, match="'first' not found"):
        store.find("first")


async def test_a_response_that_is_being_made_is_not_forgotten() -> None:
    store = ResponseStore(is_enabled=True, most=1)
    store.keep(response("working", "in_progress"))
    store.keep(response("done"))
    store.keep(response("done later"))
    assert store.find("working").is_unfinished
    with pytest.raises(ApiError, match="'done' not found"):
        store.find("done")


async def test_a_store_that_is_off_keeps_nothing() -> None:
    store = ResponseStore(is_enabled=False)
    store.keep(response("first"))
    with pytest.raises(ApiError):
        store.find("first")


def large(name: str, status: str = "completed") -> StoredResponse:
    return StoredResponse({"id": name, "status": status, "output": "x" * 1000}, [{"role": "user", "content": "hi"}])


async def test_the_bytes_of_all_responses_are_bounded() -> None:
    store = ResponseStore(is_enabled=True, most_bytes=3500)
    for name in ("first", "second", "third", "fourth"):
        store.keep(large(name))
    with pytest.raises(ApiError, match="'first' not found"):
        store.find("first")
    assert store.find("fourth").num_bytes > 1000


async def test_events_of_a_background_stream_count() -> None:
    store = ResponseStore(is_enabled=True, most_bytes=3500)
    store.keep(large("done"))
    working = StoredResponse({"id": "working", "status": "in_progress"}, [], [])
    store.keep(working)
    for _ in range(3):
        working.add_event({"type": "response.output_text.delta", "delta": "x" * 1000})
    with pytest.raises(ApiError, match="'done' not found"):
        store.find("done")
    assert store.find("working") is working


async def test_a_body_that_grows_in_the_background_counts() -> None:
    store = ResponseStore(is_enabled=True, most_bytes=3500)
    store.keep(large("done"))
    working = StoredResponse({"id": "working", "status": "in_progress"}, [])
    store.keep(working)
    working.set_body({"id": "working", "status": "in_progress", "output": "x" * 3000})
    with pytest.raises(ApiError, match="'done' not found"):
        store.find("done")


async def test_a_response_larger_than_the_store_is_not_kept() -> None:
    store = ResponseStore(is_enabled=True, most_bytes=500)
    store.keep(large("first"))
    with pytest.raises(ApiError, match="'first' not found"):
        store.find("first")
