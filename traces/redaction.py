"""Removal of secrets from recorded contents by rules for names and shapes, in linear time."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import orjson

from blis_sim.options import OptionError
from traces.text_file import dumped_in_pieces

# Rules for secrets in requests and replies: names of headers, parameters and members, and shapes of known keys.

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


def check_url_without_keys(url: str, label: str, instead: str) -> None:
    """Raise OptionError where a URL has a user or a parameter of a key: libraries log whole URLs.

    `label` names the setting of the URL, and `instead` where its keys belong.
    """
    if "@" in url.partition("?")[0] or any(is_secret_parameter(name) for name, _ in parameters_in(url)):
        raise OptionError(f"{label} must not carry a user name, a password or a key, {instead}")


_KEY = r"[A-Za-z0-9_-]"
_PREFIXES = (
    *("github_pat_", "gl(?:pat|dt|rt|cbt|soat|ptt)-", "do[por]_v1_", "shp(?:at|ca|pa|ss)_", "pypi-", "npm_"),
    *("nvapi-", "gsk_", "xai-", "pplx-", "hf_", "r8_", "tgp_v1_", "csk-", "tvly-", "pcsk_", "lsv2_[a-z]{2}_", "fw_"),
    *("AIza", r"ya29\.", "GOCSPX-", "LTAI", r"hv[sb]\.", "dckr_(?:pat|oat)_", "whsec_", "xapp-", "sbp_", "NRAK-"),
    *("lin_api_", "ntn_", "fig[dour]_", "gl(?:sa|c)_", "sntry[su]_", "sq0[a-z]{3}-", "pul-", "ATATT3x", "PMAK-"),
    *("rubygems_", "pscale_[a-z]{1,8}_"),
)
"""Prefixes of the keys of well-known services."""
_SHAPES = (
    rf"\b(?:sk|rk|pk)[-_]{_KEY}{{10,}}",
    r"\b(?:AKIA|ASIA|ABIA|ACCA|AIDA|AROA)[A-Z0-9]{12,}",
    r"\bgh[pousr]_[A-Za-z0-9]{16,}",
    rf"\b(?:{'|'.join(_PREFIXES)}){_KEY}{{16,}}",
    r"\b(?:key|fc)-[0-9a-f]{32}",
    r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{30,}",
    r"\bAGE-SECRET-KEY-1[A-Z0-9]{40,}",
    r"\bhooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/]{16,}",
    r"\bdiscord(?:app)?\.com/api/webhooks/[0-9]{8,}/[A-Za-z0-9_-]{30,}",
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


class Searchable(NamedTuple):
    """A text with its bytes, which RE2 would make anew for each pattern. A lone surrogate is a `?` among the bytes."""

    text: str
    data: bytes

    @classmethod
    def of(cls, text: str) -> "Searchable":
        """The text, encoded."""
        return cls(text, text.encode("utf-8", "replace"))

    def spans(self, found: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Places among the characters, from places among the bytes in order."""
        if self.text.isascii() or not found:
            return found
        counted, num_bytes, num_characters = [], 0, 0
        for place in (each for span in found for each in span):
            num_characters += len(self.data[num_bytes:place].decode("utf-8", "replace"))
            num_bytes = place
            counted.append(num_characters)
        return list(zip(counted[::2], counted[1::2], strict=True))


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern whose group is replaced by a mark, where a check of that text does not object."""

    pattern: Any
    mark: str
    group: int = 0
    accepts: Callable[[str], bool] | None = None
    needs_name: bool = False
    """Whether the pattern finds a value by the name in front of it."""

    def spans(self, searched: Searchable) -> list[tuple[int, int]]:
        """The places of what is to be replaced, in order."""
        found = (each.span(self.group) for each in self.pattern.finditer(searched.data))
        return searched.spans([span for span in found if span[1] > span[0] and self._is_accepted(searched, *span)])

    def _is_accepted(self, searched: Searchable, start: int, end: int) -> bool:
        return self.accepts is None or self.accepts(searched.data[start:end].decode("utf-8", "replace"))

    def apply(self, text: str) -> str:
        """The text with marks."""
        return _marked(text, self.spans(Searchable.of(text)), self.mark)


_MOST_LITERALS = 500


class LiteralRule:
    """Texts that are replaced wherever they stand; the longest ones, where there are very many."""

    mark = REMOVED
    needs_name = False

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = sorted(set(texts), key=len, reverse=True)[:_MOST_LITERALS]

    def spans(self, searched: Searchable) -> list[tuple[int, int]]:
        """The places of what is to be replaced, in order."""
        found: list[tuple[int, int]] = []
        for each in self.texts:
            at = searched.text.find(each)
            while at >= 0:
                found.append((at, at + len(each)))
                at = searched.text.find(each, at + len(each))
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
        return _marked(text, self.spans(Searchable(text, b"")), self.mark)


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


# Removal of secrets from recorded contents, and redaction by regular expressions, in linear time.

_LEAST_SECRET_CHARS = 6
_LEAST_PLAIN_CHARS = 12
"""Shorter secrets, and shorter ones of letters alone, are not searched for in other texts: they may be words."""
_TEXTS_AT_ONCE = 5000
_DUMPED_AT_ONCE_CHARS = 1 << 19
_HEADER_MEMBERS = frozenset({"headers", "httpheaders", "extraheaders", "defaultheaders"})
_SCHEMA_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_SCHEMA_KEYWORDS = frozenset(
    {"type", "$ref", "anyOf", "allOf", "oneOf", "not", "if", "then", "else", "enum", "const", "format", "pattern"}
    | {"properties", "patternProperties", "additionalProperties", "propertyNames", "required", "minProperties"}
    | {"maxProperties", "items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems", "minLength"}
    | {"maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "$defs"}
    | {"definitions", "$schema", "$id", "$comment", "nullable", "deprecated", "readOnly", "writeOnly", "title"}
    | {"description", "default", "example", "examples"}
)
_SCHEMA_VALUES = ("default", "const", "example", "examples")


def without_secret_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers, with a mark in the place of each value that may be a key, and of such parameters of URLs."""
    return [(name, REMOVED if is_secret_header(name) else without_secret_parameters(value)) for name, value in headers]


