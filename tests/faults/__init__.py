"""A real server, killed, starved, flooded and cut off."""
