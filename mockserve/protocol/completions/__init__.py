"""The two interfaces that most requests use: chat and text completions, their requests and their replies."""
