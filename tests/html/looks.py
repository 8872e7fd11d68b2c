"""Tests of the HTML report's looks: the order of its parts, its colours, narrow windows, names for screen readers, and the images of
the documentation. Used by claims.py."""

import base64
import itertools
import math
import re
import subprocess
import sys
from pathlib import Path

from tab import CULEAK, FOLDER, tab, written

IMAGES = Path(__file__).resolve().parents[2] / "docs/images"
sys.path.insert(0, str(IMAGES))
import page as photograph  # noqa: E402

PAGES = ("training", "timeline", "ways", "diff", "trend", "why", "held", "job", "hostile")

# What is left of linear red, green and blue without the cones for green (deuteranopia) or red (protanopia): Machado, Oliveira and
# Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency", 2009.
EYES = {
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
}
# Distances in CIE Lab. Two colours that are 2 apart are told apart side by side, with some effort.
NEIGHBOURS_APART = 20
ANY_APART = 10


def lab(colour, eyes):
    """A colour of a style sheet as CIE Lab, as these eyes see it."""
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
              for value in (int(digits) / 255 for digits in re.findall(r"\d+", colour)[:3])]
    seen = [min(1, max(0, sum(part * value for part, value in zip(row, linear)))) for row in EYES[eyes]]
    to_xyz = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8728))
    x, y, z = (value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116
               for value in (sum(part * value for part, value in zip(row, seen)) for row in to_xyz))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def apart(one, other):
    return min(math.dist(lab(one, eyes), lab(other, eyes)) for eyes in EYES)


def backgrounds(boxes):
    return [box.evaluate("box => getComputedStyle(box).backgroundColor") for box in boxes.all()]


def the_table_is_below_the_headline(browser):
    for name in ("training", "timeline", "diff"):
        with tab(browser, written(name)) as t:
            assert t.page.locator("main h2").first.inner_text() in ("Call sites", "Stacks"), name
            row = t.rows().first.bounding_box()
            assert row["y"] + row["height"] < 400, (name, row)


def code_has_the_background_of_the_page(browser):
    behind = """(selector) => Array.from(document.querySelectorAll(selector), (box) => {
        const colour = (of) => getComputedStyle(of).backgroundColor;
        while (colour(box) === "rgba(0, 0, 0, 0)") box = box.parentElement;
        return colour(box);
    })"""
    for name in PAGES:
        with tab(browser, written(name), color_scheme="light") as t:
            for button in t.page.locator(".open").all()[:3]:
                button.click()
            seen = set(t.page.evaluate(behind, "th, .code"))
            # Opened rows are raised.
            assert "rgb(255, 255, 255)" in seen and seen <= {"rgb(255, 255, 255)", "rgb(245, 246, 248)"}, (name, seen)
    with tab(browser, written("training")) as t:
        parts = t.page.locator(".bar span")
        assert parts.count() > 3 and "rgba(0, 0, 0, 0)" not in backgrounds(parts)


def neighbours_differ_for_readers_who_see_no_red_or_no_green(browser):
    for scheme in ("light", "dark"):
        with tab(browser, written("timeline"), color_scheme=scheme) as t:
            areas = backgrounds(t.page.locator(".legend.areas .swatch"))
            assert len(areas) > 3, areas
            for one, other in itertools.pairwise(areas):
                assert apart(one, other) > NEIGHBOURS_APART, (scheme, one, other, apart(one, other))
            all_of_them = [t.page.evaluate("name => colourOf(name)", f"--c{nth}") for nth in range(10)]
            for one, other in itertools.pairwise(all_of_them):
                assert apart(one, other) > NEIGHBOURS_APART, (scheme, one, other, apart(one, other))
            for one, other in itertools.combinations(all_of_them, 2):
                assert apart(one, other) > ANY_APART, (scheme, one, other, apart(one, other))
        with tab(browser, written("training"), color_scheme=scheme) as t:
            bar = backgrounds(t.page.locator(".bar").first.locator("span"))
            for one, other in itertools.pairwise(bar):
                assert apart(one, other) > ANY_APART, (scheme, one, other)


