"""Random tests draw the same examples in every run of the suite."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st


def drawn() -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []

    @seed(0)
    @settings(database=None)
    @given(st.integers(), st.text())
    def keep(number: int, text: str) -> None:
        found.append((number, text))

    keep()
    return found


def test_the_examples_of_a_test_do_not_depend_on_the_modules_that_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = drawn()
    module = ModuleType("loaded_later")
    module.__file__ = str(tmp_path / "loaded_later.py")
    numbers = "\n".join(f"NUMBER_{number} = {number}" for number in range(123_456, 124_456))
    (tmp_path / "loaded_later.py").write_text(f'"""Later."""\n{numbers}\nNAME = "a name of its own"\n')
    monkeypatch.setitem(sys.modules, "loaded_later", module)
    assert drawn() == before


@pytest.mark.parametrize("profile", ["daily", "tenth"])
def test_what_everyday_profiles_draw_depends_on_nothing_but_the_test(profile: str) -> None:
    used = settings.get_profile(profile)
    assert (used.derandomize, used.database) == (True, None)
    assert not settings.get_profile("nightly").derandomize
