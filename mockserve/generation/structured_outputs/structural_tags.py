"""Structural tags: free text with constrained parts, as `structural_tag` describes them."""

from collections.abc import Callable, Mapping
from random import Random
from types import UnionType
from typing import Any

from mockserve.generation.structured_outputs.guided import grammar_of_xgrammar, guided_text
from mockserve.generation.structured_outputs.json_instances import closest_text
from mockserve.generation.structured_outputs.patterns import match_of
from mockserve.generation.tokenizer import WORDS

SOFT_LIMIT_CHARS = 40
MOST_TAGS = 2
MOST_MORE = 3
MOST_REPEATS = 1000


class TagError(ValueError):
    """An invalid structural tag."""


def tag_text(tag: Any, random: Random, verbosity: int) -> str:
    """Return a text of the form. `verbosity` 0 gives about the shortest, 2 a longer one."""
    if not isinstance(tag, Mapping):
        raise TagError("a structural tag must be an object")
    writer = _Writer(random, verbosity)
    if "structures" in tag:
        return writer.structures(tag)
    return writer.write(tag.get("format"))


class _Writer:
    """Writes the formats of one tag."""

    def __init__(self, random: Random, verbosity: int) -> None:
        self._random = random
        self._verbosity = verbosity
        self._soft_limit_chars = SOFT_LIMIT_CHARS * verbosity

    def structures(self, tag: Mapping[str, Any]) -> str:
        """Write the older form: free text, and after each trigger one of the structures that begin with it."""
        structures, triggers = _required_list(tag, "structures"), _required_list(tag, "triggers")
        for each in structures:
            if not any(_required_text(each, "begin").startswith(str(trigger)) for trigger in triggers):
                raise TagError("every structure must begin with a trigger")
        if not structures or not triggers:
            raise TagError("structures and triggers must not be empty")
        chosen = self._random.choices(structures, k=max(1, self._random.randint(0, self._verbosity)))
        return self._prose() + "".join(map(self._structure, chosen))

    def _structure(self, structure: Mapping[str, Any]) -> str:
        inner = closest_text(structure.get("schema", True), self._random, self._verbosity)
        return f"{structure['begin']}{inner}{_required_text(structure, 'end')}"

    def write(self, form: Any) -> str:
        """Write a text of one format."""
        writers: dict[Any, Callable[[Mapping[str, Any]], str]] = {
            "const_string": lambda form: _required_text(form, "value"),
            "json_schema": self._json,
            "qwen_xml_parameter": self._json,
            "any_text": lambda _: self._prose(least=1),
            "any_tokens": lambda _: self._prose(least=1),
            "exclude_token": lambda _: self._random.choice(WORDS),
            "token": lambda form: str(form.get("token", "")),
            "grammar": self._grammar,
            "regex": self._regex,
            "sequence": lambda form: "".join(map(self.write, _required_list(form, "elements"))),
            "or": lambda form: self.write(self._random.choice(_required_list(form, "elements"))),
            "tag": self._tag,
            "triggered_tags": self._triggered,
            "token_triggered_tags": self._triggered,
            "tags_with_separator": self._separated,
            "optional": lambda form: self._several(form, 0, 1),
            "plus": lambda form: self._several(form, 1, 1 + MOST_MORE),
            "star": lambda form: self._several(form, 0, MOST_MORE),
            "repeat": self._repeat,
            "dispatch": lambda _: self._prose(least=1),
            "token_dispatch": lambda _: self._prose(least=1),
        }
        kind = form.get("type", _type_by_fields(form)) if isinstance(form, Mapping) else None
        if not isinstance(kind, str) or kind not in writers:
            raise TagError(f"unknown format {kind!r}")
        return writers[kind](form)

    def _prose(self, least: int = 0) -> str:
        """Return at least `least` words; an answer that is only free text must not be empty."""
        return " ".join(self._random.choices(WORDS, k=max(least, self._random.randint(0, 3 * self._verbosity))))

    def _json(self, form: Mapping[str, Any]) -> str:
        return closest_text(form.get("json_schema", True), self._random, self._verbosity)

    def _grammar(self, form: Mapping[str, Any]) -> str:
        return guided_text(grammar_of_xgrammar(_required_text(form, "grammar")), self._random, self._soft_limit_chars)

    def _regex(self, form: Mapping[str, Any]) -> str:
        return match_of(_required_text(form, "pattern"), self._random, self._soft_limit_chars)

    def _tag(self, form: Mapping[str, Any]) -> str:
        begin, end = form.get("begin"), form.get("end")
        end = end[0] if isinstance(end, list) and end else end
        return f"{_mark_text(begin)}{self.write(form.get('content'))}{_mark_text(end)}"

    def _triggered(self, form: Mapping[str, Any]) -> str:
        tags = _required_list(form, "tags")
        least = 1 if form.get("at_least_one") else 0
        most = 1 if form.get("stop_after_first") else MOST_TAGS
        count = self._random.randint(least, max(least, min(most, self._verbosity))) if tags else 0
        before = "" if form.get("at_least_one") else self._prose(least=0 if count else 1)
        return before + "".join(self._tag(self._random.choice(tags)) for _ in range(count))

    def _separated(self, form: Mapping[str, Any]) -> str:
        tags = _required_list(form, "tags")
        least = 1 if form.get("at_least_one") else 0
        count = 1 if form.get("stop_after_first") and tags else self._random.randint(least, max(least, self._verbosity))
        return str(form.get("separator", "")).join(self._tag(self._random.choice(tags)) for _ in range(count))

    def _several(self, form: Mapping[str, Any], least: int, most: int) -> str:
        count = self._random.randint(least, max(least, min(most, least + self._verbosity)))
        return "".join(self.write(form.get("content")) for _ in range(count))

    def _repeat(self, form: Mapping[str, Any]) -> str:
        least, most = form.get("min", 0), form.get("max", -1)
        if type(least) is not int or type(most) is not int or not 0 <= least <= MOST_REPEATS:
            raise TagError("min and max of a repetition must be small integers")
        return self._several(form, least, least + MOST_MORE if most < 0 else most)


