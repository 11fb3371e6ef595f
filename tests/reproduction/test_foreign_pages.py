"""Of what others wrote into results and recorded runs only the harmless is published: no links, scripts or markup."""

import json
import os
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from report_project import ReportProject, notebook_page, png, soup

from workbench.reproduction import RecordError, load_catalogue, read_record
from workbench.reproduction.files import write_record
from workbench.reproduction.report import publish, write_report, write_site
from workbench.reproduction.report.foreign import harmless_html
from workbench.reproduction.schema import inside, read_bytes

SECRET = "only for its owner"
RECORDED = "reproductions/toy_sum/recorded"


@pytest.fixture
def held(held: ReportProject, tmp_path: Path, monkeypatch) -> ReportProject:
    for name in ("run_module", "write_docs", "write_planners"):  # of the library, not of records
        monkeypatch.setattr(publish, name, lambda *_: None)
    held.promoted(figure=png(400, 300))
    held.record()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key.txt").write_text(SECRET)
    return held


def published(held: ReportProject, tmp_path: Path) -> tuple[str, dict[str, bytes]]:
    """Write the site; return the lines on what it leaves out, and each of its files."""
    for package in ("pdoc", "jupyterlite_core", "material"):
        pytest.importorskip(package)
    site, catalogue = tmp_path / "site", load_catalogue(held.project)
    first = write_report(held.project, catalogue, "laptop", notebooks=True, anew=True)
    left_out = write_site(held.project, catalogue, "laptop", first, site, lambda folder: None)
    assert not [path for path in site.rglob("*") if path.is_symlink()]
    return "\n".join(left_out), {
        path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*") if path.is_file()
    }


LINKS = [  # files and folders of a run, and of recorded runs
    *(f"results/laptop/toy-sum/table-1/counted/{name}" for name in ("log.txt", "more.txt", "notebook.ipynb")),
    *("results/laptop/toy-sum/table-1/counted/failure.txt", "results/laptop/toy-sum/more"),
    *(f"{RECORDED}/full/table-1/counted.png", f"{RECORDED}/full/more"),
]


def test_a_site_leaves_out_links_and_what_they_point_to_and_names_them(held, tmp_path):
    links, target = [held.root / place for place in LINKS], tmp_path / "secret"
    for link in links:
        link.unlink(missing_ok=True)
        link.symlink_to(target / "key.txt" if "." in link.name else target)
    said, files = published(held, tmp_path)
    assert all(f"{link}: not published, it is a symbolic link" in said for link in links)
    assert not [name for name, content in files.items() if SECRET.encode() in content]
    assert "results/laptop/toy-sum/table-1/counted/record.json" in files


def test_a_site_leaves_out_hard_links_and_every_file_that_no_record_names(held, tmp_path):
    folder = held.folder("table-1")
    os.link(tmp_path / "secret/key.txt", folder / "failure.txt")
    (folder / "page.html").write_text("<script>window.ran = 1</script>")
    (held.root / RECORDED / "full/page.html").write_text("<script>window.ran = 1</script>")
    pages = held.report(notebooks=True).parent
    (pages / "notebooks/toy-sum-table-1-counted.html").write_text("<script>window.ran = 1</script>")
    stamp = (folder / "notebook.ipynb").stat().st_mtime_ns
    os.utime(pages / "notebooks/toy-sum-table-1-counted.html", ns=(stamp, stamp))  # as if it were of this run
    said, files = published(held, tmp_path)
    assert f"{folder / 'failure.txt'}: refused, it is a hard link" in said
    assert sorted(name for name in files if "counted/" in name) == [
        f"results/laptop/toy-sum/table-1/counted/{name}"
        for name in ("figure.png", "log.txt", "notebook.ipynb", "record.json")
    ]
    assert f"{RECORDED}/full/table-1/counted.png" in files and f"{RECORDED}/full/table-1/counted.json" in files
    assert not [name for name, content in files.items() if b"window.ran" in content]


