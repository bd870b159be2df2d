"""Strings of the formats that JSON Schema, OpenAPI and pydantic name. Any text has a format that is not listed here."""

import json
from base64 import b64encode
from collections.abc import Callable
from random import Random
from uuid import UUID

from mockserve.generation.tokenizer import WORDS


def _random_date(random: Random) -> str:
    return f"20{random.randint(10, 29)}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"


def _random_clock(random: Random) -> str:
    return f"{random.randint(0, 23):02}:{random.randint(0, 59):02}:{random.randint(0, 59):02}"


def _random_time(random: Random) -> str:
    return f"{_random_clock(random)}Z"


def _date_time(random: Random) -> str:
    return f"{_random_date(random)}T{_random_time(random)}"


def _random_word(random: Random) -> str:
    return random.choice(WORDS)


def _random_email(random: Random) -> str:
    return f"{_random_word(random)}@{_random_word(random)}.com"


def _random_host(random: Random) -> str:
    return f"{_random_word(random)}.{_random_word(random)}.org"


def _uri_reference(random: Random) -> str:
    return f"/{_random_word(random)}/{_random_word(random)}"


def _ipv4(random: Random) -> str:
    return ".".join(str(random.randint(1, 254)) for _ in range(4))


def _ipv4_network(random: Random) -> str:
    return f"10.{random.randint(0, 255)}.{random.randint(0, 255)}.0/24"


def _ipv6(random: Random) -> str:
    return ":".join(f"{random.randint(0x1000, 0xFFFF):x}" for _ in range(8))


def _random_uuid(version: int) -> Callable[[Random], str]:
    def drawn(random: Random) -> str:
        bits = random.getrandbits(128) & ~(0xF << 76 | 0x3 << 62) | version << 76 | 0x2 << 62
        return str(UUID(int=bits))

    return drawn


FORMATS: dict[str, Callable[[Random], str]] = {
    "date-time": _date_time,
    "datetime": _date_time,
    "timestamp": _date_time,
    "date-time-local": lambda random: f"{_random_date(random)}T{_random_clock(random)}",
    "date": _random_date,
    "time": _random_time,
    "time-local": _random_clock,
    "duration": lambda random: f"P{random.randint(1, 9)}DT{random.randint(1, 23)}H",
    "email": _random_email,
    "idn-email": _random_email,
    "name-email": lambda random: f"{_random_word(random).title()} <{_random_email(random)}>",
    "hostname": _random_host,
    "idn-hostname": _random_host,
    "ipv4": _ipv4,
    "ipv4interface": lambda random: f"{_ipv4(random)}/24",
    "ipv4network": _ipv4_network,
    "ipv6": _ipv6,
    "ipv6interface": lambda random: f"{_ipv6(random)}/64",
    "ipv6network": lambda random: f"fd{random.randint(0, 255):02x}:{random.randint(0x1000, 0xFFFF):x}::/32",
    **dict.fromkeys(("ip", "ipvanyaddress"), _ipv4),
    **dict.fromkeys(("cidr", "ipvanynetwork", "ipvanyinterface"), _ipv4_network),
    **dict.fromkeys(("mac", "mac-address"), lambda random: ":".join(f"{random.randint(0, 255):02x}" for _ in range(6))),
    **dict.fromkeys(("uri", "url", "iri"), lambda random: f"https://{_random_word(random)}.org/{_random_word(random)}"),
    "uri-reference": _uri_reference,
    "iri-reference": _uri_reference,
    "uri-template": lambda random: f"/{_random_word(random)}/{{{_random_word(random)}}}",
    "multi-host-uri": lambda random: (
        f"postgresql://{_random_host(random)}:5432,{_random_host(random)}:5432/{_random_word(random)}"
    ),
    **dict.fromkeys(("uuid", "guid"), _random_uuid(4)),
    **{f"uuid{version}": _random_uuid(version) for version in range(1, 9)},
    "json-pointer": lambda random: f"/{_random_word(random)}/{random.randint(0, 9)}",
    "relative-json-pointer": lambda random: f"{random.randint(0, 3)}/{_random_word(random)}",
    "json-string": lambda random: json.dumps({_random_word(random): random.randint(0, 100)}),
    "regex": lambda random: f"{_random_word(random)}+",
    **dict.fromkeys(("byte", "base64", "base64url"), lambda random: b64encode(_random_word(random).encode()).decode()),
    **dict.fromkeys(("path", "file-path"), lambda random: f"/tmp/{_random_word(random)}.txt"),
    "directory-path": lambda random: f"/tmp/{_random_word(random)}",
    **dict.fromkeys(("phone", "phone-number", "tel"), lambda random: f"+1650253{random.randint(0, 9999):04}"),
    "color": lambda random: f"#{random.getrandbits(24):06x}",
    "password": lambda random: f"{_random_word(random).title()}-{random.randint(1000, 9999)}",
    "semver": lambda random: ".".join(str(random.randint(0, 9)) for _ in range(3)),
    "char": lambda random: _random_word(random)[0],
    **{
        f"{sign}int{bits}": lambda random: str(random.randint(0, 100)) for sign in ("", "u") for bits in (8, 16, 32, 64)
    },
    "fraction": lambda random: f"{random.randint(1, 9)}/{random.randint(2, 9)}",
    **dict.fromkeys(
        ("decimal", "decimal128", "double", "float"),
        lambda random: f"{random.randint(0, 99)}.{random.randint(0, 99):02}",
    ),
}
"""How to draw a string of a format. Numbers are written as text where an API has them so, as for 64 bits."""
