"""Tests of the HTML report's looks: the order of its parts, its backgrounds, narrow windows, names for screen readers. Used by claims.py."""

from tab import tab, written

PAGES = ("training", "timeline", "ways", "diff", "trend", "why", "held", "job", "hostile")


def backgrounds(boxes):
    return [box.evaluate("box => getComputedStyle(box).backgroundColor") for box in boxes.all()]


def the_table_is_below_the_headline(browser):
    for name in ("training", "timeline", "diff", "job"):
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


CLAIMS = [
    the_table_is_below_the_headline,
    code_has_the_background_of_the_page,
    a_narrow_window_does_not_scroll_sideways,
    every_control_and_every_column_has_a_name,
]
