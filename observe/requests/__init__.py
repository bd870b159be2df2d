"""What to send and when, before anything is known of the server: schedules, lengths, prompts, bodies."""
