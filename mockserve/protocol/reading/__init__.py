"""Parsing of a JSON body or a query: as lenient as pydantic is by default, and with pydantic's errors."""
