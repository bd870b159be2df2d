"""Contents of recorded requests and replies: their file, and what is removed from them before they reach it."""
