"""Name tables of the families: one module each."""
