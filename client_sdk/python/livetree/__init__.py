"""livetree: branching AI conversations, mirrored live."""

__all__: list[str] = []
