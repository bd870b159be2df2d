"""A filled template is byte for byte what encoding anew would give."""

from hypothesis import given
from hypothesis import strategies as st

from mockserve.frames import PLACEHOLDER, event, event_template, http_chunk
from mockserve.protocol.bodies import Ending, Usage
from mockserve.protocol.chat_bodies import ChatBodies
from mockserve.protocol.completion_bodies import CompletionBodies
from mockserve.protocol.json_text import compact_json

text = st.text(st.characters(exclude_categories=["Cs"]))


@given(text, text, text)
def test_a_template_fills_as_encoding_does(reply_id: str, model: str, token: str) -> None:
    for bodies in (
        ChatBodies(id=reply_id, created=1, model=model, fingerprint="f"),
        CompletionBodies(id=reply_id, created=1, model=model, fingerprint="f"),
    ):
        template = event_template(bodies.text_chunk(2, PLACEHOLDER, None))
        encoded = event(bodies.text_chunk(2, token, None))
        assert template.fill(token) == encoded
        assert template.fill_chunk(token) == http_chunk(encoded)


def test_a_chunk_is_framed_by_its_length() -> None:
    assert http_chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"


def test_only_the_last_chunk_before_no_usage_names_the_fingerprint() -> None:
    alone = ChatBodies(id="i", created=1, model="m", fingerprint="f")
    counted = ChatBodies(id="i", created=1, model="m", fingerprint="f", ends_with_usage=True)
    assert alone.ending_chunk(0, "", Ending("stop"), None)["system_fingerprint"] == "f"
    assert "system_fingerprint" not in counted.ending_chunk(0, "", Ending("stop"), None)
    assert counted.usage_chunk(Usage(1, 2))["system_fingerprint"] == "f"


def test_half_a_surrogate_pair_is_escaped() -> None:
    assert compact_json({"a": "\ud800é"}) == b'{"a":"\\ud800\\u00e9"}'
