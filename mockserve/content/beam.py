"""An answer as beam search gives it."""

from mockserve.content.answer import Answer
from mockserve.protocol.bodies import Ending


def as_beam(answer: Answer, eos_token_id: int, keeps_end: bool) -> Answer:
    """The answer with its end marker as the reason of its end, and the marker itself only with `keeps_end`.

    A beam of nothing but the marker keeps it, as the engine has to be asked for a token.
    """
    if not answer.token_ids or answer.token_ids[-1] != eos_token_id or answer.ending.finish_reason == "length":
        return answer
    answer = answer._replace(ending=Ending(answer.ending.finish_reason, eos_token_id))
    if keeps_end or answer.num_tokens == 1:
        return answer
    return answer._replace(
        texts=answer.texts[:-1],
        token_texts=answer.token_texts[:-1],
        token_ids=answer.token_ids[:-1],
        deltas=None if answer.deltas is None else answer.deltas[:-1],
    )
