"""Answers from a file, found by the prompt."""

import json
import sqlite3
from array import array
from hashlib import sha256
from pathlib import Path

import pytest

from blis_sim.options import OptionError
from mockserve.generation.answer import open_dataset


def lines(folder: Path, *rows: object) -> str:
    file = folder / "answers.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return str(file)


def table(folder: Path, columns: str, *rows: tuple[object, ...], name: str = "llmd") -> str:
    file = folder / "answers.db"
    with sqlite3.connect(file) as connection:
        connection.execute(f"CREATE TABLE {name} ({columns})")
        connection.executemany(f"INSERT INTO {name} VALUES (?, ?)", rows)
    connection.close()
    return str(file)


def test_lines_name_an_answer_by_its_prompt(tmp_path: Path) -> None:
    dataset = open_dataset(lines(tmp_path, {"prompt": "a", "answer": "b"}, {"prompt": "c", "completion": "d"}), "")
    assert [dataset.answer([each], []) for each in ("a", "c", "x")] == ["b", "d", None]
    assert dataset.answer(["x", "c"], []) == "d"


def test_a_table_names_an_answer_by_its_prompt(tmp_path: Path) -> None:
    dataset = open_dataset(table(tmp_path, "prompt TEXT, answer TEXT", ("a", "b"), name="mine"), "mine")
    assert (dataset.answer(["x", "a"], []), dataset.answer(["x"], [])) == ("b", None)


def test_a_table_may_name_it_by_a_hash_of_text_or_of_token_ids(tmp_path: Path) -> None:
    by_text = (sha256(b"a").digest(), json.dumps(["from", " text"]))
    by_ids = (sha256(array("I", [1, 2]).tobytes()).digest(), json.dumps(["from", " ids"]))
    dataset = open_dataset(table(tmp_path, "prompt_hash BLOB, gen_tokens JSON", by_text, by_ids), "llmd")
    assert dataset.answer(["a"], [9]) == "from text"
    assert dataset.answer(["x"], [1, 2]) == "from ids"
    assert dataset.answer(["x"], [9]) is None


def test_an_invalid_file_is_refused_with_its_error(tmp_path: Path) -> None:
    for row, message in (
        ("{", r"line 1 must be a JSON object"),
        ('{"prompt": 1}', r"line 1 must have a prompt as text"),
        ('{"prompt": "a"}', r"line 1 must have one of answer, response, completion, output as text"),
    ):
        (tmp_path / "bad.jsonl").write_text(row)
        with pytest.raises(OptionError, match=message):
            open_dataset(str(tmp_path / "bad.jsonl"), "llmd")
    with pytest.raises(OptionError, match=r"--dataset-path: cannot read"):
        open_dataset(str(tmp_path / "missing"), "llmd")
    with pytest.raises(OptionError, match=r"table 'llmd' of .* must have the columns prompt and answer"):
        open_dataset(table(tmp_path, "prompt TEXT, reply TEXT"), "llmd")
