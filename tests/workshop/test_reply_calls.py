"""Shapes and calls of a streamed chat reply."""

import asyncio

import pytest

from workshop.reply_calls import calls_and_shapes


@pytest.mark.slow
def test_a_streamed_chat_reply_is_carried_by_seven_shapes_in_forty_modules() -> None:
    calls, shapes = asyncio.run(calls_and_shapes())
    assert shapes == {
        *("ChatRequest", "Answer", "PlannedChoice", "PlannedPrompt", "ChatBodies", "ReplyJob", "StreamedReply"),
    }
    assert len({module for module, _ in calls}) <= 40
    assert sum(calls.values()) <= 800
