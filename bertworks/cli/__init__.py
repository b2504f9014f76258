"""The verbs of the command line, one file per group; no logic of their own."""
