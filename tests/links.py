"""Every link between the project's pages leads to a file, and every anchor to a heading; and docs/ stays short."""
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)\s]+)\)")
UNCOUNTED = {"measurements.md", "testing.md", "errors.md", "dataset.schema.md"}
"""Pages of docs/ that a user looks things up in: figures, and lists made from the source."""
PAGES, WORDS = 26, 40_000


def prose(page):
    """The page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)


def anchors(page):
    """The anchors that GitHub gives to the headings of a page."""
    found = []
    for heading in re.findall(r"^#+ (.*)$", prose(page), flags=re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        times = sum(other == name or re.fullmatch(re.escape(name) + r"-\d+", other) is not None for other in found)
        found.append(f"{name}-{times}" if times else name)
    return found


def main():
    pages = [page for page in sorted(ROOT.rglob("*.md")) if "target" not in page.relative_to(ROOT).parts and not page.is_symlink()]
    wrong, links = [], 0
    for page in pages:
        for target in LINK.findall(prose(page)):
            if re.match(r"[a-z]+:", target):
                continue
            links += 1
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                wrong.append(f"{page.relative_to(ROOT)}: {target}: no such file")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                wrong.append(f"{page.relative_to(ROOT)}: {target}: no such heading")
    print("\n".join(wrong))
    assert links > 100, f"{links} links found"
    assert not wrong, f"{len(wrong)} links lead nowhere"
    print(f"ok      {links} links of {len(pages)} pages lead to a file and a heading")
    counted = [page for page in (ROOT / "docs").glob("*.md") if page.name not in UNCOUNTED]
    words = sum(len(page.read_text().split()) for page in counted)
    assert len(counted) <= PAGES and words <= WORDS, f"docs/: {len(counted)} pages, {words} words; at most {PAGES} and {WORDS}"
    print(f"ok      docs/: {len(counted)} pages of {words} words")


main()
