"""`blis calibrate --watch`: a live server against a prediction of its last minutes."""

from blis_sim.bench.watch.options import WatchOptions

__all__ = ["WatchOptions", "run"]


def run(options: WatchOptions) -> int:
    """Watch. Exit codes: 0 enough comparisons were made, 3 a figure has left the interval of its prediction."""
    from blis_sim.bench.watch.loop import watch

    return watch(options)
