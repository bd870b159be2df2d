"""Clients that are tested where they are installed: `make test-clients` gives them an environment of their own."""

import os
import warnings
from typing import Any

import pytest


def client_library(name: str) -> Any:
    """The library, imported without its warnings; the tests of the module are skipped where it is missing."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the internet for prices
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"{name} is not installed: make test-clients", exc_type=ImportError)
