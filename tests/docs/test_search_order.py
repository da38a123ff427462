"""The site orders its search results by folders that exist."""

from __future__ import annotations

import re

from tests.docs.pages import DOCS

ORDER = DOCS / "search_order.js"


def test_the_order_of_results_names_folders_of_the_site() -> None:
    assert f'with_name("{ORDER.name}")' in (DOCS / "conf.py").read_text()
    folders = re.findall(r'startsWith\("([\w-]+)/"\)', ORDER.read_text())
    assert folders == ["adr", "cookbook"]
    assert all((DOCS / each / "index.md").is_file() for each in folders)
