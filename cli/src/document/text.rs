//! A document as text: aligned, with styles, and as wide as the terminal. In a file nothing is cut.

use std::io::{self, Write};
use std::ops::Add;

use culeak::analysis::function_name::plain;

use super::columns::{available, end_of, first, padded, shortened, width};
use super::{
    BOLD, Block, Cell, Column, DIM, Document, PLAIN, Rows, Site, StackLine, Style, Table, Text, Tree, WARN, styled,
    wrap,
};
use crate::errors::Failure;
use crate::escape::Escaped;

/// The widest function name in a row on a terminal. In a file wider names are whole, and do not widen their column.
pub const NAME_WIDTH: usize = 44;
/// Names and places are not cut below these widths.
const NAME_NEEDED: usize = 12;
const PLACE_NEEDED: usize = 10;
/// Columns are left out until a flexible column has this room.
const FLEXIBLE_WANTED: usize = 32;
/// Longer names in a stack do not widen the column of names.
const FRAME_WIDTH: usize = 60;
/// Beside a long name, a place is cut to its file and line, and to this width.
const FRAME_PLACE_NEEDED: usize = 24;
const GAP: &str = "  ";

/// Prints a page to standard output. It is built here, because names in its sentences are as long as the terminal allows.
pub fn print(page: impl FnOnce() -> Document) -> Result<(), Failure> {
    crate::text::print(|out| page().text(out))
}

/// A function's qualified name without parameters; on a terminal, shortened in the middle if it is very long.
pub fn short_name(function: &str) -> String {
    fitting(&Escaped(&plain(function)).to_string())
}

/// A name without parameters; on a terminal, shortened in the middle if it is very long.
pub fn fitting(name: &str) -> String {
    match available() {
        Some(_) => shortened(name, NAME_WIDTH),
        None => name.to_owned(),
    }
}

/// A name, padded to this width, and the place beside it. Both fit in `room` with the two spaces between them: the end of a
/// place is kept, and the beginning and the end of a name.
pub fn beside(name: &str, place: &str, name_width: usize, room: Option<usize>) -> (String, String) {
    let name = |room: Option<usize>| room.map_or_else(|| name.to_owned(), |room| shortened(name, room));
    if place.is_empty() {
        return (name(room), String::new());
    }
    let room = room.map(|room| room.saturating_sub(GAP.len()));
    let file = place.rsplit('/').next().map_or(0, |file| width(file) + width("…/"));
    let needed = width(place).min(file).min(FRAME_PLACE_NEEDED);
    let padded = padded(
        &name(room.map(|room| room.saturating_sub(needed).max(room / 2))),
        name_width,
    );
    let place = match room {
        Some(room) => end_of(place, room.saturating_sub(width(&padded))),
        None => place.to_owned(),
    };
    (padded, place)
}

impl Document {
    /// Writes the page; on a terminal, lines that are too wide continue below.
    pub fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        wrap::lines(out, |out| self.lines().iter().try_for_each(|line| line.write(out)))
    }

    /// The page without styles.
    pub fn plain(&self) -> String {
        self.plain_lines().iter().map(|line| format!("{line}\n")).collect()
    }

    pub fn plain_lines(&self) -> Vec<String> {
        self.lines()
            .iter()
            .map(|line| line.to_string().trim_end().to_owned())
            .collect()
    }

    /// The lines, without line breaks.
    pub fn lines(&self) -> Vec<Text> {
        let mut lines = Vec::new();
        let is_field = |block: &Block| matches!(block, Block::Field(..));
        for blocks in self.0.chunk_by(|a, b| is_field(a) && is_field(b)) {
            let labels = blocks.iter().map(|block| match block {
                Block::Field(label, _) => width(label),
                _ => 0,
            });
            let label_width = labels.max().unwrap_or(0);
            for block in blocks {
                match block {
                    Block::Line { indent, text } if text.is_empty() => lines.push(Text::from(" ".repeat(*indent))),
                    Block::Line { indent, text } => lines.push(Text::from(" ".repeat(*indent)) + text.clone()),
                    Block::Heading(text) => lines.push(text.clone()),
                    Block::Table(table) => lines.extend(table.lines(available())),
                    Block::Stack {
                        indent,
                        lines: frames,
                        is_full,
                    } => lines.extend(stack(frames, *is_full, *indent)),
                    Block::Field(label, text) => {
                        lines.push(styled(BOLD, padded(label, label_width)) + GAP + text.clone());
                    }
                    Block::Tree(tree) => lines.extend(tree.lines(available())),
                    Block::Chart(_) => {}
                    Block::Folded(title, inner) => {
                        lines.push(title.clone());
                        lines.extend(inner.lines());
                    }
                    Block::Warning(text) => lines.push(styled(WARN, "warning:") + " " + text.clone()),
                    // The command continues as a shell expects.
                    Block::Next(text) => {
                        let command = wrap::command(&text.to_string(), "next: ".len());
                        lines.push(styled(BOLD, "next:") + Text(vec![(PLAIN, format!(" {command}"))]));
                    }
                }
            }
        }
        lines
    }
}

