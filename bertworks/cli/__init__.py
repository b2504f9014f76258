"""THE COMMANDS.

No logic of their own.
"""
