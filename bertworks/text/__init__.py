"""RAW TEXT -> TOKEN IDS ON DISK.

No torch.
"""
