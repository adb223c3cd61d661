"""The hub: every connection, what it hears, and how far behind it may fall. It sees bytes only."""
