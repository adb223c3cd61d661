"""The tests, by what they prove."""
