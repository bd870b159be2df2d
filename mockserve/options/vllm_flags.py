"""vLLM's flags, the kinds of their values, and the parsers of values."""

import csv
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from blis_sim.options import OptionError, StartError
from blis_sim.options.option import load_json

TABLE = Path(__file__).parent / "flags.csv"
_MEMBERS = Path(__file__).parent / "config_members.csv"

SWITCHES = ("pair", "switch")
"""Kinds of flags without a value, with and without an opposite spelling."""

ACTS, UNSEEN = "acts", "unseen"
"""Classes of flags: a flag has an effect, or has none that a client or a prediction can observe. Any other text is the
assumption made for a flag that is not modelled."""

_OPPOSITES = (("--enable-", "--disable-"), ("--disable-", "--enable-"))


@dataclass(frozen=True, slots=True)
class VllmFlag:
    """One flag of `vllm serve`.

    `kind` is a key of `values.CHECKS` or one of `SWITCHES`. `number` is `+` for one or several values, `?` for none or
    one, `append` for a flag that may be repeated, else empty. `here` is `ACTS`, `UNSEEN` or an assumption.
    """

    spellings: tuple[str, ...]
    kind: str
    number: str
    choices: tuple[str, ...]
    about: str
    here: str = UNSEEN

    @property
    def is_not_modelled(self) -> bool:
        """Whether the flag has an effect in vLLM that this server does not model."""
        return self.here not in (ACTS, UNSEEN)

    @property
    def name(self) -> str:
        """The preferred spelling."""
        return self.spellings[0]

    @property
    def is_switch(self) -> bool:
        """Whether the flag has no value."""
        return self.kind in SWITCHES

    @property
    def opposites(self) -> tuple[str, ...]:
        """The spellings that turn the flag off."""
        if self.kind != "pair":
            return ()
        long_ones = [spelling for spelling in self.spellings if spelling.startswith("--")]
        found = [f"--no-{spelling.removeprefix('--')}" for spelling in long_ones]
        for spelling in long_ones:
            found += [other + spelling.removeprefix(own) for own, other in _OPPOSITES if spelling.startswith(own)]
        return tuple(found)


def read_table(path: Path = TABLE) -> Mapping[str, VllmFlag]:
    """Return the flags by each of their spellings, opposites included. Cost: about 1 ms."""
    with path.open(encoding="utf-8", newline="") as file:
        flags = [
            VllmFlag(
                spellings=tuple(row["flags"].split()),
                kind=row["value"],
                number=row["number"],
                choices=tuple(row["choices"].split()),
                about=row["about"],
                here=row.get("here", UNSEEN),
            )
            for row in csv.DictReader(file)
        ]
    return {spelling: flag for flag in flags for spelling in (*flag.spellings, *flag.opposites)}


def check_acting(table: Mapping[str, VllmFlag], own_flags: Collection[str]) -> None:
    """Raise OptionError for a flag that acts by its row, but is none of `own_flags`. Cost: about 0.1 ms."""
    for flag in table.values():
        if flag.here == ACTS and not any(each in own_flags for each in flag.spellings):
            raise OptionError(f"{TABLE.name}: {flag.name} acts by its row, but no field of the options has this name")


