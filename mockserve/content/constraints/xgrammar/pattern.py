"""Patterns that xgrammar's automaton supports, which it tries before it converts a pattern to EBNF."""

import re

MAX_REPEAT_DIGITS = 9

_CLASS = r"\[\^?(?:[^\]\\]|\\.)*\]"
_CODE_POINT = r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]{1,6}\}|c[A-Za-z]"
_ESCAPE = rf"\\(?:{_CODE_POINT}|[^xucbBpPk1-9])"
_REPEAT = r"\{ *(\d+) *(?:(,) *(\d*) *)?\}"
_TOKEN = re.compile(
    rf"(?P<class>{_CLASS})|(?P<lookahead>\(\?[=!])|(?P<open>\(\?:|\(\?P?<\w+>|\((?!\?))|(?P<close>\))|(?P<or>\|)"
    rf"|(?P<anchor>[\^$])|(?P<quantifier>[*+?]\??|(?P<repeat>{_REPEAT})\??)|(?P<escape>{_ESCAPE})|(?P<char>[^\\\[\](){{*+?|])"
)
_UNIT = re.compile(rf"\\(?:{_CODE_POINT}|[^xucBpPk1-9])|[^\\]")
_SETS = ("\\d", "\\D", "\\w", "\\W", "\\s", "\\S")


def is_pattern(pattern: str) -> bool:
    """Whether the automaton of `pattern` can be built and accepts any text that JSON strings hold unescaped.

    Look-ahead is ignored.
    """
    if not all(" " <= each <= "~" for each in pattern):
        return False
    rest = pattern.removeprefix("(?i)")
    depths = [False]
    at = 0
    while at < len(rest):
        token = _TOKEN.match(rest, at)
        if token is None or not _is_supported(token, depths):
            return False
        at = token.end()
        if token.lastgroup == "lookahead" or token.group("lookahead"):
            at = _end_of_lookahead(rest, at)
            if at < 0:
                return False
    return len(depths) == 1


def _is_supported(token: re.Match[str], depths: list[bool]) -> bool:
    """Whether a token may stand here. Each open group is held in `depths`: whether it has what can be repeated."""
    if token.group("open"):
        depths.append(False)
        return True
    if token.group("close"):
        depths.pop()
        if not depths:
            return False
        depths[-1] = True
        return True
    if token.group("or"):
        depths[-1] = False
        return True
    if token.group("anchor"):
        return True
    if token.group("quantifier"):
        return depths[-1] and (token.group("repeat") is None or _is_repeat(token.group("repeat")))
    depths[-1] = True
    if token.group("class"):
        return _is_class(token.group("class"))
    return token.group() not in ('"', "\\\\", '\\"')  # such a character cannot stand in a JSON string unescaped


def _is_repeat(text: str) -> bool:
    match = re.fullmatch(_REPEAT, text)
    if match is None or any(len(each or "") > MAX_REPEAT_DIGITS for each in (match[1], match[3])):
        return False
    return not match[3] or int(match[1]) <= int(match[3])


def _is_class(text: str) -> bool:
    inner = text[1:-1].removeprefix("^")
    if not inner:
        return False
    at = 0
    while at < len(inner):
        low = _UNIT.match(inner, at)
        if low is None:
            return False
        at = low.end()
        if low.group() in _SETS or inner[at : at + 1] != "-" or at + 1 >= len(inner):
            continue
        high = _UNIT.match(inner, at + 1)
        if high is None or high.group() in _SETS or _value(high.group()) < _value(low.group()):
            return False
        at = high.end()
    return True


def _value(unit: str) -> int:
    escapes = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7, "e": 27, "0": 0, "b": 8}
    if unit[0] != "\\":
        return ord(unit)
    if unit[1] in "xu" and len(unit) > 2:
        return int(unit[2:].strip("{}"), 16)
    if unit[1] == "c":
        return ord(unit[2]) & 0x1F
    return escapes.get(unit[1], ord(unit[1]))


def _end_of_lookahead(pattern: str, at: int) -> int:
    """Where the group of a look-ahead ends, or -1."""
    depth = 1
    while at < len(pattern) and depth:
        if pattern[at] == "\\":
            at += 2
            continue
        if pattern[at] == "[":
            found = re.compile(_CLASS).match(pattern, at)
            if found is None:
                return -1
            at = found.end()
            continue
        depth += {"(": 1, ")": -1}.get(pattern[at], 0)
        at += 1
    return at if depth == 0 else -1