impl Text {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let written = self.0.iter().rposition(|(_, text)| !text.trim_end().is_empty());
        let pieces = &self.0[..written.map_or(0, |last| last + 1)];
        for (nth, (style, text)) in pieces.iter().enumerate() {
            let text = if nth + 1 == pieces.len() { text.trim_end() } else { text };
            match *style {
                PLAIN => write!(out, "{text}")?,
                style => write!(out, "{style}{text}{style:#}")?,
            }
        }
        writeln!(out)
    }

    fn width(&self) -> usize {
        self.0.iter().map(|(_, text)| width(text)).sum()
    }

    /// The text, cut at the end if it is too wide.
    #[must_use]
    pub fn cut(mut self, columns: usize) -> Text {
        if self.width() > columns {
            let mut room = columns.saturating_sub(1);
            for (_, text) in &mut self.0 {
                *text = first(text, room).to_owned();
                room -= width(text);
            }
            self = self + "…";
        }
        self
    }

    /// The text with escape sequences for its styles.
    pub fn ansi(&self, colours: bool) -> String {
        let style = |style: Style| if colours { style } else { style.fg_color(None) };
        let pieces = self.0.iter().map(|(of, text)| (style(*of), text.clone()));
        let mut out = Vec::new();
        // Writing to memory does not fail.
        let _ = Text(pieces.collect()).write(&mut out);
        String::from_utf8_lossy(&out).trim_end_matches('\n').to_owned()
    }
}

fn stack(lines: &[StackLine], is_full: bool, indent: usize) -> Vec<Text> {
    let room = available().filter(|_| !is_full).map(|room| room.saturating_sub(indent));
    let widest = room.map_or(FRAME_WIDTH, |room| FRAME_WIDTH.min(room / 2));
    let names = lines.iter().filter_map(|line| match line {
        StackLine::Frame { name, .. } => Some(width(name)),
        StackLine::Note(_) => None,
    });
    let name_width = names.filter(|&width| width <= widest).max().unwrap_or(0);
    let line = |line: &StackLine| match line {
        StackLine::Note(note) => styled(DIM, note),
        StackLine::Frame {
            style,
            name,
            place,
            inlined,
        } => {
            let inlined = if *inlined { " (inlined)" } else { "" };
            let room = room.map(|room| room.saturating_sub(inlined.len()));
            let (name, place) = beside(name, place, name_width, room);
            let gap = if place.is_empty() { "" } else { GAP };
            styled(*style, name) + gap + styled(DIM, place) + inlined
        }
    };
    lines
        .iter()
        .map(|of| Text::from(" ".repeat(indent)) + line(of))
        .collect()
}

/// A column, measured.
struct Measured<'t> {
    number: usize,
    column: &'t Column,
    /// The width of the widest cell.
    cells: usize,
    is_number: bool,
    /// The widths of the names of call sites, and of what stands behind them.
    sites: Option<(usize, usize)>,
    /// Text behind a call site is a sentence; it is not padded, and it wraps.
    is_sentence: bool,
}

