"""Conversations as token ids, with the places of the media in them."""

from collections.abc import Sequence
from zlib import crc32

from blis_sim.engine.media import Medium as PlacedMedium
from mockserve.planning.prompts import check_unicode, text_ids
from mockserve.protocol.completions.content_parts import MEDIA_MARK
from mockserve.protocol.completions.messages import Medium
from mockserve.protocol.sampling.sampling import SamplingParams
from mockserve.serving.planner import Planner


def conversation_ids(
    planner: Planner,
    text: str,
    media: Sequence[Medium],
    tokens_per_medium: int,
    add_special_tokens: bool,
    sampling: SamplingParams,
) -> list[int]:
    """The ids of a conversation, with `tokens_per_medium` of them where a picture or a recording is."""
    if not media:
        return text_ids(planner, text, add_special_tokens, sampling)
    return placed_conversation(planner, text, media, tokens_per_medium, add_special_tokens)[0]


def placed_conversation(
    planner: Planner,
    text: str,
    media: Sequence[Medium],
    tokens_per_medium: int,
    add_special_tokens: bool,
) -> tuple[list[int], tuple[PlacedMedium, ...]]:
    """The ids of a conversation with media, and where in them its media are.

    Media whose place the chat template does not show come at the end.
    """
    check_unicode(text)
    stretches = [
        planner.encode(stretch, add_special_tokens and number == 0)
        for number, stretch in enumerate(text.split(MEDIA_MARK))
    ]
    planner.check_length(sum(map(len, stretches)) + len(media) * tokens_per_medium)
    ids: list[int] = []
    places: list[PlacedMedium] = []
    shown, others = media[: len(stretches) - 1], media[len(stretches) - 1 :]
    for number, stretch in enumerate(stretches):
        ids += stretch
        for medium in shown[number : number + 1] if number < len(stretches) - 1 else others:
            places.append(PlacedMedium(len(ids), tokens_per_medium, (medium.modality, medium.source)))
            ids += medium_ids(planner, medium, tokens_per_medium)
    planner.check_ids(ids)
    return ids, tuple(places)


def medium_ids(planner: Planner, medium: Medium, count: int) -> list[int]:
    """Ids that stand for a picture or a recording: the same for the same source, so that its blocks can be shared."""
    first = crc32(medium.source.encode("utf-8", "surrogatepass"))
    return [(first + number) % planner.tokenizer.vocabulary_size for number in range(count)]
