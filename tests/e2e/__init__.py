"""Whole conversations, from an import to the database, over a network that fails."""