_TYPES_BY_FIELD = {
    "begin": "tag",
    "value": "const_string",
    "json_schema": "json_schema",
    "excludes": "any_text",
    "elements": "sequence",
    "triggers": "triggered_tags",
    "separator": "tags_with_separator",
    "min": "repeat",
    "content": "optional",
    "rules": "dispatch",
}


def _type_by_fields(form: Mapping[str, Any]) -> str | None:
    """Return the type of a format without `type`, found by its fields as in xgrammar."""
    return next((kind for field, kind in _TYPES_BY_FIELD.items() if field in form), None)


_FIELDS: Mapping[str, Mapping[str, type | UnionType]] = {
    "const_string": {"value": str},
    "json_schema": {"json_schema": Mapping | bool},
    "qwen_xml_parameter": {"json_schema": Mapping | bool},
    "grammar": {"grammar": str},
    "regex": {"pattern": str},
    "sequence": {"elements": list},
    "or": {"elements": list},
    "tag": {"begin": str | Mapping, "content": Mapping, "end": str | Mapping | list},
    "triggered_tags": {"triggers": list, "tags": list},
    "token_triggered_tags": {"trigger_tokens": list, "tags": list},
    "tags_with_separator": {"separator": str, "tags": list},
    "repeat": {"min": int, "max": int, "content": Mapping},
    **{kind: {"content": Mapping} for kind in ("optional", "plus", "star")},
    **{kind: {"rules": list} for kind in ("dispatch", "token_dispatch")},
    "token": {"token": int},
    **{kind: {} for kind in ("any_text", "any_tokens", "exclude_token")},
}
"""Required members of a format by its type. Lists have at least one item."""


_CHECKED_PARTS = {"json_schema": "json", "grammar": "grammar", "pattern": "regex"}
"""Kinds of constraints by the member of a format that holds one."""

_MAY_BE_EMPTY = ("begin", "end", "value", "separator")