@cache
def members_of() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Return the members of each configuration object that vLLM's parser reads, by the preferred name of its flag.

    With each member are the words that vLLM takes for it, none where any value may be right.
    """
    with _MEMBERS.open(encoding="utf-8", newline="") as file:
        return {row["flag"]: dict(map(_member, row["members"].split())) for row in csv.DictReader(file)}


def _member(text: str) -> tuple[str, tuple[str, ...]]:
    name, _, words = text.partition("=")
    return name, tuple(filter(None, words.split("|")))


FITTED = "auto"
"""Value for the longest context that fits."""

_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_WITH_SUFFIX = re.compile(r"(\d+)(\.\d+)?([kKmMgGtT])")
_JSON_STRING = re.compile(r'("(?:[^"\\]|\\.)*")')
_BARE_WITH_SUFFIX = re.compile(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b")


def read_size(text: str) -> int:
    """Parse a whole number, also with a suffix: 8k is 8000, 8K is 8192. Raises ValueError."""
    text = text.strip()
    match = _WITH_SUFFIX.fullmatch(text)
    if match is None:
        return int(text)
    whole, fraction, suffix = match.groups()
    if suffix in _DECIMAL:
        return int(float(whole + (fraction or "")) * _DECIMAL[suffix])
    if fraction:
        raise ValueError(f"{suffix} is a power of two and takes no fraction")
    return int(whole) * _BINARY[suffix]


def read_json(text: str) -> Any:
    """Parse JSON in which bare numbers may have a suffix. Raises ValueError."""
    parts = _JSON_STRING.split(text)
    # Every second part is a quoted string, which is unchanged.
    parts[::2] = [_BARE_WITH_SUFFIX.sub(lambda found: str(read_size(found[0])), part) for part in parts[::2]]
    return load_json("".join(parts))


def checked(flag: VllmFlag, text: str) -> str:
    """Return the value in the format of our flags. Raises OptionError for a value that vLLM refuses."""
    kind = flag.kind
    if kind.endswith("?"):
        if text in ("", "None"):
            return ""
        kind = kind.removesuffix("?")
    expected, read = CHECKS[kind]
    try:
        value = read(text)
    except ValueError as error:
        raise OptionError(f"{flag.name} must be {expected}, got {text!r}") from error
    if flag.choices and value not in flag.choices:
        raise OptionError(f"{flag.name} must be one of {', '.join(flag.choices)}, got {text!r}")
    if kind == "object":
        _check_members(flag.name, value)
    return value


def _check_members(name: str, text: str) -> None:
    known = members_of().get(name, {})
    for member, value in load_json(text).items() if known else ():
        if member not in known:
            raise OptionError(f"{name}: unexpected member {member!r}, members are {', '.join(known)}")
        words = known[member]
        if words and value is not None and not _is_one_of(value, words):
            raise OptionError(f"{name}: {member} must be one of {', '.join(words)}, got {value!r}")


def _is_one_of(value: Any, words: Sequence[str]) -> bool:
    """Whether a value is one of the words, or the number of one."""
    if isinstance(value, str):
        return value.lower() in map(str.lower, words)
    return type(value) is int and value in range(len(words))


def _count(text: str) -> str:
    count = int(text)
    if count < 1:
        raise StartError(f"tensor_parallel_size must be at least 1, got {count}")
    return str(count)


def _float(text: str) -> str:
    float(text)
    return text


def _length(text: str) -> str:
    if text.strip().lower() in ("-1", FITTED):
        return FITTED
    length = read_size(text)
    if length < 1:
        raise StartError(f"max_model_len must be a positive integer, got int: {length}. Example: max_model_len=2048")
    return str(length)


def _object(text: str) -> str:
    value = read_json(text)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return json.dumps(value)


def _media_limits(text: str) -> str:
    """Return most items of each medium. Raises StartError in the words of pydantic, by which vLLM reads the object."""
    from pydantic import TypeAdapter, ValidationError  # 50 ms that a server without this flag has no use for

    value = read_json(text)
    try:
        TypeAdapter(dict[str, int | dict[str, int]] | None).validate_python(value)
    except ValidationError as error:
        found = (
            ".".join(map(str, ("limit_mm_per_prompt", *each["loc"]))) + f": {each['msg']}" for each in error.errors()
        )
        raise StartError("; ".join(found)) from error
    return json.dumps(value)


def _attention_backend(text: str) -> str:
    name, known = text.upper(), members_of()["--attention-config"]["backend"]
    if name not in known:
        kernels = [each for each in known if each != "AUTO"]
        raise StartError(f"Unknown attention backend: {name!r}. Valid options are: {', '.join(kernels)}")
    return name


def _optimization_level(text: str) -> str:
    if text not in ("0", "1", "2", "3"):
        raise StartError(f"optimization_level must be 0, 1, 2 or 3, got {text!r}")
    return text


CHECKS: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "text": ("text", str),
    "name": ("a name", lambda text: text.lower().replace("-", "_")),
    "int": ("a whole number", lambda text: str(int(text))),
    "count": ("a whole number", _count),
    "float": ("a number", _float),
    "size": ("a whole number, such as 8192, 8k (8000) or 8K (8192)", lambda text: str(read_size(text))),
    "length": ("a whole number, such as 8192, 8k (8000) or 8K (8192), or auto", _length),
    "attention backend": ("the name of an attention backend", _attention_backend),
    "optimization level": ("a level from 0 to 3", _optimization_level),
    "json": ("JSON", lambda text: json.dumps(read_json(text))),
    "media limits": ("JSON", _media_limits),
    "object": ("a JSON object", _object),
    "object or text": ("text or a JSON object", lambda text: _object(text) if text.lstrip().startswith("{") else text),
}
"""Description and parser of values, by kind."""
