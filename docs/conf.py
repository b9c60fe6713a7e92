"""The site of the documents: `make docs`.

The source folder is the root of the repository, so that a link between two pages is the
same here as where the repository is browsed.
"""

from __future__ import annotations

import devrun

project = "devrun"
author = "The devrun authors"
version = release = devrun.__version__
root_doc = "docs/README"
include_patterns = ["*.md", "benchmarks/*.md"]
include_patterns += [
    f"{top}/{sub}*.md" for top in ("docs", "examples") for sub in ("", "**/")
]
html_extra_path = ["_site"]  # the front page, which leads to the index
html_theme = "alabaster"
html_theme_options = {"page_width": "70em", "fixed_sidebar": True}
html_copy_source = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3

# Docstrings name code in single backquotes, and raise classes in `Raises:`.
default_role = "code"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
