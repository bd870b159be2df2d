"""Traces as files of other programs. One file per kind of form; `registry.py` lists the formats."""
