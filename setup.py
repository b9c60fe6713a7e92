"""A thin front for tools that still look for it; pyproject.toml says everything."""

from setuptools import setup

setup()
