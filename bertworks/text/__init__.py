"""Raw text to token ids on disk. No torch."""
