"""`blis top`: what a vLLM server says of itself on its metrics page, as a table that stays up to date."""
