"""Sphinx settings of the documentation site, which `python -m scripts.docs` builds."""

from pathlib import Path

from scripts.docs import api

project = "Meridian"
author = "the Meridian authors"
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "Meridian"
html_static_path = ["_static"]
html_css_files = ["meridian.css"]
html_search_scorer = str(Path(__file__).with_name("_static") / "search_order.js")
html_show_sphinx = False
html_show_sourcelink = False
html_copy_source = False
html_last_updated_fmt = None  # same sources, same bytes
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3  # links such as page.md#a-heading
highlight_language = "text"
pygments_style = "default"
pygments_dark_style = "github-dark"
exclude_patterns = ["_static"]
toc_object_entries = False  # hundreds of functions would fill the sidebar
add_module_names = False
smartquotes = False  # data fields are quoted as JSON writes them
autodoc_default_options = {"members": True, "ignore-module-all": True}  # what a module itself defines
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True  # as they stand in the code
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True  # the name alone is shown, the full one is linked


def setup(app):
    api.connect(app)
