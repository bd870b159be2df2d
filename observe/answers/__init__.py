"""What an answer says, folded from its bytes as they come: events, usage, the text."""
