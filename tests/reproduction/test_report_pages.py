"""The report says of every claim what was published, what is ours and its verdict, and cannot hide a wrong number."""

import base64
import hashlib
import json
import math
import os
import re
import shutil

import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from report_project import PUBLISHED, ReportProject, claim, index, notebook_page, png, row, soup, technique, verdict

from workbench.reproduction import CatalogueError, load_catalogue
from workbench.reproduction.files import write_record
from workbench.reproduction.findings import news_of
from workbench.reproduction.report import about_text, formula_html, relative_text, value_text

STAND_IN = [{"name": "glue/sst2", "source": "stand-in", "detail": "generated sentences", "sha256": "ab" * 32}]
OTHER = {"A1": 1500000, "plain": 2000000}  # A1 is 50 % above


def shown(page: BeautifulSoup) -> list[bytes]:
    """Return the pictures of an item in the order in which they stand."""
    images = page.select("#table-1-counted figure.shot img")
    return [base64.b64decode(image["src"].removeprefix("data:image/png;base64,")) for image in images]


def other(held: ReportProject, name: str) -> BeautifulSoup:
    return soup(held.report().with_name(f"{name}.html"))


def words(tag) -> str:
    return " ".join(tag.get_text().split())


def test_a_wrong_number_of_ours_or_in_published_turns_the_verdict_red_without_a_new_run(held):
    held.record(values={"A1": 1030000, "plain": 2000000})  # 3 % above, where 2 % are allowed
    assert verdict(technique(held), "A1 sends half") == "✕DISAGREES"
    held.record()
    assert verdict(technique(held), "A1 sends half") == "✓AGREES"

    held.toy.publish(PUBLISHED.replace("A1,1000000", "A1,500000"))
    page = technique(held)

    assert verdict(page, "A1 sends half") == "✕DISAGREES"
    assert row(page, "A1 sends half", "A1")["Verdict"] == "✕DISAGREES"
    assert "The paper counts in another unit." in claim(page, "A1 sends half").get_text()
    assert words(index(held).select_one("#cautions ~ p")) == "Every claim that disagrees, with its reason"
    line = other(held, "claims").select_one("li[data-verdict=DISAGREES]")
    assert words(line.a) == "A1 sends half" and "The paper counts in another unit." in line.get_text()


def test_a_claim_shows_published_ours_difference_evidence_verdict_rule_and_source(held):
    held.record()
    page = technique(held)
    assert row(page, "A1 sends half", "A1") == {
        "Paper": "1 MB",
        "Ours": "1.01 MB",
        "Difference": "+1 %",
        "Verdict": "✓AGREES",
        "Source": "table 1, row 2",
    }
    section = claim(page, "A1 sends half")
    text = section.get_text()
    assert "COUNTED" in page.select_one("#table-1-counted header").get_text()
    assert "within 2 % of the published value" in text and "headers are not counted" in text.lower()


def test_the_rows_of_an_order_have_neither_a_verdict_nor_a_difference(held):
    held.record(values={"A1": 3000000, "plain": 2000000})  # the order is A1, plain
    page = technique(held)
    assert verdict(page, "A1 sends least") == "✕DISAGREES"
    assert "expected A1 below plain; found 3e+06 and 2e+06" in claim(page, "A1 sends least").get_text()
    assert row(page, "A1 sends least", "A1") == {"Paper": "1 MB", "Ours": "3 MB", "Source": "table 1, row 2"}


def test_the_first_page_counts_verdicts_by_evidence_and_whose_claims_they_are_and_scores_the_papers_own(held):
    held.declare('along": "method"', 'along": "method", "whose": Whose.OURS, "changed": "the order, after a trial"')
    held.declare("Reproduction, Within", "Reproduction, Whose, Within")
    held.record()
    page = index(held)
    table = page.select_one("#how ~ div table")
    names = [th.get_text() for th in table.select("thead th.number")]
    assert names == ["DISAGREES", "AGREES", "NOT COMPARABLE", "NOT RUN"]
    counts = {tr.th.get_text().strip(): tr.select("td.number") for tr in table.select("tbody tr")}
    digits = {name: "".join(cell.get_text() for cell in cells) for name, cells in counts.items()}
    assert digits == {"COUNTED": "0100", "MEASURED": "0000", "SIMULATED": "0001"}  # without ours
    whose = [words(term) for term in page.select("#how ~ div dt")]
    assert whose[:5] == [
        "The paper's: 2 claims",
        "Ours: 2 claims",
        "By construction: 0 claims",
        "Repeated: 0 claims",
        "Rule changed: 2 claims",
    ]
    assert words(page.select_one(".paper .marks")) == (
        "The paper's own claims: ✓1 agree ✕0 disagree ?1 could not be tested"
    )
    held.declare('"A1 sends half",', '"A1 sends half", erratum="printed for kB",')
    held.record(values={"A1": 1500000, "plain": 2000000})
    assert "0 agree with the results here, 1 disagree (slips of the papers themselves: 1)" in words(index(held))
    badges = [badge.get_text() for badge in claim(technique(held), "A1 sends least").select("summary .evidence")]
    assert badges == ["ours", "rule changed"]
    assert "The order, after a trial." in claim(technique(held), "A1 sends least").get_text()


