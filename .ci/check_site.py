"""Checks a built documentation site: it loads nothing from the network, and every link in it leads somewhere."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src"}
LOADING_LINKS = {"stylesheet", "icon", "preload", "preconnect", "modulepreload", "dns-prefetch"}


@dataclass
class Page(HTMLParser):
    """What one page loads, links to, and offers as anchors."""

    loads: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one tag."""
        given = {k: v or "" for k, v in attrs}
        self.anchors.update(given[k] for k in ("id", "name") if k in given)
        if tag in LOADED and LOADED[tag] in given:
            self.loads.append(given[LOADED[tag]])
        if tag == "link" and LOADING_LINKS & set(given.get("rel", "").split()):
            self.loads.append(given.get("href", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])


def faults(site: Path) -> list[str]:
    """Every fault of a site, one line each."""
    pages = {}
    for file in sorted(site.rglob("*.html")):
        page = pages[file.resolve()] = Page()
        page.feed(file.read_text(encoding="utf-8"))
    found = [f"{file}: loads {u}" for file, page in pages.items() for u in page.loads if urlsplit(u).netloc]
    found += [
        f"{file}: loads {u}"
        for file in sorted(site.rglob("*.css"))
        for u in re.findall(r"url\([\"']?((?:https?:)?//[^)\"']+)", file.read_text(encoding="utf-8"))
    ]
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or file.name == "404.html":
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                found.append(f"{file}: {link} leads nowhere")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{file}: {link}: no such anchor")
    return found if pages else [f"{site}: no page in it"]


if __name__ == "__main__":
    told = faults(Path(sys.argv[1]))
    print("\n".join(told) if told else "all links lead somewhere, nothing is loaded from the network")
    sys.exit(bool(told))
