"""The livetree server."""
