"""Tests of the HTML report in a real browser. Called by run.sh."""

import json
import os
import re
import socket
import subprocess
import sys
import traceback
import unicodedata
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))
import looks  # noqa: E402
import over_time  # noqa: E402
from snapshots import HOSTILE  # noqa: E402
from tab import CHROMIUM, CULEAK, FOLDER, PATIENCE_S, culeak, size_of, tab, timed, write, written  # noqa: E402

MOST_BYTES = 10 * 1000 * 1000
MOST_SECONDS = 2.0


def the_numbers_are_those_of_json_and_the_terminal(browser):
    report = json.loads(culeak("report", "training.json", "--json"))
    with tab(browser, written("training")) as t:
        shown = [(int(row.locator("[data-bytes]").get_attribute("data-bytes")), int(row.locator("[data-count]").get_attribute("data-count")))
                 for row in t.rows().all()]
        assert shown == [(row["bytes"], row["count"]) for row in report["rows"]], shown
        lines = re.findall(r"^ +(\d\S* \w+)  in +([\d,]+ \w+) +([^←\s]\S*)", culeak("report", "training.json", "--top", "0"), re.M)
        cells = [tuple(text.strip() for text in row.locator("td").all_inner_texts()[:3]) for row in t.rows().all()]
        assert [(size, count) for size, count, _ in cells] == [(size, count) for size, count, _ in lines], (cells, lines)
        assert all(name.startswith(line) for (_, _, name), (_, _, line) in zip(cells, lines)), (cells, lines)
        ledger = [int(cell.get_attribute("data-bytes")) for cell in t.page.locator("table.adds-up").first.locator("td[data-bytes]").all()]
        lines = [line["bytes"] for line in report["ledger"]["devices"][0]["lines"]]
        assert ledger[:len(lines)] == lines, ledger
        total = sum(row["bytes"] for row in report["rows"])
        assert t.page.locator(".details strong").inner_text() == size_of(total) + ", 100 %"
        losses = t.page.locator("dl").first.inner_text()
        assert "40 unknown frees" in losses and "0 allocations" not in losses, losses
        t.page.locator("summary", has_text="all counts").click()
        assert "0 allocations" in t.page.locator("dl").last.inner_text()


def estimates_are_marked_as_in_the_terminal(browser):
    lines = re.findall(r"^ +((?:≈ )?\d\S* \w+(?: ± \d\S* \w+)?)  in +((?:≈ )?[\d,]+ \w+) +(?=[^←\s])", culeak("report", "sampled.json", "--top", "0"), re.M)
    assert any("±" in size for size, _ in lines) and any("±" not in size for size, _ in lines), lines
    with tab(browser, written("sampled")) as t:
        cells = [tuple(text.strip() for text in row.locator("td").all_inner_texts()[:2]) for row in t.rows().all()]
        assert cells == lines, (cells, lines)
        t.page.get_by_role("button", name="helper").click()
        detail = t.page.locator("td.detail").inner_text()
        assert re.search(r"≈ \S+ \w+ ± \S+ KiB in ≈ \d+ blocks", detail), detail
    report = json.loads(culeak("diff", "before.json", "sampled.json", "--json"))
    with tab(browser, written("sampled-diff")) as t:
        shown = ["±" in row.locator("[data-bytes]").first.inner_text() for row in t.rows().all()]
        assert shown == ["estimated" in row for row in report["rows"]] and any(shown), shown


def a_click_zooms_and_escape_comes_back(browser):
    with tab(browser, written("training")) as t:
        t.frame("load_weights").click()
        width = t.frame("load_weights").bounding_box()["width"]
        assert width > 1200, width
        assert not any("Trainer::step" in name for name in t.names()), t.names()
        assert t.page.get_by_role("button", name="Reset zoom").is_enabled()
        # The details are those of what is shown, also with the pointer elsewhere and after a change of the measure.
        t.page.locator("h1").hover()
        details = t.page.locator(".details").inner_text()
        assert details.startswith("64 MiB, 3.6 %") and "load_weights" in details, details
        t.page.get_by_label("Width").select_option("count")
        details = t.page.locator(".details").inner_text()
        assert details.startswith("1 block, ") and "load_weights" in details, details
        t.page.get_by_label("Width").select_option("bytes")
        t.page.keyboard.press("Escape")
        t.page.get_by_role("button", name="Reset zoom").click()
        assert any("Trainer::step" in name for name in t.names()), t.names()


