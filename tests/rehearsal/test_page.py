"""The page of `devrun report` in a real browser."""

import json
import shutil

import pytest

from tests.rehearsal.test_report import copied, log_of
from tests.support.observe import records
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


def test_the_numbers_of_the_log_on_a_phone_in_the_dark_and_in_print(trained, opened):
    small = {"width": 390, "height": 800}
    page, wrong = opened(trained(), viewport=small, color_scheme="dark")
    logged = {r["step"]: r for r in records(trained()) if r.get("mode") == "train"}
    shown = legend(page, chart_of(page, "loss"))
    record = logged[int(shown["step"])]
    assert float(shown["train"]) == pytest.approx(record["loss"], rel=1e-5)
    said = chart_of(page, "loss").locator("[role=img]").get_attribute("aria-label")
    assert "first train from" in said and "first val from" in said
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    dark = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(dark) != "rgb(255, 255, 255)"
    assert page.pdf().startswith(b"%PDF")
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


def changed(trained, tmp_path, name, lines=(), **facts):
    """A copy of the run that logged more lines, with other facts."""
    work_dir = copied(trained, tmp_path, name)
    log = log_of(work_dir)
    log.write_text(log.read_text() + "".join(f"{json.dumps(x)}\n" for x in lines))
    record = json.loads((work_dir / "run.json").read_text())
    (work_dir / "run.json").write_text(json.dumps({**record, **facts}))
    return work_dir


def test_diverged_killed_resumed_and_empty_runs_are_beside_a_good_one(
    trained, opened, tmp_path
):
    nan = [{"mode": "train", "step": step, "loss": "NaN"} for step in (9, 10)]
    markup = "<img src=x onerror=\"document.title='ran'\">"
    nan[0][markup] = 1
    failed = {"status": "failed", "error": "the loss is nan at iteration 9"}
    diverged = changed(trained, tmp_path, "diverged", nan, **failed)
    killed = changed(trained, tmp_path, "killed", status="running", seconds=None)
    times = {"seconds": {"evaluation": 9.0, "compute": 1.0}, "duration_seconds": 10.0}
    resumed = changed(trained, tmp_path, "resumed", **times)
    part = {"started": "2026-01-01T00:00:00+0000", "status": "interrupted"}
    part |= {"error": "SIGTERM", "duration_seconds": 60.0, "seconds": {"data": 60.0}}
    (resumed / "run-20260101_000000.json").write_text(json.dumps(part))
    bare, empty = tmp_path / "only nan", tmp_path / "empty"
    bare.mkdir()
    (bare / "1.log.json").write_text(json.dumps(nan[0]))
    empty.mkdir()
    failed = {"status": "failed", "error": "no module named layers"}
    (empty / "run.json").write_text(json.dumps(failed))
    page, wrong = opened(trained(), diverged, killed, resumed, bare, empty)
    legend(page, chart_of(page, "onerror"))
    assert wrong == [] and page.title() == "devrun report: 6 runs"
    assert page.locator(".chart canvas").count() == page.locator(".chart").count() > 2
    assert "are NaN or infinite" in chart_of(page, "loss").inner_text()
    series = chart_of(page, "loss").locator(".u-legend .u-series")
    assert series.count() == 1 + 2 * 4 + 1  # the bare run has no validation
    facts, parts = page.locator("table").all_inner_texts()[:2]
    for said in ("the loss is nan at iteration 9", "no module named layers"):
        assert said in facts
    assert "failed because" in facts and "lost" in facts and "last heard of" in facts
    assert "SIGTERM" in parts and "2026-01-01" in parts
    assert page.get_by_text("It recorded no times.").count() == 3
    bars = page.locator(".legend").all_inner_texts()
    assert len(bars) == 3 and "data 85.7% (60 s)" in bars[2]
    colours = page.evaluate(
        """[...document.querySelectorAll('.bar')].map(bar => Object.fromEntries(
            [...bar.children].map(part => [part.title.split(' ')[0],
                getComputedStyle(part).backgroundColor])))"""
    )
    assert colours[0]["compute"] == colours[2]["compute"]
    assert len(set(colours[2].values())) == 3


def test_twenty_runs_with_long_names_fit_on_a_page(trained, opened, tmp_path):
    names = [f"{'a-sweep-of-' * 8}{number}" for number in range(20)]
    runs = [copied(trained, tmp_path, name) for name in names]
    page, wrong = opened(*runs, viewport={"width": 1000, "height": 800})
    assert wrong == []
    assert page.evaluate("document.documentElement.scrollWidth") == 1000
    assert page.locator("#controls input[name=run]").count() == 20
    series = chart_of(page, "loss").locator(".u-legend .u-series")
    assert series.count() == 1 + 2 * 20
