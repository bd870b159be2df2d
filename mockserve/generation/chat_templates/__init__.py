"""From a conversation to the text of a prompt."""
