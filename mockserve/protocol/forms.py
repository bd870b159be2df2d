"""Forms and query strings with the limits of vLLM's web framework, and their lenient integers and flags."""

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias
from urllib.parse import unquote_plus

from pydantic_core import CoreSchema, SchemaValidator, ValidationError, core_schema
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, QuerystringParser, parse_options_header

from mockserve.protocol.errors import ApiError, Problem, bad_fields

# Integers and flags of query strings and events, as lenient as pydantic is by default.

TRUE_WORDS = frozenset({"true", "1", "yes", "on", "t", "y"})
LARGEST_INT64 = 2**63 - 1
SMALLEST_INT64 = -(2**63)

FLAG = core_schema.bool_schema()
TEXT = core_schema.str_schema(min_length=0)  # with a bound its characters are looked at


def read_value(schema: CoreSchema, value: Any, location: str) -> Any:
    """Return a value in the type of pydantic's `schema`, or the `Problem` of a value that cannot be converted."""
    try:
        return SchemaValidator(schema).validate_python(value)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
    return Problem(found["type"], location, found["msg"], found["input"], found.get("ctx"))


def problem_of(schema: CoreSchema, value: Any, location: str) -> Problem | None:
    """Return the problem of a value that cannot be converted to the type of pydantic's `schema`, else None."""
    found = read_value(schema, value, location)
    return found if isinstance(found, Problem) else None