impl<'t> Measured<'t> {
    fn of(number: usize, table: &'t Table, is_behind_site: bool) -> Measured<'t> {
        let cells = || table.rows.iter().map(|row| &row.cells[number]);
        let sites = || {
            cells().filter_map(|cell| match cell {
                Cell::Site(site) => Some(site),
                _ => None,
            })
        };
        let names = sites()
            .map(|site| width(&site.name))
            .filter(|&width| width <= NAME_WIDTH);
        let names = names.max().unwrap_or(NAME_WIDTH);
        let behind = sites().map(|site| width(&site.place) + width(&site.mark)).max();
        let column = &table.columns[number];
        let is_number = cells().any(Cell::is_number);
        Measured {
            number,
            column,
            cells: cells().map(|cell| cell.text().width()).max().unwrap_or(0) + column.prefix.len(),
            is_number,
            sites: behind.map(|behind| (names, behind)),
            is_sentence: is_behind_site && !is_number && behind.is_none(),
        }
    }

    fn heading(&self, is_short: bool) -> &'static str {
        if is_short {
            self.column.short
        } else {
            self.column.heading
        }
    }

    fn width(&self, is_short: bool) -> usize {
        self.cells.max(width(self.heading(is_short)))
    }

    fn is_flexible(&self) -> bool {
        self.column.flexible || self.sites.is_some()
    }

    /// The cell, as wide as its column.
    fn cell(&self, cell: &Cell, is_short: bool, room: Option<usize>) -> Text {
        match (cell, room) {
            (Cell::Site(of), _) => self.site(of, room),
            (Cell::Text(text), Some(room)) if self.is_flexible() && text.width() > room => {
                self.aligned(shortened(&text.to_string(), room).into(), is_short, Some(room))
            }
            _ => self.aligned(cell.text(), is_short, room),
        }
    }

    fn aligned(&self, text: Text, is_short: bool, room: Option<usize>) -> Text {
        let room = room.filter(|_| self.is_flexible()).unwrap_or(usize::MAX);
        let prefix = self.column.prefix;
        let space = self
            .width(is_short)
            .min(room)
            .saturating_sub(prefix.len() + text.width());
        let space = " ".repeat(space);
        match (self.is_number, self.is_sentence || self.sites.is_some()) {
            (true, _) => Text::from(prefix) + space + text,
            (false, true) => text,
            (false, false) => text + space,
        }
    }

    /// Names are cut first, then places.
    fn site(&self, site: &Site, room: Option<usize>) -> Text {
        let (names, behind) = self.sites.unwrap_or_default();
        let (name, place, room) = match room {
            None => (padded(&site.name, names), site.place.clone(), behind),
            Some(room) => {
                let names = names.min(room.saturating_sub(GAP.len() + behind).max(NAME_NEEDED));
                let left = room.saturating_sub(names + GAP.len() + width(&site.mark));
                let name = padded(&shortened(&site.name, names), names);
                let room = behind.min(room.saturating_sub(names + GAP.len()));
                (name, end_of(&site.place, left.max(PLACE_NEEDED)), room)
            }
        };
        // Sentences behind call sites are aligned.
        format!("{name}{GAP}{}", padded(&format!("{place}{}", site.mark), room)).into()
    }
}

/// The columns that are shown, whether their headings are short, and the room for a flexible cell.
fn fitted<'t>(table: &'t Table, available: Option<usize>) -> (Vec<Measured<'t>>, bool, Option<usize>) {
    let mut shown: Vec<Measured> = Vec::new();
    for number in 0..table.columns.len() {
        let is_behind_site = shown.iter().any(|column| column.sites.is_some());
        shown.push(Measured::of(number, table, is_behind_site));
    }
    let Some(available) = available else {
        return (shown, false, None);
    };
    let room = |shown: &[Measured], is_short| {
        let fixed = shown
            .iter()
            .filter(|column| !column.is_flexible() && !column.is_sentence);
        let fixed: usize = fixed.map(|column| column.width(is_short) + GAP.len()).sum();
        available.saturating_sub(table.indent + fixed)
    };
    let flexible = shown.iter().find(|column| column.is_flexible());
    let wanted = flexible.map_or(0, |column| column.cells.min(FLEXIBLE_WANTED));
    let is_short = room(&shown, false) < wanted;
    while room(&shown, is_short) < wanted {
        let ranks = shown.iter().map(|column| column.column.expendable).enumerate();
        let Some((last, _)) = ranks.filter(|(_, rank)| *rank > 0).max_by_key(|(_, rank)| *rank) else {
            break;
        };
        shown.remove(last);
    }
    let room = room(&shown, is_short).max(NAME_NEEDED);
    (shown, is_short, Some(room))
}

