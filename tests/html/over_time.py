"""Tests of memory over time in the HTML report: its window, its colours and its size. Used by claims.py."""

import json
import re

from tab import culeak, size_of, tab, timed, written

MOST_TIMELINE_BYTES = 20 * 1000 * 1000


def window(t):
    """Bytes, blocks and high-water mark of the selected window."""
    shown = t.page.locator(".window span")
    return [int(shown.get_attribute("data-" + name)) for name in ("bytes", "count", "highest")]


def slider(t, name):
    return t.page.get_by_role("slider", name=name)


def memory_over_time_has_a_window_that_the_graph_follows(browser):
    report = json.loads(culeak("report", "timeline.culeak", "--json", "--device", "0"))
    held = sum(row["bytes"] for row in report["rows"]), sum(row["count"] for row in report["rows"])
    with tab(browser, written("timeline")) as t:
        total = lambda: t.page.locator("#window-graph .frame").first.get_attribute("aria-label")  # noqa: E731
        everything = window(t)
        # The log has the whole run, so what was allocated in it and is alive at its end is all that is held.
        assert (everything[0], everything[1]) == held, (everything, held)
        assert not t.page.locator("#window-graph").is_visible(), "the graph of everything is shown once"
        peak = re.search(r"peak (\S+ \w+) at", t.page.locator(".area canvas").get_attribute("aria-label")).group(1)
        assert size_of(everything[2]) == peak, (everything, peak)
        slider(t, "Start of the window").focus()
        t.page.keyboard.press("End")
        t.until("document.querySelector('.window span').dataset.bytes === '0'")
        t.page.keyboard.press("Home")
        t.until(f"document.querySelector('.window span').dataset.bytes === '{held[0]}'")
        for _ in range(4):
            t.page.keyboard.press("PageUp")
        t.until(f"document.querySelector('.window span').dataset.bytes !== '{held[0]}'")
        # The window follows each key, and the graph follows the window.
        for _ in range(200):
            later = window(t)
            if total() == f"all stacks: {size_of(later[0])}, 100 %":
                break
            t.page.wait_for_timeout(50)
        assert 0 < later[0] < held[0], later
        assert total() == f"all stacks: {size_of(later[0])}, 100 %", total()
        # A mark selects the window's end, and the graph of all memory there contains the first parameters.
        t.page.locator("summary", has_text="5 marks").click()
        t.page.get_by_role("button", name="epoch 3", exact=True).click()
        t.page.get_by_label("Graph of").select_option("1")
        t.until(f"Number(document.querySelector('.window span').dataset.bytes) > {later[0]}")
        assert any("Adam.step" in name for name in t.page.locator("#window-graph .frame").all_inner_texts())
        t.page.get_by_role("button", name="Select the peak").click()
        t.until("document.querySelector('.window span').dataset.bytes === document.querySelector('.window span').dataset.highest")
        assert size_of(window(t)[0]) == peak


def memory_over_time_can_be_selected_with_the_mouse(browser):
    with tab(browser, written("timeline")) as t:
        before = window(t)
        area = t.page.locator(".area")
        area.scroll_into_view_if_needed()
        box = area.bounding_box()
        now = lambda name: int(slider(t, name).get_attribute("aria-valuenow"))  # noqa: E731
        t.page.mouse.move(box["x"] + 300, box["y"] + 120)
        assert t.page.locator(".pointed").inner_text().startswith("at "), t.page.locator(".pointed").inner_text()
        t.page.mouse.down()
        t.page.mouse.move(box["x"] + 500, box["y"] + 120, steps=4)
        t.page.mouse.up()
        t.until(f"document.querySelector('.window span').dataset.bytes !== '{before[0]}'")
        a, b = now("Start of the window"), now("End of the window")
        assert 0 < a < b, (a, b)
        handle = slider(t, "End of the window").bounding_box()
        t.page.mouse.move(handle["x"] + handle["width"] / 2, handle["y"] + 140)
        t.page.mouse.down()
        t.page.mouse.move(box["x"] + 700, box["y"] + 120, steps=4)
        t.page.mouse.up()
        assert now("Start of the window") == a and now("End of the window") > b
        t.page.get_by_role("button", name="Zoom to window").click()
        assert slider(t, "Start of the window").bounding_box()["x"] < 100
        t.page.get_by_role("button", name="Show all").click()
        t.until(f"document.querySelector('.window span').dataset.bytes === '{before[0]}'")


def memory_over_time_has_levels_places_and_groups(browser):
    with tab(browser, written("timeline"), color_scheme="dark") as t:
        legend = lambda: t.page.locator(".legend.areas").inner_text()  # noqa: E731
        assert "Adam.step (optim.py:20)" in legend(), legend()
        t.page.get_by_label("Stacked by").select_option(label="category")
        assert "activations" in legend() or "other" in legend(), legend()
        t.page.get_by_label("Stacked by").select_option(label="kind")
        assert legend().split() == ["tensor"], legend()
        t.page.get_by_label("Level").select_option("1")
        assert legend().split() == ["device"], legend()
        t.page.get_by_label("Stacked by").select_option(label="library")
        assert legend().split() == ["PyTorch"], legend()
        t.page.get_by_label("Device", exact=True).select_option(label="host memory")
        assert window(t)[:2] == [64 << 20, 1], window(t)
        t.page.get_by_label("Colours").select_option("light")
        t.page.wait_for_timeout(100)
    with tab(browser, written("timeline"), viewport={"width": 400, "height": 800}) as t:
        assert t.page.evaluate("document.documentElement.scrollWidth") <= 400
        t.page.emulate_media(media="print")
        assert t.page.locator(".area").is_visible()


def millions_of_events_open_in_three_seconds(browser):
    path = written("large-timeline")
    size = path.stat().st_size
    assert size < MOST_TIMELINE_BYTES, size
    context, opened, spent = timed(browser, path)
    assert 0 < spent < 3, spent
    assert opened.complaints == [], opened.complaints
    context.close()


CLAIMS = [
    memory_over_time_has_a_window_that_the_graph_follows,
    memory_over_time_can_be_selected_with_the_mouse,
    memory_over_time_has_levels_places_and_groups,
    millions_of_events_open_in_three_seconds,
]
