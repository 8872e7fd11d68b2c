//! A document as Markdown, for a job summary or a comment. Recorded names are untrusted, so special characters are escaped.

use std::io::{self, Write};

use super::{BAD, BOLD, Block, Cell, Document, GOOD, StackLine, Table, Text, WARN};

impl Document {
    pub fn markdown(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut was_list = false;
        for block in &self.0 {
            let is_list = matches!(block, Block::Line { indent: 1.., .. } | Block::Field(..));
            if was_list && !is_list {
                writeln!(out)?;
            }
            was_list = is_list;
            match block {
                Block::Line { text, .. } if text.is_empty() => {}
                Block::Line { indent: 0, text } => writeln!(out, "{}\n", marked(text))?,
                Block::Line { text, .. } => writeln!(out, "- {}", marked(text))?,
                Block::Heading(text) => writeln!(out, "### {}{}\n", sign(text), escape(&text.to_string()))?,
                Block::Table(table) => table.markdown(out)?,
                Block::Stack { lines, .. } => stack(lines, out)?,
                Block::Tree(tree) => tree.branches.iter().try_for_each(|branch| stack(&branch.frames, out))?,
                Block::Chart(_) => {}
                Block::Folded(title, inner) => {
                    writeln!(out, "{}\n", marked(title))?;
                    inner.markdown(out)?;
                }
                Block::Field(label, text) => writeln!(out, "- **{label}** {}", marked(text))?,
                Block::Warning(text) => writeln!(out, "> {}\n", marked(text))?,
                Block::Next(text) => writeln!(out, "next: {}\n", marked(text))?,
            }
        }
        if was_list {
            writeln!(out)?;
        }
        Ok(())
    }
}

/// A sign in front of a heading, by the style of its first word.
fn sign(heading: &Text) -> &'static str {
    match heading.0.first().map(|(style, _)| *style) {
        Some(GOOD) => "✅ ",
        Some(BAD) => "❌ ",
        Some(WARN) => "⚠️ ",
        _ => "",
    }
}

fn stack(lines: &[StackLine], out: &mut dyn Write) -> io::Result<()> {
    for line in lines {
        match line {
            StackLine::Frame { name, place, .. } => writeln!(out, "    {}", format!("{name}  {place}").trim_end())?,
            StackLine::Note(note) => writeln!(out, "    {note}")?,
        }
    }
    writeln!(out)
}

impl Table {
    /// A call site fills two columns: its name, then its place.
    fn markdown(&self, out: &mut dyn Write) -> io::Result<()> {
        let is = |column: usize, is: fn(&Cell) -> bool| self.rows.iter().any(|row| is(&row.cells[column]));
        let (mut headings, mut rules) = (String::new(), String::new());
        for (nth, column) in self.columns.iter().enumerate() {
            headings += &format!(" {} |", column.heading);
            rules += if is(nth, Cell::is_number) { "---:|" } else { "---|" };
            if is(nth, |cell| matches!(cell, Cell::Site(_))) {
                headings += " place |";
                rules += "---|";
            }
        }
        writeln!(out, "|{headings}\n|{rules}")?;
        for row in &self.rows {
            let cells = row.cells.iter().map(|cell| match cell {
                Cell::Site(site) => format!(
                    " {}{} | {} |",
                    escape(&site.name),
                    escape(&site.mark),
                    escape(&site.place)
                ),
                cell => format!(" {} |", escape(&cell.text().to_string())),
            });
            writeln!(out, "|{}", cells.collect::<String>())?;
        }
        writeln!(out)?;
        self.rows.iter().try_for_each(|row| row.below.markdown(out))
    }
}

fn marked(text: &Text) -> String {
    let piece = |(style, text): &(_, String)| match (*style == BOLD || *style == BAD, text.trim()) {
        (true, bare) if !bare.is_empty() => format!("**{}**{}", escape(bare), &text[text.trim_end().len()..]),
        _ => escape(text),
    };
    text.0.iter().map(piece).collect::<String>().trim().to_owned()
}

fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '#' | '!' | '@' | '$' => {
                safe.push('\\');
                safe.push(c);
            }
            c => safe.push(c),
        }
    }
    safe
}
