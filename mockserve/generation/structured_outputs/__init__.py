"""Forms that a request can demand of an answer, and texts that have them: JSON, expressions, grammars, tags."""
