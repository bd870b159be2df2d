"""The shape of a metrics page: families with their types, labels and buckets, without values."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

TABLE = Path(__file__).with_name("metric_families.txt")
"""The shapes of vLLM's page, one family per line."""

FREE_LABELS = ("model_name", "engine", "handler", "method", "status", "generation")
"""Labels whose values depend on what is served and asked; of the others the values belong to the shape."""


def shapes(page: str) -> set[str]:
    """One line per family: name, type, labels, and the values of those that have a fixed set."""
    found = set()
    for family in text_string_to_metric_families(page):
        names: set[str] = set()
        values: set[str] = set()
        for sample in family.samples:
            names |= sample.labels.keys()
            if not family.name.endswith("_info"):
                values |= {f"{name}={value}" for name, value in sample.labels.items() if name not in FREE_LABELS}
        # Families without a sample yet have no labels to see.
        if family.samples:
            fixed = sorted(values, key=_by_number)
            found.add(" ".join([family.name, family.type, ",".join(sorted(names)) or "-", ",".join(fixed) or "-"]))
    return found


def _by_number(value: str) -> tuple[float, str]:
    """Buckets ascend, other values are in the order of the alphabet."""
    _, _, text = value.partition("=")
    try:
        return float(text), ""
    except ValueError:
        return 0.0, value
