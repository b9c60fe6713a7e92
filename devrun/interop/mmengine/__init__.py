"""MMEngine and its libraries: their configs, registries, models and evaluation."""
