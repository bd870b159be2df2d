"""The cores that this process may use, within the quota of its control group."""

import math
import os
from pathlib import Path

_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")


def available_cores() -> float:
    """Return the cores of the affinity mask, or the quota of the control group where that is less."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        quota_us, period_us = _QUOTA_FILE.read_text().split()[:2]
        return min(cores, float(quota_us) / float(period_us))
    except (OSError, ValueError):  # no such file, or no quota
        return cores


def default_num_processes() -> int:
    """Return one process per available core; a part of a core counts as one, so the whole quota is used."""
    return math.ceil(available_cores())
