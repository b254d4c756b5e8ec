"""Tables from which sch_netem throws the variation of a delay, by formula.

A table holds quantiles at equal steps of probability; the kernel takes one at random and multiplies it by the jitter. They are
the distributions that ``tc`` of iproute2 has under the same names.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist
from typing import Final

SCALE: Final = 8192
"""What stands for one jitter in a table."""
SIZE: Final = 4096
_MOST: Final = 32767
_PARETO_SHAPE: Final = 3.0
_PARETO_MEAN: Final = _PARETO_SHAPE / (_PARETO_SHAPE - 1)
_PARETO_FACTOR: Final = 4 / 3
"""As ``tc`` scales it. The tail is cut off at four jitters; what is left has a standard deviation of 0.82."""


def _normal(probability: float) -> float:
    return NormalDist().inv_cdf(probability)


def _pareto(probability: float) -> float:
    """From -2/3 at once up to a long tail of late frames; its mean is 0."""
    return float(((1 - probability) ** (-1 / _PARETO_SHAPE) - _PARETO_MEAN) * _PARETO_FACTOR)


def _paretonormal(probability: float) -> float:
    return _normal(probability) / 4 + _pareto(probability) * 3 / 4


_QUANTILES: Final = {"normal": _normal, "pareto": _pareto, "paretonormal": _paretonormal}


@cache
def table(name: str) -> tuple[int, ...]:
    """The table of a distribution, empty for ``uniform``, which the kernel throws by itself. Raises KeyError."""
    if name == "uniform":
        return ()
    quantile = _QUANTILES[name]
    scaled = (round(quantile((k + 0.5) / SIZE) * SCALE) for k in range(SIZE))
    return tuple(max(-_MOST, min(_MOST, value)) for value in scaled)
