"""`blis top`: the figures of a vLLM server's metrics page as a table that is refreshed."""
