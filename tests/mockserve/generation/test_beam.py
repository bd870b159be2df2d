"""Beams end as vLLM's do: the end marker is their reason and not one of their tokens."""

from mockserve.generation.answer import Answer, as_beam
from mockserve.protocol.bodies import Ending

EOS = 9
ENDED = Answer(["a", "b", ""], Ending("stop"), ["a", "b", ""], [1, 2, EOS])


def test_drops_the_end_marker_and_names_it() -> None:
    found = as_beam(ENDED, EOS, keeps_end=False)
    assert (found.token_ids, found.ending) == ([1, 2], Ending("stop", EOS))


def test_keeps_the_end_marker_on_request() -> None:
    found = as_beam(ENDED, EOS, keeps_end=True)
    assert (found.token_ids, found.ending) == ([1, 2, EOS], Ending("stop", EOS))


def test_leaves_a_beam_that_was_cut_alone() -> None:
    cut = ENDED._replace(token_ids=[1, 2, 3], ending=Ending("length"))
    assert as_beam(cut, EOS, keeps_end=False) == cut
