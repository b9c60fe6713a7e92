"""MMEngine and its libraries: their configs, registries and models."""
