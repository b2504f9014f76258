"""A SERVER FOR ONE MODEL, and its page."""
