"""The plainest messages are accepted without a trial of the forms, which changes nothing but the time that it takes."""

from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from mockserve.protocol.bodies import adapter_of, errors_of
from mockserve.protocol.chat_messages import AnyMessage, ChatMessage

_PLAIN_VALUES = st.sampled_from(["hello", "\ud800", "", None, 1, True, [], ["a"], {}, {"type": "text", "text": "x"}])
_ROLES = st.sampled_from(["developer", "system", "user", "assistant", "tool", "function", "other", "\ud800", None, 3])
_FIELDS = ("content", "name", "refusal", "tool_calls", "tool_call_id", "author", "unknown")
_MESSAGES = st.one_of(
    _PLAIN_VALUES,
    st.builds(
        lambda role, others: {**others, **role},
        st.one_of(st.just({}), st.fixed_dictionaries({"role": _ROLES})),
        st.dictionaries(st.sampled_from(_FIELDS), _PLAIN_VALUES, max_size=4),
    ),
)


@given(_MESSAGES)
def test_plain_messages_that_no_form_is_tried_for_have_one(message: Any) -> None:
    is_valid = errors_of(AnyMessage, message) is None

    event("accepted" if is_valid else "refused")
    assert (errors_of(ChatMessage, message) is None) == is_valid


@pytest.mark.parametrize("role", ["user", "system", "assistant", "x"])
def test_a_valid_message_keeps_fields_that_its_form_does_not_have(role: str) -> None:
    message = {"role": role, "content": "hello", "reasoning_content": "why"}

    assert adapter_of(ChatMessage).validate_python([message])[0] is message
