"""Pages in a real browser, in both widths and colour schemes: nothing cut, nothing fetched, no complaint."""

import json

import pytest

from shardwise.cli.plan_report import paste

pytestmark = pytest.mark.browser

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
)  # fmt: skip

SIZES = pytest.mark.parametrize("width", [1280, 390])
SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])
PAGES = pytest.mark.parametrize("name", ["plan", "study", "question"])

OUTSIDE = """
const found = [];
const inner = (e) => e.parentElement && e.parentElement.closest('.scroll, pre');
for (const e of document.body.querySelectorAll('*')) {
  const box = e.getBoundingClientRect();
  if (!box.width || !box.height || !e.checkVisibility() || inner(e) || e.closest('.skip')) continue;
  if (box.left < -1 || box.right > innerWidth + 1) found.push(['outside', e.tagName, e.textContent.slice(0, 60)]);
  if (e.tagName === 'text') {
    const sheet = e.ownerSVGElement.getBoundingClientRect();
    const over = [sheet.left - box.left, box.right - sheet.right, sheet.top - box.top, box.bottom - sheet.bottom];
    if (Math.max(...over) > 1) found.push(['cut', e.textContent, ...over]);
  }
}
return found;
"""

CONTRASTS = """
const seen = {};
const value = (c) => { const v = c.match(/[\\d.]+/g).map(Number); return v.length > 3 && v[3] === 0 ? null : v; };
const ground = (e) => {
  for (; e; e = e.parentElement) {
    const c = value(getComputedStyle(e).backgroundColor);
    if (c) return c;
  }
};
const linear = (x) => (x / 255 <= .04045 ? x / 255 / 12.92 : ((x / 255 + .055) / 1.055) ** 2.4);
const light = (c) => .2126 * linear(c[0]) + .7152 * linear(c[1]) + .0722 * linear(c[2]);
const text = 'p, h1, h2, h3, dt, dd, li, th, td, a, button, summary, caption, code, span, b';
for (const e of document.body.querySelectorAll(text)) {
  if (!e.textContent.trim() || !e.checkVisibility()) continue;
  const [a, b] = [light(value(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
  const ratio = (a + .05) / (b + .05);
  if (ratio < 4.5) seen[e.tagName + ' ' + e.className] = ratio;
}
return seen;
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """Debian's Chromium. Where it is missing the test fails: it must not pass unseen."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    found.get("about:blank")
    yield found
    found.quit()


@pytest.fixture(scope="module")
def addresses(plan_html, study_html, question_html, tmp_path_factory):
    """The pages as files."""
    folder = tmp_path_factory.mktemp("pages")
    texts = {"plan": plan_html, "study": study_html, "question": question_html}
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in texts}


@pytest.fixture
def opened(driver, addresses):
    """``opened("plan", 390, "dark")``: the browser showing a page; what it logged before is gone."""

    def open_page(name, width, scheme):
        device = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
        wanted = {"media": "", "features": [{"name": "prefers-color-scheme", "value": scheme}]}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
        for log in ("browser", "performance"):
            driver.get_log(log)
        driver.get(addresses[name])
        return driver

    return open_page


@PAGES
@SIZES
@SCHEMES
def test_nothing_is_cut_and_nothing_scrolls_sideways(opened, name, width, scheme):
    driver = opened(name, width, scheme)
    assert driver.execute_script("return innerWidth") == width
    assert driver.execute_script("return document.scrollingElement.scrollWidth") <= width
    assert driver.execute_script(OUTSIDE) == []
    for fold in driver.find_elements("css selector", "summary"):
        driver.execute_script("arguments[0].parentElement.open = true", fold)
    assert driver.execute_script("return document.scrollingElement.scrollWidth") <= width
    assert driver.execute_script(OUTSIDE) == []
    assert driver.get_log("browser") == []


@PAGES
def test_nothing_is_fetched(opened, addresses, name):
    driver = opened(name, 1280, "light")
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert {url for url in asked if not url.startswith(("data:", "chrome:"))} == {addresses[name]}


@PAGES
@SCHEMES
def test_text_is_readable_as_it_is_drawn(opened, name, scheme):
    assert opened(name, 1280, scheme).execute_script(CONTRASTS) == {}


@SIZES
def test_one_drawing_of_each_figure_shows(opened, width):
    driver = opened("plan", width, "light")
    shown = driver.execute_script(
        "return [...document.querySelectorAll('figure')].map("
        "(f) => [...f.querySelectorAll('svg')].filter((s) => s.getClientRects().length).length)"
    )
    assert shown and set(shown) == {1}


def test_colours_can_be_chosen_by_keyboard(opened):
    from selenium.webdriver.common.keys import Keys

    driver = opened("plan", 1280, "light")
    ground = "return getComputedStyle(document.body).backgroundColor"
    button = driver.find_element("id", "theme")
    before = driver.execute_script(ground)
    seen = []
    for _ in range(3):
        button.send_keys(Keys.ENTER)
        seen.append((button.text, driver.execute_script(ground)))
    assert [text for text, _ in seen] == ["Colours: light", "Colours: dark", "Colours: as the system"]
    assert seen[0][1] == seen[2][1] == before != seen[1][1]


def test_everything_that_scrolls_or_acts_is_reached_by_keyboard(opened):
    from selenium.webdriver.common.keys import Keys

    driver = opened("plan", 390, "light")
    wanted = driver.execute_script(
        "return [...document.querySelectorAll('a, button, summary, .scroll, pre')]"
        ".filter((e) => e.checkVisibility()).length"
    )
    seen = set()
    for _ in range(wanted + 5):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        seen.add(driver.switch_to.active_element.id)
    assert len(seen) >= wanted


def test_the_command_is_copied(opened, plan):
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    driver = opened("plan", 1280, "light")
    driver.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    button = driver.find_element("css selector", "button.copy")
    button.send_keys(Keys.ENTER)
    WebDriverWait(driver, 5).until(lambda _: button.text == "Copied")
    text = driver.execute_async_script("navigator.clipboard.readText().then(arguments[0], arguments[0])")
    assert text.strip() == paste(plan.launch()).strip()


def test_print_is_light_and_whole(opened):
    driver = opened("plan", 390, "dark")
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    ink = driver.execute_script("return getComputedStyle(document.body).color")
    assert ink == "rgb(26, 32, 41)"
    shown = driver.execute_script(
        "return [...document.querySelectorAll('button, nav, svg.narrow')].filter((e) => e.checkVisibility()).length"
    )
    assert shown == 0
    printed = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(printed["data"]) > 20_000
