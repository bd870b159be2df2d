"""Checks that the libraries of an optional extra are installed."""

from blis_sim.options.extras import PICTURE_SUFFIXES, check_page, check_plot, check_ray

__all__ = ["PICTURE_SUFFIXES", "check_page", "check_plot", "check_ray"]
