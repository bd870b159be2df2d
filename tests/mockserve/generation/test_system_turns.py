"""Developers' messages before a template without that role."""

from mockserve.generation.chat_turns import merge_developer_turns

USER = {"role": "user", "content": "hi"}


def test_messages_of_developers_join_the_system_message_at_the_start() -> None:
    system = {"role": "system", "content": "s"}
    developer = {"role": "developer", "content": [{"type": "text", "text": "d"}, {"type": "text", "text": "e"}]}
    assert merge_developer_turns([system, USER, developer]) == [{"role": "system", "content": "s\n\nd\ne"}, USER]


def test_a_conversation_without_a_developer_stays_as_it_is() -> None:
    turns = [USER, {"role": "system", "content": "late"}]
    assert merge_developer_turns(turns) == turns
