"""`blis vidur`: a command line of Vidur, simulated with our schedulers, and its output folder."""

import sys
from contextlib import suppress
from typing import Any

from blis_sim.wings.vidur.settings import VidurOptions, rewritten

__all__ = ["VidurOptions", "rewritten", "run"]


def run(options: Any) -> int:
    """Simulate, write the output folder, print its path; all else goes to standard error."""
    from blis_sim.wings.vidur.cluster import cluster_of
    from blis_sim.wings.vidur.effects import flags_without_effect
    from blis_sim.wings.vidur.latency import latencies_of
    from blis_sim.wings.vidur.output import new_folder, write_folder
    from blis_sim.wings.vidur.simulation import simulated
    from traces.collector import gc_disabled

    with gc_disabled():
        cluster = cluster_of(options)
        options, latencies, notes = latencies_of(options, cluster)
        result = simulated(options, cluster, latencies)
        for note in (*cluster.notes, *notes, *flags_without_effect(options)):
            _print_note(note)
        if not options.metrics_config_write_metrics:
            return 0
        folder = new_folder(options)
        write_folder(options, result, folder)
    sys.stdout.write(f"{folder}\n")
    return 0


def _print_note(line: str) -> None:
    with suppress(OSError):  # a full disk behind standard error takes no result away
        sys.stderr.write(f"blis vidur: {line}\n")
