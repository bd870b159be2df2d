"""`--compilation-config.level 3`: the members of a JSON flag given one by one."""

import json
from typing import Any

from blis_sim.options import OptionError
from blis_sim.options.text import load_json
from mockserve.vllm_arguments.values import read_size


def with_objects(arguments: list[str]) -> list[str]:
    """`arguments` with all members of one flag joined into one JSON value, at the end as vLLM has it.

    `--flag.list+ a` appends to a list. Raises OptionError for a member without a value.
    """
    plain: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    left = iter(arguments)
    for argument in left:
        name, has_value, text = argument.partition("=")
        if not argument.startswith("-") or "." not in name or _is_number(name):
            plain.append(argument)
            continue
        if not has_value:
            following = next(left, None)
            if following is None:
                raise OptionError(f"{name} must be given a value")
            text = following
        flag, *keys = name.removesuffix("+").split(".")
        value: Any = text.split(",") if name.endswith("+") else _value(text)
        for key in reversed(keys):
            value = {key: value}
        _merge(objects.setdefault(flag, {}), value)
    return plain + [each for flag, value in objects.items() for each in (flag, json.dumps(value))]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _value(text: str) -> Any:
    """JSON if it is, a number with a suffix if it is, else the text itself."""
    try:
        return load_json(text)
    except ValueError:
        pass
    try:
        return read_size(text)
    except ValueError:
        return text


def _merge(known: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        before = known.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            _merge(before, value)
        elif isinstance(value, list) and isinstance(before, list):
            before += value
        else:
            known[key] = value
