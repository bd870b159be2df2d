"""The built-in tokenizer: deterministic, reversible, and about as fine as a real one."""

import json
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.options import OptionError
from mockserve.generation.tokenizer import _PIECE, CHUNK_CHARS, WORDS, BuiltinTokenizer, invented_word, load_tokenizer
from tests.examples import examples

PROSE = (
    "When the river had risen over the meadows, nobody in the village was surprised: it did so nearly every spring, "
    "and the older people still remembered years in which the water stood in their kitchens for a week. They moved "
    "the furniture upstairs, tied the boats to the fences and waited. On the third morning the rain stopped."
)


def test_text_comes_back_exactly() -> None:
    tokenizer = BuiltinTokenizer()
    for text in (
        PROSE,
        "  two  spaces\n\n\nand\tlines  ",
        "日本語 text, naïve café — ok? 12345.67",
        "",
        "x_y(z)[0] += 1;",
    ):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text())
def test_any_text_can_be_counted_and_keeps_its_length(text: str) -> None:
    tokenizer = BuiltinTokenizer()
    ids = tokenizer.encode(text)
    assert len(ids) == tokenizer.count(text) <= len(text)
    assert all(0 <= each < tokenizer.vocabulary_size for each in ids)
    assert len(text) <= len(ids) * tokenizer.longest_piece_chars


@given(st.text(), st.text())
def test_ids_depend_on_nothing_but_the_text(first: str, second: str) -> None:
    used = BuiltinTokenizer()
    used.encode(first)
    assert used.encode(second) == BuiltinTokenizer().encode(second)


def test_ids_are_the_same_in_every_process() -> None:
    imports = "from mockserve.generation.tokenizer import BuiltinTokenizer"
    program = f"{imports}; print(BuiltinTokenizer().encode({PROSE!r}))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert json.loads(output) == BuiltinTokenizer().encode(PROSE)


def test_a_common_word_and_the_space_before_it_are_one_token() -> None:
    tokenizer = BuiltinTokenizer()
    assert [word for word in WORDS if tokenizer.count(" " + word) != 1] == []


def test_words_alone_cost_one_token_each() -> None:
    assert BuiltinTokenizer().count(" ".join(WORDS)) == len(WORDS)


def test_english_has_about_four_and_a_half_characters_per_token() -> None:
    assert 4.0 < len(PROSE) / BuiltinTokenizer().count(PROSE) < 5.0


def test_unknown_ids_read_as_words() -> None:
    text = BuiltinTokenizer().decode([60_000, 77_777])
    assert text == invented_word(60_000) + invented_word(77_777)
    assert text.replace(" ", "").isalpha()


@pytest.mark.slow
def test_a_thousand_tokens_take_well_under_a_millisecond() -> None:
    tokenizer = BuiltinTokenizer()
    text = " ".join(WORDS * 4)[:5000]
    tokenizer.encode(text)
    fastest = min(_seconds(tokenizer, text) for _ in range(20))
    assert fastest < 0.001


def test_a_tokenizer_file_or_its_folder_replaces_the_built_in_one(tmp_path: Path) -> None:
    vocabulary = {"hello": 0, "there": 1, "[UNK]": 2}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model}))
    for path in (file, tmp_path):
        tokenizer = load_tokenizer(str(path), 100)
        assert tokenizer.encode("hello there you") == [0, 1, 2]
        assert tokenizer.count("hello hello") == 2
        assert tokenizer.decode([0, 1]) == "hello there"
        assert tokenizer.vocabulary_size == 3


def test_an_invalid_tokenizer_file_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    with pytest.raises(OptionError, match=r"--tokenizer: cannot read .*tokenizer\.json"):
        load_tokenizer(str(broken), 100)
    with pytest.raises(OptionError, match=r"--tokenizer must be a tokenizer\.json or a folder with one"):
        load_tokenizer(str(tmp_path / "missing"), 100)


def _seconds(tokenizer: BuiltinTokenizer, text: str) -> float:
    start = time.perf_counter()
    tokenizer.encode(text)
    return time.perf_counter() - start


@given(st.integers(0, 2**32), st.integers(CHUNK_CHARS - 40, 3 * CHUNK_CHARS))
@settings(max_examples=examples(30), deadline=None)
def test_a_long_text_in_chunks_has_equal_pieces(seed: int, num_chars: int) -> None:
    random = Random(seed)
    parts = [
        "<|im_end|>",
        "<think>",
        "</",
        "<|",
        "it's",
        "  ",
        "\n\n",
        "word",
        "12345",
        "...",
        "\u65e5",
        "\u00e9",
        "x" * 30,
        "'s",
    ]
    text = "".join(random.choices(parts, k=num_chars))[:num_chars]
    assert list(BuiltinTokenizer().split(text).pieces) == _PIECE.findall(text)


def test_a_long_text_is_split_into_pieces_that_share_their_strings() -> None:
    tokenizer, text = BuiltinTokenizer(), " ".join(WORDS[: 100 + each % 50][-1] for each in range(30_000))
    tokenizer.split(text)
    tracemalloc.start()
    try:
        found = tokenizer.split(text)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "".join(found.pieces) == text
    assert kept_bytes < 1.5 * (sys.getsizeof(found.ids) + sys.getsizeof(found.pieces))


def test_encoding_a_long_text_takes_little_more_memory_than_its_ids() -> None:
    tokenizer, text = BuiltinTokenizer(), "word " * 200_000
    tokenizer.encode("word word")
    tracemalloc.start()
    try:
        ids = tokenizer.encode(text)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * sys.getsizeof(ids)
