"""The whole way once, on text that every Python brings along."""
