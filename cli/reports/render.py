"""A page as one HTML file that needs nothing else: no font, script, style or image of another place."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise import __version__

from .palette import DARK, LIGHT, variables
from .sheet import inline_svg

if TYPE_CHECKING:
    from .content import Chart, Page

_TEMPLATES = Path(__file__).with_name("templates")


def html(page: Page) -> str:
    """The page; the same text for the same page. Raises ImportError without matplotlib and jinja2.

    Its policy (a Content-Security-Policy) keeps a browser from fetching anything and from running any other script.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=_printable)
    style = environment.from_string(_text("style.css"), {"light": variables(LIGHT), "dark": variables(DARK)}).render()
    script = _text("page.js").strip()
    template = environment.from_string(_text("page.html.jinja"))
    return template.render(
        page=page,
        version=__version__,
        style=Markup(style),
        script=Markup(script),
        script_hash=Markup(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()),
        drawings={chart.name: Markup(_both(chart)) for chart in page.charts()},
    )


def _printable(value: object) -> object:
    """Text of files, such as a study's name, without control characters; everything else as it is."""
    if type(value) is not str or value.isprintable():
        return value
    return "".join(ch if ch.isprintable() or ch in "\n\t" else " " for ch in value)


def _both(chart: Chart) -> str:
    """The drawing for large pages and the one for telephones; the style sheet shows one of them."""
    return inline_svg(chart, wide=True) + inline_svg(chart, wide=False)


def _text(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")
