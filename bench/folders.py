"""Where results are to be written, looked at before anything is computed."""

from pathlib import Path

from blis_options import OptionError


def check_folder(flag: str, path: str) -> None:
    """Raise OptionError when the file that a flag names cannot be made, as its folder is not there or it is one."""
    if not Path(path).parent.is_dir():
        raise OptionError(f"{flag} must be in a folder that exists, got {path}")
    if Path(path).is_dir():
        raise OptionError(f"{flag} must be a file, got the folder {path}")
