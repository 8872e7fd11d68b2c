//! A document: what a page says, as lines, tables, stacks, labelled fields, warnings and the next command.
//!
//! Pages build a [`Document`] and know nothing of columns, colours or formats. It has three renderers, `text`, `markdown` and
//! `html`. Text is escaped when it enters a document, so that no page can forget it. Deliberately absent: decisions
//! on what to show, which the analysis makes.

use std::fmt;
use std::ops::Add;

use anstyle::{AnsiColor, Style};
use culeak::analysis::function_name::plain;
use culeak::analysis::site::text::SiteFrame;
use culeak::analysis::site::{CallStack, Frame, Line, Role, fold};
use culeak::analysis::words;

use crate::escape::Escaped;

pub mod cells;
pub mod chart;
pub mod columns;
pub mod html;
mod markdown;
mod text;
pub mod wrap;

pub use cells::{Cell, Site, counted, estimate, things, things_about};
pub use chart::{Chart, ChartPoint, Form};
pub use text::{fitting, print, short_name};

pub const PLAIN: Style = Style::new();
pub const BOLD: Style = Style::new().bold();
pub const DIM: Style = Style::new().dimmed();
pub const BAD: Style = AnsiColor::Red.on_default().bold();
pub const GOOD: Style = AnsiColor::Green.on_default().bold();
pub const WARN: Style = AnsiColor::Yellow.on_default();

/// Pieces of text with styles. Safe to print: everything is escaped on the way in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text(Vec<(Style, String)>);

impl Text {
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|(_, text)| text.is_empty())
    }
}

/// Text in a style.
pub fn styled(style: Style, text: impl fmt::Display) -> Text {
    Text(vec![(style, Escaped(&text.to_string()).to_string())])
}

pub fn bold(text: impl fmt::Display) -> Text {
    styled(BOLD, text)
}

pub fn dim(text: impl fmt::Display) -> Text {
    styled(DIM, text)
}

impl From<String> for Text {
    fn from(text: String) -> Text {
        styled(PLAIN, text)
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Text {
        styled(PLAIN, text)
    }
}

impl<T: Into<Text>> Add<T> for Text {
    type Output = Text;

    fn add(mut self, other: T) -> Text {
        self.0.extend(other.into().0);
        self
    }
}

/// The text without styles.
impl fmt::Display for Text {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(_, text)| out.write_str(text))
    }
}

#[derive(Debug, Clone, Default)]
struct Column {
    heading: &'static str,
    /// The heading on a narrow terminal.
    short: &'static str,
    /// A word in front of each cell.
    prefix: &'static str,
    /// Columns of a higher number are left out first if there is no room; 0: never.
    expendable: u8,
    /// Its cells are shortened if there is no room.
    flexible: bool,
}

#[derive(Debug, Clone, Default)]
struct Row {
    /// The style of the whole row, unless plain.
    style: Style,
    /// In the indent: `= `.
    sign: &'static str,
    cells: Vec<Cell>,
    below: Document,
    /// In no sum of the other rows.
    is_apart: bool,
}

/// Rows and columns.
#[derive(Debug, Clone, Default)]
struct Table {
    indent: usize,
    /// As text it has no headings.
    is_bare: bool,
    /// Its sizes are the parts of a whole.
    adds_up: bool,
    columns: Vec<Column>,
    rows: Vec<Row>,
}

/// Builds a table from values, column by column.
pub struct Rows<T> {
    values: Vec<T>,
    table: Table,
}

impl<T> Rows<T> {
    pub fn of(values: impl IntoIterator<Item = T>) -> Rows<T> {
        let values: Vec<T> = values.into_iter().collect();
        let rows = values.iter().map(|_| Row::default()).collect();
        let table = Table {
            indent: 2,
            rows,
            ..Table::default()
        };
        Rows { values, table }
    }

    pub fn column<C: Into<Cell>>(mut self, heading: &'static str, cell: impl Fn(&T) -> C) -> Rows<T> {
        for (row, value) in self.table.rows.iter_mut().zip(&self.values) {
            row.cells.push(cell(value).into());
        }
        self.table.columns.push(Column {
            heading,
            short: heading,
            ..Column::default()
        });
        self
    }

    pub fn column_if<C: Into<Cell>>(self, is_shown: bool, heading: &'static str, cell: impl Fn(&T) -> C) -> Rows<T> {
        if is_shown { self.column(heading, cell) } else { self }
    }

    /// `1.1 GiB  in 128 blocks`.
    pub fn tally(self, size: impl Fn(&T) -> Cell, count: impl Fn(&T) -> Cell) -> Rows<T> {
        self.column("bytes", |value| size(value).styled(BOLD))
            .column("count", count)
            .last(|column| column.prefix = "in ")
    }

    fn last(mut self, change: impl Fn(&mut Column)) -> Rows<T> {
        self.table.columns.last_mut().into_iter().for_each(change);
        self
    }

    /// Without headings, as text.
    pub fn bare(mut self) -> Rows<T> {
        self.table.is_bare = true;
        self
    }

