"""Rarer features. Each registers itself by entry points, as a package of another author does. Nothing imports it."""
