"""How Sphinx builds the site of this folder: `make docs`.

Nothing is fetched, neither while the site is built nor while it is read: furo has the reader's own
fonts, and the search is a script of the site.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from myst_parser.mdit_to_docutils.base import default_slugify
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

_PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"

project = "supervise"
release = tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))["project"]["version"]
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
nitpicky = True

# A link may name any heading, as it would on a forge: `states.md#running`.
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"supervise {release}"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_search_scorer = str(Path(__file__).with_name("search_order.js"))


_LINK_UP = re.compile(r"\]\(((?:\.\./)+[\w./-]+\.md)(?:#([\w-]+))?\)")


def _link_to_files_beside(app: Sphinx, page: str, source: list[str]) -> None:
    """Have a link to a Markdown file that is not in this folder, such as CONTRIBUTING.md, give the
    file itself: MyST would look for a page of the site. An unknown heading is left to fail."""

    def link(found: re.Match[str]) -> str:
        file = (app.srcdir / page).parent.joinpath(found[1]).resolve()
        if file.is_relative_to(app.srcdir) or not file.is_file():
            return found[0]
        anchors = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
        if found[2] and found[2] not in map(default_slugify, anchors):
            return found[0]
        return f"](path:{found[1]})"

    source[0] = _LINK_UP.sub(link, source[0])


def setup(app: Sphinx) -> None:
    """Add what this site needs beyond its settings."""
    # A diagram is shown as its text: to draw it takes a script from the network.
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", _link_to_files_beside)
