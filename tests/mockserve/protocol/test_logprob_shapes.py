"""The shapes of log-probabilities."""

import math

from mockserve.protocol.bodies import Candidate, ScoredToken, chat_logprobs, completion_logprobs, prompt_logprobs

FIRST = ScoredToken(Candidate(7, " a", -0.5, 2), [Candidate(7, " a", -0.5, 2), Candidate(9, " b", -0.25, 1)])
SECOND = ScoredToken(Candidate(8, "é", -math.inf, 1), [Candidate(8, "é", -math.inf, 1)])


def test_chat_shows_bytes_and_the_requested_number_of_candidates() -> None:
    first, second = chat_logprobs([FIRST, SECOND], 1, as_ids=False)["content"]
    assert first == {
        "token": " a",
        "logprob": -0.5,
        "bytes": [32, 97],
        "top_logprobs": [{"token": " a", "logprob": -0.5, "bytes": [32, 97]}],
    }
    assert second["bytes"] == [0xC3, 0xA9]
    assert second["logprob"] == -9999.0


def test_a_token_called_by_its_id_keeps_its_bytes() -> None:
    token = chat_logprobs([FIRST], 1, as_ids=True)["content"][0]
    assert (token["token"], token["bytes"]) == ("token_id:7", [32, 97])
    assert token["top_logprobs"][0]["bytes"] == list(b"token_id:7")


def test_text_completions_count_offsets_in_the_names_of_tokens() -> None:
    shape = completion_logprobs([(1, "<s>"), FIRST, SECOND], None, as_ids=False, text_offset=10)
    assert shape == {
        "text_offset": [10, 13, 15],
        "token_logprobs": [None, -0.5, -9999.0],
        "tokens": ["<s>", " a", "é"],
        "top_logprobs": [None, {" a": -0.5, " b": -0.25}, {"é": -9999.0}],
    }


def test_the_tokens_of_a_prompt_are_keyed_by_their_ids() -> None:
    assert prompt_logprobs([None, FIRST]) == [
        None,
        {
            "7": {"logprob": -0.5, "rank": 2, "decoded_token": " a"},
            "9": {"logprob": -0.25, "rank": 1, "decoded_token": " b"},
        },
    ]
