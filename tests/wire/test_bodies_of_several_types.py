"""Bodies that may be of several types are checked beside the event loop once they have many items."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from tests.wire.plain_http import call
from tests.wire.serving import running_server

Case: TypeAlias = tuple[str, dict[str, Any], str]
EMBEDDINGS: Case = "/v1/embeddings", {"runner": "pooling"}, "parse_embeddings"
RESPONSES: Case = "/v1/responses", {}, "parse_response"
RENDERED_RESPONSES: Case = "/v1/responses/render", {"enable_scale_out": True}, "_rendered_response"


@pytest.mark.parametrize(("num_items", "is_aside"), [(10, False), (3000, True)])
@pytest.mark.parametrize(("path", "settings", "parsing"), [EMBEDDINGS, RESPONSES, RENDERED_RESPONSES])
def test_many_items_that_fit_no_type_are_checked_aside(
    path: str, settings: dict[str, Any], parsing: str, num_items: int, is_aside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_server(**settings) as server:
        executor = server.service.delivery.executor
        run: Callable[..., Any] = executor.run
        done: list[str] = []

        async def noted(is_huge: bool, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            done.append(getattr(work, "__name__", ""))
            return await run(is_huge, work, *arguments, **named)

        monkeypatch.setattr(executor, "run", noted)
        items = [0] * num_items
        reply = call(
            server, "POST", path, {"model": "m"} | ({"messages": [items]} if "runner" in settings else {"input": items})
        )
    assert reply.status == 400
    assert (parsing in done) == is_aside
