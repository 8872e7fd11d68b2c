"""Draws a terminal's screen, as `tmux capture-pane -e -p` prints it, as an SVG: screen.py TITLE < SCREEN > FILE.svg

Every run of equal style is one <text> with an exact width, so the columns line up in any monospaced font.
"""

import html
import re
import sys

WIDTH, HEIGHT, MARGIN, BAR = 8.4, 17, 14, 30
FOREGROUND, BACKGROUND = "#d4d7dd", "#16181d"
NORMAL = ["#3b4048", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#abb2bf"]
BRIGHT = ["#7f848e", "#ff7b86", "#b5e08f", "#ffd68a", "#7cc4ff", "#dd8ff2", "#6fd3de", "#ffffff"]


def color_256(number):
    if number < 16:
        return (NORMAL + BRIGHT)[number]
    if number >= 232:
        return "#{0:02x}{0:02x}{0:02x}".format(8 + 10 * (number - 232))
    level = lambda value: 55 + 40 * value if value else 0
    number -= 16
    return "#{:02x}{:02x}{:02x}".format(level(number // 36), level(number // 6 % 6), level(number % 6))


class Style:
    def __init__(self):
        self.reset()

    def reset(self):
        self.fg = self.bg = None
        self.bold = self.dim = self.reverse = False

    def apply(self, codes):
        codes = [int(code or 0) for code in codes.split(";")]
        while codes:
            code = codes.pop(0)
            if code == 0:
                self.reset()
            elif code == 1:
                self.bold = True
            elif code == 2:
                self.dim = True
            elif code == 22:
                self.bold = self.dim = False
            elif code in (7, 27):
                self.reverse = code == 7
            elif 30 <= code <= 37 or 90 <= code <= 97:
                self.fg = NORMAL[code - 30] if code < 90 else BRIGHT[code - 90]
            elif 40 <= code <= 47 or 100 <= code <= 107:
                self.bg = NORMAL[code - 40] if code < 100 else BRIGHT[code - 100]
            elif code == 39:
                self.fg = None
            elif code == 49:
                self.bg = None
            elif code in (38, 48):
                kind = codes.pop(0)
                color = color_256(codes.pop(0)) if kind == 5 else "#{:02x}{:02x}{:02x}".format(*(codes.pop(0) for _ in range(3)))
                self.fg, self.bg = (color, self.bg) if code == 38 else (self.fg, color)

    def drawn(self):
        fg, bg = self.fg or FOREGROUND, self.bg
        if self.reverse:
            fg, bg = bg or BACKGROUND, fg
        return fg, bg, self.bold, self.dim


def runs(line, style):
    """(first column, text, style) of each run of equal style."""
    column, found = 0, []
    for part in re.split(r"(\x1b\[[\d;]*m)", line):
        if part.startswith("\x1b["):
            style.apply(part[2:-1])
        elif part:
            found.append((column, part, style.drawn()))
            column += len(part)
    return found, column


def drawn(found, y):
    """The elements of one line, whose upper edge is at y."""
    out = []
    for column, text, (fg, bg, bold, dim) in found:
        x, span = MARGIN + column * WIDTH, len(text) * WIDTH
        if bg:
            out.append(f'<rect x="{x:.1f}" y="{y}" width="{span:.1f}" height="{HEIGHT}" fill="{bg}"/>')
        # Words that are two or more columns apart are placed by themselves: renderers collapse spaces.
        weight, faint = ' font-weight="bold"' if bold else "", ' opacity="0.65"' if dim else ""
        for words in re.finditer(r"\S+(?: \S+)*", text):
            out.append(f'<text x="{x + words.start() * WIDTH:.1f}" y="{y + 13}" textLength="{len(words[0]) * WIDTH:.1f}" '
                       f'lengthAdjust="spacingAndGlyphs" fill="{fg}"{weight}{faint}>{html.escape(words[0])}</text>')
    return out


def main():
    style = Style()
    lines = [runs(line, style) for line in sys.stdin.read().rstrip("\n").split("\n")]
    wide = max(columns for _, columns in lines) * WIDTH + 2 * MARGIN
    high = len(lines) * HEIGHT + 2 * MARGIN + BAR
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" width="{wide:g}" height="{high:g}">',
        f"<title>{html.escape(sys.argv[1])}</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
        *(f'<circle cx="{MARGIN + 6 + 18 * n}" cy="18" r="5.5" fill="#3b4048"/>' for n in range(3)),
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="14">',
    ]
    for row, (found, _) in enumerate(lines):
        out += drawn(found, BAR + MARGIN + row * HEIGHT)
    print("\n".join([*out, "</g>", "</svg>"]))


if __name__ == "__main__":
    main()
