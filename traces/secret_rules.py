"""Rules for secrets in requests and replies: names of headers, parameters and members, and shapes of known keys."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

REMOVED = "[removed]"
"""Text in the place of a secret."""

_SECRET_HEADER = re.compile(
    r"auth|key|token|secret|cookie|passw|credential|signature|session-?id|jwt|assertion|x-amz-security|^pwd$|^otp$",
    re.IGNORECASE,
)
_SECRET_PARAMETERS = frozenset({"code", "pass", "pin", "pwd", "sas", "sid", "sig", "ticket"})
_STRONG = re.compile(
    r"apikey|secret|passw|passphrase|credential|privatekey|accesskey|accountkey|signingkey|encryptionkey|masterkey"
    r"|subscriptionkey|servicekey|sharedkey|authorization|authkey|bearer|cookie|jwt|clientassertion|connectionstring"
    r"|^auth$|^pwd$|xamzsignature"
)
_WORDS_OF_MODELS = """
    audio begin boi bos class cls continuation end eoi eos eot fim first image infix last mask middle next nextpage
    nextsync pad page prefix reasoning sep special start stop suffix think thinking tool unk video
"""
_PLAIN_TOKENS = frozenset(f"{word}token" for word in _WORDS_OF_MODELS.split())
"""Names that end in `token` and mean words of a model, or pages of a list."""
_NOT_LETTERS = re.compile(r"[^a-z0-9]")
_PARAMETER = re.compile(r"([?&;#])([^=&;#?\s]{1,128})=([^&;#\s]*)")
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 16))


def is_secret_header(name: str) -> bool:
    """Whether the value of this header may be a key: by its name, in any case of letters."""
    return _SECRET_HEADER.search(name) is not None


def is_secret_parameter(name: str) -> bool:
    """Whether the value of a parameter in a URL or a form may be a key, by its name."""
    plain = _ESCAPED.sub(_unescaped, name)
    return is_secret_header(plain) or plain.lower() in _SECRET_PARAMETERS


@lru_cache(maxsize=4096)
def letters_of(name: str) -> str:
    """A name as rules compare it: small letters and digits."""
    return _NOT_LETTERS.sub("", name.lower())


@lru_cache(maxsize=4096)
def is_strongly_secret(name: str) -> bool:
    """Whether all that stands under this name is a key, whatever its type."""
    return len(name) <= 128 and _STRONG.search(letters_of(name)) is not None


@lru_cache(maxsize=4096)
def is_secret_member(name: str) -> bool:
    """Whether a text under this name in a JSON object is a key, such as `api_key`, `Authorization` or `id_token`."""
    if is_strongly_secret(name):
        return True
    letters = letters_of(name) if len(name) <= 128 else ""
    return letters.endswith("token") and letters not in _PLAIN_TOKENS


def parameters_in(text: str) -> Iterator[tuple[str, str]]:
    """Names and values of the parameters of URLs in a text."""
    for found in _PARAMETER.finditer(text):
        yield found[2], found[3]


def without_secret_parameters(target: str) -> str:
    """A target or a URL, with a mark in the place of each value of its query or fragment that may be a key."""
    if "=" not in target:
        return target
    return _PARAMETER.sub(
        lambda found: f"{found[1]}{found[2]}={REMOVED}" if is_secret_parameter(found[2]) else found[0], target
    )


def without_secret_fields(form: str) -> str:
    """A form as browsers send it, with a mark in the place of each value that may be a key."""
    return without_secret_parameters("?" + form)[1:]


_KEY = r"[A-Za-z0-9_-]"
_SHAPES = (
    rf"\b(?:sk|rk|pk)[-_]{_KEY}{{10,}}",
    r"\b(?:AKIA|ASIA|ABIA|ACCA|AIDA|AROA)[A-Z0-9]{12,}",
    r"\bgh[pousr]_[A-Za-z0-9]{16,}",
    rf"\b(?:github_pat_|glpat-|nvapi-|gsk_|xai-|pplx-|hf_|r8_|npm_|dop_v1_|tgp_v1_|csk-|shpat_|pypi-|AIza|ya29\.)"
    rf"{_KEY}{{16,}}",
    r"\bxox[abeoprs]-[A-Za-z0-9-]{8,}",
    rf"\bSG\.{_KEY}{{8,}}\.{_KEY}{{8,}}",
    r"\bdapi[0-9a-f]{32}",
    rf"\beyJ{_KEY}{{6,}}\.{_KEY}{{4,}}(?:\.{_KEY}*)?",
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-\x00]*(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?",
)
_SECRET_WORD = (
    r"(?:api[_-]?key|secret|passw(?:or)?d|passphrase|access[_-]?key|private[_-]?key|account[_-]?key|authorization"
    r"|credential|(?:auth|access|refresh|session|security|bearer|id)[_-]?token)"
)
_NAMED = rf"(?i)\b[\w-]{{0,64}}{_SECRET_WORD}[\w-]{{0,64}}\\*[\"']?\s{{0,8}}[:=]\s{{0,8}}\\*[\"']?(?:Bearer |Basic )?"
_QUOTED_NAME = (
    rf"\"(?:[\w-]{{0,64}}{_SECRET_WORD}[\w-]{{0,64}}|(?:(?:api|bot|hf|login|user|vault)[_-])?token|pwd|cookie)"
)
_VALUE = r"([A-Za-z0-9_\-./+=~%$!]{6,})"
_MOST_PLAIN_CHARS = 24
"""A value without digits that is longer is no word of a language."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern whose group is replaced by a mark, where a check of that text does not object."""

    pattern: Any
    mark: str
    group: int = 0
    accepts: Callable[[str], bool] | None = None
    needs_name: bool = False
    """Whether the pattern finds a value by the name in front of it."""

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The places of what is to be replaced, in order."""
        found = (match for match in self.pattern.finditer(text) if match.end(self.group) > match.start(self.group))
        return [each.span(self.group) for each in found if self.accepts is None or self.accepts(each[self.group])]

    def apply(self, text: str) -> str:
        """The text with marks."""
        return _marked(text, self.spans(text), self.mark)


_MOST_LITERALS = 500


class LiteralRule:
    """Texts that are replaced wherever they stand; the longest ones, where there are very many."""

    mark = REMOVED
    needs_name = False

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = sorted(set(texts), key=len, reverse=True)[:_MOST_LITERALS]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The places of what is to be replaced, in order."""
        found: list[tuple[int, int]] = []
        for each in self.texts:
            at = text.find(each)
            while at >= 0:
                found.append((at, at + len(each)))
                at = text.find(each, at + len(each))
        found.sort()
        joined: list[tuple[int, int]] = []
        for start, end in found:
            if joined and start < joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((start, end))
        return joined

    def apply(self, text: str) -> str:
        """The text with marks."""
        return _marked(text, self.spans(text), self.mark)


