//! A page of Markdown as a document: paragraphs that fit the terminal, indented code, lists, and tables.
//!
//! Deliberately absent: images, and the addresses of links to files that no command shows.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::document::{Document, Rows, bold, columns, wrap};

/// Prose is no wider than this on wide terminals, or outside of a terminal.
const WIDEST: usize = 100;
const CODE_INDENT: usize = 4;

/// One line of Markdown without its marks.
pub fn plain(text: &str) -> String {
    let lines = document(text, &|_| None).plain_lines();
    lines.join(" ").trim().to_owned()
}

/// The command that shows the page which a link leads to.
pub type Command<'c> = dyn Fn(&str) -> Option<String> + 'c;

/// The page.
pub fn document(page: &str, command: &Command) -> Document {
    let mut writer = Writer {
        page: Document::default(),
        columns: columns::available().unwrap_or(WIDEST).min(WIDEST),
        command,
        inline: String::new(),
        lists: Vec::new(),
        marker: None,
        in_code: false,
        link: (String::new(), 0),
        image: 0,
        rows: Vec::new(),
        begun: false,
    };
    Parser::new_ext(page, Options::ENABLE_TABLES).for_each(|event| writer.take(event));
    writer.paragraph();
    writer.page
}

struct Writer<'c> {
    page: Document,
    columns: usize,
    command: &'c Command<'c>,
    /// The text of the paragraph, heading or cell that has begun.
    inline: String,
    /// The next number of each open list.
    lists: Vec<Option<u64>>,
    /// In front of the item that has begun.
    marker: Option<String>,
    in_code: bool,
    /// Where the link that has begun leads, and where its text begins.
    link: (String, usize),
    /// Where the description of the image begins.
    image: usize,
    /// The table that has begun.
    rows: Vec<Vec<String>>,
    begun: bool,
}

impl Writer<'_> {
    fn take(&mut self, event: Event) {
        match event {
            Event::Text(text) if self.in_code => {
                let indent = CODE_INDENT + 2 * self.lists.len();
                text.lines().for_each(|line| self.page.indented(indent, line));
            }
            Event::Text(text) | Event::Code(text) => self.inline.push_str(&text),
            Event::SoftBreak | Event::HardBreak => self.inline.push(' '),
            Event::Start(tag) => self.open(tag),
            Event::End(tag) => self.close(tag),
            _ => {}
        }
    }

    fn open(&mut self, tag: Tag) {
        match tag {
            Tag::CodeBlock(_) => {
                self.paragraph();
                self.gap();
                self.in_code = true;
            }
            Tag::List(first) => {
                self.paragraph();
                if self.lists.is_empty() {
                    self.gap();
                }
                self.lists.push(first);
            }
            Tag::Item => {
                self.marker = Some(match self.lists.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!("{}. ", *number - 1)
                    }
                    _ => "- ".to_owned(),
                });
            }
            Tag::Link { dest_url, .. } => self.link = (dest_url.to_string(), self.inline.len()),
            Tag::Image { .. } => self.image = self.inline.len(),
            Tag::TableHead | Tag::TableRow => self.rows.push(Vec::new()),
            _ => {}
        }
    }

    fn close(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(_) => {
                self.gap();
                self.page.line(bold(std::mem::take(&mut self.inline)));
            }
            TagEnd::Paragraph | TagEnd::Item => self.paragraph(),
            TagEnd::CodeBlock => self.in_code = false,
            TagEnd::List(_) => drop(self.lists.pop()),
            TagEnd::Link => self.linked(),
            // Instead of an image there would be its description.
            TagEnd::Image => self.inline.truncate(self.image),
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.inline);
                self.rows.last_mut().into_iter().for_each(|row| row.push(cell.clone()));
            }
            TagEnd::Table => self.table(),
            _ => {}
        }
    }

    fn linked(&mut self) {
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

    fn gap(&mut self) {
        if std::mem::replace(&mut self.begun, true) {
            self.page.blank();
        }
    }

    fn paragraph(&mut self) {
        let text = std::mem::take(&mut self.inline);
        if text.trim().is_empty() {
            return;
        }
        let marker = self.marker.take();
        // The items of a list stand together.
        if marker.is_none() {
            self.gap();
        }
        let hang = marker.as_ref().map_or(0, String::len);
        let depth = self.lists.len().saturating_sub(usize::from(marker.is_some()));
        self.filled(2 * depth, &(marker.unwrap_or_default() + &text), hang);
    }

    fn filled(&mut self, indent: usize, text: &str, hang: usize) {
        let lines = wrap::broken(text.trim(), self.columns.saturating_sub(indent), hang);
        lines.lines().for_each(|line| self.page.indented(indent, line));
    }

    /// A table; one that does not fit has a paragraph for each row, with the other cells below the first.
    fn table(&mut self) {
        let mut rows = std::mem::take(&mut self.rows);
        if rows.is_empty() {
            return;
        }
        self.gap();
        let cell = |row: &Vec<String>, nth: usize| row.get(nth).cloned().unwrap_or_default();
        let columns = rows.first().map_or(0, Vec::len);
        let widest = |nth: usize| rows.iter().map(|row| columns::width(&cell(row, nth)) + 2).max();
        let fits = (0..columns).filter_map(widest).sum::<usize>() <= self.columns;
        let headings = rows.remove(0);
        if fits {
            let mut table = Rows::of(rows).indent(0);
            for (nth, heading) in headings.into_iter().enumerate() {
                // A page is shown once.
                table = table.column(heading.leak(), |row| cell(row, nth));
            }
            return self.page.table(table);
        }
        if !headings[0].is_empty() {
            self.page.line(bold(&headings[0]));
        }
        for row in rows {
            self.filled(0, &cell(&row, 0), 2);
            for (heading, cell) in headings.iter().zip(&row).skip(1).filter(|(_, cell)| !cell.is_empty()) {
                let label = if heading.is_empty() { "" } else { ": " };
                self.filled(CODE_INDENT, &format!("{heading}{label}{cell}"), 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(page: &str, columns: usize) -> String {
        let command = |target: &str| (target == "job.md#ranks").then(|| "culeak help jobs".to_owned());
        columns::with_available(columns, || document(page, &command).plain())
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
