"""Worker processes for work whose cost a client decides: with limits of time and memory, ended with the server."""
