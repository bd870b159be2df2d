"""What a sample of durations amounts to: mean, percentiles, maximum."""

import numpy as np
import numpy.typing as npt

_PERCENTS = (50, 90, 95, 99)


def distribution_ms(nanos: npt.ArrayLike) -> dict[str, float] | None:
    """Mean, percentiles and maximum in milliseconds; unknown values (NaN) are left out, and None is of nothing."""
    values = np.asarray(nanos)
    if values.dtype.kind == "f":
        values = values[~np.isnan(values)]
    if not values.size:
        return None
    figures = [values.mean(), *np.percentile(values, _PERCENTS), values.max()]
    names = ("mean", *(f"p{percent}" for percent in _PERCENTS), "max")
    return {name: round(float(figure) / 1e6, 6) for name, figure in zip(names, figures, strict=True)}
