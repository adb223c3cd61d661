"""Topics: each has a room with its save queue and its live guard, and needs of the world."""
