"""Messages are checked against the likeliest shape first, which changes nothing but the time that it takes."""

from dataclasses import replace
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from mockserve.protocol.completions.messages import MESSAGE
from mockserve.protocol.reading.containers import AnyOf

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
def test_the_likeliest_shape_first_finds_the_problems_that_all_shapes_in_order_find(message: Any) -> None:
    assert isinstance(MESSAGE, AnyOf)
    in_order = replace(MESSAGE, likely={})

    found = MESSAGE.problems(message, "body.messages.0")

    event("refused" if found else "accepted")
    assert [str(each) for each in found] == [str(each) for each in in_order.problems(message, "body.messages.0")]


def test_every_role_with_a_shape_of_its_own_is_likely_to_have_that_shape() -> None:
    assert isinstance(MESSAGE, AnyOf)

    for role, shape in MESSAGE.likely.items():
        assert shape in MESSAGE.kinds
        message = {"role": role, "content": "hello", "name": "a", "tool_call_id": "b"}
        assert not shape.problems(message, "body.messages.0")
