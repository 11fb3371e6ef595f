"""The working copy of the notebooks: a run changes nothing in the repository, and its reader loses nothing."""

from workbench.explore.working_copy import refresh


def test_what_nobody_has_changed_is_renewed_and_what_somebody_has_is_kept_beside_the_new_one(tmp_path):
    source, copy = tmp_path / "notebooks", tmp_path / "results" / "lab"
    lesson, start = source / "atp" / "lesson.ipynb", source / "start.ipynb"
    lesson.parent.mkdir(parents=True)
    lesson.write_text("first")
    start.write_text("start")
    lesson.with_name("solutions.py").write_text("spoiled")
    assert refresh(source, copy) == []
    assert [file.name for file in (copy / "atp").iterdir()] == ["lesson.ipynb"]
    assert (copy / "atp" / "lesson.ipynb").read_text() == "first"

    (copy / "atp" / "lesson.ipynb").write_text("first, with answers")
    assert refresh(source, copy) == []  # nothing new
    assert (copy / "atp" / "lesson.ipynb").read_text() == "first, with answers"

    for number, words in enumerate(("second", "third")):
        lesson.write_text(words)
        start.write_text(f"start {words}")
        kept = copy / "atp" / f"lesson.yours{number + 1}.ipynb"
        assert refresh(source, copy) == [kept]
        assert kept.read_text() == ("first, with answers", "other answers")[number]
        assert (copy / "atp" / "lesson.ipynb").read_text() == words
        assert (copy / "start.ipynb").read_text() == f"start {words}"
        (copy / "atp" / "lesson.ipynb").write_text("other answers")
    assert lesson.read_text() == "third" and {file.name for file in source.rglob("*")} == {
        "atp",
        "lesson.ipynb",
        "solutions.py",
        "start.ipynb",
    }
