"""Pictures of a conversation lie where the chat template shows them, and their engine requests say so."""

import asyncio

from blis_sim.engine.request import Medium as PlacedMedium
from mockserve.generation.tokenizer import BuiltinTokenizer
from mockserve.kv_events.naming import FastNaming
from mockserve.protocol.chat_messages import MEDIA_MARK, Medium
from mockserve.protocol.sampling import SamplingParams
from mockserve.serving.chat import conversation_ids, placed_conversation
from mockserve.serving.planner import Planner, draft_request

MEDIA = [Medium("image", "a"), Medium("image", "b"), Medium("audio", "c")]


def planner() -> Planner:
    return Planner(BuiltinTokenizer(), 1000, FastNaming(16), 0)


def test_media_lie_where_the_template_shows_them_and_others_at_the_end() -> None:
    text = f"one {MEDIA_MARK} two {MEDIA_MARK} three"
    ids, places = placed_conversation(planner(), text, MEDIA, 7, False)
    before, between = (len(BuiltinTokenizer().encode(part)) for part in ("one ", " two "))
    assert [place.offset for place in places] == [before, before + 7 + between, len(ids) - 7]
    assert [place.num_tokens for place in places] == [7, 7, 7]
    assert [place.identity for place in places] == [("image", "a"), ("image", "b"), ("audio", "c")]
    assert ids == conversation_ids(planner(), text, MEDIA, 7, False, SamplingParams())


def test_the_request_has_the_places_of_its_media() -> None:
    media = (PlacedMedium(1, 2, "a"),)
    asked = planner().plan([1, 2, 3], SamplingParams(max_tokens=1), draft_request("id")._replace(media=media))
    (generation,) = asyncio.run(asked)
    assert generation.request.media == media
