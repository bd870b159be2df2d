"""What a run amounts to: each request in a few numbers, and statistics, summaries and pictures of them."""
