import json
from typing import Any

from observe.proxy.exchanges import Round, SessionTracker, is_generating, request_metadata_of


class Clients:
    """Requests of clients, one after the other; the reply to each comes before the next."""

    def __init__(self) -> None:
        self.book = SessionTracker()
        self.now = 0

    def ask(self, body: dict[str, Any], reply: str = "ok", client: bytes = b"") -> Round:
        self.now += 10
        facts = request_metadata_of(json.dumps(body).encode(), client)
        assert facts.turns is not None
        this, _ = self.book.place(facts.turns, self.now)
        self.now += 10
        this.ended = self.now
        self.book.ended(facts.turns, this, reply.encode())
        return this


def chat(*contents: str, system: str = "") -> dict[str, Any]:
    turns = [{"role": ("user", "assistant")[at % 2], "content": each} for at, each in enumerate(contents)]
    return {"model": "m", "messages": [*([{"role": "system", "content": system}] if system else []), *turns]}


def place(found: Round) -> tuple[str, int]:
    return found.session_id, found.index


def test_a_conversation_that_grows_is_one_session() -> None:
    clients = Clients()
    assert place(clients.ask(chat("a"), "b")) == ("session-1", 0)
    assert place(clients.ask(chat("x"), "y")) == ("session-2", 0)
    assert place(clients.ask(chat("a", "b", "c"), "d")) == ("session-1", 1)
    assert place(clients.ask(chat("a", "b", "c", "d", "e"))) == ("session-1", 2)


def test_of_equal_beginnings_the_one_with_the_reply_goes_on() -> None:
    clients = Clients()
    clients.ask(chat("hi"), "one")
    clients.ask(chat("hi"), "two")
    clients.ask(chat("hi"), "three")
    assert place(clients.ask(chat("hi", "two", "more"))) == ("session-2", 1)
    assert place(clients.ask(chat("hi", "one", "more"))) == ("session-1", 1)


def test_clients_models_and_instructions_keep_conversations_apart() -> None:
    clients = Clients()
    clients.ask(chat("a"), "b", client=b"1")
    assert clients.ask(chat("a", "b", "c"), client=b"2").index == 0
    assert clients.ask({**chat("a", "b", "c"), "model": "n"}, client=b"1").index == 0
    assert clients.ask(chat("a", "b", "c", system="be brief"), client=b"1").index == 0


def test_a_second_branch_of_a_conversation_is_a_session_of_its_own() -> None:
    clients = Clients()
    clients.ask(chat("a"), "b")
    assert place(clients.ask(chat("a", "b", "c"))) == ("session-1", 1)
    assert place(clients.ask(chat("a", "b", "other"))) == ("session-2", 0)


def test_a_request_sent_before_the_reply_came_does_not_go_on_with_it() -> None:
    clients = Clients()
    first = clients.ask(chat("a"), "b")
    first.ended = clients.now + 1000
    assert clients.ask(chat("a", "b", "c")).index == 0


def test_a_bare_prompt_goes_on_with_one_that_it_repeats_together_with_the_reply() -> None:
    clients = Clients()
    clients.ask({"prompt": "Once"}, " upon")
    clients.ask({"prompt": "Once"}, "")
    assert place(clients.ask({"prompt": "Once more"})) == ("session-3", 0)
    assert place(clients.ask({"prompt": "Once upon a time"})) == ("session-1", 1)


def test_conversations_of_all_interfaces_are_recognised() -> None:
    clients = Clients()
    assert clients.ask({"input": "a", "instructions": "i"}, "b").index == 0
    items = [{"role": "user", "content": "a"}, {"type": "function_call_output", "output": "4"}]
    assert clients.ask({"input": items, "instructions": "i"}).index == 1
    assert clients.ask({"system": "s", "messages": [{"role": "user", "content": "q"}]}, "r").index == 0
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": [{"type": "text", "text": "r"}]}]
    assert clients.ask({"system": "s", "messages": [*turns, {"role": "user", "content": "t"}]}).index == 1


def test_instructions_and_tools_are_a_start_that_requests_share() -> None:
    one = request_metadata_of(json.dumps({**chat("abcd", system="be brief"), "tools": [{"name": "t"}]}).encode(), b"")
    two = request_metadata_of(json.dumps({**chat("other", system="be brief"), "tools": [{"name": "t"}]}).encode(), b"x")
    assert one.shared_start == two.shared_start != b""
    assert (one.num_shared_bytes, one.num_prompt_bytes) == (28, 36)  # tools as JSON
    assert request_metadata_of(json.dumps(chat("abcd")).encode(), b"").shared_start == b""


def test_bodies_of_any_kind_have_facts() -> None:
    for body in (b"", b"[]", b"\xff", b'{"messages": 3, "model": 4}', b'{"prompt": [[1], [2, 3]]}', b'{"input": [1]}'):
        facts = request_metadata_of(body, b"")
        assert facts.turns is None
        assert facts.model == ""


def test_paths_with_tokens_are_recognised_under_any_prefix() -> None:
    assert is_generating("POST", "/v1/chat/completions?x=1")
    assert is_generating("POST", "/openai/deployments/d/completions/")
    assert not is_generating("GET", "/v1/responses")
    assert not is_generating("POST", "/v1/embeddings")
