"""What one run sends, from its settings: plans, conversations, and what is left of a run that was cut short."""
