"""Settings of Sphinx for the site; docs/site/build.sh runs it over what stage.py writes."""

import os

project = "culeak"
copyright = "the authors of culeak"
version = release = os.environ["SITE_VERSION"]
html_title = f"culeak {version}"
root_doc = "index"

# The pages are written for GitHub: its Markdown, and its names of anchors. Of MyST only directives are used, for the order of the pages.
extensions = ["myst_parser"]
myst_heading_anchors = 6
myst_disable_syntax = ["myst_line_comment", "myst_block_break", "myst_target", "myst_role", "html_admonition"]
highlight_language = "none"

# Opened from a folder, a page may not read another one, so results of a search have no excerpts. The index is a script, which it may load.
html_show_search_summary = False
html_theme = "furo"
html_copy_source = False
html_use_index = False
html_show_sphinx = False
html_extra_path = [os.environ["SITE_EXAMPLES"]]
