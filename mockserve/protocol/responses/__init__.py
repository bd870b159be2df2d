"""OpenAI's Responses API, in terms of chat."""
