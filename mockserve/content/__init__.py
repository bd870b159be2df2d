"""What the model that is not there says: text that obeys the request, token by token."""
