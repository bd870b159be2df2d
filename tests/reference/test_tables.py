"""Tables of reference figures: what is packed comes back, and the tables are those of the reference results."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference.columns import pack, unpack
from tests.reference.files import PLAIN
from tests.reference.tables import (
    EVENT,
    FOLDER,
    GAPS,
    LENGTHS,
    OPERATORS,
    SHARE,
    TABLES,
    TEXT,
    VOCABULARY,
    derived,
    kept,
    kind_of,
)

MOST_BYTES = 1_000_000
ONE_WAY = (TEXT, EVENT, GAPS, LENGTHS, OPERATORS, SHARE, VOCABULARY)
"""Kinds whose files made of a table are not those that the table was derived from."""

scalars = st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(allow_nan=False) | st.text(max_size=5)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "num_decode_tokens": st.integers(0, 9),
            "at": st.integers(0, 10**12),
            "name": st.integers(0, 9).map("r{}".format),
        },
        optional={"ms": st.integers(0, 10**9).map(lambda n: n / 1000), "gap": st.floats(0, 1e6), "any": scalars},
    ),
    max_size=8,
)
values = st.recursive(
    scalars | rows, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=4)
)


def exactly(value: Any) -> str:
    """Text that differs for a number and its float, and for any two floats."""
    return json.dumps(value)


@pytest.mark.slow
@given(values)
def test_packed_values_come_back(value: Any) -> None:
    assert exactly(unpack(json.loads(json.dumps(pack(value))))) == exactly(value)


def test_mean_gaps_are_kept_as_whole_numbers() -> None:
    gaps = [{"output_tokens": 2 + n, "itl_mean_us": (10_000 + n) / (1 + n)} for n in range(3, 8)]
    assert pack(gaps)["columns"]["itl_mean_us"] == {"mean_gaps": {"steps": [10_003, 1, 1, 1, 1]}}


@pytest.mark.parametrize("table", TABLES)
def test_files_made_of_a_table_hold_its_figures(table: str, reference: Path) -> None:
    found, expected = derived(table, reference / "golden", but=ONE_WAY), kept(table)
    assert found
    for name, packed in found.items():
        assert exactly(packed) == exactly(expected[name]), name
    others = {name for name in expected if kind_of(table, name) in ONE_WAY}
    assert {*found, *others} == {*expected}


@pytest.mark.slow
def test_tables_are_those_of_the_reference_results(shared: Path) -> None:
    for table in TABLES:
        # Deriving them takes all runs that use the times of operators, or all captured requests.
        slow = (OPERATORS, VOCABULARY)
        found, expected = derived(table, shared / "golden", but=slow), kept(table)
        assert list(found) == [name for name in expected if kind_of(table, name) not in slow]
        for name, packed in found.items():
            assert exactly(packed) == exactly(expected[name]), name
        for name in expected:
            if kind_of(table, name) is VOCABULARY:
                real = json.loads((shared / "golden" / name).read_text(encoding="utf-8"))
                assert expected[name]["model"]["vocab"].items() <= real["model"]["vocab"].items()


def test_tables_are_small_and_do_not_record_when_they_were_made() -> None:
    paths = sorted(FOLDER.iterdir())
    assert [path.name for path in paths] == sorted(f"{table}.json.gz" for table in TABLES)
    assert sum(path.stat().st_size for path in paths) < MOST_BYTES
    assert {path.read_bytes()[3:8] for path in paths} == {gzip.compress(b"", mtime=0)[3:8]}


def test_odd_traces_differ_from_the_plain_one_in_few_lines() -> None:
    changes = {name: packed for name, packed in kept("odd").items() if "/t" in name and PLAIN not in name}
    assert len(changes) > 80
    assert sum(end - begin for packed in changes.values() for begin, end, _ in packed) < 5 * len(changes)
