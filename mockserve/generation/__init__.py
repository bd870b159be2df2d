"""Generated content: text that meets the constraints of the request, token by token."""
