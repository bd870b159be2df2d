"""Bodies that may be of several types are checked beside the event loop once they have many items."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.wire.plain_http import call
from tests.wire.serving import running_server


@pytest.mark.parametrize(("num_items", "is_aside"), [(10, False), (3000, True)])
def test_many_items_that_fit_no_type_are_checked_aside(
    num_items: int, is_aside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_server(runner="pooling") as server:
        aside = server.service.delivery.aside
        run: Callable[..., Any] = aside.run
        done: list[str] = []

        async def noted(is_huge: bool, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            done.append(getattr(work, "__name__", ""))
            return await run(is_huge, work, *arguments, **named)

        monkeypatch.setattr(aside, "run", noted)
        reply = call(server, "POST", "/v1/embeddings", {"model": "m", "messages": [[0] * num_items]})
    assert reply.status == 400
    assert ("parse_embeddings" in done) == is_aside
