"""Worker processes for work of a cost that clients control, with limits of time and memory."""
