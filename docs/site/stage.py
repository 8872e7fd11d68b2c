"""Writes the pages of the site, for Sphinx: stage.py OUT [MORE.md …].

The tables of docs/README.md say which pages there are, in which order and below which headings. The page of the repository's README is
the first one. What the pages link to in the repository gets a page too: other pages as they are, sources as text. MORE are pages made by
other scripts (the gallery), which come first. Deliberately absent: a second list of pages.
"""

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCED = re.compile(r"(^```.*?^```$)", flags=re.M | re.S)
IMAGES = {".png", ".svg"}
LANGUAGES = {".rs": "rust", ".py": "python", ".c": "c", ".h": "c", ".hpp": "cpp", ".cpp": "cpp", ".cu": "cpp", ".json": "json", ".yml": "yaml", ".yaml": "yaml", ".sh": "bash"}
FRONT = "---\norphan: true\n{more}---\n"


def page_of(path):
    """The path of a file's page, from the root of the site. Servers leave hidden folders out."""
    if path == "README.md":
        return "index.md"
    return (path if path.endswith(".md") else f"{path}.md").lstrip(".")


def rows(path):
    """(heading, page, what the reader can do with it) for each row of the tables of a list of pages."""
    heading, folder = "", Path(path).parent
    for line in (ROOT / path).read_text().splitlines():
        if line.startswith("## "):
            heading = line[3:]
        link = line.startswith("| ") and re.search(r"\]\(([^)#]+\.md)\)", line)
        if link:
            yield heading, (folder / link[1]).as_posix(), line.rstrip("| ").rpartition(" | ")[2]


def tree(pages, caption=None):
    """A part of the navigation."""
    options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
    entries = "\n".join("/" + page.removesuffix(".md") for page in pages)
    return f"\n```{{toctree}}\n{options}\n{entries}\n```\n"


def text_of(path):
    """The page of a file or folder that is no page itself."""
    file = ROOT / path
    title = FRONT.format(more="nosearch: true\n") + f"# {path}\n\n"
    if file.is_dir():
        inside = sorted(one.name for one in file.iterdir() if not one.name.startswith("."))
        return title + "\n".join(f"- [{name}]({file.name}/{name})" for name in inside) + "\n"
    return title + f"``````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text()}\n``````\n"


def of_roles(text, out):
    """Makes a page of each section of docs/roles.md, named as its anchor, and returns what leads to them."""
    head, *sections = re.split(r"^## ", text, flags=re.M)
    pages = []
    for section in sections:
        title, _, body = section.partition("\n")
        pages.append((title, "docs/role-" + "-".join(title.lower().split()) + ".md"))
        (out / pages[-1][1]).write_text(f"# {title}\n{body}")
    return head + "".join(f"- [{title}](/{page})\n" for title, page in pages) + tree([page for _, page in pages])


def stage(out, more):
    contents = list(rows("docs/README.md"))
    tasks = {page: task for _, page, task in contents}
    seen, waiting = set(), ["README.md", "docs/README.md", *tasks]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)

        def link(found):
            target, _, anchor = found[2].partition("#")
            if not target or re.match(r"[a-z]+:", target):
                return found[0]
            file = ((ROOT / path).parent / target).resolve()
            if file.is_dir() and (file / "README.md").exists():
                file /= "README.md"
            linked = file.relative_to(ROOT).as_posix()
            if file.suffix in IMAGES:
                place = out / linked
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, place)
                return f"{found[1]}/{linked}{found[3]}"
            waiting.append(linked)
            if linked == "docs/roles.md" and anchor:
                return f"{found[1]}/docs/role-{anchor}.md{found[3]}"
            anchor = f"#{anchor}" if anchor and linked.endswith(".md") else ""
            return f"{found[1]}/{page_of(linked)}{anchor}{found[3]}"

        is_page = path.endswith(".md")
        text = (ROOT / path).read_text() if is_page else text_of(path)
        if is_page or (ROOT / path).is_dir():
            text = "".join(part if FENCED.match(part) else LINK.sub(link, part) for part in FENCED.split(text))
        if path == "README.md":
            groups = dict.fromkeys(heading for heading, *_ in contents)
            text += tree([page.name for page in more] + ["docs/README.md"])
            text += "".join(tree([page for heading, page, _ in contents if heading == group], group) for group in groups)
        elif path in tasks:
            # The name and the task, which the search finds: titles are questions.
            text = re.sub(r"\A(# .*\n)", lambda title: f"{title[1]}\n*{Path(path).stem}: {tasks[path]}*\n", text)
        elif is_page and path != "docs/README.md":
            text = FRONT.format(more="") + re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S)
        place = out / page_of(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(of_roles(text, out) if path == "docs/roles.md" else text)
    for page in more:
        shutil.copy(page, out)
    print(f"{len(seen)} pages, {len(contents)} of them in the contents")


if __name__ == "__main__":
    stage(Path(sys.argv[1]), [Path(page) for page in sys.argv[2:]])
