//! Markdown for a terminal: the pages of the documentation, for `culeak help`.
//!
//! Paragraphs are filled, code keeps its lines, and a table is aligned if it fits; otherwise each row becomes a term and its
//! description, with their headings. A link to another page is followed by the command that shows it. Deliberately absent: images.

use std::io::{self, Write};

use anstream::adapter::strip_str;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::columns;
use super::parts::{BOLD, Styled};

/// Wider lines are hard to read.
const WIDEST: usize = 100;
const CODE_INDENT: &str = "    ";

/// The text of one line of Markdown.
pub fn plain(text: &str) -> String {
    let mut out = Vec::new();
    // Writing to memory cannot fail.
    write_with(text, usize::MAX, &|_| None, &mut out).unwrap_or_default();
    strip_str(&String::from_utf8_lossy(&out)).to_string().trim().to_owned()
}

/// The command that shows the target of a link, if there is one.
pub type Command<'c> = dyn Fn(&str) -> Option<String> + 'c;

/// Writes a page.
pub fn write(page: &str, command: &Command, out: &mut dyn Write) -> io::Result<()> {
    write_with(page, columns::available().unwrap_or(WIDEST).min(WIDEST), command, out)
}

fn write_with(page: &str, columns: usize, command: &Command, out: &mut dyn Write) -> io::Result<()> {
    let mut writer = Writer {
        out,
        columns,
        command,
        inline: String::new(),
        indent: Vec::new(),
        marker: None,
        in_code: false,
        link: (String::new(), 0),
        image: 0,
        rows: Vec::new(),
        begun: false,
    };
    for event in Parser::new_ext(page, Options::ENABLE_TABLES) {
        writer.take(event)?;
    }
    writer.paragraph()
}

struct Writer<'o> {
    out: &'o mut dyn Write,
    columns: usize,
    command: &'o Command<'o>,
    /// The paragraph, heading or cell that has begun.
    inline: String,
    /// One entry for each list that is open: the number of its next item, if it has numbers.
    indent: Vec<Option<u64>>,
    /// In front of the next paragraph.
    marker: Option<String>,
    in_code: bool,
    /// The target of the open link, and where its text begins.
    link: (String, usize),
    /// Where the description of the open image begins.
    image: usize,
    rows: Vec<Vec<String>>,
    /// Something was written, so a block starts with an empty line.
    begun: bool,
}

impl Writer<'_> {
    fn take(&mut self, event: Event) -> io::Result<()> {
        match event {
            Event::Text(text) if self.in_code => return self.code(&text),
            Event::Text(text) | Event::Code(text) => self.inline.push_str(&text),
            Event::SoftBreak => self.inline.push(' '),
            Event::HardBreak => self.inline.push('\n'),
            Event::Rule => {}
            Event::Start(tag) => return self.open(tag),
            Event::End(tag) => return self.close(tag),
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, tag: Tag) -> io::Result<()> {
        match tag {
            Tag::CodeBlock(_) => {
                self.paragraph()?;
                self.gap()?;
                self.in_code = true;
            }
            Tag::List(first) => {
                self.paragraph()?;
                if self.indent.is_empty() {
                    self.gap()?;
                }
                self.indent.push(first);
            }
            Tag::Item => {
                self.marker = Some(match self.indent.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!("{}. ", *number - 1)
                    }
                    _ => "- ".to_owned(),
                });
            }
            Tag::Link { dest_url, .. } => self.link = (dest_url.to_string(), self.inline.len()),
            Tag::Image { .. } => self.image = self.inline.len(),
            Tag::Table(_) => self.rows.clear(),
            Tag::TableHead | Tag::TableRow => self.rows.push(Vec::new()),
            _ => {}
        }
        Ok(())
    }

    fn close(&mut self, tag: TagEnd) -> io::Result<()> {
        match tag {
            TagEnd::Heading(_) => {
                let heading = std::mem::take(&mut self.inline);
                self.gap()?;
                writeln!(self.out, "{}", Styled(BOLD, heading))?;
            }
            TagEnd::Paragraph | TagEnd::Item => self.paragraph()?,
            TagEnd::CodeBlock => self.in_code = false,
            TagEnd::List(_) => {
                self.indent.pop();
            }
            TagEnd::Link => {
                let (target, begin) = std::mem::take(&mut self.link);
                if target.starts_with("http") {
                    self.inline.push_str(&format!(" ({target})"));
                } else if let Some(command) = (self.command)(&target) {
                    // The name of a file means nothing to a reader without the folder.
                    match self.inline[begin..].ends_with(".md") || self.inline[begin..].ends_with('/') {
                        true => self.inline.replace_range(begin.., &command),
                        false => self.inline.push_str(&format!(" ({command})")),
                    }
                }
            }
            // Instead of an image there would be its description.
            TagEnd::Image => self.inline.truncate(self.image),
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.inline);
                if let Some(row) = self.rows.last_mut() {
                    row.push(cell);
                }
            }
            TagEnd::Table => self.table()?,
            _ => {}
        }
        Ok(())
    }

    /// An empty line between two blocks.
    fn gap(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.begun, true) {
            writeln!(self.out)?;
        }
        Ok(())
    }

    fn code(&mut self, text: &str) -> io::Result<()> {
        let indent = "  ".repeat(self.indent.len());
        text.lines()
            .try_for_each(|line| writeln!(self.out, "{}", format!("{CODE_INDENT}{indent}{line}").trim_end()))
    }

    /// Writes the paragraph that has begun.
    fn paragraph(&mut self) -> io::Result<()> {
        let text = std::mem::take(&mut self.inline);
        if text.trim().is_empty() {
            return Ok(());
        }
        let marker = self.marker.take();
        let outer = "  ".repeat(self.indent.len().saturating_sub(1));
        let inner = match (&marker, self.indent.is_empty()) {
            (Some(marker), _) => " ".repeat(marker.len()),
            (None, true) => String::new(),
            (None, false) => "  ".to_owned(),
        };
        // The items of a list stand together.
        if marker.is_none() {
            self.gap()?;
        }
        let first = format!("{outer}{}", marker.as_deref().unwrap_or(&inner));
        let lines = filled(&text, self.columns, &first, &format!("{outer}{inner}"));
        writeln!(self.out, "{lines}")
    }

    fn table(&mut self) -> io::Result<()> {
        const GAP: usize = 2;
        let rows = std::mem::take(&mut self.rows);
        let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
        let widest = |column: usize| {
            let cells = rows
                .iter()
                .map(|row| row.get(column).map_or(0, |cell| columns::width(cell)));
            cells.max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(widest).collect();
        let fits = widths.iter().map(|width| width.saturating_add(GAP)).sum::<usize>() <= self.columns;
        self.gap()?;
        for (nth, row) in rows.iter().enumerate() {
            if fits {
                let cells = row
                    .iter()
                    .zip(&widths)
                    .map(|(cell, &width)| columns::padded(cell, width + GAP));
                let line = cells.collect::<String>();
                match nth {
                    0 => writeln!(self.out, "{}", Styled(BOLD, line.trim_end()))?,
                    _ => writeln!(self.out, "{}", line.trim_end())?,
                }
                continue;
            }
            let Some((term, rest)) = row.split_first() else {
                continue;
            };
            if nth == 0 {
                if !term.is_empty() {
                    writeln!(self.out, "{}", Styled(BOLD, term))?;
                }
                continue;
            }
            writeln!(self.out, "{}", filled(term, self.columns, "", "  "))?;
            for (heading, cell) in rows[0].iter().skip(1).zip(rest).filter(|(_, cell)| !cell.is_empty()) {
                let cell = match heading.is_empty() {
                    true => cell.clone(),
                    false => format!("{heading}: {cell}"),
                };
                writeln!(self.out, "{}", filled(&cell, self.columns, CODE_INDENT, CODE_INDENT))?;
            }
        }
        Ok(())
    }
}

