"""Where results are to be written, looked at before anything is computed."""

from pathlib import Path

from blis_options import OptionError


def check_folder(flag: str, path: str | None) -> None:
    """Raise OptionError when the file that a flag names cannot be made, as its folder is not there or it is one.

    None asks for no file.
    """
    if path is None:
        return
    if not Path(path).parent.is_dir():
        raise OptionError(f"{flag} must be in a folder that exists, got {path}")
    if Path(path).is_dir():
        raise OptionError(f"{flag} must be a file, got the folder {path}")


def check_table(flag: str, path: str | None) -> None:
    """The same of a CSV file, which must be named as one."""
    if path is not None and Path(path).suffix != ".csv":
        raise OptionError(f"{flag} must be a file that ends in .csv, got {path}")
    check_folder(flag, path)
