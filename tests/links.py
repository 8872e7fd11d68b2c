"""Every link between the project's pages leads to a file, and every anchor to a heading."""
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)\s]+)\)")


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


main()
