"""Photographs HTML reports: page.py CHROMIUM PAGE.html OUT.png light|dark [HEADING]. With a heading, the page begins there.

Process ids, hosts and names of recordings are replaced, and without a heading times too, so the same page gives the same image. With a heading there is a
chart over time, whose curves differ from run to run by a few pixels.
"""

import io
import sys
from pathlib import Path

SIZE = {"width": 1200, "height": 880}

REPLACE = r"""(withTimes) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    text.nodeValue = text.nodeValue.replace(/\b\d+ (\.\/train)/g, "4711 $1").replace(/, on [\w.-]+, exited/g, ", on gpu1, exited");
    text.nodeValue = text.nodeValue.replace(/\btrain\.[\w.-]+\.culeak\b/g, "train.culeak");
    if (withTimes) text.nodeValue = text.nodeValue.replace(/\b\d+(\.\d+)? (us|ms|s)\b/g, "12 ms");
  }
}"""


def take(browser, page_file, scheme, heading=None):
    """A screenshot of a page, as the bytes of a PNG."""
    context = browser.new_context(viewport=SIZE, color_scheme=scheme)
    page = context.new_page()
    page.goto(Path(page_file).resolve().as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    page.evaluate(REPLACE, not heading)
    if heading:
        page.get_by_role("heading", name=heading, exact=True).evaluate("heading => window.scrollTo(0, heading.getBoundingClientRect().top + scrollY - 8)")
    # The charts are painted a frame after the layout.
    page.wait_for_timeout(200)
    image = page.screenshot()
    context.close()
    return image


def main():
    from PIL import Image
    from playwright.sync_api import sync_playwright

    chromium, page_file, out, scheme, *heading = sys.argv[1:]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        image = Image.open(io.BytesIO(take(browser, page_file, scheme, *heading)))
        browser.close()
    # 128 colours need a third of the bytes. The other methods change the colours of small areas visibly.
    image.convert("RGB").quantize(128, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(out, optimize=True)


if __name__ == "__main__":
    main()
