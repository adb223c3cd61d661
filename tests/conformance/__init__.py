"""JSON cases, and what runs them through the core and through a server."""
