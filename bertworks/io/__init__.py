"""FILES: compressed text, tables, atomic writes, worker processes."""
