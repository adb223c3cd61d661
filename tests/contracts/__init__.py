"""One suite for each port, run on every implementation of it."""
