"""The pure heart of livetree: no I/O, no clock, no randomness; shared by server, SDK and tests."""

__all__: list[str] = []
