"""Upper limits that are checked before anything is allocated.

Each is well above any measurement, and below what a machine could hold.
"""

MOST_REQUESTS = 100_000_000
"""Requests of one run. One takes 1 to 2 kB from its arrival to its figures, so these would take 100 to 200 GB."""

MOST_DRAWN = 1_000_000_000
"""Most numbers of one kind that are drawn, for requests of which few may be kept. The numbers would take 10 to 30
GB."""

MOST_TOKENS = 100_000_000
"""Tokens of one prompt, or output. The longest contexts of models are a tenth of it; as text it is half a gigabyte, and
to simulate it takes minutes."""

LEAST_RATE = 1e-9
"""Requests per second: one in 31 years."""

MOST_RATE = 1e6
"""Requests per second: one a microsecond."""

LATEST_US = 2**53
"""Instants are earlier: 285 years from the start, be it of a run or of 1970, and still exact as a float."""

MOST_PROCESSES = 1024
"""Processes that share one task on one machine; each takes 30 MB and more."""

SLOWEST_GB_PER_S = 1e-6
"""Bandwidth of a network: a kilobyte per second."""

LONGEST_BASE_LATENCY_MS = 1e9
"""Latency of a network: 12 days."""
