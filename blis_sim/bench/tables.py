"""Tables of results, looked at before anything is computed."""

from pathlib import Path

from blis_sim.options import OptionError


def check_table(flag: str, path: str | None) -> None:
    """Raise OptionError when the CSV file that a flag names is not named as one. None asks for no file."""
    if path is not None and Path(path).suffix != ".csv":
        raise OptionError(f"{flag} must be a file that ends in .csv, got {path}")
