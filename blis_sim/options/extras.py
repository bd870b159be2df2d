"""Checks that the libraries of an optional extra are installed."""

from importlib.util import find_spec
from pathlib import Path

from blis_sim.options.errors import OptionError

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


def check_plot(flag: str, path: str | None) -> None:
    """Raise OptionError when the picture of a flag cannot be drawn; a `path` of None means no picture."""
    if path is None:
        return
    if Path(path).suffix not in PICTURE_SUFFIXES:
        raise OptionError(f"{flag} must be a file that ends in {', '.join(PICTURE_SUFFIXES)}, got {path}")
    if not Path(path).parent.is_dir():
        raise OptionError(f"{flag} must be in a folder that exists, got {path}")
    _need_matplotlib(flag)


def check_page(flag: str, path: str | None) -> None:
    """Raise OptionError when the page of a flag, which has pictures, cannot be written; None means no page."""
    if path is not None:
        _need_matplotlib(flag)


def _need_matplotlib(flag: str) -> None:
    if find_spec("matplotlib") is None:
        raise OptionError(f"{flag} needs matplotlib: pip install 'blis-mockserve[plots]'")


def check_ray() -> None:
    """Raise OptionError where Ray is not installed."""
    if find_spec("ray") is None:
        raise OptionError("--ray needs ray: pip install 'blis-mockserve[ray]'")
