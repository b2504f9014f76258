"""Answers: what a person wants done, from the first file to the last number."""
