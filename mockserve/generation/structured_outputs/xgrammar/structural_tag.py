"""Structural tags with the rules of xgrammar: text with constrained parts."""

from collections.abc import Callable, Mapping
from typing import Any

from mockserve.generation.structured_outputs.xgrammar.features import XgrammarError
from mockserve.generation.structured_outputs.xgrammar.grammars import parse_ebnf
from mockserve.generation.structured_outputs.xgrammar.json_schema import check_json_schema
from mockserve.generation.structured_outputs.xgrammar.regex import regex_to_ebnf

MAX_BOUND = 2**31 - 1
_UNLIMITED = frozenset(
    {"any_text", "any_tokens", "triggered_tags", "token_triggered_tags", "dispatch", "token_dispatch"}
    | {"tags_with_separator", "star", "plus"}
)
STYLES = frozenset(
    {"json", "qwen_xml", "minimax_xml", "minimax_m3_xml", "deepseek_xml", "deepseek_v4_1_xml", "glm_xml", "cohere_xml"}
    | {"kimi_k3_xml"}
)


def check_structural_tag(tag: Any) -> None:
    """Raise XgrammarError for a structural tag that xgrammar refuses. The message is never shown to clients."""
    if not isinstance(tag, Mapping):
        raise _refusal("Structural tag must be an object")
    if "structures" in tag:
        _check_format(_from_structures(tag))
        return
    if tag.get("type", "structural_tag") != "structural_tag" or "format" not in tag:
        raise _refusal("Structural tag must have a format field")
    _check_format(tag["format"])


