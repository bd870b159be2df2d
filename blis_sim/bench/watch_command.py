"""`blis calibrate --watch`: a live server against a prediction of its last minutes."""

from blis_sim.bench.watch_options import WatchOptions

__all__ = ["WatchOptions", "run"]


def run(options: WatchOptions) -> int:
    """Watch a server, which may be unreachable for a while after the first reading.

    Exit codes: 0 enough comparisons were made, 3 a figure has left the interval of its prediction, 1 the first reading
    failed.
    """
    from blis_sim.bench.drift import watch
    from observe.errors import RunError, print_message

    try:
        return watch(options)
    except RunError as error:
        print_message(f"blis calibrate --watch: error: {error}")
        return 1
