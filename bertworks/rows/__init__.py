"""Files of rows, labelled or not, to items: what is asked of a text, every value checked. No tokens, no torch."""
