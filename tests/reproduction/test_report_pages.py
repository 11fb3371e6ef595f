"""The report says of every claim what was published, what is ours and what it comes to, and cannot hide a wrong number."""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from report_project import PUBLISHED, ReportProject, claim, index, png, row, soup, technique, verdict

pytestmark = pytest.mark.timeout(30)
STAND_IN = [{"name": "glue/sst2", "source": "stand-in", "detail": "generated sentences", "sha256": "ab" * 32}]
REAL = [{"name": "glue/sst2", "source": "hub", "detail": "the hub's", "sha256": "ab" * 32}]


@pytest.fixture
def held(tmp_path: Path) -> ReportProject:
    return ReportProject(tmp_path / "project")


def test_a_wrong_number_in_published_turns_the_verdict_red_without_a_new_run(held):
    held.record()
    assert verdict(technique(held), "A1 sends half") == "✓AGREES"

    held.publish(PUBLISHED.replace("A1,1000000", "A1,500000"))
    page = technique(held)

    assert verdict(page, "A1 sends half") == "✕DISAGREES"
    assert row(page, "A1 sends half", "A1")["Verdict"] == "✕DISAGREES"
    assert "The paper counts in another unit." in claim(page, "A1 sends half").get_text()
    assert [link.get_text() for link in index(held).select("#disagreements ~ div h3 a")] == ["A1 sends half"]


def test_a_wrong_number_of_ours_turns_the_verdict_red(held):
    held.record(values={"A1": 1030000, "plain": 2000000})  # 3 % above, where 2 % are allowed
    assert verdict(technique(held), "A1 sends half") == "✕DISAGREES"


def test_a_claim_shows_published_ours_difference_evidence_verdict_rule_and_source(held):
    held.record()
    page = technique(held)
    assert row(page, "A1 sends half", "A1") == {
        "Published": "1 MB",
        "Ours": "1.01 MB",
        "Difference": "+1 %",
        "Verdict": "✓AGREES",
        "Source": "table 1, row 2",
    }
    head, text = claim(page, "A1 sends half").select_one(".head").get_text(), claim(page, "A1 sends half").get_text()
    assert "COUNTED" in head
    assert "within 2 % of the published value" in text and "headers are not counted" in text.lower()


def test_the_rows_of_an_order_have_neither_a_verdict_nor_a_difference(held):
    held.record(values={"A1": 3000000, "plain": 2000000})  # the order is A1, plain
    page = technique(held)
    assert verdict(page, "A1 sends least") == "✕DISAGREES"
    assert "expected A1 below plain; found 3e+06 and 2e+06" in claim(page, "A1 sends least").get_text()
    assert row(page, "A1 sends least", "A1") == {"Published": "1 MB", "Ours": "3 MB", "Source": "table 1, row 2"}


def test_the_first_page_counts_the_verdicts_by_evidence(held):
    held.record()
    table = index(held).select_one("#how ~ div table")
    counts = {
        tr.th.get_text().strip(): [td.get_text() for td in tr.select("td.number")] for tr in table.select("tbody tr")
    }
    names = [th.get_text() for th in table.select("thead th.number")]
    assert names == ["DISAGREES", "AGREES", "NOT COMPARABLE", "NOT RUN"]
    assert counts == {
        "COUNTED": ["0", "2", "0", "0"],
        "MEASURED": ["0", "0", "0", "1"],
        "SIMULATED": ["0", "0", "0", "1"],
    }


def test_the_first_page_says_in_short_what_each_technique_comes_to_and_what_was_not_run(held):
    held.record()
    lines = [" ".join(li.get_text().split()) for li in index(held).select("#short ~ div li")]
    assert lines == [
        "COUNTED ✓2 AGREES",
        "MEASURED ○1 NOT RUN Not run, in whole or in part: fig-2.",
        "SIMULATED ○1 NOT RUN Not run, in whole or in part: table-9.",
    ]
    assert not index(held, "smoke").select("#short")


def test_a_stand_in_is_labelled_and_never_agrees(held):
    held.record("fig-2", values={"A1": 0.7, "plain": 0.9}, data=STAND_IN)
    page = technique(held)
    assert verdict(page, "Plain is most accurate") == "?NOT COMPARABLE"
    assert "AGREES" not in claim(page, "Plain is most accurate").get_text()
    assert page.select_one("#fig-2-measured .standin").get_text() == "STAND-IN DATA"
    assert "generated sentences" in index(held).select_one("#ran ~ div").get_text()

    held.record("fig-2", values={"A1": 0.7, "plain": 0.9}, data=REAL)
    assert verdict(technique(held), "Plain is most accurate") == "✓AGREES"