def one_module_is_coloured_by_call_site(browser):
    with tab(browser, written("ways")) as t:
        assert t.page.get_by_label("Colour", exact=True).input_value() == "site"
        assert t.page.locator(".legend").inner_text().split() == ["grow", "grow.cu:5"]
    with tab(browser, written("training")) as t:
        assert t.page.get_by_label("Colour", exact=True).input_value() == "module"
        t.page.get_by_label("Colour", exact=True).select_option("site")
        colour = lambda name: t.frame(name).evaluate("box => getComputedStyle(box).backgroundColor")  # noqa: E731
        # A frame whose memory is of one call site has its colour; one with memory of several has none.
        assert colour("Linear.forward") == colour("Attention.forward") != colour("Trainer::step")
        assert colour("<module>") == t.page.evaluate("colourOf('--plain-frame')") != colour("resume")


def the_largest_areas_are_named(browser):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.add_init_script("""
        window.painted = [];
        const paint = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) { window.painted.push(text); return paint.call(this, text, ...rest); };
    """)
    page.goto(written("timeline").as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    names = [name.strip() for name in page.locator(".legend.areas > span").all_inner_texts()]
    assert len(names) > 3 and names[0] in page.evaluate("window.painted"), (names, page.evaluate("window.painted"))
    context.close()


def a_narrow_window_does_not_scroll_sideways(browser):
    for name in PAGES:
        with tab(browser, written(name), viewport={"width": 375, "height": 800}) as t:
            for button in t.page.locator(".open").all()[:2]:
                button.click()
            assert t.page.evaluate("document.documentElement.scrollWidth") <= 375, name


def every_control_and_every_column_has_a_name(browser):
    for name in PAGES:
        with tab(browser, written(name)) as t:
            for control in t.page.locator("button, th, summary, select, input").all():
                labels = control.evaluate("box => Array.from(box.labels || [], (label) => label.textContent).join('')")
                assert control.inner_text() or control.get_attribute("aria-label") or labels or not control.is_visible(), (name, control.evaluate("box => box.outerHTML"))


# Fonts and curves over time differ a little from machine to machine: of squares of 20 pixels, this part may be of another colour.
MOST_DIFFERENT = 0.05
COMPARED = """async (images) => {
    const [one, other] = await Promise.all(images.map(async (image) => {
        const picture = await createImageBitmap(await (await fetch("data:image/png;base64," + image)).blob());
        const [width, height] = [picture.width / 20, picture.height / 20];
        const pen = new OffscreenCanvas(width, height).getContext("2d");
        pen.imageSmoothingQuality = "high";
        pen.drawImage(picture, 0, 0, width, height);
        return pen.getImageData(0, 0, width, height).data;
    }));
    if (one.length !== other.length) return 1;
    let different = 0;
    for (let at = 0; at < one.length; at += 4) different += [0, 1, 2].some((colour) => Math.abs(one[at + colour] - other[at + colour]) > 16) ? 1 : 0;
    return different / (one.length / 4);
}"""


def the_images_of_the_documentation_show_these_pages(browser):
    folder = FOLDER / "images"
    folder.mkdir()
    subprocess.run([IMAGES / "record.sh", CULEAK, folder], check=True, capture_output=True)
    blank = browser.new_page()
    for name, heading in (("report", None), ("timeline", "Memory over time")):
        for scheme in ("light", "dark"):
            now = photograph.take(browser, folder / f"{name}.html", scheme, heading)
            kept = (IMAGES / f"{name}-{scheme}.png").read_bytes()
            different = blank.evaluate(COMPARED, [base64.b64encode(image).decode() for image in (kept, now)])
            assert different < MOST_DIFFERENT, f"{name}-{scheme}.png differs in {different:.0%}: make the images again with docs/images/make.sh"
    blank.close()


CLAIMS = [
    the_table_is_below_the_headline,
    code_has_the_background_of_the_page,
    neighbours_differ_for_readers_who_see_no_red_or_no_green,
    one_module_is_coloured_by_call_site,
    the_largest_areas_are_named,
    a_narrow_window_does_not_scroll_sideways,
    every_control_and_every_column_has_a_name,
    the_images_of_the_documentation_show_these_pages,
]