impl<T> Rows<T> {
    /// The lines of a table within a field, without an indent.
    pub fn lines(self) -> Vec<String> {
        let lines = self.indent(0).bare().table.lines(available());
        lines
            .iter()
            .map(|line| line.to_string().trim_end().to_owned())
            .collect()
    }
}

/// With less room than this, a frame whose name and place do not fit is shown without its place.
const PLACE_FITS: usize = 36;

impl Tree {
    fn lines(&self, available: Option<usize>) -> Vec<Text> {
        let cells = |column: usize| {
            self.branches
                .iter()
                .map(move |branch| branch.cells[column].text().width())
        };
        let widest = |(column, heading): (usize, &&str)| cells(column).max().unwrap_or(0).max(width(heading));
        let widths: Vec<usize> = self.headings.iter().enumerate().map(widest).collect();
        let numbers = |texts: Vec<Text>| {
            let cells = texts.into_iter().zip(&widths);
            cells.fold(Text::from(" "), |line, (text, widest)| {
                line + " ".repeat(1 + widest - text.width()) + text
            })
        };
        let headings = self.headings.iter().map(|heading| styled(DIM, heading));
        let mut lines = vec![numbers(headings.collect())];
        let numbers_width = lines[0].width();
        // What remains of a line of the terminal for the indentation and the frame.
        let room = available.map(|available| available.saturating_sub(numbers_width + GAP.len()));
        for branch in &self.branches {
            for (nth, frame) in branch.frames.iter().enumerate() {
                let StackLine::Frame { style, name, place, .. } = frame else {
                    continue;
                };
                let lead = &branch.lead[nth.min(1)];
                let lead = room.map_or_else(|| lead.clone(), |room| end_of(lead, room / 2));
                let left = room
                    .filter(|_| !self.is_full)
                    .map(|room| room.saturating_sub(width(&lead)));
                let both = width(name) + GAP.len() + width(place);
                let fits = left.is_none_or(|left| left >= PLACE_FITS.min(both));
                let (name, place) = beside(name, if fits { place.as_str() } else { "" }, 0, left);
                let numbers = match nth {
                    0 => numbers(branch.cells.iter().map(Cell::text).collect()),
                    _ => Text::from(" ".repeat(numbers_width)),
                };
                lines.push(numbers + GAP + lead + styled(*style, name) + GAP + styled(DIM, place));
            }
        }
        lines
    }
}

impl Table {
    fn lines(&self, available: Option<usize>) -> Vec<Text> {
        let (shown, is_short, room) = fitted(self, available);
        let mut lines = Vec::new();
        if !self.is_bare {
            let headings = shown
                .iter()
                .map(|column| column.aligned(column.heading(is_short).into(), is_short, room));
            lines.push(line(self.indent, "", DIM, headings));
        }
        for row in &self.rows {
            let cells = shown
                .iter()
                .map(|column| column.cell(&row.cells[column.number], is_short, room));
            lines.push(line(self.indent, row.sign, row.style, cells));
            lines.extend(row.below.lines());
        }
        lines
    }
}

/// The cells of a line. `style`: of the whole line, unless plain.
fn line(indent: usize, sign: &str, style: anstyle::Style, cells: impl Iterator<Item = Text>) -> Text {
    let cells = cells
        .enumerate()
        .map(|(nth, cell)| Text::from(if nth > 0 { GAP } else { "" }) + cell);
    let line = cells.reduce(Text::add).unwrap_or_default();
    let indent = Text::from(padded(sign, indent));
    match style {
        PLAIN => indent + line,
        style => indent + styled(style, line.to_string().trim_end()),
    }
}