    pub fn indent(mut self, indent: usize) -> Rows<T> {
        self.table.indent = indent;
        self
    }

    /// Its sizes are the parts of a whole, except those of rows that are apart.
    pub fn parts(mut self, is_apart: impl Fn(&T) -> bool) -> Rows<T> {
        self.table.adds_up = true;
        for (row, value) in self.table.rows.iter_mut().zip(&self.values) {
            row.is_apart = is_apart(value);
        }
        self
    }

    /// What stands in the indent of a row.
    pub fn sign(mut self, sign: impl Fn(&T) -> &'static str) -> Rows<T> {
        for (row, value) in self.table.rows.iter_mut().zip(&self.values) {
            row.sign = sign(value);
        }
        self
    }

    /// The last column's heading on a narrow terminal.
    pub fn short(self, short: &'static str) -> Rows<T> {
        self.last(|column| column.short = short)
    }

    /// The last column is left out before those of lower numbers.
    pub fn expendable(self, rank: u8) -> Rows<T> {
        self.last(|column| column.expendable = rank)
    }

    /// As [`Rows::expendable`], of the column with this heading, if there is one.
    pub fn rank(mut self, heading: &str, rank: u8) -> Rows<T> {
        let columns = self.table.columns.iter_mut();
        columns
            .filter(|column| column.heading == heading)
            .for_each(|column| column.expendable = rank);
        self
    }

    /// The texts of the last column are shortened if there is no room.
    pub fn flexible(self) -> Rows<T> {
        self.last(|column| column.flexible = true)
    }

    pub fn style(mut self, style: impl Fn(&T) -> Style) -> Rows<T> {
        for (row, value) in self.table.rows.iter_mut().zip(&self.values) {
            row.style = style(value);
        }
        self
    }

    /// Adds what stands below each row.
    pub fn below(mut self, write: impl Fn(&T, &mut Document)) -> Rows<T> {
        for (row, value) in self.table.rows.iter_mut().zip(&self.values) {
            write(value, &mut row.below);
        }
        self
    }
}

/// A line of a stack.
#[derive(Debug, Clone)]
enum StackLine {
    Frame {
        style: Style,
        name: String,
        place: String,
        inlined: bool,
    },
    Note(String),
}

#[derive(Debug, Clone)]
enum Block {
    /// `indent`: columns in front of it. An indented line is an item of a list.
    Line {
        indent: usize,
        text: Text,
    },
    Heading(Text),
    Table(Table),
    /// `is_full`: nothing is cut.
    Stack {
        indent: usize,
        lines: Vec<StackLine>,
        is_full: bool,
    },
    /// A label and its text. Fields that follow each other are aligned.
    Field(&'static str, Text),
    Tree(Tree),
    Chart(Chart),
    /// What a page shows on demand; in text, always.
    Folded(Text, Document),
    Warning(Text),
    Next(Text),
}

/// A branch of a tree: its numbers, and its frames.
#[derive(Debug, Clone)]
pub struct Branch {
    pub cells: Vec<Cell>,
    /// The lines of the tree in front of the first frame and of the others.
    pub lead: [String; 2],
    frames: Vec<StackLine>,
}

impl Branch {
    pub fn new(cells: Vec<Cell>, lead: [String; 2]) -> Branch {
        Branch {
            cells,
            lead,
            frames: Vec::new(),
        }
    }

    pub fn note(mut self, style: Style, text: impl fmt::Display) -> Branch {
        self.add(style, Escaped(&text.to_string()).to_string(), String::new());
        self
    }

    pub fn frame(&mut self, role: Role, name: String, place: Option<String>) {
        self.add(style_of(role), name, Escaped(&place.unwrap_or_default()).to_string());
    }

    fn add(&mut self, style: Style, name: String, place: String) {
        self.frames.push(StackLine::Frame {
            style,
            name,
            place,
            inlined: false,
        });
    }
}

/// An indented tree with columns of numbers at its left.
#[derive(Debug, Clone)]
pub struct Tree {
    pub headings: Vec<&'static str>,
    pub branches: Vec<Branch>,
    /// Nothing is cut.
    pub is_full: bool,
}

/// The user's frames stand out.
fn style_of(role: Role) -> Style {
    if role == Role::User { PLAIN } else { DIM }
}

/// What a page says.
#[derive(Debug, Clone, Default)]
pub struct Document(Vec<Block>);

impl Document {
    pub fn line(&mut self, text: impl Into<Text>) {
        self.indented(0, text);
    }

    /// A line of a list.
    pub fn item(&mut self, text: impl Into<Text>) {
        self.indented(2, text);
    }

    pub fn indented(&mut self, indent: usize, text: impl Into<Text>) {
        let text = text.into();
        self.0.push(Block::Line { indent, text });
    }

    pub fn blank(&mut self) {
        self.line("");
    }

    /// An empty line, if the last one is not.
    pub fn gap(&mut self) {
        let is_gap = |block: &Block| matches!(block, Block::Line { text, .. } if text.is_empty());
        if !self.0.last().is_some_and(is_gap) {
            self.blank();
        }
    }

