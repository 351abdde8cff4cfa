"""Every example in README.md and docs/ runs, and prints what the page says it prints.

In a page, ``console`` blocks hold commands after ``$`` and their output; ``python`` blocks run in one namespace a
page, and an ``output`` block after one holds what it prints; a block fenced as ``yaml title="NAME"`` (or any language)
is written to the page's folder first. Headings, sentences and errors must match but for their figures; a line ``...``
and indented lines, the rows of tables and lists, stand for any lines: they move when the cost model is fitted anew.
``SHARDWISE_UPDATE_DOCS=1 pytest tests/test_docs.py`` writes the present output into the pages.
"""

import contextlib
import importlib.util
import io
import itertools
import os
import re
import shlex
import subprocess
import sys
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import shardwise

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
UPDATE = os.environ.get("SHARDWISE_UPDATE_DOCS", "") not in ("", "0")

FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?")
RULES = re.compile(r"[─━]+")


@dataclass
class Block:
    language: str
    file: str | None
    body: str
    start: int
    end: int


def blocks(text):
    for match in FENCE.finditer(text):
        language, _, rest = match["info"].partition(" ")
        titled = re.fullmatch(r'title="([^"]+)"', rest)
        assert titled or not rest, f'{match["info"]}: the site takes title="NAME" after the language and nothing else'
        yield Block(language, titled and titled[1], match["body"], match.start("body"), match.end("body"))


def alike(line):
    """A line with figures, rules and runs of blanks made alike."""
    return " ".join(RULES.sub("-", NUMBER.sub("#", line)).split())


def expected(line):
    """Rows of tables and lists move with the cost model, and so does which there are."""
    return "..." if line[:1].isspace() else alike(line)


def same(want, got):
    """Whether the output matches, ``...`` lines standing for any lines."""
    lines = [line for line in map(expected, want.splitlines()) if line]
    pattern = "".join(
        r"(?:.*\n)*" if line == "..." else (re.escape(line) + r"\n") * len(list(alike_ones))
        for line, alike_ones in itertools.groupby(lines)
    )
    present = "".join(line + "\n" for line in map(alike, got.splitlines()) if line)
    return re.fullmatch(pattern, present) is not None


def run_command(command, folder):
    """A command's output as a reader of the page would see it."""
    scripts = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return "\n".join(line.rstrip() for line in result.stdout.splitlines()) + ("\n" if result.stdout else "")


def run_console(body, folder):
    """Each command of the block with the output that the page shows and the one it prints today, in order."""
    out = []
    for chunk in re.split(r"(?m)^(?=\$ )", body):
        if not chunk.startswith("$ "):
            continue
        lines = chunk.splitlines()
        command = [lines[0][2:]]
        while command[-1].endswith("\\"):
            command.append(lines[len(command)])
        want = "\n".join(lines[len(command) :]) + "\n"
        got = run_command("\n".join(command), folder)
        out.append((lines[: len(command)], want, got))
    return out