def test_a_claim_that_cannot_be_compared_is_explained_and_one_that_agrees_is_not(held):
    path = held.root / "reproductions/toy_sum/catalogue.py"
    old, new = "needs_real_data=True", "needs_real_data=True, explanation='Invented words'"
    path.write_text(path.read_text().replace(old, new))
    held.record("fig-2", values={"A1": 0.7, "plain": 0.9}, data=STAND_IN)
    section = claim(technique(held), "Plain is most accurate")
    assert section.select_one(".note.odd strong").parent.get_text() == "Explanation. Invented words"

    held.record("fig-2", values={"A1": 0.7, "plain": 0.9}, data=REAL)
    assert "Invented words" not in technique(held).get_text()


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
    assert "no parameters for the profile laptop; it has full" in page.select_one("#table-9-simulated").get_text()
    assert (
        "workbench reproduce toy-sum/table-1/counted --profile laptop" in page.select_one("#table-1-counted").get_text()
    )
    assert verdict(page, "A1 sends half") == "○NOT RUN"
    assert row(page, "A1 sends half", "A1")["Published"] == "1 MB"


def test_a_record_that_was_tampered_with_is_refused_by_name(held):
    path = held.record()
    path.write_text(path.read_text().replace("1010000", "1000000"))
    item = technique(held).select_one("#table-1-counted")
    assert "its checksum does not fit" in item.get_text()
    assert "AGREES" not in item.get_text()


def test_the_smoke_profile_gives_no_verdicts(held):
    held.record(profile="smoke")
    page = technique(held, "smoke")
    assert not page.select("section.claim")
    assert "gives no verdicts" in page.select_one("#table-1-counted").get_text()


def test_claims_that_changed_since_the_record_are_told_instead_of_ending_the_report(held):
    held.record()
    catalogue = held.root / "reproductions/toy_sum/catalogue.py"
    catalogue.write_text(catalogue.read_text().replace('where={"method": "A1"}', 'where={"colour": "red"}'))
    page = technique(held)
    assert verdict(page, "A1 sends half") == "○NOT RUN"
    assert "cannot be judged" in claim(page, "A1 sends half").get_text()


def test_texts_of_others_are_shown_and_never_interpreted(held):
    held.record()
    page = technique(held)
    assert page.select_one("#table-1-counted h2").get_text() == "Bytes of a <message>"
    assert not page.find_all("message")


def test_pages_need_no_network_no_script_and_no_other_file_to_be_read(held):
    held.record()
    held.promoted(figure=png(400, 300))
    for path in held.report().parent.glob("*.html"):
        page = soup(path)
        assert not page.find_all(["script", "link", "iframe"])
        assert "http:" not in path.read_text() and "https:" not in path.read_text() and "url(" not in path.read_text()
        assert all(image["src"].startswith("data:image/png;base64,") and image["alt"] for image in page.find_all("img"))


def test_every_page_forbids_scripts_and_the_network_before_it_shows_anything(held):
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

    output = new_output("display_data", data={"text/html": "<script>document.title = 'ran'</script>"})
    cells = [new_markdown_cell("<script>document.title = 'ran'</script>"), new_code_cell("1", outputs=[output])]
    held.record(notebook=json.dumps(new_notebook(cells=cells)))
    for path in held.report(notebooks=True).parent.rglob("*.html"):
        policy, first = soup(path).select_one("meta[http-equiv=Content-Security-Policy]"), soup(path).head.find(True)
        assert policy == first, path
        assert {"default-src 'none'", "script-src 'none'", "form-action 'none'"} <= set(policy["content"].split("; "))


def test_a_widget_in_an_executed_notebook_is_shown_as_its_picture(held):
    from nbformat.v4 import new_code_cell, new_notebook, new_output

    picture = base64.b64encode(png(2, 1)).decode("ascii")
    kinds = {
        "application/vnd.jupyter.widget-view+json": {"model_id": "7"},
        "image/png": picture,
        "text/plain": "Explorer()",
    }
    cell = new_code_cell("explore()", outputs=[new_output("display_data", data=kinds)])
    held.record(notebook=json.dumps(new_notebook(cells=[cell])))
    page = soup(held.report(notebooks=True).parent / "notebooks/toy-sum-table-1-counted.html")
    assert page.select_one(".output img")["src"].replace("\n", "") == f"data:image/png;base64,{picture}"
    assert not page.find_all("script")