def a_search_marks_frames_and_filters_rows(browser):
    with tab(browser, written("training")) as t:
        t.page.keyboard.press("/")
        t.page.keyboard.type("LINEAR.forward")
        t.until("document.querySelector('.result').textContent.includes('1 frame ')")
        found = t.page.locator(".frame.found").all_inner_texts()
        assert found and all(text.startswith("Linear.forward") or text == "" for text in found), found
        names = t.page.locator("table.rows").first.locator(".open").all_inner_texts()
        assert names == ["Attention.forward", "MLP.forward"], names
        assert "2 of 6 rows match" in t.page.locator("body").inner_text()
        t.page.keyboard.press("Escape")
        t.until("document.querySelector('.result').textContent === ''")
        assert t.rows().count() == 6
        t.page.keyboard.type("(no such [name")
        t.until("document.querySelector('.result').textContent === 'no frame matches'")


def the_graph_can_be_inverted_and_coloured_by_kind(browser):
    with tab(browser, written("training")) as t:
        assert t.names()[1].startswith("<module>")
        t.page.get_by_label("Inverted").check()
        assert t.names()[1].startswith("Trainer::step"), t.names()
        t.page.get_by_label("Colour", exact=True).select_option("kind")
        legend = t.page.locator(".legend").inner_text()
        assert "device" in legend and "tensor" in legend and "pinned" in legend, legend
        t.page.get_by_label("in", exact=True).select_option(label="host memory")
        assert any("load_weights" in name for name in t.names()) and not any("step" in name for name in t.names()), t.names()
        t.page.get_by_label("Width").select_option("count")
        assert t.page.locator(".details strong").inner_text() == "1 block, 100 %"


def one_kind_of_memory_can_be_selected(browser):
    report = json.loads(culeak("report", "training.json", "--json"))
    with tab(browser, written("training")) as t:
        t.page.get_by_label("Kind", exact=True).select_option("tensor")
        tensors = [row for row in report["rows"] if "tensor" in row["kinds"]]
        assert [int(row.locator("[data-bytes]").get_attribute("data-bytes")) for row in t.rows().all()] == [row["bytes"] for row in tensors]
        assert t.page.locator(".details strong").inner_text() == size_of(sum(row["kinds"]["tensor"]["bytes"] for row in tensors)) + ", 100 %"
        assert not any("Trainer::step" in name for name in t.names()), t.names()
        t.page.get_by_role("searchbox").fill("mlp")
        t.until("document.querySelector('.result').textContent.includes('1 frame ')")
        assert t.rows().count() == 1
        t.page.get_by_label("Kind", exact=True).select_option("-1")
        t.page.get_by_role("searchbox").fill("")
        t.until("document.querySelector('.result').textContent === ''")
        assert t.rows().count() == len(report["rows"])


def colours_show_the_owner(browser):
    with tab(browser, written("training")) as t:
        t.page.get_by_label("Colour", exact=True).select_option("owner")
        legend = t.page.locator(".legend").inner_text()
        assert "PyTorch" in legend and "the program itself" in legend, legend
        colour = lambda name: t.frame(name).evaluate("box => getComputedStyle(box).backgroundColor")  # noqa: E731
        assert colour("Attention.forward") == colour("Linear.forward") != colour("Trainer::step")
    with tab(browser, written("ways")) as t:
        assert t.page.get_by_label("Colour", exact=True).locator("option").all_inner_texts() == ["call site", "kind of memory"]
        assert t.page.get_by_label("Kind", exact=True).count() == 0


def a_row_has_its_largest_stacks_and_the_graph_has_all(browser):
    with tab(browser, written("ways")) as t:
        t.page.get_by_role("button", name="grow", exact=True).click()
        detail = t.page.locator("td.detail")
        assert detail.locator("ol.stack").count() == 5 and "and 125 other stacks" in detail.inner_text(), detail.inner_text()
        t.page.get_by_label("Search function").fill("way_0")
        t.until("document.querySelector('.result').textContent.includes('frame')")
        assert t.page.locator(".frame.found").count() > 0


