"""One schedule sent from the machines of a Ray cluster."""
