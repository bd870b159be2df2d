"""How a conversation becomes the text of a prompt."""
