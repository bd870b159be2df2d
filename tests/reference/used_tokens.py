"""The tokens of the captured servers' vocabularies that the tests of captured requests use."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mockserve.generation import tokenizer
from mockserve.generation.tokenizer import FileTokenizer


@cache
def used_tokens(oracle: Path) -> dict[str, set[int]]:
    """Return the ids by the folder of the vocabulary: the tests run with a record of all tokens that are met."""
    from tests.mockserve.generation.test_real_vocabularies import CHECKS
    from tests.wire.captured.replay import found_differences
    from tests.wire.captured.setups import SETUPS

    found: dict[str, set[int]] = {}
    with pytest.MonkeyPatch.context() as patch:
        _note_tokens(patch, found)
        for setup in SETUPS:
            found_differences(setup, oracle.parent)
        for check in CHECKS:
            check(oracle)
    return found


def _note_tokens(patch: pytest.MonkeyPatch, found: dict[str, set[int]]) -> None:
    """Let vocabularies note the tokens of all texts and ids that they are given, by the name of their folder."""
    folders: dict[int, str] = {}
    load = tokenizer._load

    def noted_load(path: Path) -> Any:
        loaded = load(path)
        folders[id(loaded)] = path.parent.name
        found.setdefault(path.parent.name, set())
        kept.append(loaded)
        return loaded

    def noted(method: Callable[..., Any], ids_of: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        def call(self: FileTokenizer, given: Any, *rest: Any, **named: Any) -> Any:
            result = method(self, given, *rest, **named)
            found[folders[id(self._tokenizer)]].update(ids_of(given, result))
            return result

        return call

    kept: list[Any] = []  # so that no other object has the id of one of them
    patch.setattr(tokenizer, "_load", noted_load)
    patch.setattr(FileTokenizer, "encode", noted(FileTokenizer.encode, lambda _, ids: ids))
    patch.setattr(FileTokenizer, "split", noted(FileTokenizer.split, lambda _, split: split.ids))
    patch.setattr(FileTokenizer, "decode", noted(FileTokenizer.decode, lambda ids, _: ids))
    patch.setattr(FileTokenizer, "token_strings", noted(FileTokenizer.token_strings, lambda ids, _: ids))
    patch.setattr(
        FileTokenizer, "marker_id", noted(FileTokenizer.marker_id, lambda _, number: () if number is None else [number])
    )