def printed_pages_have_no_controls(browser):
    with tab(browser, written("training"), color_scheme="dark") as t:
        t.page.emulate_media(media="print")
        assert not any(tools.is_visible() for tools in t.page.locator(".tools").all()) and not t.page.get_by_label("Colours").is_visible()
        assert t.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert t.rows().first.is_visible() and t.frame("Trainer::step").is_visible()


def rows_open_and_lead_to_the_graph(browser):
    with tab(browser, written("training")) as t:
        load = t.page.get_by_role("button", name="load", exact=True)
        load.click()
        detail = t.page.locator("td.detail")
        assert load.get_attribute("aria-expanded") == "true"
        text = detail.inner_text()
        assert "364 MiB in 2 blocks" in text and "/src/weights.cu:40" in text, text
        assert t.rows().filter(has=load).locator("[data-bytes]").get_attribute("title") == "381,681,664 bytes"
        assert detail.locator("ol.stack").count() == 2
        detail.get_by_role("button", name="show in graph").first.click()
        assert t.frame("resume").bounding_box()["width"] > 1200
        t.page.get_by_role("columnheader", name="count").first.get_by_role("button").click()
        counts = [int(cell.get_attribute("data-count")) for cell in t.page.locator("table.rows").first.locator("[data-count]").all()]
        assert counts == sorted(counts, reverse=True) and len(set(counts)) > 3, counts


def a_frame_is_a_function_and_a_line_on_request(browser):
    with tab(browser, written("training")) as t:
        labels = lambda: [frame.get_attribute("aria-label") for frame in t.page.locator(".frame").all()]  # noqa: E731
        assert any(label.startswith("training_step, train.py: ") for label in labels()), labels()
        t.page.get_by_label("Lines").check()
        assert any(label.startswith("training_step, train.py:212: ") for label in labels()), labels()
        t.page.get_by_label("Lines").uncheck()
        assert not any("train.py:212" in label for label in labels()), labels()


def everything_can_be_reached_from_the_keyboard(browser):
    with tab(browser, written("training")) as t:
        focused = lambda: t.page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.textContent")  # noqa: E731
        press = t.page.keyboard.press
        t.page.keyboard.press("/")
        # Past the kind: the heads of the table, then its rows.
        for _ in range(8):
            press("Tab")
        assert focused() == "training_step", focused()
        press("ArrowDown")
        assert focused() == "load", focused()
        press("Enter")
        assert t.page.locator("td.detail").count() == 1
        press("Tab")
        press("Escape")
        assert t.page.locator("td.detail").count() == 0 and focused() == "load"
        # Past the other rows, the controls of the graph. The reset button is disabled, so the graph is next.
        for _ in range(10):
            press("Tab")
        assert focused().startswith("all stacks"), focused()
        press("ArrowDown")
        press("ArrowDown")
        assert focused().startswith("training_step, train.py: 1.4 GiB"), focused()
        press("ArrowRight")
        assert focused().startswith("resume"), focused()
        press("Enter")
        assert t.frame("resume").bounding_box()["width"] > 1200
        assert focused().startswith("resume"), focused()
        details = t.page.locator(".details").inner_text()
        assert "300 MiB" in details and "/home/me/train.py:90" in details, details
        press("Escape")
        assert focused().startswith("<module>"), focused()
        press("Escape")
        assert t.page.get_by_role("button", name="Reset zoom").is_disabled()


def colours_follow_the_system_and_the_switch(browser):
    ground = "getComputedStyle(document.body).backgroundColor"
    with tab(browser, written("training"), color_scheme="dark") as t:
        dark = t.page.evaluate(ground)
        t.page.get_by_label("Colours").select_option("light")
        light = t.page.evaluate(ground)
        assert (dark, light) == ("rgb(22, 24, 28)", "rgb(255, 255, 255)"), (dark, light)
    with tab(browser, written("training"), color_scheme="light") as t:
        assert t.page.evaluate(ground) == light
        t.page.get_by_label("Colours").select_option("dark")
        assert t.page.evaluate(ground) == dark