def test_every_link_leads_to_a_file_or_an_anchor_that_is_there(held):
    held.record()
    held.promoted(figure=png(400, 300))
    first = held.report()
    targets = {path.name: {tag["id"] for tag in soup(path).find_all(id=True)} for path in first.parent.glob("*.html")}
    followed = 0
    for path in first.parent.glob("*.html"):
        for link in soup(path).find_all("a", href=True):
            file, _, anchor = link["href"].partition("#")
            assert (path.parent / (file or path.name)).resolve().is_file(), link
            assert not anchor or anchor in targets[file or path.name], link
            followed += 1
    assert followed > 10


def test_a_thumbnail_is_small_and_leads_to_the_figure(held):
    held.record()
    page = index(held)
    (thumbnail,) = page.select("a.thumb")
    assert thumbnail["href"] == "toy-sum.html#table-1-counted-figure"
    figure = technique(held).select_one("figure#table-1-counted-figure img")
    assert len(thumbnail.img["src"]) < len(figure["src"])


def test_a_broken_figure_does_not_end_the_report(held):
    held.record(figure=b"\x89PNG broken")
    assert "no figure" in index(held).select_one("#t-toy-sum ~ div").get_text()


def test_ids_are_unique_and_headings_do_not_skip_a_level(held):
    held.record()
    held.promoted(figure=png(400, 300))
    for path in held.report().parent.glob("*.html"):
        page = soup(path)
        ids = [tag["id"] for tag in page.find_all(id=True)]
        assert len(ids) == len(set(ids))
        levels = [int(tag.name[1]) for tag in page.find_all(re.compile(r"^h[1-6]$"))]
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))


def test_during_a_run_the_first_page_reloads_itself_and_names_what_runs(held):
    page = index(held, running=["toy-sum/table-1/counted"], under_way=True, progress="0 of 1 items are done.")
    assert page.select_one("meta[http-equiv=refresh]")
    assert "RUNNING" in page.get_text() and "0 of 1 items are done." in page.get_text()
    assert not index(held).select_one("meta[http-equiv=refresh]")


def test_the_page_of_a_technique_that_is_gone_goes_and_backticks_become_code(held):
    gone = held.report().with_name("gone.html")
    gone.write_text("old")
    pages = [
        gone.parent / f"{folder}/gone-table-1-counted.{kind}"
        for folder, kind in (("notebooks", "html"), ("thumbnails", "png"))
    ]
    for page in pages:
        page.parent.mkdir(exist_ok=True)
        page.write_text("old")
    path = held.root / "reproductions/toy_sum/catalogue.py"
    path.write_text(path.read_text().replace("in another unit", "in `unit<s>`"))
    held.record(values={"A1": 1030000, "plain": 2000000})
    page = technique(held)
    assert not gone.exists() and not any(page.exists() for page in pages)
    assert claim(page, "A1 sends half").select_one(".note code").get_text() == "unit<s>"
    assert "off by +3 %, more than 2 %" in page.get_text()


def test_no_partial_page_stays_behind(held):
    held.record()
    assert sorted(path.name for path in held.report().parent.iterdir()) == ["index.html", "thumbnails", "toy-sum.html"]
    assert [path.name for path in (held.report().parent / "thumbnails").iterdir()] == ["toy-sum-table-1-counted.png"]


def test_an_update_imports_neither_torch_nor_papermill(held):
    held.record()
    code = (
        "import sys; from workbench.reproduction import Project, load_catalogue; from workbench.reproduction.report import write_report;"
        "project = Project(); write_report(project, load_catalogue(project), 'laptop');"
        "print([name for name in ('torch', 'papermill', 'pandas', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "WORKBENCH_ROOT": str(held.root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_an_executed_notebook_becomes_a_page_once_a_run(held):
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

    output = new_output("stream", name="stdout", text="forty-two bytes")
    cells = [new_markdown_cell("# The question"), new_code_cell("print('forty-two bytes')", outputs=[output])]
    held.record(notebook=json.dumps(new_notebook(cells=cells)))
    notebook = held.folder("table-1") / "notebook.ipynb"

    page = held.report(notebooks=True).parent / "notebooks/toy-sum-table-1-counted.html"
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