def judged(page, want, got):
    """What the page should read: the present output, or what it says where it leaves parts of that open."""
    if not UPDATE and not same(want, got):
        raise AssertionError(f"{page.name}: expected\n{want}\ngot\n{got}")
    return want if "..." in want.splitlines() and same(want, got) else got


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_examples(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    namespace, printed, fresh = {}, None, []
    for block in blocks(text):
        if block.file:
            (tmp_path / block.file).write_text(block.body, encoding="utf-8")
        elif block.language == "console":
            results = run_console(block.body, tmp_path)
            fresh.append(
                (block, "".join("\n".join(cmd) + "\n" + judged(page, want, got) for cmd, want, got in results))
            )
        elif block.language == "python":
            stream = io.StringIO()
            with contextlib.redirect_stdout(stream), contextlib.chdir(tmp_path):
                exec(compile(block.body, f"{page.name}", "exec"), namespace)
            printed = stream.getvalue()
        elif block.language == "output":
            assert printed is not None, f"{page.name}: an output block follows no python block"
            fresh.append((block, judged(page, block.body, printed)))
    if UPDATE:
        for block, output in reversed(fresh):
            text = text[: block.start] + output + text[block.end :]
        page.write_text(text, encoding="utf-8")


def prose(page):
    """A page without its blocks, in which a comment may look like a heading."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page):
    """The anchors of a page's headings, as the site and (but for repeated ones) GitHub make them."""
    found = set()
    for heading in re.findall(r"^#{1,6} +(.+?)\s*$", prose(page), re.MULTILINE):
        plain = unicodedata.normalize("NFKD", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading))
        words = re.sub(r"[^\w\s-]", "", plain.encode("ascii", "ignore").decode()).strip().lower()
        found.add(re.sub(r"[-\s]+", "-", words))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for path, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", prose(page)):
        if "://" in path:
            continue
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {path}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {path}#{anchor}"
        inside = page.parent != ROOT / "docs" or target.resolve().is_relative_to(ROOT / "docs")
        assert inside, f"{page.name}: {path} is no part of the site"


def loaded(name, path):
    """A module of the repository that is no part of the package."""
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


def test_the_check_of_the_built_site_sees_dead_links_and_the_network(tmp_path):
    check = loaded("check_site", ROOT / ".ci" / "check_site.py")
    (tmp_path / "other.html").write_text('<h2 id="there">a</h2>')
    good = '<script src="a.js"></script><a href="other.html#there">a</a><a href="https://example.org">b</a>'
    (tmp_path / "index.html").write_text(good)
    assert check.faults(tmp_path) == []
    bad = {
        '<script src="https://example.org/a.js"></script>': "loads https://example.org/a.js",
        '<link rel="stylesheet" href="//fonts.example.org/a.css">': "loads //fonts.example.org/a.css",
        '<a href="gone.html">a</a>': "gone.html leads nowhere",
        '<a href="other.html#gone">a</a>': "other.html#gone: no such anchor",
    }
    (tmp_path / "index.html").write_text("".join(bad))
    assert [fault.partition(": ")[2] for fault in check.faults(tmp_path)] == list(bad.values())


def named_pages(nav):
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from named_pages(value) if isinstance(value, list) else [value]


def test_every_page_is_in_the_navigation_once():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(named_pages(settings["nav"])) == sorted(p.name for p in (ROOT / "docs").glob("*.md"))


def test_the_page_of_public_names_is_what_the_code_says():
    made = loaded("api_page", ROOT / "docs" / "api_page.py")
    text = made.page()
    if UPDATE:
        made.PAGE.write_text(text, encoding="utf-8")
    assert made.PAGE.read_text(encoding="utf-8") == text, "python docs/api_page.py writes it anew"
    for name in shardwise.__all__:
        assert f"### {name}\n" in text


def readme_command(name):
    found = re.search(rf"<!-- command: {name} -->\n```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found, f"README.md holds no command {name!r}"
    return found[1]


def test_the_readme_commands_are_what_ci_runs():
    for name in ("plan", "test"):
        extracted = subprocess.run(
            ["bash", "-c", f"source .ci/lib.sh; readme_command {name}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert extracted.stdout == readme_command(name)


def test_the_readme_plans_with_options_that_exist(tmp_path):
    words = shlex.split(readme_command("plan").replace("\\\n", " "))
    command = words[next(i for i, w in enumerate(words) if w.endswith("/shardwise")) + 1 :]
    result = run_command(shlex.join(["shardwise", *command]), tmp_path)
    assert "step time" in result, result


def test_the_page_of_the_command_line_names_every_option():
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    surface = (ROOT / "tests" / "cli" / "surface.txt").read_text(encoding="utf-8")
    options = {word.split("/")[-1] for word in surface.split() if word.startswith("--")}
    assert {option for option in options if f"`{option}" not in page and f" {option}" not in page} == set()


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_example_scripts_run(script, tmp_path):
    result = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout
