"""The requests of a run, from its settings: plans, conversations, and the rest of an interrupted run."""