def is_text(value: str) -> bool:
    """Whether a string can be encoded in UTF-8."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_flag(value: Any) -> bool:
    """Convert a value that is a `FLAG`."""
    return value.lower() in TRUE_WORDS if isinstance(value, str) else bool(value)


def flag_or(value: Any, default: bool) -> bool:
    """Convert a value that is null or a `FLAG`."""
    return default if value is None else as_flag(value)


# Forms and query strings, with the limits and messages of vLLM's web framework.


class QueryFields:
    """Reads fields of one query string and collects their problems, which `check` reports at once.

    An absent or invalid field returns its default.
    """

    def __init__(self, query: Mapping[str, str]) -> None:
        self._given = dict(query.items())
        self._problems: list[Problem] = []

    def flag(self, name: str, default: bool) -> bool:
        """Return the boolean value of a field."""
        return bool(self._value(FLAG, name, default))

    def choice(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """Return one of the allowed words."""
        return str(self._value(core_schema.literal_schema(list(allowed)), name, default))

    def number(self, name: str) -> int | None:
        """Return an integer of any size, if there is one."""
        found: int | None = self._value(core_schema.int_schema(), name, None)
        return found

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        """Return an integer within bounds."""
        return int(self._value(core_schema.int_schema(ge=least, le=most), name, default))

    def check(self) -> None:
        """Raise ApiError if any field read so far has a problem."""
        if self._problems:
            raise bad_fields(self._problems)

    def _value(self, schema: CoreSchema, name: str, default: Any) -> Any:
        if name not in self._given:
            return default
        found = read_value(schema, self._given[name], f"query.{name}")
        if isinstance(found, Problem):
            self._problems.append(found)
            return default
        return found


MAX_FIELDS = 1000
"""Maximum number of fields of a form, and of files."""
MAX_FIELD_BYTES = 2**20


@dataclass(slots=True)
class Upload:
    """A file in a form."""

    filename: str
    headers: Mapping[str, str]
    data: bytearray = field(default_factory=bytearray)

    def __str__(self) -> str:
        """Return the representation in error messages, for a file in place of text."""
        return f"UploadFile(filename={self.filename!r}, size={len(self.data)}, headers=Headers({dict(self.headers)}))"


FormValue: TypeAlias = str | Upload


class FormReader(Protocol):
    """Reads a form piece by piece. Both methods raise ApiError for an invalid form."""

    items: list[tuple[str, FormValue]]

    def write(self, data: bytes) -> None:
        """Read the next piece."""
        ...

    def finish(self) -> None:
        """Read the end."""
        ...


def form_reader(content_type: str) -> FormReader | None:
    """Return the reader of a form with the media type; None for any other media type, which has no fields."""
    kind, options = parse_options_header(content_type.encode("utf-8", "surrogateescape"))
    if kind == b"multipart/form-data":
        return MultipartReader(options)
    return UrlencodedReader() if kind == b"application/x-www-form-urlencoded" else None


def bad_form(message: str) -> ApiError:
    """Return the error of a form that cannot be parsed."""
    return ApiError(message, is_bare=True)


class MultipartReader:
    """Reads a multipart form. A part with a file name is a file, whatever its media type."""

    def __init__(self, options: Mapping[bytes, bytes]) -> None:
        boundary = options.get(b"boundary")
        if boundary is None:
            raise bad_form("Missing boundary in multipart.")
        self.items: list[tuple[str, FormValue]] = []
        self._charset = _known_charset(options.get(b"charset", b"utf-8"))
        self._counts = {"fields": 0, "files": 0}
        self._header = [b"", b""]
        self._headers: list[tuple[bytes, bytes]] = []
        self._name = ""
        self._upload: Upload | None = None
        self._text = bytearray()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._on_part_begin,
                    "on_header_field": lambda data, start, end: self._on_header(0, data[start:end]),
                    "on_header_value": lambda data, start, end: self._on_header(1, data[start:end]),
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self._on_part_end,
                },
            )
        except FormParserError:
            raise bad_form("Invalid multipart data.") from None

    def write(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except FormParserError:
            raise bad_form("Invalid multipart data.") from None

    def finish(self) -> None:
        try:
            self._parser.finalize()
        except FormParserError:
            raise bad_form("Invalid multipart data.") from None

    def _on_part_begin(self) -> None:
        self._headers, self._upload, self._text = [], None, bytearray()

    def _on_header(self, which: int, data: bytes) -> None:
        self._header[which] += data

    def _on_header_end(self) -> None:
        self._headers.append((self._header[0].lower(), self._header[1]))
        self._header = [b"", b""]

    def _on_headers_finished(self) -> None:
        disposition = next((value for name, value in reversed(self._headers) if name == b"content-disposition"), None)
        _, options = parse_options_header(disposition)
        if b"name" not in options:
            raise bad_form('The Content-Disposition header field "name" must be provided.')
        self._name = _decoded(options[b"name"], self._charset)
        kind = "files" if b"filename" in options else "fields"
        self._counts[kind] += 1
        if self._counts[kind] > MAX_FIELDS:
            raise bad_form(f"Too many {kind}. Maximum number of {kind} is {MAX_FIELDS}.")
        if kind == "files":
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._headers}
            self._upload = Upload(_decoded(options[b"filename"], self._charset), headers)

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._upload is not None:
            self._upload.data += data[start:end]
            return
        if len(self._text) + end - start > MAX_FIELD_BYTES:
            raise bad_form(f"Part exceeded maximum size of {MAX_FIELD_BYTES // 1024}KB.")
        self._text += data[start:end]

    def _on_part_end(self) -> None:
        self.items.append((self._name, _decoded(self._text, self._charset) if self._upload is None else self._upload))


class UrlencodedReader:
    """Reads a urlencoded form."""

    def __init__(self) -> None:
        self.items: list[tuple[str, FormValue]] = []
        self._name, self._value = bytearray(), bytearray()
        self._parser = QuerystringParser(
            {
                "on_field_start": self._on_field_start,
                "on_field_name": lambda data, start, end: self._on_data(self._name, data[start:end]),
                "on_field_data": lambda data, start, end: self._on_data(self._value, data[start:end]),
                "on_field_end": self._on_field_end,
            }
        )

    def write(self, data: bytes) -> None:
        self._parser.write(data)

    def finish(self) -> None:
        self._parser.finalize()

    def _on_field_start(self) -> None:
        self._name, self._value = bytearray(), bytearray()

    def _on_data(self, held: bytearray, data: bytes) -> None:
        if len(self._name) + len(self._value) + len(data) > MAX_FIELD_BYTES:
            raise bad_form(f"Field exceeded maximum size of {MAX_FIELD_BYTES // 1024}KB.")
        held += data

    def _on_field_end(self) -> None:
        if len(self.items) >= MAX_FIELDS:
            raise bad_form(f"Too many fields. Maximum number of fields is {MAX_FIELDS}.")
        name, value = (unquote_plus(each.decode("latin-1")) for each in (self._name, self._value))
        self.items.append((name, value))


def _known_charset(name: bytes) -> str:
    try:
        return codecs.lookup(name.decode("latin-1")).name
    except LookupError:
        return "latin-1"


def _decoded(data: bytes | bytearray, charset: str) -> str:
    try:
        return data.decode(charset)
    except (UnicodeDecodeError, LookupError):
        return data.decode("latin-1")
