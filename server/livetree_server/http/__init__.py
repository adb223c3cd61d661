"""HTTP: health, the front page, and bringing conversations in."""
