"""The pure core: one test module per module."""
