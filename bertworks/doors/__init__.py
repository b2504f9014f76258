"""Ways in and out for models: from other formats, to other programs, to the hub, and as one object into Python."""
