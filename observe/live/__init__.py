"""Progress display of a run."""
