"""Any text, cut into tokens, is given back piece by piece."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mockserve.generation.tokenizer import BuiltinTokenizer, Tokenizer, load_tokenizer, split_at
from tests.examples import examples
from tests.mockserve.generation.vocabularies import MAKES, write_vocabulary


@pytest.fixture(scope="module", params=MAKES)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(str(write_vocabulary(request.param, tmp_path_factory.mktemp("made"))), 0)


@given(st.text())
@settings(max_examples=examples(60))
def test_the_pieces_of_a_text_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    for each in (tokenizer, BuiltinTokenizer()):
        split = each.split(text)
        assert list(split.ids) == each.encode(text)
        assert len(split.pieces) == split.num_tokens
        assert "".join(split.pieces) == text or not split.ids


def test_a_character_of_several_tokens_comes_with_the_last_of_them(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(write_vocabulary("bytes_only", tmp_path)), 0)
    assert tokenizer.split("a😀é").pieces == ["a", "", "", "", "😀", "", "é"]


def test_spaces_between_tokens_go_with_the_token_after_them() -> None:
    assert split_at(" a  b ", [1, 2], [(1, 2), (4, 5)]).pieces == [" a", "  b "]


def test_the_training_length_in_a_file_does_not_cut_or_pad(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(write_vocabulary("word_piece", tmp_path)), 0)
    assert tokenizer.count("the") == 1
    assert tokenizer.count("the and " * 20) == 40


def test_a_sequence_is_framed_on_request(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(write_vocabulary("word_piece", tmp_path)), 0)
    ids = tokenizer.encode("the and", add_special_tokens=True)
    assert tokenizer.token_strings(ids) == ["[CLS]", "the", "and", "[SEP]"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the and"
