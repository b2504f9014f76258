"""Answers: what a model says, of one text or of whole files; and how well it does."""
