"""Anthropic's Messages API, in terms of chat."""