PAGE = """
from workbench.reproduction import Finding, Page, Value

PAGE = Page(scale="Two toy methods.", picture="table-1/counted", findings=(
    Finding(says="A1 halves the bytes.", source="abstract", ours="A1 sent {sent:.1f} MB.", means="Use A1.",
            values={"sent": Value(item="table-1/counted", quantity="bytes", where={"method": "A1"}, times=1e-6)},
            claims=("table-1/counted: A1 sends half", "table-1/counted: A1 sends least")),
))
"""


def test_a_card_says_what_the_paper_says_what_was_found_by_the_largest_run_and_its_mark(held):
    held.catalogue.write_text(held.catalogue.read_text() + PAGE)
    said = lambda: words(index(held).select_one(".paper .findings tbody tr"))  # noqa: E731
    assert said() == ("A1 halves the bytes. abstract Not known yet: table-1/counted has no run yet. COUNTED ○NOT RUN")
    held.record()
    assert said() == "A1 halves the bytes. abstract A1 sent 1.0 MB. COUNTED laptop run on this machine ✓AGREES"
    held.promoted(values=OTHER)  # of the full profile: A1 is 50 % above, and still sends least
    assert said() == "A1 halves the bytes. abstract A1 sent 1.5 MB. COUNTED recorded full run ◐IN PART"
    page = index(held)
    assert words(page.select_one(".cautions li")) == "◐IN PART Toy sum. A1 halves the bytes. Use A1."
    assert page.select_one(".cautions a")["href"] == "toy-sum.html#table-1-counted-a1-sends-half"
    assert page.select_one(".picture img")["src"].startswith("data:image/png")
    assert not index(held, "smoke").select(".findings")
    held.declare('"method": "A1"}, times', '"colour": "red"}, times')
    assert "table-1/counted (recorded full run) has no rows of bytes for colour red" in said()


def test_a_run_says_the_findings_whose_numbers_are_there_and_else_the_first_claims_of_the_paper(held):
    news = lambda: news_of(held.project, load_catalogue(held.project), "toy-sum/table-1/counted", "laptop")  # noqa: E731
    held.record()
    here = "1,010,000 bytes here, 1,000,000 in the paper; agrees."
    assert news() == (f"A1 sends half: {here}", f"A1 sends least: {here}")
    held.catalogue.write_text(held.catalogue.read_text() + PAGE)
    assert news() == ("A1 sent 1.0 MB. Paper: A1 halves the bytes. Agrees.",)
    held.record(data=STAND_IN)
    assert len(news()) == 1 and news()[0].startswith("Stand-in data (")


def test_a_card_that_names_what_is_not_declared_is_refused_by_name(held):
    held.catalogue.write_text(held.catalogue.read_text() + PAGE.replace("A1 sends least", "A1 sends most"))
    with pytest.raises(CatalogueError, match="PAGE of toy_sum names the claim 'A1 sends most', which table-1/counted"):
        held.report()
    held.catalogue.write_text(held.catalogue.read_text().replace('picture="table-1/', 'picture="table-7/'))
    with pytest.raises(CatalogueError, match="PAGE of toy_sum names the item 'table-7/counted', which is not declared"):
        held.report()


def test_a_stand_in_is_labelled_and_explained_and_never_agrees(held):
    held.declare("needs_real_data=True", "needs_real_data=True, explanation='Invented words'")
    held.record("fig-2", values={"A1": 0.7, "plain": 0.9}, data=STAND_IN)
    page = technique(held)
    assert verdict(page, "Plain is most accurate") == "?NOT COMPARABLE"
    section = claim(page, "Plain is most accurate")
    assert "AGREES" not in section.get_text()
    assert section.select_one(".note.odd strong").parent.get_text() == "Explanation. Invented words"
    assert page.select_one("#fig-2-measured .standin").get_text() == "STAND-IN DATA"
    assert "generated sentences" in index(held).select_one("#ran ~ div").get_text()


