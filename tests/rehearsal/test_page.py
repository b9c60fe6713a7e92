"""The page of `devrun report` in a real browser."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.rehearsal.test_report import copied, log_of
from tests.support.strict import zip_strict

BROWSER = shutil.which("chromium")


@pytest.fixture(scope="module")
def browser():
    if BROWSER is None:
        pytest.skip("chromium is not here; install it with the system's packages")
    api = pytest.importorskip("playwright.sync_api")
    flags = [
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
    ]
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, report, tmp_path):
    """Open the report of some runs; the page, and what went wrong on it."""
    contexts = []

    def open_page(*work_dirs, **options):
        file = tmp_path / "page.html"
        assert report(*work_dirs, "-o", file)[0] == 0
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        wrong = []
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: wrong.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector(".u-over")
        return page, [entry for entry in wrong if entry != file.as_uri()]

    yield open_page
    for context in contexts:
        context.close()


def legend(page, chart):
    """What the legend of a chart says where the pointer is in its middle."""
    over = chart.locator(".u-over")
    over.scroll_into_view_if_needed()
    over.hover()
    page.wait_for_timeout(200)
    labels = chart.locator(".u-legend .u-label").all_text_contents()
    values = chart.locator(".u-legend .u-value").all_text_contents()
    return dict(zip_strict(labels, values))


def chart_of(page, name):
    return page.locator(".chart", has=page.locator("h3", has_text=name)).first


def test_the_page_shows_the_numbers_of_the_log(trained, opened):
    page, wrong = opened(trained())
    logged = {
        record["step"]: record
        for record in map(json.loads, log_of(trained()).read_text().splitlines())
        if record.get("mode") == "train"
    }
    shown = legend(page, chart_of(page, "loss"))
    record = logged[int(shown["step"])]
    assert float(shown["train"]) == pytest.approx(record["loss"], rel=1e-5)
    said = chart_of(page, "loss").locator("[role=img]").get_attribute("aria-label")
    assert "first train from" in said and "first val from" in said
    assert wrong == []


def test_runs_are_hidden_and_smoothed_and_drawn_by_time(trained, opened):
    page, wrong = opened(
        trained(), trained("second", optimizer={"type": "SGD", "lr": 0.05})
    )
    series = chart_of(page, "loss").locator(".u-legend .u-series")
    assert series.count() == 1 + 4
    page.locator("#controls input[type=checkbox][name=run]").first.uncheck()
    assert series.count() == 1 + 2
    page.locator("#smoothing").evaluate(
        "bar => { bar.value = 0.9; bar.dispatchEvent(new Event('input')) }"
    )
    assert series.count() == 1 + 4  # as logged, and smoothed
    page.locator("#log").check()
    page.locator("#axis").select_option("seconds")
    assert "seconds of training" in legend(page, chart_of(page, "loss"))
    assert wrong == []


def test_a_phone_in_the_dark_and_a_printer_show_it_whole(trained, opened):
    small = {"width": 390, "height": 800}
    page, wrong = opened(trained(), viewport=small, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != (
        "rgb(255, 255, 255)"
    )
    assert page.pdf().startswith(b"%PDF")
    assert wrong == []


def test_markup_in_a_name_does_not_run(trained, opened, tmp_path):
    work_dir = copied(trained, tmp_path)
    name = "<img src=x onerror=\"document.title='ran'\">"
    log = log_of(work_dir)
    log.write_text(
        log.read_text() + json.dumps({"mode": "val", "step": 9, name: 1}) + "\n"
    )
    page, wrong = opened(work_dir)
    legend(page, chart_of(page, "onerror"))
    assert page.title() == "devrun report: copy"
    assert wrong == []


def diverged(trained, tmp_path, name="diverged"):
    """A run whose last loss is NaN and whose record says why it failed."""
    work_dir = copied(trained, tmp_path, name)
    log = log_of(work_dir)
    lines = [{"mode": "train", "step": step, "loss": "NaN"} for step in (9, 10)]
    log.write_text(log.read_text() + "".join(f"{json.dumps(x)}\n" for x in lines))
    facts = json.loads((work_dir / "run.json").read_text())
    facts.update(status="failed", error="the loss is nan at iteration 9")
    (work_dir / "run.json").write_text(json.dumps(facts))
    return work_dir


def test_a_diverged_run_spoils_no_chart_and_says_why_it_failed(
    trained, opened, tmp_path
):
    bare = tmp_path / "only nan"
    bare.mkdir()
    (bare / "1.log.json").write_text('{"mode": "train", "step": 1, "loss": "NaN"}\n')
    page, wrong = opened(trained(), diverged(trained, tmp_path), bare)
    assert wrong == []
    assert page.locator(".chart canvas").count() == page.locator(".chart").count() > 2
    assert "are NaN or infinite" in chart_of(page, "loss").inner_text()
    assert "failed because" in page.locator("table").first.inner_text()
    assert "the loss is nan at iteration 9" in page.locator("table").first.inner_text()


def test_killed_resumed_and_empty_runs_are_beside_a_good_one(trained, opened, tmp_path):
    killed = copied(trained, tmp_path, "killed")
    facts = json.loads((killed / "run.json").read_text())
    kept = ("device", "versions", "started", "command")
    running = {**{key: facts[key] for key in kept}, "status": "running"}
    (killed / "run.json").write_text(json.dumps(running))
    resumed = copied(trained, tmp_path, "resumed")
    part = {"started": "2026-01-01T00:00:00+0000", "status": "interrupted"}
    part |= {"error": "SIGTERM", "duration_seconds": 60.0, "seconds": {"data": 60.0}}
    (resumed / "run-20260101_000000.json").write_text(json.dumps(part))
    empty = tmp_path / "empty"
    empty.mkdir()
    failed = {"status": "failed", "error": "no module named layers"}
    (empty / "run.json").write_text(json.dumps(failed))
    page, wrong = opened(trained(), killed, resumed, empty)
    assert wrong == []
    series = chart_of(page, "loss").locator(".u-legend .u-series")
    assert series.count() == 1 + 2 * 3
    tables = page.locator("table").all_inner_texts()
    assert "no module named layers" in tables[0]
    assert "lost" in tables[0] and "last heard of" in tables[0]
    assert "SIGTERM" in tables[1] and "2026-01-01" in tables[1]
    bars = page.locator(".legend").all_inner_texts()
    assert len(bars) == 3  # the killed one's by its log
    assert "data" in bars[2] and "1 min" in bars[2]
    assert page.get_by_text("The log has no times.").count() == 1


def test_a_part_of_the_time_has_one_colour_in_all_runs_and_a_legend(
    trained, opened, tmp_path
):
    other = copied(trained, tmp_path, "other")
    facts = json.loads((other / "run.json").read_text())
    facts["seconds"] = {"evaluation": 9.0, "compute": 1.0}
    (other / "run.json").write_text(json.dumps({**facts, "duration_seconds": 10.0}))
    page, wrong = opened(trained(), other)
    colours = page.evaluate(
        """[...document.querySelectorAll('.bar')].map(bar => Object.fromEntries(
            [...bar.children].map(part => [part.title.split(' ')[0],
                getComputedStyle(part).backgroundColor])))"""
    )
    assert colours[0]["compute"] == colours[1]["compute"]
    assert colours[1]["compute"] != colours[1]["evaluation"]
    legend = page.locator(".legend").nth(1)
    assert legend.locator("i").count() == 2
    assert "evaluation 90.0%" in legend.inner_text()
    assert wrong == []


def test_twenty_runs_with_long_names_fit_on_a_page(trained, opened, tmp_path):
    names = [f"{'a-sweep-of-' * 8}{number}" for number in range(20)]
    runs = [copied(trained, tmp_path, name) for name in names]
    page, wrong = opened(*runs, viewport={"width": 1000, "height": 800})
    assert wrong == []
    assert page.evaluate("document.documentElement.scrollWidth") == 1000
    assert page.locator("#controls input[name=run]").count() == 20
    series = chart_of(page, "loss").locator(".u-legend .u-series")
    assert series.count() == 1 + 2 * 20
