"""Figures of a run, computed from its record and its engines; one module per topic."""