def _from_structures(tag: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the older notation to the equivalent format."""
    structures = tag["structures"]
    if not isinstance(structures, list) or not isinstance(tag.get("triggers"), list):
        raise _refusal("structures and triggers must be lists")
    tags = []
    for each in structures:
        if not isinstance(each, Mapping) or not {"begin", "schema", "end"} <= each.keys():
            raise _refusal("a structure needs begin, schema and end")
        content = {"type": "json_schema", "json_schema": each["schema"]}
        tags.append({"type": "tag", "begin": each["begin"], "content": content, "end": each["end"]})
    return {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}


def _check_format(form: Any) -> None:
    if not isinstance(form, Mapping):
        raise _refusal("Format must be an object")
    kind = form.get("type")
    if "type" in form:
        if not isinstance(kind, str) or kind not in _CHECKS:
            raise _refusal(f"Format type not recognized: {kind}")
        _CHECKS[kind](form)
        return
    for name in _TRIED_WITHOUT_TYPE:
        try:
            _CHECKS[name](form)
        except XgrammarError:
            continue
        return
    raise _refusal("Invalid format")


def _const_string(form: Mapping[str, Any]) -> None:
    _require(isinstance(form.get("value"), str), "value")


def _json_schema(form: Mapping[str, Any]) -> None:
    _require(isinstance(form.get("json_schema"), Mapping | bool), "json_schema")
    style = form.get("style", "json")
    has_style = form.get("type") != "qwen_xml_parameter"
    _require(not has_style or not isinstance(style, str) or style in STYLES, "style")
    _require(isinstance(form.get("any_order", False), bool), "any_order")
    _require(_is_number(form.get("max_whitespace_cnt", 1) or 1), "max_whitespace_cnt")
    if "excludes" in form:
        _require(_are_texts(form["excludes"], is_filled=True), "excludes")
    check_json_schema(form["json_schema"])


def _any_text(form: Mapping[str, Any]) -> None:
    _check_budget(form, "max_tokens", "max_chars")
    if "excludes" not in form:
        _require("type" in form, "type")
    else:
        _require(_are_texts(form["excludes"]), "excludes")


def _grammar(form: Mapping[str, Any]) -> None:
    _require(isinstance(form.get("grammar"), str) and form["grammar"] != "", "grammar")
    parse_ebnf(form["grammar"])


def _regex(form: Mapping[str, Any]) -> None:
    pattern = form.get("pattern")
    _require(isinstance(pattern, str) and pattern != "", "pattern")
    parse_ebnf(f"root ::= {regex_to_ebnf(str(pattern))}\n")


def _elements(form: Mapping[str, Any]) -> None:
    elements = form.get("elements")
    _require(isinstance(elements, list) and elements != [], "elements")
    for each in elements or ():
        _check_format(each)


def _tag(form: Any) -> None:
    _require(isinstance(form, Mapping) and form.get("type", "tag") == "tag", "type")
    begin, end = form.get("begin"), form.get("end")
    _require(isinstance(begin, str | Mapping), "begin")
    _require("content" in form, "content")
    _check_format(form["content"])
    _require(isinstance(end, str | Mapping) or (_are_texts(end) and end != []), "end")
    ends = [end] if isinstance(end, str) else end if isinstance(end, list) else ["token"]
    content = form["content"]
    _require(any(ends) or not _is_unlimited(content) or _has_excludes(content), "end")
    for mark in (begin, end):
        if isinstance(mark, Mapping):
            _require(mark.get("type", "token") == "token", "type")
            _token(mark)


def _triggered_tags(form: Mapping[str, Any]) -> None:
    triggers = form.get("triggers")
    _require(_are_texts(triggers, is_filled=True) and triggers != [], "triggers")
    _check_tags(form)
    if "excludes" in form:
        _require(_are_texts(form["excludes"], is_filled=True), "excludes")
    begins = [each["begin"] for each in form["tags"] if isinstance(each["begin"], str)]
    for begin in begins:
        _require(sum(begin.startswith(trigger) for trigger in triggers or ()) == 1, "begin")
    for trigger in triggers or ():
        _require(any(begin.startswith(trigger) for begin in begins), "triggers")


def _tags_with_separator(form: Mapping[str, Any]) -> None:
    _check_tags(form)
    _require(isinstance(form.get("separator"), str), "separator")


def _token_triggered_tags(form: Mapping[str, Any]) -> None:
    _require(_are_tokens(form.get("trigger_tokens")) and form["trigger_tokens"] != [], "trigger_tokens")
    _check_tags(form)
    _require(_are_tokens(form.get("exclude_tokens", [])), "exclude_tokens")


def _check_tags(form: Mapping[str, Any]) -> None:
    tags = form.get("tags")
    _require(isinstance(tags, list) and tags != [], "tags")
    for each in tags or ():
        _tag(each)
    for name in ("at_least_one", "stop_after_first"):
        _require(isinstance(form.get(name, False), bool), name)


def _content(form: Mapping[str, Any]) -> None:
    _require("content" in form, "content")
    _check_format(form["content"])


def _repeat(form: Mapping[str, Any]) -> None:
    least, most = form.get("min"), form.get("max")
    _require(_is_number(least) and _is_number(most), "min and max")
    least, most = int(least or 0), int(most or 0)
    _require(0 <= least <= MAX_BOUND and most >= -1 and (most < 0 or least <= most), "min and max")
    _content(form)


def _token(form: Mapping[str, Any]) -> None:
    _require("token" in form and _are_tokens([form["token"]]), "token")


def _excluded_tokens(form: Mapping[str, Any]) -> None:
    _require(_are_tokens(form.get("exclude_tokens", [])), "exclude_tokens")
    _check_budget(form, "max_tokens")


def _dispatch(form: Mapping[str, Any]) -> None:
    rules = form.get("rules")
    _require(isinstance(rules, list) and rules != [], "rules")
    is_by_token = form.get("type") == "token_dispatch"
    for each in rules or ():
        _require(isinstance(each, list) and len(each) == 2, "rules")
        _require(_are_tokens(each[:1]) if is_by_token else isinstance(each[0], str), "rules")
        _check_format(each[1])
    _require(isinstance(form.get("loop", True), bool), "loop")


def _check_budget(form: Mapping[str, Any], *names: str) -> None:
    for name in names:
        value = form.get(name)
        _require(value is None or (_is_number(value) and value == int(value) and value >= 0), name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_texts(values: Any, is_filled: bool = False) -> bool:
    return isinstance(values, list) and all(isinstance(each, str) and (each or not is_filled) for each in values)


def _are_tokens(values: Any) -> bool:
    def is_token(value: Any) -> bool:
        # A token by its text needs a tokenizer, which vLLM's check does not have.
        return _is_number(value) and value >= 0 and value == int(value)

    return isinstance(values, list) and all(map(is_token, values))


def _is_unlimited(form: Any) -> bool:
    """Whether text of the format can continue without limit."""
    kind = form.get("type", _guessed_type(form))
    if kind in ("sequence", "or"):
        return any(_is_unlimited(each) and not _has_excludes(each) for each in form["elements"])
    if kind == "optional":
        return _is_unlimited(form["content"])
    if kind == "repeat":
        return form["max"] == -1 or (form["max"] != 0 and _is_unlimited(form["content"]))
    return kind in _UNLIMITED


def _guessed_type(form: Mapping[str, Any]) -> str:
    names = {"elements": "sequence", "tags": "triggered_tags", "min": "repeat", "excludes": "any_text"}
    return next((kind for name, kind in names.items() if name in form), "")


def _has_excludes(form: Any) -> bool:
    name = {"any_text": "excludes", "triggered_tags": "excludes", "dispatch": "excludes"}
    name |= dict.fromkeys(("token_triggered_tags", "token_dispatch", "any_tokens"), "exclude_tokens")
    return bool(form.get(name.get(form.get("type"), ""), ()))


def _require(is_right: bool, name: str) -> None:
    if not is_right:
        raise _refusal(f"{name} is not what xgrammar reads")


def _refusal(reason: str) -> XgrammarError:
    return XgrammarError(reason)


_CHECKS: dict[str, Callable[[Mapping[str, Any]], None]] = {
    "const_string": _const_string,
    "json_schema": _json_schema,
    "qwen_xml_parameter": _json_schema,
    "any_text": _any_text,
    "grammar": _grammar,
    "regex": _regex,
    "sequence": _elements,
    "or": _elements,
    "tag": _tag,
    "triggered_tags": _triggered_tags,
    "tags_with_separator": _tags_with_separator,
    "optional": _content,
    "plus": _content,
    "star": _content,
    "repeat": _repeat,
    "token": _token,
    "exclude_token": _excluded_tokens,
    "any_tokens": _excluded_tokens,
    "token_triggered_tags": _token_triggered_tags,
    "dispatch": _dispatch,
    "token_dispatch": _dispatch,
}
_TRIED_WITHOUT_TYPE = (
    *("tag", "const_string", "json_schema", "any_text", "sequence", "triggered_tags", "tags_with_separator"),
    *("optional", "repeat", "dispatch"),
)
