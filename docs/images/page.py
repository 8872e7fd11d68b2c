"""Photographs an HTML report: page.py CHROMIUM PAGE.html OUT.png light|dark [HEADING]. With a heading, the page begins there.
The PNG has a palette of 128 colours."""

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

chromium, page_file, out, scheme, *heading = sys.argv[1:]
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
    page = browser.new_context(viewport={"width": 1200, "height": 880}, color_scheme=scheme).new_page()
    page.goto(Path(page_file).resolve().as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    page.get_by_label("Colour", exact=True).last.select_option("kind")
    for name in heading:
        page.get_by_role("heading", name=name, exact=True).evaluate("heading => window.scrollTo(0, heading.getBoundingClientRect().top + scrollY - 8)")
        page.wait_for_timeout(200)
    image = Image.open(io.BytesIO(page.screenshot()))
    browser.close()
image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(out, optimize=True)
