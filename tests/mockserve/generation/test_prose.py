"""Whoever counts generated text with the same tokenizer finds the number of tokens that was reported."""

from pathlib import Path
from random import Random

import pytest

from mockserve.generation.answer import Prose
from mockserve.generation.tokenizer import BuiltinTokenizer, Tokenizer, load_tokenizer
from tests.mockserve.generation.vocabularies import MAKES, write_vocabulary

BUILTIN = BuiltinTokenizer()
BUILTIN_PROSE = Prose(BUILTIN)


@pytest.fixture(scope="module", params=MAKES)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(str(write_vocabulary(request.param, tmp_path_factory.mktemp("made"))), 0)


def check_every_length(tokenizer: Tokenizer, longest: int, seeds: int) -> None:
    prose = Prose(tokenizer)
    for seed in range(seeds):
        for num_tokens in range(1, longest):
            split = prose.write(Random(seed), num_tokens)
            text = "".join(split.pieces)
            assert split.num_tokens == len(split.pieces) == num_tokens
            assert tokenizer.encode(text) == list(split.ids)
            assert tokenizer.decode(split.ids) == text


def test_every_length_is_met_in_every_make_of_vocabulary(tokenizer: Tokenizer) -> None:
    check_every_length(tokenizer, longest=80, seeds=3)


def test_a_vocabulary_without_words_gives_all_the_letters_that_it_has(tmp_path: Path) -> None:
    prose = Prose(load_tokenizer(str(write_vocabulary("bytes_only", tmp_path)), 0))
    assert set("abcdefghijklmnopqrstuvwxyz") <= set(prose.write(Random(0), 2000).pieces)


def test_text_behind_a_word_keeps_its_tokens_when_both_are_joined() -> None:
    begun = "A prompt of some words"
    for seed in range(20):
        split = BUILTIN_PROSE.write(Random(seed), 30, continues_word=True)
        assert split.num_tokens == 30
        assert BUILTIN.encode(begun + "".join(split.pieces)) == [*BUILTIN.encode(begun), *split.ids]


def test_prose_is_english_sentences() -> None:
    text = "".join(BUILTIN_PROSE.write(Random(1), 60).pieces)
    assert text[0].isupper()
    assert ". " in text
    assert len(text) > 200
