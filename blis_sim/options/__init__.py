"""Settings of users, and the error for invalid settings. Any package may import this one, which imports none.

Read `option.py` first: a frozen dataclass whose fields are made by `option()` and `section()` is a settings table.
`addition.py`, with sums that must not depend on the version of Python, is here because no package is lower.
"""

from blis_sim.options.option import (
    BlisError,
    ExclusionError,
    Option,
    OptionError,
    StartError,
    check_options,
    check_outputs,
    check_written,
    ineffective_flags,
    names_from,
    names_in,
    option,
    options_from,
    options_of,
    section,
    with_settings,
    written_file,
)

__all__ = [
    "BlisError",
    "ExclusionError",
    "Option",
    "OptionError",
    "StartError",
    "check_options",
    "check_outputs",
    "check_written",
    "ineffective_flags",
    "names_from",
    "names_in",
    "option",
    "options_from",
    "options_of",
    "section",
    "with_settings",
    "written_file",
]
