"""The text of a workload spec, written block by block."""

import sys
from random import Random
from typing import Any

import pytest

from blis_sim.options.yaml_text import dump_yaml
from traces.workload.spec import block_text

TEXTS = (
    *(
        "",
        "a",
        "null",
        "true",
        "1e3",
        "0x1",
        "010",
        "1:30",
        "2026-01-31",
        "- a",
        "# a",
        "a: b",
        "a #b",
        "é",
        "日 本",
        "😀",
    ),
    *(
        "'",
        '"',
        "a'b",
        "{",
        "[",
        "&a",
        "*a",
        "!a",
        "%a",
        "@a",
        "|",
        ">",
        "<<",
        "=",
        "~",
        "a\nb",
        " a",
        "a ",
        "\t",
        "\x07",
    ),
    "long " * 40,
)
NUMBERS: tuple[Any, ...] = (None, True, False, 0, -3, 2.5, 1e300, 1e-5, float("inf"), 10**20, 1.0)


def drawn(random: Random, depth: int) -> Any:
    """A value of keys and values, lists and scalars."""
    kind = random.random()
    if depth == 0 or (depth < 4 and kind < 0.35):
        return {random.choice(TEXTS): drawn(random, depth + 1) for _ in range(random.randint(0, 4))}
    if depth < 4 and kind < 0.5:
        return [drawn(random, depth + 1) for _ in range(random.randint(0, 3))]
    return random.choice(NUMBERS if kind < 0.7 else TEXTS)


def test_blocks_are_the_text_of_the_yaml_library() -> None:
    random = Random(4)
    for _ in range(400):
        value = drawn(random, 0)
        assert block_text(value) == dump_yaml(value, indent=4, width=1 << 20)


def test_equal_scalars_of_many_clients_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def noted(value: Any, **style: Any) -> str:
        seen.append(value)
        return dump_yaml(value, **style)

    monkeypatch.setattr(sys.modules["traces.workload.spec"], "dump_yaml", noted)
    clients = [{"id": f"c{number}", "rate_fraction": 0.5, "arrival": {"process": "poisson"}} for number in range(300)]
    assert block_text({"clients": clients}) == dump_yaml({"clients": clients}, indent=4, width=1 << 20)
    assert len(seen) == 300 + len({"clients", "id", "rate_fraction", "arrival", "process", 0.5, "poisson"})