def test_a_report_is_not_written_through_a_link(held, tmp_path):
    (tmp_path / "secret/page.html").write_text("kept")
    (held.root / "results/laptop/report").symlink_to(tmp_path / "secret")
    with pytest.raises(RecordError, match="report: refused, it is a symbolic link"):
        held.report()
    assert (tmp_path / "secret/page.html").read_text() == "kept"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("figure", name) for name in ("figure.svg", "FIGURE.PNG", "figure.png\n", "../figure.png", "/etc/hosts")),
        *((kind, "trace.html") for kind in ("trace", "notebook", "log", "page")),
        ("page", "figure.png"),
    ],
)
def test_a_record_that_names_any_other_file_is_refused_by_name(held, kind, name):
    path = held.folder("table-1") / "record.json"
    record = json.loads(path.read_text())
    write_record(path, record | {"artifacts": record["artifacts"] | {kind: name}})
    with pytest.raises(RecordError, match=f"{path}: refused, "):
        read_record(path, id="toy-sum/table-1/counted", profile="laptop")


MARKUP = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>\"'><b id=planted>&amp;"


VALUE = {"quantity": "bytes", "method": "A1", "value": 1.0, "unit": "bytes"}
SOURCE = {"name": MARKUP, "source": "stand-in", "detail": MARKUP, "sha256": MARKUP}
TEXTS = ("technique", "item", "evidence", "title", "notebook", "kernel", "commit", "started", "finding")
OBJECTS = ("configuration", "versions", "environment", "parameters", "fingerprint")
FIELDS = [  # of one record each: together they have markup in every place that a page may show
    dict.fromkeys(TEXTS, MARKUP)
    | dict.fromkeys(OBJECTS, {MARKUP: MARKUP})
    | {
        "values": [VALUE | {"unit": MARKUP}],
        "data": [SOURCE],
        "calibration": {MARKUP: MARKUP, "cells": []},
        "machine": {"cpu": MARKUP, "cores": MARKUP, "gpus": [MARKUP], "host": MARKUP},
        "cells": [{"commit": MARKUP, "machine": {"cpu": MARKUP}, "num_cells": 1, "seconds": 1}],
        "verdicts": [{"claim": MARKUP, "verdict": MARKUP, "reason": MARKUP, "rows": []}],
        "artifact_sha256": {"log": MARKUP},
    },
    {
        "values": [VALUE | {MARKUP: MARKUP}],
        "data": [SOURCE | {"source": MARKUP}],
        "not_comparable": {"A1 sends half": MARKUP},
        "machine": {MARKUP: MARKUP},
        "fingerprint": {"notebook": MARKUP, "library": MARKUP, "parameters": MARKUP},
    },
    {"values": [VALUE | {"quantity": MARKUP}], "not_comparable": {MARKUP: MARKUP}},
]


@pytest.mark.parametrize("fields", FIELDS)
def test_markup_in_the_fields_of_a_record_or_of_a_failure_is_text_on_every_page(held, fields):
    held.fail("fig-2", MARKUP)
    failure = held.folder("fig-2") / "failure.json"
    failure.write_text(json.dumps(json.loads(failure.read_text()) | dict.fromkeys(("reason", "started"), MARKUP)))
    for path in (held.root / RECORDED / "full/table-1/counted.json", held.folder("table-1") / "record.json"):
        write_record(path, json.loads(path.read_text()) | fields)
    first = held.report()
    assert "refused" not in first.with_name("toy-sum.html").read_text()
    publish.single_file(first, first.with_name("single.htm"))
    for page in (*first.parent.glob("*.html"), first.with_name("single.htm")):
        shown = soup(page)
        assert not shown.find(id="planted") and not shown.select("[onerror], img[src=x]"), page
        assert "window.ran" not in "".join(script.get_text() for script in shown.find_all("script")), page


