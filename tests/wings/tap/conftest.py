"""A tap stands before the frontend that the tests of the engine have, too."""

from tests.wings.engine_core.conftest import frontend

__all__ = ["frontend"]