/// The words in lines of this width; `first` is in front of the first line, `others` in front of the others.
fn filled(text: &str, columns: usize, first: &str, others: &str) -> String {
    let mut lines = Vec::new();
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && columns::width(&line).saturating_add(1 + columns::width(word)) > columns {
            lines.push(std::mem::replace(&mut line, others.to_owned()));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines.push(line);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(page: &str, columns: usize) -> String {
        let mut out = Vec::new();
        let command = |target: &str| (target == "job.md#ranks").then(|| "culeak help jobs".to_owned());
        write_with(page, columns, &command, &mut out).expect("memory is writable");
        strip_str(std::str::from_utf8(&out).expect("text")).to_string()
    }

    #[test]
    fn a_page_becomes_lines_of_a_terminal() {
        let page = "# Title\n\nA *paragraph* with `code`, a\n[page](ci.md) and an [address](https://a.b).\n\n    $ culeak run\n      as written\n\n\
                    - one item\n- another item of several words\n\n1. first\n2. second\n\n![image](x.png)\n";
        assert_eq!(
            rendered(page, 24),
            "Title\n\nA paragraph with code, a\npage and an address\n(https://a.b).\n\n    $ culeak run\n      as written\n\n\
             - one item\n- another item of\n  several words\n\n1. first\n2. second\n"
        );
    }

    #[test]
    fn a_table_is_aligned_if_it_fits() {
        let page = "| option | allows |\n|---|---|\n| `--some-limit` | this much in total |\n| `-q` | |\n";
        assert_eq!(
            rendered(page, 60),
            "option        allows\n--some-limit  this much in total\n-q\n"
        );
        assert_eq!(
            rendered(page, 20),
            "option\n--some-limit\n    allows: this\n    much in total\n-q\n"
        );
        let three = "| a | b | c |\n|---|---|---|\n| one | two words | three |\n";
        assert_eq!(rendered(three, 12), "a\none\n    b: two\n    words\n    c: three\n");
    }

    #[test]
    fn a_link_to_another_page_names_the_command_that_shows_it() {
        let page = "See [job.md](job.md#ranks), [ranks](job.md#ranks) and [others](x.md).\n";
        let text = "See culeak help jobs, ranks (culeak help jobs) and others.\n";
        assert_eq!(rendered(page, 80), text);
    }

    #[test]
    fn one_line_loses_its_marks() {
        assert_eq!(plain("`run`: [a page](x.md) of *words*"), "run: a page of words");
    }
}