GONE = {
    "a redirection": '<meta http-equiv="refresh" content="0; url=https://example.org">',
    "a base": '<base href="https://example.org/">',
    "a script": "<script>window.ran = 1</script>",
    "a script within a drawing": "<svg><script>window.ran = 1</script><g onload='window.ran = 1'></g></svg>",
    "a handler": "<img src='data:,' onerror='window.ran = 1'>",
    "a drawing that animates a link": "<svg><a><animate attributeName=href values=javascript:alert(1) /></a></svg>",
    "a frame": "<iframe src='https://example.org'></iframe><iframe srcdoc='<b>window.ran</b>'></iframe>",
    "an object": "<object data='https://example.org'></object><embed src='https://example.org'>",
    "a form": "<form action='https://example.org'><input name=password><button formaction='https://example.org'>",
    "a style sheet": "<style>@import 'https://example.org'; body { display: none }</style><link rel=stylesheet href=x>",
    "a style of a table that fetches": "<style>#T_a td { background: url(https://example.org) }</style>",
    "a style that covers the page": "<div style='position: fixed; inset: 0; background: url(https://example.org)'></div>",
    "a foreign picture": "<img src='https://example.org/x.png'><picture><source srcset='https://example.org'></picture>",
    "a parser that is misled": "<math><mtext><table><mglyph><style><img src=x onerror=window.ran=1></style></math>",
    "a comment": "<!--[if IE]><script>window.ran = 1</script><![endif]-->",
    "a template": "<template><script>window.ran = 1</script></template>",
}
LEFT = {"javascript:window.ran": False, "JaVa\tScript:window.ran": False, "&#106;avascript:window.ran": False}
LEFT |= {"data:text/html,window.ran": False, "//example.org": False, "/\\example.org": False, "vbscript:ran": False}
LEFT |= {"https://example.com/paper": True, "#counted": True, "../zen/lesson.ipynb": True, "mailto:a@b.c": True}


@pytest.mark.parametrize("html", GONE.values(), ids=GONE)
def test_of_a_notebook_nothing_is_left_that_runs_fetches_or_sends_a_reader_elsewhere(html):
    clean = harmless_html(f"<p>before</p>{html}")
    assert clean.startswith("<p>before</p>")
    words = ["example.org", "window.ran", "javascript", "fixed", "display"]
    words += [f"<{tag}" for tag in ("meta", "base", "form", "input", "svg")]
    assert [word for word in words if word in clean] == []


@pytest.mark.parametrize(("address", "stays"), LEFT.items())
def test_of_a_notebooks_links_those_stay_that_lead_to_a_page(address, stays):
    assert ("href" in harmless_html(f'<a href="{address}">link</a>')) == stays


def test_what_a_notebook_shows_stays(held):
    table = "<style type='text/css'>#T_1a th, #T_1a td.col0 {\n  text-align: left;\n}</style>"
    table += "<table id=T_1a><tr><td>7</td></tr></table>"
    drawing = "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><script>window.ran = 1</script></svg>"
    outputs = [new_output("display_data", data=data) for data in ({"text/html": table}, {"image/svg+xml": drawing})]
    outputs.append(new_output("stream", name="stdout", text="<b>7</b> \x1b[31mred\x1b[0m"))
    page = notebook_page(held, new_markdown_cell("## Idea\n$a < b$"), new_code_cell("x = '<b>'", outputs=outputs))
    body = soup(page).select_one(".notebook")
    assert body.style.get_text() == "#T_1a th, #T_1a td.col0 {text-align: left;}" and body.td.get_text() == "7"
    assert body.select_one("svg.math")["aria-label"] == "a < b" and body.h2.get_text().startswith("Idea")
    assert body.img["src"].startswith("data:image/svg+xml;base64,") and "<script" not in page.read_text()
    assert body.select_one(".ansi-red-fg").get_text() == "red" and "<b>7</b>" in body.get_text()
    assert body.select_one(".highlight .s1").get_text() == "'<b>'"


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"cells": 3, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}', "[" * 9999]
)
def test_a_notebook_that_is_none_is_said_on_its_page_and_ends_nothing(held, text):
    held.record(notebook=text)
    page = held.report(notebooks=True).parent / "notebooks/toy-sum-table-1-counted.html"
    assert "This notebook cannot be shown: " in soup(page).get_text()


@pytest.mark.parametrize("name", ["../up", "..", ".hidden", "/etc", "a/b", "a\\b", "", "ü", "a\n", "a" * 300, 7, None])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    with pytest.raises(RecordError, match="is no name of a file or folder in it"):
        inside(tmp_path, "fine", name)


def test_only_regular_files_are_read_without_following_or_waiting(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "fifo")
    assert read_bytes(tmp_path / "file", max_bytes=5) == b"12345"
    for name, why in {"link": "symbolic link", "fifo": "no regular file", "file": "more than 4 bytes"}.items():
        with pytest.raises(RecordError, match=f"{name}: refused, .*{why}"):
            read_bytes(tmp_path / name, max_bytes=4)
