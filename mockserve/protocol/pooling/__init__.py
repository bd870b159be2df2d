"""What is asked of models that pool, and their replies: vectors, classes, scores."""
