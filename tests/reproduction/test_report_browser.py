"""The report in a real browser: nothing scrolls sideways on a phone, and a thumbnail opens its figure."""

from pathlib import Path

import pytest
from chromium import IN_BROWSER, open_page
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from report_project import ReportProject, notebook_page, png

PHONE = {"width": 390, "height": 844}  # CSS pixels of a common phone

pytestmark = IN_BROWSER


@pytest.fixture
def phone():
    with open_page(**PHONE, offline=True) as page:
        yield page


@pytest.fixture
def first(held: ReportProject) -> Path:
    held.record()
    held.promoted(values={"A1": (1500000, 1400000, 1700000), "plain": 2000000}, figure=png(400, 300))
    held.fail("fig-2", "Traceback:\n  " + "a_very_long_name_" * 20 + "\nRuntimeError: boom")
    return held.report()


def test_on_a_phone_no_page_scrolls_sideways_and_rows_become_cards(phone, first):
    for path in sorted(first.parent.glob("*.html")):
        phone.goto(path.as_uri())
        assert phone.evaluate("document.documentElement.scrollWidth") == PHONE["width"], path.name
    phone.goto(first.with_name("toy-sum.html").as_uri())
    cell = phone.locator("td[data-label='Paper']").first
    assert cell.evaluate("cell => getComputedStyle(cell).display") == "flex"
    assert "Paper" in cell.evaluate("cell => getComputedStyle(cell, '::before').content")
    assert phone.locator("table.cards thead").first.bounding_box()["width"] <= 1


def test_scripts_of_a_notebook_do_not_run_on_its_page_and_nothing_leads_away_from_it(phone, held):
    script = "<script>window.ran = 'script'</script><img src='data:,' onerror=\"window.ran = 'handler'\" alt=''>"
    script += "<meta http-equiv='refresh' content='0; url=about:blank'><svg onload=\"window.ran = 'drawing'\"></svg>"
    data = {"text/html": f"{script}<b style='color: rgb(1, 2, 3)'>shown</b>"}
    kinds = [{"application/javascript": "window.ran = 'output'"}, data]
    code = new_code_cell("1", outputs=[new_output("display_data", data=kind) for kind in kinds])
    page = notebook_page(held, new_markdown_cell(script), code)
    phone.goto(page.as_uri())
    phone.wait_for_timeout(200)
    assert phone.evaluate("window.ran") is None and phone.url == page.as_uri()
    assert phone.get_by_text("shown").evaluate("word => getComputedStyle(word).color") == "rgb(1, 2, 3)"


@pytest.mark.parametrize(
    ("page", "link", "figure", "width"),
    [
        ("toy-sum.html", "a.thumb", "#table-1-counted-figure", 720),
        ("toy-sum.html", "#table-1-counted-figure-full a.open", "#table-1-counted-figure-full", 400),
    ],
)
def test_a_link_opens_its_figure_over_the_page_and_close_puts_it_back(phone, first, page, link, figure, width):
    phone.goto(first.with_name(page).as_uri())
    phone.locator(link).click()
    figure = phone.locator(figure)
    assert figure.evaluate("figure => getComputedStyle(figure).position") == "fixed"
    assert figure.locator("img").evaluate("image => image.naturalWidth") == width
    figure.get_by_text("Close").click()
    assert figure.evaluate("figure => getComputedStyle(figure).position") == "static"


def test_the_page_follows_the_readers_dark_or_light_setting(phone, first):
    colours = []
    for scheme in ("light", "dark"):
        phone.emulate_media(color_scheme=scheme)
        phone.goto(first.as_uri())
        colours.append(phone.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(246, 247, 249)", "rgb(18, 21, 26)"]
