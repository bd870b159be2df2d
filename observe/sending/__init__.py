"""How a process sends its share of a schedule, the only process included."""