def test_a_failure_shows_its_traceback_and_keeps_the_old_record_beside_it(held):
    held.record()
    held.fail("table-1", "Traceback:\n  line <3>\nRankFailed: rank 2 was killed by signal 9")
    item = technique(held).select_one("#table-1-counted")
    assert "line <3>" in item.select_one("pre").get_text()
    assert "record of the last run that succeeded" in item.get_text()
    assert "✓AGREES" in item.get_text()
    assert "rank 2 was killed by signal 9" in index(held).select_one("#failures ~ div").get_text()


def test_an_item_that_did_not_run_says_what_is_missing_and_what_the_paper_says(held):
    page = technique(held)
    assert "Not in the laptop run; use --profile full." in page.select_one("#table-9-simulated").get_text()
    assert "workbench reproduce toy-sum/table-1/counted" in page.select_one("#table-1-counted").get_text()
    assert verdict(page, "A1 sends half") == "○NOT RUN"
    assert row(page, "A1 sends half", "A1")["Paper"] == "1 MB"


def test_a_record_of_another_profile_or_of_other_claims_is_named_instead_of_ending_the_report(held):
    held.record(profile="smoke")
    shutil.copytree(held.root / "results/smoke", held.root / "results/laptop")
    page = technique(held)
    assert verdict(page, "A1 sends half") == "○NOT RUN"
    assert "record.json: refused, it is of the profile smoke" in page.select_one("#table-1-counted").get_text()
    held.record()
    held.declare('"where": {"method": "A1"}', '"where": {"colour": "red"}')
    page = technique(held)
    assert verdict(page, "A1 sends half") == "○NOT RUN"
    assert "cannot be judged" in claim(page, "A1 sends half").get_text()


def test_pages_need_no_network_no_script_and_no_other_file_and_interpret_no_text_of_others(held):
    held.record()
    held.promoted(figure=png(400, 300))
    page = technique(held)
    assert page.select_one("#table-1-counted h2").get_text() == "Bytes of a <message>" and not page.find_all("message")
    for path in held.report().parent.glob("*.html"):
        page, text = soup(path), path.read_text()
        assert not page.find_all(["link", "iframe"])
        charts = page.select('script[type="module"]')  # it names standards by their addresses, and fetches none
        assert page.find_all("script") == [*page.select(".chart > script"), *charts] or path.name == "claims.html"
        text = text.replace(charts[0].string, "") if charts else text
        assert "http:" not in text and "https:" not in text and "url(" not in text
        assert all(image["src"].startswith("data:image/png;base64,") and image["alt"] for image in page.find_all("img"))


def test_every_link_leads_to_a_file_or_an_anchor_ids_are_unique_and_headings_do_not_skip_a_level(held):
    held.record()
    held.promoted(figure=png(400, 300))
    pages = {path: soup(path) for path in held.report().parent.glob("*.html")}
    ids = {path.name: [tag["id"] for tag in page.find_all(id=True)] for path, page in pages.items()}
    assert all(len(names) == len(set(names)) for names in ids.values())
    for path, page in pages.items():
        links = page.find_all("a", href=True)
        assert len(links) > 1
        for link in links:
            file, _, anchor = link["href"].partition("#")
            assert (path.parent / (file or path.name)).resolve().is_file(), link
            assert not anchor or anchor in ids[file or path.name], link
        levels = [int(tag.name[1]) for tag in page.find_all(re.compile(r"^h[1-6]$"))]
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))


def test_a_thumbnail_is_small_and_leads_to_the_figure_and_a_broken_figure_does_not_end_the_report(held):
    held.record()
    (thumbnail,) = technique(held).select("a.thumb")
    assert thumbnail["href"] == "toy-sum.html#table-1-counted-figure"
    figure = technique(held).select_one("figure#table-1-counted-figure img")
    assert len(thumbnail.img["src"]) < len(figure["src"])
    held.record(figure=b"\x89PNG broken")
    assert "no figure" in technique(held).select_one("#contents ~ ul").get_text()


def test_during_a_run_the_first_page_reloads_itself_and_names_what_runs(held):
    page = index(held, running=["toy-sum/table-1/counted"], under_way=True, progress="0 of 1 items are done.")
    assert page.select_one("meta[http-equiv=refresh]")
    assert (
        "RUNNING" in technique(held, running=["toy-sum/table-1/counted"]).get_text()
        and "0 of 1 items are done." in page.get_text()
    )
    assert not index(held).select_one("meta[http-equiv=refresh]")