def a_diff_shows_what_grew_and_what_shrank(browser):
    diff = json.loads(culeak("diff", "before.json", "after.json", "--json"))
    with tab(browser, written("diff")) as t:
        shown = [int(row.locator("[data-bytes]").first.get_attribute("data-bytes")) for row in t.rows().all()]
        assert shown == [row["bytes_delta"] for row in diff["rows"]] and min(shown) < 0 < max(shown), shown
        assert "grown" in t.frame("Trainer::step").get_attribute("class")
        assert "shrunk" in t.frame("Linear").get_attribute("class")
        red, blue = (t.frame(name).evaluate("box => getComputedStyle(box).backgroundColor.match(/\\d+/g).map(Number)") for name in ("Trainer::step", "Linear"))
        assert red[0] > red[2] and blue[2] > blue[0], (red, blue)
        t.frame("Linear").hover()
        assert t.page.locator(".details strong").inner_text().startswith("-60 MiB"), t.page.locator(".details").inner_text()
        t.page.get_by_label("of", exact=True).select_option("before")
        assert any("load_weights" in name for name in t.names()), t.names()
        assert t.page.locator("h2", has_text="Not recorded").count() == 2
        t.page.get_by_role("button", name="Attention.forward").click()
        assert "/torch/nn/modules/linear.py:125" in t.page.locator("td.detail").inner_text()


def a_trend_shows_the_curve_of_each_call_site(browser):
    trend = json.loads(culeak("trend", "course", "--json"))
    with tab(browser, written("trend")) as t:
        rows = [(row.locator("td").first.inner_text().strip(), int(row.locator("[data-bytes]").get_attribute("data-bytes"))) for row in t.rows().all()]
        assert rows == [(row["class"].replace("_", " "), row["bytes"]["last"]) for row in trend["rows"]], rows
        assert rows[0][0] == "growing" and "grew then bounded" in dict(rows), rows
        points = t.page.locator("section > svg.chart .point")
        assert points.count() == len(trend["points"]), points.count()
        assert "iB" in points.last.locator("title").text_content()
        expect(t.rows().first.locator("svg.chart polyline")).not_to_have_count(0)
        t.rows().first.locator(".open").click()
        detail = t.page.locator("td.detail")
        assert detail.locator("svg.chart").count() == 2
        assert trend["rows"][0]["sentence"] in detail.inner_text(), detail.inner_text()
        t.page.keyboard.press("/")
        t.page.keyboard.type("periodic")
        assert all(row.locator("td").first.inner_text().strip() == "periodic" for row in t.rows().all()) and t.rows().count() >= 1


def hostile_names_are_text(browser):
    with tab(browser, written("hostile")) as t:
        for button in t.page.locator(".open").all():
            button.click()
        t.page.keyboard.press("/")
        t.page.keyboard.type("</script>")
        t.until("document.querySelector('.result').textContent.includes('frames')")
        assert t.page.evaluate("window.hacked") is None
        for tag in ("img", "svg", "b", "iframe", "object", "a"):
            assert t.page.locator(tag).count() == 0, tag
        text = t.page.evaluate("document.documentElement.textContent")
        assert HOSTILE[0] in text and HOSTILE[1] in text and "user\\u{202e}gnp.exe" in text
        active = {c for c in text if unicodedata.category(c) in ("Cf", "Zl", "Zp", "Cs") or (unicodedata.category(c) == "Cc" and c != "\n")}
        assert active == set(), active
    with tab(browser, written("hostile-diff")) as t:
        assert t.page.evaluate("window.hacked") is None and t.page.locator("img").count() == 0


def the_policy_forbids_any_load_and_any_markup(browser):
    with tab(browser, written("training"), silent=False) as t, socket.create_server(("127.0.0.1", 0)) as listener:
        violations = """(port) => new Promise((done) => {
            const seen = [];
            document.addEventListener('securitypolicyviolation', (event) => { seen.push(event.effectiveDirective); if (seen.length === 3) done(seen.sort()); });
            const make = (tag, with_) => document.body.append(Object.assign(document.createElement(tag), with_));
            make('img', { src: `http://127.0.0.1:${port}/x.png` });
            make('style', { textContent: 'body { display: none }' });
            fetch(`http://127.0.0.1:${port}/`).catch(() => {});
        })"""
        assert t.page.evaluate(violations, listener.getsockname()[1]) == ["connect-src", "img-src", "style-src-elem"]
        for act in ("document.body.innerHTML = '<p>'", "document.body.setAttribute('onclick', 'window.hacked = 1')"):
            refused = t.page.evaluate("() => { try { %s; return 'allowed'; } catch (error) { return error.name; } }" % act)
            assert refused == "TypeError", (act, refused)
        assert t.page.evaluate("window.hacked") is None
        listener.setblocking(False)
        try:
            raise AssertionError(f"the page opened a connection: {listener.accept()}")
        except BlockingIOError:
            pass


