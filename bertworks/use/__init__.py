"""Answers: what a model says, of one text or of whole files; how well it does; its ways in and out."""
