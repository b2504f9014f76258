"""THE WHOLE WAY ONCE, on text that comes with Python."""