def _marked(text: str, spans: Iterable[tuple[int, int]], mark: str) -> str:
    pieces, at = [], 0
    for start, end in spans:
        pieces += [text[at:start], mark]
        at = end
    return "".join([*pieces, text[at:]]) if pieces else text


def _is_no_mark(value: str) -> bool:
    return not value.startswith(("[removed", "[redacted"))


def _is_no_word(value: str) -> bool:
    return len(value) > _MOST_PLAIN_CHARS or any(map(str.isdigit, value))


@cache
def built_in_rules() -> tuple[Rule, ...]:
    """Rules for keys of well-known shapes, and for values behind a name that says so, in any text."""
    import re2  # a library that only redaction needs here

    return (
        Rule(re2.compile("|".join(_SHAPES)), REMOVED),
        Rule(re2.compile(rf"(?i)\bbearer\s+({_KEY}[A-Za-z0-9_\-.~+/=]{{15,}})"), REMOVED, 1),
        Rule(re2.compile(r"(?i)\bbasic\s+([A-Za-z0-9+/]{8,}={1,2})"), REMOVED, 1),
        Rule(re2.compile(r"[a-z][a-z0-9+.-]{1,20}://([^/\s:@\"\x00]{1,256}:[^/\s@\"\x00]{1,256})@"), REMOVED, 1),
        Rule(re2.compile(_NAMED + _VALUE), REMOVED, 1, _is_no_word, needs_name=True),
        Rule(
            re2.compile(rf"(?i){_QUOTED_NAME}\"\s{{0,8}}:\s{{0,8}}\"([^\"\\\x00]+)\""),
            REMOVED,
            1,
            _is_no_mark,
            needs_name=True,
        ),
    )


@cache
def rules_of_raw_text() -> tuple[Rule, ...]:
    """Rules for bodies that are no JSON and no form: any value behind a name of a secret, and fields of multipart."""
    import re2

    field = rf"(?i)name=\"[^\"]{{0,64}}(?:{_SECRET_WORD}|token)\"[^\r\n]*\r?\n(?:[^\r\n]+\r?\n)*\r?\n([^\r\n]+)"
    return (
        Rule(re2.compile(_NAMED + r"([^\s\"'&;,\\}\]]+)"), REMOVED, 1, _is_no_mark),
        Rule(
            re2.compile(r"(?i)[\"'](?:[\w-]{0,32}[_-])?token\\*[\"']\s*:\s*\\*[\"']([^\"'\\]+)"),
            REMOVED,
            1,
            _is_no_mark,
        ),
        Rule(re2.compile(field), REMOVED, 1, _is_no_mark),
    )