def test_the_page_of_a_technique_that_is_gone_goes_and_backticks_become_code(held):
    stale = held.report().with_name("gone.html")
    stale.write_text("old")
    pages = [stale.parent / "notebooks/gone-table-1-counted.html", stale.parent / "thumbnails/gone-table-1-counted.png"]
    for page in pages:
        page.parent.mkdir(exist_ok=True)
        page.write_text("old")
    held.declare("in another unit", "in `unit<s>`")
    held.record(values={"A1": 1030000, "plain": 2000000})
    page = technique(held)
    assert not stale.exists() and not any(page.exists() for page in pages)
    assert claim(page, "A1 sends half").select_one(".note code").get_text() == "unit<s>"
    assert "off by +3 %, more than 2 %" in page.get_text()


def test_every_page_forbids_scripts_and_the_network_before_it_shows_anything(held):
    script = "<script>document.title = 'ran'</script>"
    output = new_output("display_data", data={"text/html": script})
    page = notebook_page(held, new_markdown_cell(script), new_code_cell("1", outputs=[output]))
    for path in (page, *page.parents[1].glob("*.html")):
        policy, first = soup(path).select_one("meta[http-equiv=Content-Security-Policy]"), soup(path).head.find(True)
        assert policy == first, path
        held_to = set(policy["content"].split("; "))
        scripts = soup(path).select('script:not([type="application/json"])')
        assert len(scripts) == (path.name in ("claims.html", "toy-sum.html"))
        script = scripts[0].string if scripts else ""
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        allowed = f"script-src 'sha256-{digest}'" if script else "script-src 'none'"
        assert {"default-src 'none'", allowed, "form-action 'none'"} <= held_to


def test_an_executed_notebook_becomes_a_page_once_a_run_with_widgets_as_pictures(held):
    picture = base64.b64encode(png(2, 1)).decode("ascii")
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "7"}, "text/plain": "Explorer()"}
    outputs = [
        new_output("stream", name="stdout", text="forty-two bytes"),
        new_output("display_data", data=widget | {"image/png": picture}),
    ]
    page = notebook_page(held, new_markdown_cell("# The question"), new_code_cell("print()", outputs=outputs))
    assert soup(page).select_one(".output img")["src"].replace("\n", "") == f"data:image/png;base64,{picture}"
    notebook = held.folder("table-1") / "notebook.ipynb"
    text = page.read_text()
    assert "The question" in text and "forty-two bytes" in soup(page).select_one(".output").get_text()
    assert "<script" not in text and "http:" not in text and "https:" not in text
    assert technique(held).find("a", href="notebooks/toy-sum-table-1-counted.html")

    page.write_text("old")
    os.utime(page, ns=(notebook.stat().st_mtime_ns,) * 2)
    held.report(notebooks=True)
    assert page.read_text() == "old"  # of this run already
    os.utime(notebook)
    held.report(notebooks=True)
    assert "forty-two bytes" in page.read_text()


@pytest.mark.parametrize(
    ("name", "title"), [("figure.png", "Figure"), ("notebook.ipynb", "Notebook"), ("log.txt", "Log")]
)
def test_the_report_refuses_a_changed_file_by_name_and_shows_the_others(held, name, title):
    held.record()
    page = technique(held, notebooks=True)
    titles = ["Notebook", "Figure", "Log", "Record"]
    assert [link.get_text() for link in page.select("nav.files a")] == ["Notebook, to read", *titles]
    (held.folder("table-1") / name).write_bytes(png(720, 300))
    page = technique(held, notebooks=True)
    links = [link.get_text() for link in page.select("nav.files a")]
    assert title not in links and set(titles) - {title} <= set(links)
    assert ("Notebook, to read" in links) == (name != "notebook.ipynb")
    assert bool(page.select("figure.shot")) == (name != "figure.png")
    assert f"{name} does not match the checksum in its record" in page.select_one("#table-1-counted").get_text()
    assert verdict(page, "A1 sends half") == "✓AGREES"  # the values are the record's own


def test_what_is_expected_by_definition_is_shown_as_such(held):
    held.declare('Within("A1 sends half",', 'Within("A1 sends half", expected=1e6,')
    held.record()
    section = claim(technique(held), "A1 sends half")
    assert section.select_one("td[data-label='Paper']").get_text() == "1 MB"
    assert [head.get_text() for head in section.select("thead th")][1:3] == ["Paper", "Ours"]
    assert "within 2 % of 1,000,000, by definition" in section.get_text().lower()


