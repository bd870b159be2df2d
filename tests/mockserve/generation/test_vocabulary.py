"""Choice of the tokenizer of a server."""

from pathlib import Path

import pytest

from mockserve.generation.composer import open_vocabulary
from mockserve.generation.tokenizer import BuiltinTokenizer
from mockserve.options.content import ContentOptions
from tests.mockserve.generation.vocabularies import write_vocabulary


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vocabulary("word_piece", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vocabulary("bytes_only", tmp_path_factory.mktemp("other"))


def test_a_model_that_is_a_folder_has_its_own_tokenizer(model: Path) -> None:
    tokenizer, _ = open_vocabulary(ContentOptions(), str(model), 1000)
    assert tokenizer.token_strings(tokenizer.encode("the first", add_special_tokens=True))[0] == "[CLS]"


def test_a_tokenizer_that_is_named_wins(model: Path, other: Path) -> None:
    tokenizer, _ = open_vocabulary(ContentOptions(tokenizer=str(other)), str(model), 1000)
    assert tokenizer.count("the") == 3


def test_a_model_without_files_has_the_built_in_tokenizer() -> None:
    tokenizer, _ = open_vocabulary(ContentOptions(), "no/folder", 1000)
    assert isinstance(tokenizer, BuiltinTokenizer)
    assert tokenizer.vocabulary_size == 1000


def test_marks_are_part_of_a_text_unless_they_are_skipped(model: Path) -> None:
    tokenizer, _ = open_vocabulary(ContentOptions(), str(model), 1000)
    ids = tokenizer.encode("the first", add_special_tokens=True)
    assert tokenizer.decode(ids) == "[CLS] the first [SEP]"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the first"
