"""The models of the catalogue: rows of `models.jsonl` beside this module.

A row has the keys of one published `config.json` that a plan of memory or a latency model reads, written short:

- `{"times": 3, "of": [a, b]}` in a list stands for `a, b` three times;
- `layers.{0..2,5}.mlp` in a list or as a key stands for one text for each of the numbers;
- `like` names a row whose keys this one has, but for those that it states itself.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue.nearest import nearest_hint
from blis_sim.engine.model_spec import Checkpoint

_FILE = Path(__file__).parent / "models.jsonl"
_NUMBERS = re.compile(r"\{([\d.,]+)\}")


class ModelEntry(NamedTuple):
    """A model of the catalogue.

    `name` is lower case and without `organisation`; `gpu` and `tp` are the deployment when the user names none.
    `source` is where the config was published, `assumed` are keys that could not be checked against a published one.
    """

    name: str
    organisation: str
    aliases: tuple[str, ...]
    gpu: str
    tp: int
    source: str
    assumed: tuple[str, ...]
    checkpoint: Checkpoint


def short_name(model: str) -> str:
    """Return how the catalogue spells a model: lower case, no `org/`."""
    return model.rstrip("/").rsplit("/", 1)[-1].lower()


def model_names() -> list[str]:
    """Return every model of the catalogue, without other names."""
    return sorted(_rows())


def has_model(name: str) -> bool:
    """Return whether the catalogue has `name`."""
    return _canonical(name) is not None


def model_entry(name: str) -> ModelEntry:
    """Return a model of the catalogue. Raises EngineError, with the nearest names, when the catalogue lacks it."""
    canonical = _canonical(name)
    if canonical is None:
        raise EngineError(
            f"model {name!r} is not in the catalogue{nearest_hint(short_name(name), _names())}; `blis models` lists "
            "all, and a folder with the config.json of another one takes its place"
        )
    return _entry(canonical)


def _canonical(name: str) -> str | None:
    """Return the name of the row that a user means; a family without a base model is asked for without its suffix."""
    names, short = _names(), short_name(name)
    return names.get(short) or names.get(f"{short}-instruct")


@cache
def _entry(name: str) -> ModelEntry:
    row = _rows()[name]
    quantization = row.get("hf_quant_config")
    return ModelEntry(
        name=name,
        organisation=row.get("organisation", ""),
        aliases=tuple(row.get("aliases", ())),
        gpu=row["deployment"]["gpu"],
        tp=row["deployment"]["tp"],
        source=row["source"],
        assumed=tuple(row.get("assumed", ())),
        checkpoint=Checkpoint(_config(name), None if quantization is None else _written_out(quantization)),
    )


def _config(name: str) -> dict[str, Any]:
    row = _rows()[name]
    own: dict[str, Any] = _written_out(row["config"])
    return {**_config(row["like"]), **own} if "like" in row else own


def _written_out(value: Any) -> Any:
    """Return a value without the short forms of the table."""
    if isinstance(value, dict):
        return {name: _written_out(each) for key, each in value.items() for name in _texts(key)}
    if not isinstance(value, list):
        return value
    items: list[Any] = []
    for each in value:
        if isinstance(each, dict) and each.keys() == {"times", "of"}:
            items += _written_out(each["of"]) * each["times"]
        elif isinstance(each, str):
            items += _texts(each)
        else:
            items.append(_written_out(each))
    return items


def _texts(text: str) -> Iterator[str]:
    """Yield the texts that one with numbers in braces stands for."""
    found = _NUMBERS.search(text)
    if found is None:
        yield text
        return
    for part in found[1].split(","):
        first, _, last = part.partition("..")
        for number in range(int(first), int(last or first) + 1):
            yield from _texts(f"{text[: found.start()]}{number}{text[found.end() :]}")


@cache
def _rows() -> Mapping[str, Mapping[str, Any]]:
    rows = map(json.loads, _FILE.read_text(encoding="utf-8").splitlines())
    return {row["model"]: row for row in rows}


@cache
def _names() -> Mapping[str, str]:
    """Return the canonical name under every name."""
    return {name: model for model, row in _rows().items() for name in (model, *row.get("aliases", ()))}