def test_formulas_of_an_executed_notebook_are_drawn(held):
    text = "Of $a \\le b$ and\n\n$$\\frac{a}{b}$$\n\nand `$PATH`, $\\underbrace{a<b}_{c}$."
    page = soup(notebook_page(held, new_markdown_cell(text)))
    body = page.select_one(".notebook")
    assert [drawing["aria-label"] for drawing in body.select("svg.math")] == [r"a \le b", r"\frac{a}{b}"]
    assert body.select_one("svg.math.block")["aria-label"] == r"\frac{a}{b}"
    assert body.select_one("code.math").get_text() == r"\underbrace{a<b}_{c}"
    assert body.get_text().count("$") == 1  # that of the shell's variable


def test_a_fraction_is_taller_than_a_letter_and_hangs_below_the_line():
    letter, fraction = (BeautifulSoup(formula_html(tex), "html.parser").svg for tex in ("a", r"\frac{a}{b}"))
    assert float(fraction["viewbox"].split()[3]) > 1.5 * float(letter["viewbox"].split()[3])
    assert "vertical-align:-" in fraction["style"]


# recorded runs beside this machine's own


def test_a_recorded_full_run_stands_beside_the_laptop_run_with_machine_date_and_spread(held):
    held.record()
    path = held.promoted(values={"A1": (1500000, 1400000, 1700000), "plain": 2000000})
    page = technique(held)
    section = claim(page, "A1 sends half")
    (paragraph,) = (p.get_text() for p in section.select("p") if p.get_text().startswith("Recorded full run"))
    assert "✕DISAGREES" in paragraph and "Large processor, 64 cores, Some GPU" in paragraph
    assert "2026-01-02" in paragraph
    assert verdict(page, "A1 sends half") == "✓AGREES"  # the laptop run's own
    assert row(page, "A1 sends half", "A1")["Recorded full run"] == "1.5 MB (1.4 MB to 1.7 MB)"
    assert row(page, "A1 sends half", "A1")["Ours"] == "1.01 MB"
    assert row(page, "A1 sends least", "plain")["Recorded full run"] == "2 MB"

    (held.folder("table-1") / "record.json").unlink()
    page = technique(held)
    assert verdict(page, "A1 sends half") == "✕DISAGREES"  # the recorded run speaks where this machine has none
    assert "Ours" not in row(page, "A1 sends half", "A1")
    assert "✕1 DISAGREES ✓1 AGREES" in words(page.select_one("#contents ~ ul li"))
    held.record()

    write_record(path, json.loads(path.read_text()) | {"id": "toy-sum/table-9/simulated"})
    page = technique(held)
    assert "Recorded full run" not in claim(page, "A1 sends half").get_text()
    message = f"{path}: refused, it is the record of toy-sum/table-9/simulated"
    assert message in page.select_one("#table-1-counted").get_text()


def test_what_runs_found_stands_before_the_claims(held):
    held.record(finding="A1 sends 1.01 MB.")
    held.promoted(values=OTHER, finding="A1 sends 1.5 MB.")
    page = technique(held)
    assert [words(line) for line in page.select("article .finding")] == [
        "Found: A1 sends 1.01 MB. (this run)",
        "Found: A1 sends 1.5 MB. (recorded full run, 2026-01-02 03:04)",
    ]


def test_the_smoke_profile_gives_no_verdicts_and_no_finding_nor_do_runs_without_one_or_on_a_stand_in(held):
    held.record()
    assert not technique(held).select(".finding")
    held.record(profile="smoke", finding="Half of everything.")
    page, first = technique(held, "smoke"), index(held, "smoke")
    assert not page.select("details.claim") and not first.select(".findings")
    assert "gives no verdicts" in page.select_one("#table-1-counted").get_text()
    assert "Half of everything" not in first.get_text()
    held.record(finding="Half of everything.", data=STAND_IN)
    assert not technique(held).select(".finding") and "Half of everything" not in index(held).get_text()


def test_where_nothing_ran_here_the_report_is_that_of_the_recorded_runs(held):
    held.promoted(values=OTHER, figure=png(400, 300))
    page = index(held)
    assert "Nothing ran on this machine yet: these are the recorded runs, full." in words(page.header)
    assert not page.select("#ran")
    page = technique(held)
    (thumbnail,) = page.select("a.thumb")
    file, anchor = thumbnail["href"].split("#")
    assert shown(page) == [png(400, 300)]
    assert page.find(id=anchor).img and file == "toy-sum.html"
    assert thumbnail.img["src"].startswith("data:image/png")

    held.fail("fig-2", "ValueError: no text")  # a failure here is shown all the same
    assert "no text" in index(held).select_one("#failures ~ div").get_text()


