"""Folders that explain themselves: checkpoints, model folders, the names that others give to our parameters."""
