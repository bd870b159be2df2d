"""Generated content: text that obeys the request, token by token."""