def test_the_figure_of_the_recorded_run_stands_below_ours_with_its_profile_machine_and_date(held):
    held.record()
    held.promoted(figure=png(400, 300))
    page = technique(held)
    assert shown(page) == [png(720, 360), png(400, 300)]
    ours, recorded = (caption.get_text() for caption in page.select("#table-1-counted figcaption"))
    assert ours.startswith("Laptop run, Two-core processor, 2 cores, 2026-01-02")
    assert recorded.startswith("Recorded full run, Large processor, 64 cores, Some GPU, 2026-01-02")
    link = page.select("#table-1-counted figcaption a")[1]["href"]
    promoted = held.root / "reproductions/toy_sum/recorded/full/table-1/counted.png"
    assert (held.report().parent / link).resolve() == promoted


@pytest.mark.parametrize("figure", [png(1, 1), b"", None])
def test_a_recorded_figure_of_another_run_is_named_and_not_shown_and_a_run_may_have_none(held, figure):
    held.record()
    path = held.promoted(figure=None if figure is None else png(400, 300))
    if figure is not None:
        path.with_suffix(".png").write_bytes(figure)
    page = technique(held)
    assert shown(page) == [png(720, 360)]
    assert row(page, "A1 sends half", "A1")["Recorded full run"] == "1.01 MB"
    said = "Not shown. recorded full run: counted.png does not match the checksum in its record."
    assert (said in page.select_one("#table-1-counted").get_text()) == (figure is not None)
    assert ("Not shown" in page.get_text()) == (figure is not None)


def test_a_run_of_older_code_is_marked(held):
    held.promoted(fingerprint={"notebook": "0" * 64})
    held.declare('"laptop": {}}', '"laptop": {}, "full": {}}')
    line = technique(held).find("strong", string="Recorded with an earlier version.").parent
    assert "The recorded full run is from commit abc123; since then: notebook changed" in words(line)


# numbers


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (33554432, "bytes", "33.55 MB"),  # 33.554432 million
        (999, "bytes", "999 B"),
        (0, "bytes", "0 B"),
        (1.25e9 / 8, "bytes/s", "156.2 MB/s"),
        (0.0123, "s", "12.3 ms"),
        (90, "s", "90 s"),
        (125, "s", "2 min 05 s"),
        (3900, "s", "1 h 05 min"),
        (0.5, "", "0.5"),
        (12, "%", "12 %"),
        (1234567, "", "1,234,567"),
        (4096, "elements", "4,096 elements"),
        (1.5e-7, "", "1.5e-07"),
        (None, "bytes", "—"),
        (math.nan, "s", "—"),
        (math.inf, "", "inf"),
        ("none of them", "", "none of them"),
        ({"num_ranks": 4, "method": "A1"}, "", "num ranks 4, method A1"),
    ],
)
def test_a_value_is_written_with_four_digits_and_a_prefix_that_fits(value, unit, text):
    assert value_text(value, unit) == text


@pytest.mark.parametrize(
    ("ours", "published", "text"),
    [
        (1.01e6, 1.0e6, "+1 %"),
        (-1.5, -1.0, "-50 %"),
        (3.0, 3.0, "exact"),
        (0.25, 0.0, "+0.25"),
        (None, 1.0, "—"),
        (1.0 + 1e-9, 1.0, "+1e-07 %"),  # tiny, and not called exact
        (0.1 + 0.2, 0.3, "exact"),  # 0.30000000000000004: what the rounding of float64 leaves
        (0.0, 0.0, "exact"),
        (13.1, 1.0, "13 times"),  # +1,210 %
        (426.0, 2.0, "213 times"),
        (9.9, 1.0, "+890 %"),
        (-12.0, 1.0, "-12 times"),
    ],
)
def test_a_difference_is_a_share_of_the_published_value_and_from_ten_times_on_a_factor(ours, published, text):
    assert relative_text(ours, published) == text


def test_an_expected_time_is_given_to_a_second_and_below_one_to_a_digit():
    texts = [about_text(value) for value in (6.954, 0.4321, 0.0, 75.6, 3725.0)]
    assert texts == ["7 s", "400 ms", "0 s", "76 s", "1 h 02 min"]
