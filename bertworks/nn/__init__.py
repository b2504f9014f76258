"""Networks: torch and this folder only. No file, no text, no step."""
