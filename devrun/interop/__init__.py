"""Configs, models, data and weights of other frameworks, each read when it is named."""
