"""Where a new recording is written, and what becomes of an earlier one there."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from os.path import isfile  # which takes any text for a path

from observe.messages import say
from observe.options import ObserveOptions
from observe.output_paths import OutputPaths
from observe.plans.resume import Earlier
from traces.append_file import sole_writer
from traces.set_aside import holds_rows, set_aside
from traces.text_file import naming_write_errors


@contextmanager
def place_of_its_own(options: ObserveOptions, resumed: Earlier | None) -> Iterator[None]:
    """Reserve these paths for the run, within a `with` block; their header must be locked already.

    An earlier recording that has rows is moved away, or with `--overwrite` deleted, unless it is the one to resume.
    Raises TraceError, with everything as it was.
    """
    paths = options.paths
    if resumed is None and any(map(holds_rows, paths.rows)):
        if options.overwrite:
            _delete_what_is_not_replaced(paths)
        else:
            others = [path for path in paths.others if isfile(path) and path.stat().st_size]
            folder = set_aside(paths.header.with_suffix(""), others, paths.rows)
            say(f"note: the earlier recording at {paths.data} is now in {folder}")
    # A header that has moved has taken its lock along.
    with nullcontext() if paths.header.exists() else sole_writer(paths.header):
        yield


def _delete_what_is_not_replaced(paths: OutputPaths) -> None:
    """Of an earlier recording; the others are as soon as they are opened."""
    replaced = (paths.header, paths.data, paths.itl, paths.metrics)
    for path in (*paths.others, *paths.rows):
        if path not in replaced and isfile(path):
            with naming_write_errors(path):
                path.unlink(missing_ok=True)
