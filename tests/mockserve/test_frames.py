"""A filled template is byte for byte what encoding anew would give."""

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mockserve.protocol.bodies import Ending, Piece, PromptOutput, Usage
from mockserve.protocol.completions import (
    ChatBodies,
    CompletionBodies,
    content_delta,
    reasoning_delta,
    tool_arguments_delta,
)
from mockserve.protocol.json_text import compact_json
from mockserve.reply.frames import (
    PLACEHOLDER,
    EventTemplates,
    UsualBodies,
    event,
    filled,
    http_chunk,
    text_frame,
    with_templates,
)

text = st.text(st.characters(exclude_categories=["Cs"]))


@given(text, text, text)
def test_a_template_fills_as_encoding_does(reply_id: str, model: str, token: str) -> None:
    chat = ChatBodies(id=reply_id, created=1, model=model, fingerprint="f")
    completion = CompletionBodies(id=reply_id, created=1, model=model, fingerprint="f")
    chunks: tuple[Callable[[str], dict[str, Any]], ...] = (
        lambda text: chat.chunk(2, Piece(delta=content_delta(text)), None),
        lambda text: chat.chunk(2, Piece(delta=reasoning_delta(text)), None),
        lambda text: chat.chunk(2, Piece(delta=tool_arguments_delta(1, text)), None),
        lambda text: completion.chunk(2, Piece(delta=text), None),
    )
    for chunk in chunks:
        encoded = event(chunk(token))
        frame = text_frame(chunk(PLACEHOLDER))
        assert filled(frame, token, chunked=False) == encoded
        assert filled(frame, token, chunked=True) == http_chunk(encoded)


@given(text, text, text)
def test_shared_templates_fill_as_encoding_does_for_every_id_and_second(reply_id: str, model: str, token: str) -> None:
    templates = EventTemplates()
    for created in (1, 1_700_000_000):
        chat = ChatBodies(reply_id, created, model, "f", echoed=token)
        completion = CompletionBodies(reply_id, created, model, "f")
        usual: tuple[tuple[UsualBodies, Callable[[str], Piece]], ...] = (
            (chat, lambda text: Piece(delta=content_delta(text))),
            (completion, lambda text: Piece(delta=text)),
        )
        for bodies, new_piece in usual:
            encoded = event(bodies.chunk(1, new_piece(token), None))
            assert filled(templates.text_frame(bodies, 1, new_piece, None), token, chunked=False) == encoded
            last = event(bodies.chunk(1, new_piece(token)._replace(ending=Ending("stop")), None))
            assert filled(templates.text_frame(bodies, 1, new_piece, "stop"), token, chunked=True) == http_chunk(last)
            openings = [http_chunk(event(each)) for each in bodies.opening_chunks(2, PromptOutput(), None)]
            assert templates.opening(bodies, 2, chunked=True) == openings


def test_no_template_keeps_the_text_of_a_client() -> None:
    bodies = ChatBodies("id", 1, "m", "f", echoed="a long message")
    assert with_templates(bodies) is None
    assert with_templates(bodies._replace(echoed="")) is not None


def test_a_chunk_is_framed_by_its_length() -> None:
    assert http_chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"


def test_only_the_last_chunk_before_no_usage_names_the_fingerprint() -> None:
    alone = ChatBodies(id="i", created=1, model="m", fingerprint="f")
    counted = ChatBodies(id="i", created=1, model="m", fingerprint="f", ends_with_usage=True)
    piece = Piece(delta={}, ending=Ending("stop"))
    assert alone.chunk(0, piece, None)["system_fingerprint"] == "f"
    assert "system_fingerprint" not in counted.chunk(0, piece, None)
    assert counted.usage_chunk(Usage(1, 2), None)["system_fingerprint"] == "f"


def test_half_a_surrogate_pair_is_escaped() -> None:
    assert compact_json({"a": "\ud800é"}) == b'{"a":"\\ud800\\u00e9"}'
