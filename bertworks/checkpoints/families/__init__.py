"""The families of models: a TOML file and, where needed, a module for each."""
