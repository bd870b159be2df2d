"""Pseudo-random numbers that depend on their arguments alone, so that every run draws equal numbers."""

import math

DRAW_RANGE = 1 << 64
_MASK = DRAW_RANGE - 1


def splitmix64(number: int) -> int:
    """Return 64 pseudo-random bits, one to one (splitmix64, Steele, Lea and Flood 2014)."""
    bits = (number * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


def standard_normal(number: int) -> float:
    """Return a draw from the normal distribution with mean 0 and standard deviation 1 (Box and Muller 1958)."""
    bits = splitmix64(number)
    radius = math.sqrt(-2 * math.log((bits + 1) / (DRAW_RANGE + 1)))
    return radius * math.cos(2 * math.pi * splitmix64(bits) / DRAW_RANGE)
