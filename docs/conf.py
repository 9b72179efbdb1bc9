"""Sphinx configuration: `make docs`."""

import tomllib
from pathlib import Path

_project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

project = "firsttouch"
author = "firsttouch contributors"
copyright = "firsttouch contributors"
release = _project["version"]
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "firsttouch"
exclude_patterns = ["_build"]
