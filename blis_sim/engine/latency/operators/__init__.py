"""Step times from the operators of a layer: tables of what each takes, and how they add up to a step."""
