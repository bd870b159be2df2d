"""Schemas as programs send them: of pydantic's types, of OpenAPI's formats, of tools of MCP servers, and odd ones."""

import datetime
import decimal
import enum
import fractions
import ipaddress
import pathlib
import re
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Optional

import pydantic
from pydantic import Field, StringConstraints, create_model
from typing_extensions import TypedDict


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    name: str


class Node(pydantic.BaseModel):
    value: int
    children: list["Node"] = []


class Address(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    street: str = Field(min_length=1, max_length=40)
    zip_code: Annotated[str, StringConstraints(pattern=r"^\d{5}(-\d{4})?$")]


class Point(NamedTuple):
    x: float
    y: float


class Options(TypedDict, total=False):
    depth: int
    follow: bool


PYDANTIC_TYPES: Mapping[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "none": None,
    "any": Any,
    "bytes": bytes,
    "decimal": decimal.Decimal,
    "decimal with places": Annotated[decimal.Decimal, Field(max_digits=6, decimal_places=2, ge=0)],
    "complex": complex,
    "fraction": fractions.Fraction,
    "date": datetime.date,
    "date-time": datetime.datetime,
    "aware date-time": pydantic.AwareDatetime,
    "time": datetime.time,
    "timedelta": datetime.timedelta,
    "uuid": uuid.UUID,
    "uuid1": pydantic.UUID1,
    "uuid3": pydantic.UUID3,
    "uuid4": pydantic.UUID4,
    "uuid5": pydantic.UUID5,
    "uuid7": pydantic.UUID7,
    "secret": pydantic.SecretStr,
    "secret bytes": pydantic.SecretBytes,
    "base64": pydantic.Base64Bytes,
    "base64 text": pydantic.Base64Str,
    "base64url": pydantic.Base64UrlStr,
    "path": pathlib.Path,
    "new path": pydantic.NewPath,
    "any url": pydantic.AnyUrl,
    "http url": pydantic.HttpUrl,
    "ipv4": ipaddress.IPv4Address,
    "ipv4 interface": ipaddress.IPv4Interface,
    "ipv4 network": ipaddress.IPv4Network,
    "ipv6": ipaddress.IPv6Address,
    "ipv6 interface": ipaddress.IPv6Interface,
    "ipv6 network": ipaddress.IPv6Network,
    "any address": pydantic.IPvAnyAddress,
    "any interface": pydantic.IPvAnyInterface,
    "any network": pydantic.IPvAnyNetwork,
    "pattern": re.Pattern[str],
    "json": pydantic.Json[Any],  # type: ignore[misc]  # a class of its own for type checkers
    "json of numbers": pydantic.Json[list[int]],
    "enum": Colour,
    "int enum": Level,
    "literal": Literal["a", 1, True],
    "optional": Optional[int],  # noqa: UP045  (the form of older programs)
    "union": int | str | list[float],
    "list": list[int],
    "bounded list": Annotated[list[str], Field(min_length=2, max_length=3)],
    "set": set[Literal["a", "b", "c"]],
    "frozenset": Annotated[frozenset[int], Field(min_length=2)],
    "tuple": tuple[int, str, bool],
    "tuple of any length": tuple[int, ...],
    "dict": dict[str, float],
    "dict of patterns": dict[Annotated[str, StringConstraints(pattern="^x-[a-z]+$")], int],
    "dict of numbers": dict[int, bool],
    "dict of enum": dict[Literal["a", "b"], int],
    "bounded int": Annotated[int, Field(gt=3, le=9)],
    "multiple": Annotated[int, Field(multiple_of=5)],
    "cents": Annotated[float, Field(multiple_of=0.01, ge=0, le=10)],
    "bounded float": Annotated[float, Field(gt=0, lt=1)],
    "word": Annotated[str, StringConstraints(pattern=r"^[a-z]+(-[a-z]+)*$", max_length=20)],
    "bounded text": Annotated[str, StringConstraints(min_length=50, max_length=60)],
    "byte size": pydantic.ByteSize,
    "model": Address,
    "models": list[Address],
    "tree": Node,
    "tagged union": Annotated[Cat | Dog, Field(discriminator="kind")],
    "named tuple": Point,
    "typed dict": Options,
}
"""Types of a field, by name; a model of the field accepts what is made of its schema."""

LOOSELY_DESCRIBED = frozenset({"decimal", "decimal with places", "complex", "dict of numbers", "byte size"})
"""Types whose schemas accept more than their models do."""


def model_of(name: str) -> type[pydantic.BaseModel]:
    """Return a model with one required field of a type beside a required text."""
    model: type[pydantic.BaseModel] = create_model("Arguments", title=(str, ...), value=(PYDANTIC_TYPES[name], ...))
    return model


OPENAPI_FORMATS = (
    *("date", "date-time", "date-time-local", "time", "time-local", "duration", "http-date", "email", "idn-email"),
    *("hostname", "idn-hostname", "ipv4", "ipv6", "uri", "uri-reference", "uri-template", "iri", "iri-reference"),
    *("uuid", "password", "byte", "binary", "base64", "base64url", "char", "commonmark", "html", "media-range"),
    *("decimal", "decimal128", "double", "float", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"),
    *("uint64", "regex", "json-pointer", "relative-json-pointer", "sf-string", "sf-token", "markdown", "phone"),
    *("color", "file", "some-format-of-a-company"),
)


def object_of(required: Any = None, **properties: Any) -> dict[str, Any]:
    """Return the schema of a closed object, all of whose members are required by default."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


TEXT = {"type": "string"}
WHOLE = {"type": "integer"}

MCP_TOOLS: Mapping[str, Any] = {
    "read file": object_of(path=TEXT, head={**WHOLE, "minimum": 1}, required=["path"]),
    "edit file": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **object_of(
            path=TEXT,
            edits={"type": "array", "items": object_of(oldText=TEXT, newText=TEXT)},
            dryRun={"type": "boolean", "default": False},
            required=["path", "edits"],
        ),
    },
    "create issue": object_of(
        owner={**TEXT, "pattern": "^[A-Za-z0-9](?:[A-Za-z0-9]|-(?=[A-Za-z0-9])){0,38}$"},
        repo=TEXT,
        labels={"type": "array", "items": TEXT, "uniqueItems": True},
        state={"type": "string", "enum": ["open", "closed"]},
        required=["owner", "repo", "labels"],
    ),
    "query": {"type": "object", "properties": {"sql": {**TEXT, "minLength": 1}, "params": {}}, "required": ["sql"]},
    "fetch": object_of(
        url={**TEXT, "format": "uri", "minLength": 1, "maxLength": 2083},
        max_length={**WHOLE, "exclusiveMinimum": 0, "exclusiveMaximum": 1000000},
        raw={"type": "boolean"},
    ),
    "search": {
        "type": "object",
        "properties": {"query": TEXT, "count": {"type": "number", "default": 10}},
        "required": ["query"],
    },
    "remember": {
        "type": "object",
        "properties": {
            "entities": {
                "type": "array",
                "items": object_of(name=TEXT, entityType=TEXT, observations={"type": "array", "items": TEXT}),
            }
        },
        "required": ["entities"],
    },
    "click": object_of(selector=TEXT, button={"enum": ["left", "middle", "right"]}, modifiers={"type": "array"}),
    "screenshot": object_of(
        fullPage={"type": "boolean"}, type={"const": "png"}, clip=object_of(x=WHOLE, y=WHOLE, width=WHOLE)
    ),
    "schedule": object_of(
        start={**TEXT, "format": "date-time"},
        cron={**TEXT, "pattern": r"^(\*|[0-9,-/]+)( (\*|[0-9,-/]+)){4}$"},
        attendees={"type": "array", "items": {**TEXT, "format": "email"}, "minItems": 1},
    ),
    "send": {
        "type": "object",
        "properties": {"channel": TEXT, "user": TEXT, "text": TEXT},
        "required": ["text"],
        "oneOf": [{"required": ["channel"]}, {"required": ["user"]}],
    },
    "filter": {
        "type": "object",
        "$defs": {
            "Filter": {
                "anyOf": [
                    object_of(field=TEXT, op={"enum": ["eq", "lt"]}, value={"type": ["string", "number", "null"]}),
                    object_of(all={"type": "array", "items": {"$ref": "#/$defs/Filter"}, "minItems": 1}),
                ]
            }
        },
        "properties": {"where": {"$ref": "#/$defs/Filter"}},
        "required": ["where"],
    },
    "deploy": {
        "type": "object",
        "properties": {"mode": {"enum": ["canary", "full"]}, "share": {**WHOLE, "minimum": 1, "maximum": 50}},
        "required": ["mode"],
        "if": {"properties": {"mode": {"const": "canary"}}},
        "then": {"required": ["share"]},
    },
    "pay": {
        "type": "object",
        "properties": {"card": {**TEXT, "pattern": r"^\d{16}$"}, "address": TEXT},
        "required": ["card"],
        "dependentRequired": {"card": ["address"]},
    },
    "map": object_of(
        position={"type": "array", "prefixItems": [{"type": "number"}] * 2, "items": False, "minItems": 2},
        zoom={"allOf": [{"$ref": "#/definitions/zoom"}], "description": "from 1 to 20"},
    )
    | {"definitions": {"zoom": {**WHOLE, "minimum": 1, "maximum": 20}}},
    "environment": {
        "type": "object",
        "properties": {"variables": {"type": "object", "additionalProperties": TEXT, "minProperties": 1}},
        "required": ["variables"],
    },
    "no arguments": {"type": "object", "properties": {}},
    "open": {"type": "object"},
    "extended": {
        "allOf": [
            {"type": "object", "properties": {"id": {**TEXT, "format": "uuid"}}, "required": ["id"]},
            {"type": "object", "properties": {"etag": {"type": "string"}}, "required": ["etag"]},
        ]
    },
    "not text": {"type": "object", "properties": {"value": {"not": {"type": "string"}}}, "required": ["value"]},
}

PATTERNS = (
    r"^(?=.*[A-Z])(?=.*\d).{8,}$",
    r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)(?=.*[@$!%*?&])[A-Za-z\d@$!%*?&]{8,}$",
    r"^(?!\s*$).+",
    r"^(?!.*\.\.)[a-z.]{3,9}$",
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$",
    r"^(?=.{3,20}$)(?:[a-z0-9](?:[a-z0-9-]{0,10}[a-z0-9])?\.)+[a-z]{2,4}$",
    r"^((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)\.?\b){4}$",
    r"^.*(?<=\d)px$",
    r"^[a-z]+(?<!end)$",
    r"(?=.*secret)",
    r"\bword\b",
    r"^{[a-z]+}$",
    r"^#(?:[0-9a-fA-F]{3}){1,2}$",
    r"^[\w.+-]+@[\w-]+\.[\w.-]+$",
    r"^(?:(?:31(\/|-|\.)(?:0?[13578]|1[02]))|(?:(?:29|30)(\/|-|\.)(?:0?[13-9]|1[0-2])))\.(?:\d{2})$",
)
"""Patterns that Python searches for, of which a text is made."""

UNOBEYABLE: Mapping[str, Any] = {
    "a pattern with a group repeated": {**TEXT, "pattern": r"^(['\"]).*\1$"},
    "a pattern that no text matches": {**TEXT, "pattern": "(?=a)b"},
    "a pattern of another length": {**TEXT, "pattern": "^[a-z]{3}$", "minLength": 9},
    "a broken pattern": {**TEXT, "pattern": "(("},
    "a type in other words": {"type": "int"},
    "a type in capitals": {"type": "STRING"},
    "no type at all": {"type": "whatever"},
    "a reference without target": {"$ref": "#/$defs/nowhere"},
    "a reference into another document": {"$ref": "https://example.org/a.json#/x"},
    "a reference to itself": {"$ref": "#/properties/value"},
    "false": False,
    "a list in place of members": {"type": "object", "properties": [], "required": True},
    "a text as a length": {**TEXT, "minLength": "5"},
    "an empty enumeration": {"enum": []},
    "empty alternatives": {"anyOf": []},
    "bounds that exclude each other": {**WHOLE, "minimum": 5, "maximum": 2},
    "more different items than there are": {
        "type": "array",
        "items": {"const": 1},
        "uniqueItems": True,
        "minItems": 2,
    },
    "a member beyond a closed object": object_of(required=["a", "b"], a=TEXT),
    "an endless chain": object_of(next={"$ref": "#/properties/value"}),
    "parts of which one leads nowhere": {"allOf": [{"$ref": "#/$defs/nowhere"}, object_of(a=TEXT)]},
}
"""Members that no value meets, or that cannot be read."""
