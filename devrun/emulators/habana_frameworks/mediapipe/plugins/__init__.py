"""Iterators over a pipeline."""
