"""Topics: a room for each live one, its save queue, its live guard, and what it needs of the world."""
