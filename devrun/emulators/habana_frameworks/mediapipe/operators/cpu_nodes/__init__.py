"""Nodes that run on the host."""
