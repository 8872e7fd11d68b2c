"""Claims about the site: claims.py SITE CHROMIUM. All pages of docs/README.md are in it and in its navigation, every link leads to a file
and an anchor, nothing is loaded from a network; in a browser, from the folder, the search finds pages and the gallery shows its reports."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(sys.argv[1]).resolve()
LOADS = {"script": "src", "img": "src", "iframe": "src", "link": "href"}
"""Attributes whose targets a browser loads."""


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.loads = set(), [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors |= {attributes.get("id"), attributes.get("name")}
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if attributes.get(LOADS.get(tag)):
            self.loads.append(attributes[LOADS[tag]])


def listed():
    """The pages of docs/README.md, by their paths on the site."""
    pages = re.findall(r"^\| \[[^]]+\]\(([^)]+)\.md\)", (ROOT / "docs/README.md").read_text(), flags=re.M)
    assert len(pages) > 25, pages
    return [f"docs/{page}.html" for page in pages]


def navigation(page):
    """What the contents of a page link to."""
    tree = page.read_text().split('class="sidebar-tree"', 1)[1].split("</aside>", 1)[0]
    return set(re.findall(r'href="([^"]+)"', tree))


def is_whole():
    pages = {path: Page(path) for path in SITE.rglob("*.html") if "examples" not in path.relative_to(SITE).parts}
    wrong, links = [], 0
    for path, page in pages.items():
        for target in page.links + page.loads:
            name, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:|//", name):
                if target in page.loads:
                    wrong.append(f"{path}: loads {target}")
                continue
            links += 1
            file = (path.parent / unquote(name.partition("?")[0])).resolve() if name else path
            if not file.is_file():
                wrong.append(f"{path.relative_to(SITE)}: {target}: no such file")
            elif anchor and file in pages and unquote(anchor) not in pages[file].anchors:
                wrong.append(f"{path.relative_to(SITE)}: {target}: no such anchor")
    assert not wrong, "\n".join(wrong)
    missing = set(listed()) - navigation(SITE / "index.html")
    assert not missing, f"not in the navigation: {missing}"
    print(f"ok      {links} links of {len(pages)} pages lead to a file and an anchor; {len(listed())} pages are in the navigation")


def works_from_its_folder(browser):
    complaints = []
    page = browser.new_page()
    page.set_default_timeout(300_000)
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("console", lambda message: complaints.append(f"console: {message.text}") if message.type == "error" else None)
    page.on("request", lambda request: complaints.append(f"request: {request.url}") if not request.url.startswith(SITE.as_uri()) else None)
    for words, expected in [("dlmopen namespace", "docs/limits.html"), ("uncollected cycle", "docs/why.html"), ("torchrun", "docs/launchers.html"), ("fragmentation", "docs/fragmentation.html")]:
        page.goto((SITE / "index.html").as_uri())
        page.fill("input[name=q]", words)
        page.press("input[name=q]", "Enter")
        result = page.locator(f"ul.search a[href*='{expected}']").first
        result.wait_for()
        result.click()
        page.wait_for_url(f"**/{expected}*")
    print("ok      the search finds pages, without a server")

    reports = sorted((SITE / "examples").glob("*.html"))
    assert len(reports) == 6 + len(list((ROOT / "docs/site/gpu").glob("*.html.gz"))), reports
    page.goto((SITE / "gallery.html").as_uri())
    for report in reports:
        frame = page.locator(f"iframe[src='examples/{report.name}']")
        frame.scroll_into_view_if_needed()
        frame.content_frame.locator("html[data-ready]").wait_for(state="attached")
        assert frame.content_frame.locator("h1").first.inner_text().strip()
    assert not complaints, complaints
    print(f"ok      the gallery shows {len(reports)} reports")


is_whole()
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=sys.argv[2], args=["--no-sandbox"])
    works_from_its_folder(browser)
    browser.close()
