"""How a JSON body or a query is read: as lenient as pydantic is by default, and with its complaints."""
