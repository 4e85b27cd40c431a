"""Sphinx configuration. `make docs` makes warnings errors; nothing here reaches the network."""

from __future__ import annotations

from importlib.metadata import version as installed

project = "tensor-transport"
author = "The tensor-transport authors"
copyright = f"2026, {author}"
release = version = installed("tensor-transport")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]

source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "**/_*.md"]  # an underscore marks a fragment that other pages include
# Most annotations name numpy and torch types, whose inventories are not to be had offline.
nitpicky = False
default_role = "code"  # docstrings write `name` as Markdown does

myst_enable_extensions = [
    "attrs_inline",
    "colon_fence",
    "deflist",
    "fieldlist",
    "substitution",
    "tasklist",
]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports = ["ray", "monarch", "torchft", "vllm"]

html_theme = "furo"
html_title = f"tensor-transport {release}"
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
