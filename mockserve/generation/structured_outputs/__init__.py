"""Constraints of structured outputs, and texts that meet them: JSON, regular expressions, grammars, structural tags."""