def secrets_in(headers: Iterable[tuple[str, str]], target: str = "") -> list[str]:
    """The texts in headers and a target that may be keys, for finding where else they are repeated."""
    found = [value for name, value in parameters_in(target) if is_secret_parameter(name)]
    for name, value in headers:
        if not is_secret_header(name):
            found += [each for parameter, each in parameters_in(value) if is_secret_parameter(parameter)]
        elif "cookie" in name.lower():
            found += [each.partition("=")[2].strip() for each in value.split(";")]
        else:
            found += [value, *_credentials_in(value)]
    return found


def _credentials_in(value: str) -> list[str]:
    """The credentials of an authorization without its scheme, decoded where that is Basic."""
    scheme, _, credentials = value.partition(" ")
    if not credentials:
        return []
    if scheme.lower() != "basic":
        return [credentials.strip()]
    import base64
    import binascii

    try:
        decoded = base64.b64decode(credentials, validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return [credentials]
    return [credentials, decoded, decoded.partition(":")[2]]


def without_secret_members(value: Any, removed: list[str] | None = None) -> tuple[Any, bool]:
    """A JSON value with a mark in the place of each text that is a key by its name; whether there was one.

    Objects and arrays are changed in place, and the texts are appended to `removed`. A schema that describes a member
    of such a name stays, but for its examples.
    """
    gone: list[str] = [] if removed is None else removed
    before = len(gone)
    left = [_Part(value)]
    while left:
        each = left.pop()
        if isinstance(each.value, dict):
            left += _members_left(each, gone)
        elif isinstance(each.value, list):
            left += _items_left(each, gone)
    return value, len(gone) > before


class _Part(NamedTuple):
    """A part of a JSON value: whether it stands under the name of a secret, or under one of headers."""

    value: Any
    is_secret: bool = False
    is_headers: bool = False


def _members_left(part: _Part, gone: list[str]) -> Iterator[_Part]:
    each = part.value
    pair_name = each.get("name", each.get("key"))
    has_secret_value = isinstance(pair_name, str) and is_secret_header(pair_name)
    for name, member in each.items():
        is_secret = part.is_secret or _is_secret_place(name, each, is_headers=part.is_headers)
        is_secret = is_secret or (name == "value" and has_secret_value)
        if isinstance(member, dict) and is_secret and _is_schema(member):
            _forget_examples(member, gone)
            yield from _others_in_schema(member, gone)
            yield _Part(member)
        elif isinstance(member, dict | list):
            yield _Part(member, is_secret, letters_of(name) in _HEADER_MEMBERS)
        elif is_secret and _is_removable(member, name):
            gone.append(str(member))
            each[name] = REMOVED


def _items_left(part: _Part, gone: list[str]) -> Iterator[_Part]:
    for place, member in enumerate(part.value):
        if isinstance(member, dict | list):
            yield part._replace(value=member)
        elif part.is_secret and _is_removable(member, ""):
            gone.append(str(member))
            part.value[place] = REMOVED


def _is_secret_place(name: str, among: dict[str, Any], *, is_headers: bool) -> bool:
    if is_headers:
        return is_secret_header(name)
    # A token with its probability is a word of the model.
    return is_secret_member(name) and not (name == "token" and "logprob" in among)


def _is_removable(member: Any, name: str) -> bool:
    if isinstance(member, str):
        return bool(member) and member != REMOVED
    return type(member) is int and member > 999 and (not name or is_strongly_secret(name))


def _is_schema(found: dict[str, Any]) -> bool:
    """Whether an object describes values in the words of JSON Schema, which a secret in their place would not be."""
    given = found.get("type")
    if "type" in found:
        return all(each in _SCHEMA_TYPES for each in (given if isinstance(given, list) and given else [given]))
    reference = found.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        return True
    parts = [found[name] for name in ("anyOf", "allOf", "oneOf") if name in found]
    if parts:
        return all(isinstance(part, list) and all(isinstance(each, dict) for each in part) for part in parts)
    return isinstance(found.get("properties"), dict) or isinstance(found.get("enum"), list)


def _others_in_schema(schema: dict[str, Any], gone: list[str]) -> Iterator[_Part]:
    """Remove texts beside the keywords of a schema, and yield the objects and lists there as parts with secrets."""
    for name, member in schema.items():
        if name in _SCHEMA_KEYWORDS:
            continue
        if isinstance(member, dict | list):
            yield _Part(member, is_secret=True)
        elif _is_removable(member, name):
            gone.append(str(member))
            schema[name] = REMOVED


def _forget_examples(schema: dict[str, Any], gone: list[str]) -> None:
    for name in _SCHEMA_VALUES:
        if name in schema:
            found = schema[name]
            gone += [each for each in (found if isinstance(found, list) else [found]) if isinstance(each, str)]
            schema[name] = REMOVED


@cache
def _names_of_secrets() -> Any:
    """A pattern for texts of JSON in which a member may be a secret by its name; all others need no second look."""
    import re2  # a library that only redaction needs here

    return re2.compile(
        r"(?i)(?:token\"|(?:key|secret|pass|pwd|auth|cred|cookie|jwt|bearer|signature|assertion|session|otp|connection)"
        r"[^\":,{}\[\]]{0,64}\"|\"value\"|\\u[0-9a-f]{4}[^\":]{0,64}\")\s{0,9}:"
    )


class ParsedJson(NamedTuple):
    """A value of JSON: whether members may be secrets by their names, and whether some of its text is not in it."""

    value: Any
    has_names: bool = False
    lacks_text: bool = False


Parse: TypeAlias = Callable[[str], tuple[Any, bool]]
"""Parses JSON, and says whether members are repeated in an object. Raises ValueError."""


def parsed_json(searched: Searchable, parse: Parse | None = None) -> ParsedJson:
    """The value of JSON as lenient servers read it, or as `parse` does. Raises ValueError.

    NaN and infinity count as numbers. Of members with the same name the last one counts, so text of the others is not
    in the value.
    """
    text = searched.text
    has_names = _names_of_secrets().search(searched.data) is not None
    if parse is not None:
        value, repeats = parse(text)
        return ParsedJson(value, has_names, lacks_text=has_names and repeats)
    repeats = False

    def joined(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeats
        made = dict(pairs)
        repeats = repeats or len(made) < len(pairs)
        return made

    if not _large_integer().search(searched.data):  # orjson would make a float of it
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(text)
            if not has_names:
                return ParsedJson(value)
    try:
        return ParsedJson(json.loads(text, object_pairs_hook=joined), has_names=True, lacks_text=repeats)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


@cache
def _large_integer() -> Any:
    """Return the pattern of a number that may need more than 64 bits."""
    import re2

    return re2.compile(r"[0-9]{19}")


def _dumped(value: Any, source: str) -> str:
    """JSON of a value that was read from this text."""
    if "NaN" not in source and "Infinity" not in source:
        with suppress(TypeError):  # an integer of more than 64 bits
            return (orjson.dumps(value) if len(source) <= _DUMPED_AT_ONCE_CHARS else dumped_in_pieces(value)).decode()
    return json.dumps(value, separators=(",", ":"))  # a lone surrogate is no text without its escape


def _is_telling(secret: str) -> bool:
    least = _LEAST_PLAIN_CHARS if secret.isalpha() else _LEAST_SECRET_CHARS
    return len(secret) >= least and secret != REMOVED


REDACTED = "[redacted]"
"""Text in the place of what a pattern of a user has found."""
_PLACES = frozenset({"index", "output_index", "content_index", "item_id", "summary_index"})

Slot: TypeAlias = tuple[Any, Any]
"""A text inside a JSON value: the object or array that holds it, and its name or place there."""


class Redactor:
    """Removes secrets by name and shape, and replaces what matches one of the patterns.

    Wherever one of `secrets` stands again, it is removed, too. Raises OptionError, naming `label`, for a pattern that
    RE2 lacks.
    """

    def __init__(self, patterns: Sequence[str], label: str = "--redact", secrets: Sequence[str] = ()) -> None:
        self.patterns = tuple(patterns)
        self._given = [Rule(_compiled(pattern, label), REDACTED) for pattern in patterns]
        self._secrets = secrets

    def hiding(self, secrets: Iterable[str]) -> "Redactor":
        """A redactor that also removes these texts wherever they stand."""
        found = {each for each in secrets if _is_telling(each)}
        if not found:
            return self
        made = Redactor((), secrets=sorted({*found, *self._secrets}, key=len, reverse=True))
        made.patterns, made._given = self.patterns, self._given
        return made

    @cached_property
    def _known(self) -> list[Rule | LiteralRule]:
        """Rules that find the same in texts behind each other, with zero bytes between, as in each alone."""
        return [*([LiteralRule(self._secrets)] if self._secrets else []), *built_in_rules()]

    @property
    def _rules(self) -> list[Rule | LiteralRule]:
        return [*self._known, *self._given]

    @property
    def shown_patterns(self) -> list[str]:
        """The patterns that may be written down: those that do not spell out a word that they hide."""
        return [
            each
            for each in self.patterns
            if not any(
                _WORD.fullmatch(each, *span)
                for rule in self._given
                for span in rule.spans(Searchable.of(each))
                if span[1] - span[0] > 2
            )
        ]

    def text(self, text: str) -> str:
        """The text without secrets and without what matches."""
        for rule in self._rules:
            text = rule.apply(text)
        return text

    def body(self, body: str, removed: list[str] | None = None) -> str:
        """The body of a request or of a whole reply, without keys and without what matches.

        JSON is redacted text by text, as escapes would hide what is written in them. It is unchanged, byte for byte,
        where there is nothing to remove. What is no JSON is plain text. Keys by name are appended to `removed`.
        """
        return self.body_and_value(body, removed=removed)[0]

    def body_and_value(
        self, body: str, parse: Parse | None = None, removed: list[str] | None = None, data: bytes | None = None
    ) -> tuple[str, Any]:
        """Return `body`, redacted, and its value; None for what is no JSON. `parse` replaces the parser.

        `data` is the body in UTF-8, where that is at hand.
        """
        searched = Searchable.of(body) if data is None else Searchable(body, data)
        try:
            parsed = parsed_json(searched, parse)
        except ValueError:
            return self.raw_text(body), None
        value = parsed.value
        if isinstance(value, str):
            redacted = self.text(value)
            return (body if redacted == value else _dumped(redacted, body)), redacted
        is_changed = parsed.lacks_text
        if parsed.has_names:
            value, has_secrets = without_secret_members(value, removed)
            is_changed = is_changed or has_secrets
        is_changed = self._redact_texts(value) or is_changed
        # Perhaps in a name, a number or a member that is repeated; a name may have escapes.
        if self._finds(searched) or ("\\" in body and self._finds(_names_in(value))):
            # Redact names of members, and numbers.
            for each in _containers(value):
                if isinstance(each, dict):
                    pairs = [(self.text(name), self._number(member)) for name, member in each.items()]
                    each.clear()
                    each.update(pairs)
                else:
                    each[:] = [self._number(member) for member in each]
            is_changed = True
        return (_dumped(value, body) if is_changed else body), value

    def _finds(self, searched: Searchable) -> bool:
        return any(rule.spans(searched) for rule in self._rules if not rule.needs_name)

    def value(self, value: Any) -> Any:
        """A plain value without what matches in its texts."""
        return json.loads(self.body(json.dumps(value)))

    def raw_text(self, text: str) -> str:
        """A body that is no JSON, without what a name shows to be a key, and without what matches."""
        for rule in rules_of_raw_text():
            text = rule.apply(text)
        return self.text(text)

    def data(self, data: bytes, content_type: str = "", removed: list[str] | None = None) -> bytes:
        """Bytes of a body; nothing but plain text can be found in those that are no UTF-8."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return self.raw_text(data.decode("latin-1")).encode("latin-1", "replace")
        if content_type.startswith("application/x-www-form-urlencoded"):
            return self.text(without_secret_parameters("?" + text)[1:]).encode()
        return self.body(text, removed).encode()

    def events(self, payloads: Sequence[str]) -> list[str]:
        """The data of the events of one stream, without keys and without what matches.

        Text of the same place in successive events is one text for the patterns: a match may have come in pieces.
        """
        changed = self.changed_events(lambda: payloads)
        return [changed.get(place, payload) for place, payload in enumerate(payloads)]

    def changed_events(self, payloads: Callable[[], Iterable[str]]) -> dict[int, str]:
        """The payloads that `events` changes, by place. They are read twice, so that no list of them is needed."""
        changed: dict[int, str] = {}
        are_changed: set[int] = set()
        texts: dict[tuple[Any, ...], list[str]] = defaultdict(list)
        places: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for place, payload in enumerate(payloads()):
            value, is_changed = self._event(payload)
            if is_changed is None:
                changed[place] = self.raw_text(payload)
            elif is_changed:
                are_changed.add(place)
            # The value itself is read again where a text changes: those of all events would take ten times their bytes.
            for path, (each, name) in _texts(value):
                found, text = texts[path], each[name]
                # Most texts of a stream are names that each event repeats.
                found.append(found[-1] if found and found[-1] == text else text)
                places[path].append(place)
        redacted = self._redacted_places(texts, places)
        if are_changed or redacted:
            for place, payload in enumerate(payloads()):
                if place in are_changed or place in redacted:
                    changed[place] = self._redacted_event(payload, redacted.get(place))
        return changed

    def _redacted_places(
        self, texts: Mapping[tuple[Any, ...], list[str]], places: Mapping[tuple[Any, ...], list[int]]
    ) -> dict[int, dict[tuple[Any, ...], list[str]]]:
        """Texts of events by place and path after redaction, where it changes one of that path."""
        redacted: dict[int, dict[tuple[Any, ...], list[str]]] = {}
        for path, found in zip(texts, self._without_known_in(list(texts.values())), strict=True):
            after = _without(self._given, found)
            differs = {
                place for place, *pair in zip(places[path], texts[path], after, strict=True) if pair[0] != pair[1]
            }
            if differs:
                for place, text in zip(places[path], after, strict=True):
                    if place in differs:
                        redacted.setdefault(place, {}).setdefault(path, []).append(text)
        return redacted

    def _event(self, payload: str) -> tuple[Any, bool | None]:
        """Return the data of an event without keys, and whether it differs; None for what is no JSON."""
        searched = Searchable.of(payload)
        try:
            parsed = parsed_json(searched)
        except ValueError:
            return None, None
        is_changed = parsed.lacks_text or any(rule.spans(searched) for rule in self._given)
        if parsed.has_names:
            is_changed = without_secret_members(parsed.value)[1] or is_changed
        return parsed.value, None if parsed.value is None else is_changed

    def _redacted_event(self, payload: str, texts: dict[tuple[Any, ...], list[str]] | None) -> str:
        """Return an event without keys; `texts` has all its texts at some of the paths."""
        value, _ = self._event(payload)
        left = {path: iter(found) for path, found in (texts or {}).items()}
        for path, (each, name) in list(_texts(value)):
            if path in left:
                each[name] = next(left[path])
        return _dumped(value, payload)

    def _redact_texts(self, value: Any) -> bool:
        """Redact the texts inside a value; whether there was anything to redact."""
        is_changed, left = False, _slots(value)
        while slots := list(islice(left, _TEXTS_AT_ONCE)):
            pieces = [each[name] for each, name in slots]
            redacted = [self._with_given(text) for text in self._without_known(pieces)]
            for (each, name), before, after in zip(slots, pieces, redacted, strict=True):
                if before != after:
                    each[name] = after
                    is_changed = True
        return is_changed

    def _without_known(self, texts: list[str]) -> list[str]:
        return [text for (text,) in self._without_known_in([[text] for text in texts])]

    def _without_known_in(self, groups: list[list[str]]) -> list[list[str]]:
        """Groups of pieces, each of one text, without secrets: all of them are searched at once."""
        pieces = _without(self._known, [piece for group in groups for piece in (*group, _BETWEEN)])
        found, at = [], 0
        for group in groups:
            found.append(pieces[at : at + len(group)])
            at += len(group) + 1
        return found

    def _with_given(self, text: str) -> str:
        for rule in self._given:
            text = rule.apply(text)
        return text

    def _number(self, member: Any) -> Any:
        if type(member) not in (int, float):
            return member
        shown = Searchable.of(str(member))
        return REDACTED if any(rule.spans(shown) for rule in self._given) else member


_BETWEEN = "\0"
_WORD = re.compile(r"[\w-]+")


def _containers(value: Any) -> Iterator[Any]:
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict | list):
            yield each
            left += each.values() if isinstance(each, dict) else each


def _names_in(value: Any) -> Searchable:
    """The names of all members, one below the other."""
    names = {name for each in _containers(value) if isinstance(each, dict) for name in each}
    return Searchable.of("\n".join(names))


def _without(rules: Iterable[Rule | LiteralRule], pieces: list[str]) -> list[str]:
    """Pieces of one text after redaction; what is put in the place of a match stands in the piece it begins in."""
    searched: Searchable | None = None
    for rule in rules:
        searched = searched or Searchable.of("".join(pieces))
        if spans := rule.spans(searched):
            pieces, searched = _replaced(pieces, spans, rule.mark), None
    return pieces


def _replaced(pieces: list[str], spans: list[tuple[int, int]], mark: str) -> list[str]:
    """The pieces of one text without these places of it, each with a mark where it begins."""
    result = []
    start = number = 0
    for piece in pieces:
        end = start + len(piece)
        kept = []
        at = start
        while number < len(spans) and spans[number][0] < end:
            first, last = spans[number]
            kept.append(piece[at - start : max(first, start) - start])
            if first >= start:
                kept.append(mark)
            at = min(last, end)
            if last > end:
                break
            number += 1
        kept.append(piece[at - start :])
        result.append("".join(kept))
        start = end
    return result


def _slots(value: Any) -> Iterator[Slot]:
    """The places of the texts inside a JSON value."""
    for each in _containers(value):
        for name, member in each.items() if isinstance(each, dict) else enumerate(each):
            if isinstance(member, str):
                yield each, name


def _texts(value: Any) -> Iterable[tuple[tuple[Any, ...], Slot]]:
    """The texts inside a JSON value, each with its path; an index that is a member takes part in the paths below it."""
    left: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while left:
        path, each = left.pop()
        if isinstance(each, dict):
            here = path
            if not _PLACES.isdisjoint(each):
                here = (
                    *path,
                    *(each[name] for name in sorted(_PLACES & each.keys()) if isinstance(each[name], int | str)),
                )
            members: Iterable[tuple[Any, Any]] = each.items()
        elif isinstance(each, list):
            here, members = path, enumerate(each)
        else:
            continue
        for name, member in members:
            if isinstance(member, str):
                yield (*here, name), (each, name)
            elif isinstance(member, dict | list):
                left.append(((*here, name), member))


def _compiled(pattern: str, label: str) -> Any:
    import re2  # a library that only redaction needs here

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        reason = error.args[0]
        shown = reason.decode() if isinstance(reason, bytes) else reason
        raise OptionError(f"{label} must be a regular expression of RE2, got {pattern!r} ({shown})") from error
