"""The differences that are meant."""

from tests.wire.captured.expected import Expected

TABLE: tuple[Expected, ...] = ()
