"""PAGES."""
