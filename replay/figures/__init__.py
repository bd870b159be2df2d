"""What a run amounts to: each module answers one question about a record or its engines."""