def check_tag(tag: Any, checks: Mapping[str, Callable[[Any], None]]) -> None:
    """Raise TagError for a structural tag that xgrammar refuses.

    `checks` has the checks of the constraints within it, by their kinds; what they raise propagates.
    """
    if not isinstance(tag, Mapping):
        raise TagError("a structural tag must be an object")
    if "structures" in tag:
        structures = _required_list(tag, "structures")
        for each in structures:
            _required_text(each, "end")
            checks["json"](each.get("schema"))
        _check_triggers([_required_text(each, "begin") for each in structures], tag)
    elif tag.get("type", "structural_tag") == "structural_tag":
        _check_format(tag.get("format"), checks)
    else:
        raise TagError("the type of a structural tag must be structural_tag")


def _check_format(form: Any, checks: Mapping[str, Callable[[Any], None]]) -> None:
    kind = form.get("type", _type_by_fields(form)) if isinstance(form, Mapping) else None
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise TagError(f"unknown format {kind!r}")
    for name, expected in _FIELDS[kind].items():
        value = form.get(name)
        is_empty = value in ("", []) and name not in _MAY_BE_EMPTY
        if not isinstance(value, expected) or isinstance(value, bool) > (name == "json_schema") or is_empty:
            raise TagError(f"{name} of a format of type {kind} is not what xgrammar reads")
        if name in _CHECKED_PARTS:
            checks[_CHECKED_PARTS[name]](value)
    if kind == "repeat" and not (form["min"] >= 0 and (form["max"] == -1 or form["max"] >= form["min"])):
        raise TagError("min and max of a repetition are no range")
    if kind == "triggered_tags":
        _check_triggers([each.get("begin") for each in _checked_mappings(form, "tags")], form)
    for each in _formats_in(form, _FIELDS[kind]):
        _check_format(each, checks)


def _formats_in(form: Mapping[str, Any], fields: Mapping[str, Any]) -> list[Any]:
    """Return the formats within a format that has these fields."""
    found = _checked_mappings(form, "elements") if "elements" in fields else []
    if "tags" in fields:
        found = [{"type": "tag", **each} for each in _checked_mappings(form, "tags")]
    if "rules" in fields:
        if not all(isinstance(each, list) and len(each) == 2 for each in form["rules"]):
            raise TagError("a rule has a trigger and a format")
        found = [each[1] for each in form["rules"]]
    return [*found, form["content"]] if "content" in fields else found


def _checked_mappings(form: Mapping[str, Any], name: str) -> list[Any]:
    if not all(isinstance(each, Mapping) for each in form[name]):
        raise TagError(f"{name} must be a list of objects")
    found: list[Any] = form[name]
    return found


def _check_triggers(begins: list[Any], form: Mapping[str, Any]) -> None:
    """Raise TagError unless each tag begins with one trigger, and each trigger begins a tag."""
    triggers = _required_list(form, "triggers")
    if not triggers or not all(isinstance(each, str) and each for each in triggers):
        raise TagError("triggers must be texts")
    marks = [each for each in begins if isinstance(each, str)]
    if any(sum(begin.startswith(each) for each in triggers) != 1 for begin in marks):
        raise TagError("every tag must begin with one trigger")
    if not all(any(begin.startswith(each) for begin in marks) for each in triggers):
        raise TagError("every trigger must begin a tag")


def _required_list(form: Mapping[str, Any], name: str) -> list[Any]:
    value = form.get(name)
    if not isinstance(value, list) or not all(isinstance(each, Mapping | str) for each in value):
        raise TagError(f"{name} must be a list")
    return value


def _required_text(form: Any, name: str) -> str:
    value = form.get(name) if isinstance(form, Mapping) else None
    if not isinstance(value, str):
        raise TagError(f"{name} must be a string")
    return value


def _mark_text(value: Any) -> str:
    """Return the text of a tag's begin or end: a string, or a token's text."""
    if isinstance(value, Mapping):
        return str(value.get("token", ""))
    if not isinstance(value, str):
        raise TagError("a tag must begin and end with a string")
    return value
