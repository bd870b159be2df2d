"""With the vocabularies of the captured servers, prompts, pieces and lengths are those that vLLM counted."""

from pathlib import Path

from mockserve.generation.tokenizer import load_tokenizer
from tests.mockserve.generation.test_chatml import HELLO, opened, prompt
from tests.mockserve.generation.test_prose import check_every_length
from tests.wire.serving import running_server
from tests.wire.test_content import chat


def check_prompts(oracle: Path) -> None:
    """Prompts have as many tokens as vLLM counted."""
    for model, num_tokens in (("model", 6), ("model2", 9)):
        text = prompt(opened(folder=oracle / model), HELLO)
        assert load_tokenizer(str(oracle / model), 0).count(text) == num_tokens


def check_pieces(oracle: Path) -> None:
    """Pieces of a text are those of a captured stream, which held back the first half of a character."""
    split = load_tokenizer(str(oracle / "model2"), 0).split("héllo 😀 wörld")
    assert split.pieces == ["hé", "llo", "", " 😀", " w", "ör", "ld"]


def check_lengths(oracle: Path) -> None:
    """Prose has every length."""
    for model in ("model", "model2", "model3"):
        check_every_length(load_tokenizer(str(oracle / model), 0), longest=100, seeds=2)


def check_reported_lengths(oracle: Path) -> None:
    """Text of answers has as many tokens as is reported."""
    with running_server(tokenizer=str(oracle / "model2")) as server:
        tokenizer = server.service.model.planner.tokenizer
        for num_tokens in (1, 2, 3, 17, 100):
            reply = chat(server, "hello", max_tokens=num_tokens, ignore_eos=True)
            assert tokenizer.count(reply["message"]["content"]) == reply["num_tokens"] == num_tokens
        reply = chat(server, "hello", max_tokens=1000)
        assert reply["finish_reason"] == "stop"
        assert tokenizer.count(reply["message"]["content"]) == reply["num_tokens"] - 1


CHECKS = (check_prompts, check_pieces, check_lengths, check_reported_lengths)
"""The tokens that they use are kept in the reference tables."""


def test_prompts_have_as_many_tokens_as_vllm_counted(reference: Path) -> None:
    check_prompts(reference / "oracle")


def test_a_real_vocabulary_holds_back_what_vllm_held_back(reference: Path) -> None:
    check_pieces(reference / "oracle")


def test_every_length_of_prose_is_met_in_real_vocabularies(reference: Path) -> None:
    check_lengths(reference / "oracle")


def test_text_of_answers_has_as_many_tokens_as_reported(reference: Path) -> None:
    check_reported_lengths(reference / "oracle")