    pub fn heading(&mut self, text: impl Into<Text>) {
        self.0.push(Block::Heading(text.into()));
    }

    pub fn table<T>(&mut self, rows: Rows<T>) {
        self.0.push(Block::Table(rows.table));
    }

    /// `… and 3 more rows with 12 MiB; --top 0 shows all`, unless nothing is hidden. `rest` follows the noun.
    pub fn more(&mut self, hidden: impl TryInto<u64>, noun: &str, rest: impl fmt::Display) {
        self.more_at(2, hidden, noun, rest);
    }

    pub fn more_at(&mut self, indent: usize, hidden: impl TryInto<u64>, noun: &str, rest: impl fmt::Display) {
        let hidden = hidden.try_into().unwrap_or(u64::MAX);
        if hidden > 0 {
            self.indented(indent, dim(more(hidden, noun, rest)));
        }
    }

    pub fn field(&mut self, label: &'static str, text: impl Into<Text>) {
        self.0.push(Block::Field(label, text.into()));
    }

    pub fn fields<T: Into<Text>>(&mut self, fields: impl IntoIterator<Item = (&'static str, T)>) {
        fields.into_iter().for_each(|(label, text)| self.field(label, text));
    }

    pub fn warnings(&mut self, warnings: impl IntoIterator<Item = impl AsRef<str>>) {
        let warnings = warnings
            .into_iter()
            .map(|warning| Block::Warning(warning.as_ref().into()));
        self.0.extend(warnings);
    }

    pub fn next(&mut self, command: impl AsRef<str>) {
        self.0.push(Block::Next(command.as_ref().into()));
    }

    pub fn tree(&mut self, tree: Tree) {
        self.0.push(Block::Tree(tree));
    }

    pub fn chart(&mut self, chart: Chart) {
        self.0.push(Block::Chart(chart));
    }

    pub fn folded(&mut self, title: impl Into<Text>, content: Document) {
        self.0.push(Block::Folded(title.into(), content));
    }

    pub fn append(&mut self, other: Document) {
        self.0.extend(other.0);
    }

    /// The frames of a stack, one per line: functions, then their places, aligned. Unless `full`, runs of a library's frames
    /// are one line.
    pub fn stack(&mut self, stack: &CallStack, is_full: bool, indent: usize) {
        let frame = |frame: &Frame| {
            let name = frame.name();
            StackLine::Frame {
                style: style_of(frame.role),
                name: Escaped(&if is_full { name } else { plain(&name).into_owned() }).to_string(),
                place: long_place(frame),
                inlined: frame.inlined,
            }
        };
        let lines: Vec<StackLine> = match is_full {
            true => stack.frames.iter().map(frame).collect(),
            false => stack
                .folded()
                .into_iter()
                .map(|line| match line {
                    Line::Frame(of) => frame(of),
                    Line::Folded { library, frames } => StackLine::Note(folded(library, frames)),
                })
                .collect(),
        };
        self.stack_lines(lines, stack.truncated, is_full, indent);
    }

    fn stack_lines(&mut self, mut lines: Vec<StackLine>, truncated: bool, is_full: bool, indent: usize) {
        if lines.is_empty() {
            lines.push(StackLine::Note("(recorded without a stack)".to_owned()));
        } else if truncated {
            lines.push(StackLine::Note("… (the stack was cut here)".to_owned()));
        }
        self.0.push(Block::Stack { indent, lines, is_full });
    }

    /// The frames of a call site whose snapshot was dropped, as [`Document::stack`].
    pub fn site_stack(&mut self, stack: &[SiteFrame], truncated: bool, indent: usize) {
        let frames: Vec<&SiteFrame> = stack.iter().collect();
        let has_user = stack.iter().any(|frame| frame.role == Role::User);
        let lines = fold(&frames, has_user, |frame| frame.python_library.as_deref());
        let line = |line: Line<&SiteFrame>| match line {
            Line::Frame(frame) => StackLine::Frame {
                style: style_of(frame.role),
                name: Escaped(&frame.function).to_string(),
                place: Escaped(frame.place.as_deref().unwrap_or(&frame.module)).to_string(),
                inlined: false,
            },
            Line::Folded { library, frames } => StackLine::Note(folded(library, frames)),
        };
        self.stack_lines(lines.into_iter().map(line).collect(), truncated, false, indent);
    }
}

/// `… and 3 more rows`, and what follows.
pub fn more(hidden: u64, noun: &str, rest: impl fmt::Display) -> String {
    format!("… and {}{rest}", counted(hidden, &format!("more {noun}")))
}

/// `torch: 21 frames`.
pub fn folded(library: &str, frames: usize) -> String {
    format!("{}: {} frames", Escaped(library), words::count(frames as u64))
}

/// The path and line of a frame; without a line, the module of a named function.
fn long_place(frame: &Frame) -> String {
    let module = || frame.function.map(|_| frame.module_name().to_owned());
    Escaped(&frame.place().or_else(module).unwrap_or_default()).to_string()
}

#[cfg(test)]
mod tests;