def without_scripts_the_page_has_the_text(browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(written("hostile").as_uri())
    text = page.inner_text("body")
    assert "call sites leak" in text and "Not recorded" in text and HOSTILE[0] in text, text[:500]
    assert page.locator("img").count() == 0
    context.close()


def several_processes_are_chosen_from_a_list(browser):
    with tab(browser, written("several")) as t:
        shown = t.page.locator("section.process:not(.hidden)")
        first = shown.locator(".headline").inner_text()
        t.page.get_by_label("Process", exact=True).select_option("1")
        assert shown.count() == 1 and shown.locator(".headline").inner_text() != first
        assert shown.locator(".open").first.inner_text() == "device"


def a_job_has_its_processes_and_bars_of_each_call_site(browser):
    with tab(browser, written("job")) as t:
        sites, processes = t.page.locator("table.rows").all()
        ranks = [row.locator("td").first.inner_text() for row in processes.locator("tbody tr[data-row]").all()]
        assert sorted(ranks) == [str(rank) for rank in range(8)], ranks
        first = sites.locator("tbody tr[data-row]").first
        most = int(first.locator("td").nth(3).get_attribute("data-bytes"))
        first.locator(".open").click()
        bars = sites.locator("svg.chart").first.locator("rect")
        assert bars.count() == 8
        sizes = [int(bars.nth(nth).get_attribute("data-bytes")) for nth in range(bars.count())]
        assert max(sizes) == most and most > 0, (sizes, most)


def holders_are_shown_below_call_sites_and_as_a_tree(browser):
    why = json.loads(culeak("why", "held.json", "--json"))
    with tab(browser, written("held")) as t:
        t.rows().filter(has_text="training_step").first.locator(".open").click()
        holders = t.page.locator("td.detail").first.inner_text()
        assert "trainer.history (list of 128): history[*] → Batch.data" in holders, holders
        assert "uncollected cycle </script>" in holders, holders
        tree = t.page.locator("h2", has_text="What would be freed").locator("xpath=following::table[1]")
        shown = [int(cell.get_attribute("data-bytes")) for cell in tree.locator("[data-bytes]").all()]
        assert shown[:len(why["retainers"])] == [node["bytes"] for node in why["retainers"]][:len(shown)], shown
        assert "98 × trainer.history[*] (Batch)" in tree.inner_text()
    with tab(browser, written("why")) as t:
        assert t.page.locator(".headline").inner_text() == culeak("why", "held.json").splitlines()[0]
        shown = [int(row.locator("[data-bytes]").first.get_attribute("data-bytes")) for row in t.rows().all()]
        assert shown == [origin["bytes"] for origin in why["origins"]], shown
        t.page.keyboard.press("/")
        t.page.keyboard.type("GC is disabled")
        assert t.rows().count() == 1
        t.rows().locator(".open").click()
        assert ".data" in t.page.locator("td.detail").first.inner_text()
        assert t.page.evaluate("window.hacked") is None


def a_hundred_thousand_stacks_are_ready_in_two_seconds(browser):
    path = written("large")
    size = path.stat().st_size
    assert size < MOST_BYTES, size
    context, opened, spent = timed(browser, path)
    page = opened.page
    assert 0 < spent < MOST_SECONDS, spent
    before = len(opened.names())
    page.get_by_label("Inverted").check()
    opened.page.locator(".frame").nth(3).click()
    assert opened.names() and before > 100
    page.get_by_role("button", name="Show 480 more").click()
    assert opened.rows().count() == 500
    assert opened.complaints == [], opened.complaints
    context.close()


def an_enormous_stack_is_drawn(browser):
    with tab(browser, written("deep")) as t:
        assert len(t.names()) < 1000, len(t.names())
        t.page.get_by_role("button", name="recurse_0", exact=True).click()
        assert "more" in t.page.locator("ol.stack li").last.inner_text()
        t.page.get_by_label("Inverted").check()
        # Click on the deepest frame drawn, repeatedly: each click zooms further in.
        t.page.locator(".frame").last.scroll_into_view_if_needed()
        t.page.locator(".frame").last.click()
        deepest = int(t.page.locator(".frame").last.get_attribute("aria-level"))
        assert deepest > 700, deepest
    refused = subprocess.run([CULEAK, "report", "missing-1.json", "missing-2.json", "-o", "nothing.html"], cwd=FOLDER, capture_output=True, text=True)
    assert refused.returncode == 2 and not (FOLDER / "nothing.html").exists(), refused


def suppressed_memory_is_listed(browser):
    (FOLDER / "rules.supp").write_text("leak:Trainer::step\nleak:never<b>matches\n")
    report = json.loads(culeak("report", "training.json", "--json", "--suppressions", "rules.supp"))
    with tab(browser, write("suppressed", "report", "training.json", "--suppressions", "rules.supp")) as t:
        assert t.rows().count() == len(report["rows"]) == 5
        rules = t.page.locator("main").inner_text()
        assert "Trainer::step" in rules and "1.1 GiB" in rules and "never<b>matches" in rules, rules
        assert not any("Trainer::step" in name for name in t.names()), t.names()
        left = sum(row["bytes"] for row in report["rows"])
        assert t.page.locator(".details strong").inner_text() == size_of(left) + ", 100 %"


def the_page_goes_to_standard_output_and_over_no_file(browser):
    page = culeak("report", "training.json", "-o", ".html")
    assert page.startswith("<!doctype html>") and page.rstrip().endswith("</html>")
    assert page == written("training").read_text(encoding="utf-8")
    refused = subprocess.run([CULEAK, "report", "training.json", "-o", "training.html"], cwd=FOLDER, capture_output=True, text=True)
    assert refused.returncode == 2 and "--force" in refused.stderr, refused


CLAIMS = [
    the_numbers_are_those_of_json_and_the_terminal,
    estimates_are_marked_as_in_the_terminal,
    a_click_zooms_and_escape_comes_back,
    a_search_marks_frames_and_filters_rows,
    the_graph_can_be_inverted_and_coloured_by_kind,
    one_kind_of_memory_can_be_selected,
    colours_show_the_owner,
    a_row_has_its_largest_stacks_and_the_graph_has_all,
    printed_pages_have_no_controls,
    rows_open_and_lead_to_the_graph,
    a_frame_is_a_function_and_a_line_on_request,
    everything_can_be_reached_from_the_keyboard,
    colours_follow_the_system_and_the_switch,
    a_diff_shows_what_grew_and_what_shrank,
    a_trend_shows_the_curve_of_each_call_site,
    hostile_names_are_text,
    the_policy_forbids_any_load_and_any_markup,
    without_scripts_the_page_has_the_text,
    holders_are_shown_below_call_sites_and_as_a_tree,
    several_processes_are_chosen_from_a_list,
    a_job_has_its_processes_and_bars_of_each_call_site,
    a_hundred_thousand_stacks_are_ready_in_two_seconds,
    an_enormous_stack_is_drawn,
    *looks.CLAIMS,
    *over_time.CLAIMS,
    suppressed_memory_is_listed,
    the_page_goes_to_standard_output_and_over_no_file,
]


def screenshots(browser, folder):
    for name in ("training", "diff", "trend", "large"):
        for scheme in ("light", "dark"):
            for width in (1280, 400):
                with tab(browser, written(name), color_scheme=scheme, viewport={"width": width, "height": 1000}) as t:
                    t.page.screenshot(path=f"{folder}/{name}-{scheme}-{width}.png", full_page=name == "trend")


def main():
    failed = 0
    expect.set_options(timeout=PATIENCE_S * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(timeout=PATIENCE_S * 1000, executable_path=CHROMIUM, args=["--no-sandbox"])
        print(f"Chromium {browser.version}")
        named = sys.argv[4:]
        claims = [claim for claim in CLAIMS if not named or claim.__name__ in named]
        for claim in claims:
            try:
                claim(browser)
                print(f"ok      {claim.__name__}")
            except Exception as error:  # a failing test does not stop the others
                failed += 1
                line = next(frame.lineno for frame in reversed(traceback.extract_tb(error.__traceback__)) if frame.filename == claim.__code__.co_filename)
                print(f"FAILED  {claim.__name__} at line {line}: {type(error).__name__}: {str(error)[:2000]}")
        if folder := os.environ.get("CULEAK_SCREENSHOTS"):
            screenshots(browser, folder)
        browser.close()
    print(f"{len(claims) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
