"""The README's numbers and picture, from the recorded runs alone.

python tests/front_page.py        # writes README.md and docs/report.png anew; needs Chromium and Playwright
"""

import re
import tempfile
from io import BytesIO
from pathlib import Path

from workbench.reproduction import Project, load_catalogue
from workbench.reproduction.findings import Paper, best_runs, papers_of
from workbench.reproduction.report import write_report

ROOT = Path(__file__).parents[1]
README, PICTURE = ROOT / "README.md", ROOT / "docs" / "report.png"
NUM_COLOURS = 128  # of the picture: text and a few colours, a third of the bytes
WIDTH, MARGIN = 1120, 16  # CSS pixels
SAYS = "Description"  # what the picture shows, as a text in its file
MARKS = {"agree": "✓", "disagree": "✕", "could not be tested": "?"}


def main() -> None:
    """Write the numbers, then the picture."""
    with tempfile.TemporaryDirectory() as folder:
        project = recorded_only(Path(folder))
        catalogue = load_catalogue(project)
        text = with_verdicts(README.read_text(encoding="utf-8"), papers(project, catalogue))
        README.write_text(text, encoding="utf-8")
        take_picture(write_report(project, catalogue, "laptop"))


def recorded_only(folder: Path) -> Project:
    """Return the project without what ran on this machine, in an empty folder."""
    for name in ("data", "notebooks", "reproductions", "workbench"):
        (folder / name).symlink_to(ROOT / name)
    return Project(folder)


def papers(project: Project, catalogue) -> tuple[Paper, ...]:
    """Return the papers with how many of their own claims have which verdict."""
    return papers_of(project, best_runs(project, catalogue))


def with_verdicts(text: str, of: tuple[Paper, ...]) -> str:
    """Put verdicts into the sentence between its marks, and into each technique's row, beside when it pays."""
    sums = {word: sum(paper.score[word] for paper in of) for word in MARKS}
    sentence = (
        f"**{len(of)} papers, {sum(sums.values())} claims: {sums['agree']} agree with the results here, "
        f"{sums['disagree']} disagree (slips of the papers themselves: {sum(paper.num_slips for paper in of)}), "
        f"{sums['could not be tested']} could not be tested.**"
    )
    text = re.sub(r"(<!-- score -->\n).*(\n<!-- /score -->)", rf"\g<1>{sentence}\g<2>", text)
    for paper in of:
        cell = " ".join(f"{paper.score[word]} {mark}" for word, mark in MARKS.items())
        when = paper.use[0].says.rstrip(".") if paper.use else ""
        row = rf"^(\| \[[^]]+\]\(notebooks/{paper.technique}/[^|]*\|[^|]*\| )[^|]*(\|[^|]*\| )[^|]*\|$"
        text, num_rows = re.subn(row, rf"\g<1>{when} \g<2>{cell} |", text, flags=re.MULTILINE)
        if num_rows != 1:
            like = f"| [{paper.name}](notebooks/{paper.technique}/lesson.ipynb) | what it does | | `code` | |"
            raise ValueError(f"README.md has {num_rows} rows like {like}; it must have one")
    return text


def score_sentence(text: str) -> str:
    """Return the README's sentence on all papers."""
    return re.search(r"<!-- score -->\n\*\*(.*)\*\*\n", text)[1]


def take_picture(first: Path) -> None:
    """Photograph the head of the report's first page and its first paper."""
    from chromium import open_page
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    with open_page(WIDTH, WIDTH) as page:
        page.goto(first.as_uri())
        box, says = page.locator("section.paper").first.bounding_box(), PngInfo()
        says.add_text(SAYS, page.locator("p.headline").first.inner_text())
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": box["y"] + box["height"] + MARGIN}
        picture = Image.open(BytesIO(page.screenshot(full_page=True, clip=clip)))
    picture.convert("RGB").quantize(NUM_COLOURS).save(PICTURE, optimize=True, pnginfo=says)


if __name__ == "__main__":
    main()
