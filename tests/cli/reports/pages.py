"""What must hold of any page: read with the standard library's parser, not with what wrote it."""

import re
from html.parser import HTMLParser
from itertools import pairwise

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Reader(HTMLParser):
    """The page as a list of elements, each with its attributes, text and ancestors; complains of bad nesting."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.stack, self.elements, self.faults = [], [], []
        self.feed(text)
        self.close()
        self.faults += [f"<{e['tag']}> is never closed" for e in self.stack]

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            self.faults.append(f"<{tag}> has an attribute twice: {names}")
        element = {"tag": tag, "attrs": dict(attrs), "text": "", "parents": [e["tag"] for e in self.stack]}
        self.elements.append(element)
        if tag not in VOID:
            self.stack.append(element)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag):
        if not self.stack or self.stack[-1]["tag"] != tag:
            self.faults.append(f"</{tag}> closes {self.stack[-1]['tag'] if self.stack else 'nothing'}")
            return
        self.stack.pop()

    def handle_data(self, data):
        for element in self.stack:
            element["text"] += data

    def all(self, *tags):
        return [e for e in self.elements if e["tag"] in tags]

    def by_id(self):
        return {e["attrs"]["id"]: e for e in self.elements if "id" in e["attrs"]}

    def tables(self):
        """Cells of every table by its caption: heading row first."""
        found, rows = {}, []
        for e in self.elements:
            if e["tag"] == "caption":
                rows = found.setdefault(e["text"].strip(), [])
            elif e["tag"] == "tr":
                rows.append([])
            elif e["tag"] in ("th", "td") and rows:
                rows[-1].append(e["text"].strip())
        return found


def check(text):
    """Everything that holds of a page by itself; the reader of it."""
    assert text.startswith("<!doctype html>\n")
    page = Reader(text)
    assert page.faults == []
    _check_references(page)
    _check_self_contained(page, text)
    _check_accessible(page)
    assert not re.search(r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d", re.sub(r"<pre.*?</pre>", "", text, flags=re.DOTALL)), (
        "a date"
    )
    return page


def _check_references(page):
    ids = [e["attrs"]["id"] for e in page.elements if "id" in e["attrs"]]
    assert len(ids) == len(set(ids)), sorted(i for i in ids if ids.count(i) > 1)
    for e in page.elements:
        for name in ("aria-labelledby", "aria-describedby", "href", "xlink:href", "clip-path"):
            for target in re.findall(r"#([^)\s\"]+)", e["attrs"].get(name) or ""):
                assert target in ids, (e["tag"], name, target)
        for target in (e["attrs"].get("aria-labelledby") or "").split():
            assert target in ids, target


def _check_self_contained(page, text):
    (policy,) = (e["attrs"]["content"] for e in page.all("meta") if "Content-Security-Policy" in e["attrs"].values())
    assert policy.startswith("default-src 'none'")
    for e in page.elements:
        for name in ("src", "href", "xlink:href", "data", "action", "poster", "srcset"):
            value = e["attrs"].get(name)
            assert value is None or value.startswith(("#", "data:")), (e["tag"], name, value)
    assert page.all("iframe", "object", "embed", "img") == []
    for style in re.findall(r"<style>(.*?)</style>", text, re.DOTALL):
        assert "@import" not in style and "url(" not in style
    assert {e["attrs"].get("rel") for e in page.all("link")} <= {"icon"}


def _check_accessible(page):
    (root,) = page.all("html")
    assert root["attrs"]["lang"] == "en"
    assert len(page.all("title")) >= 1 and len(page.all("main")) == 1 and len(page.all("h1")) == 1
    levels = [int(e["tag"][1]) for e in page.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1 and all(b <= a + 1 for a, b in pairwise(levels))
    named = page.by_id()
    for figure in page.all("svg"):
        assert figure["attrs"]["role"] == "img"
        assert named[figure["attrs"]["aria-labelledby"]]["text"].strip()
        assert len(named[figure["attrs"]["aria-describedby"]]["text"].strip()) > 40
    for e in page.all("th"):
        assert e["attrs"].get("scope") in ("col", "row")
    assert len(page.all("table")) == len(page.all("caption"))
    for e in page.elements:
        if e["attrs"].get("class") == "scroll":  # what scrolls can be reached and named by keyboard and reader
            assert e["attrs"]["tabindex"] == "0" and e["attrs"]["aria-label"].strip()


def number(cell):
    """The number at the start of a cell: ``1,234.5``, ``43.2 %``, ``≤ +1.2 %``."""
    return float(re.search(r"[-+]?[\d,]*\.?\d+", cell)[0].replace(",", ""))
