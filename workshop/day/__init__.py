"""A day of traffic through the recording proxy, judged and played back."""
