"""SEARCH."""
