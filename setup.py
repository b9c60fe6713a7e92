"""A front for tools that still look for it; pyproject.toml says everything else."""

from setuptools import setup

# Here since the setuptools of Python 3.8 and that of today read it differently there.
setup(license="Apache-2.0", license_files=["LICENSE"])
