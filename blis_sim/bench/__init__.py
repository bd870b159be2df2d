"""`blis bench`: the commands of `vllm bench`, with their flags, labels and result files, on this product's own parts.

`serve_load.py` puts load on a server through the client of `observe`. `latency_command.py` and `throughput_command.py`
run `vllm bench latency` and `vllm bench throughput` on the simulated engine in virtual time. `datasets.py` makes the
requests of all three commands.
"""

from blis_sim.options import BlisError


class BenchError(BlisError):
    """A benchmark cannot run with its settings, or its results cannot be written."""
