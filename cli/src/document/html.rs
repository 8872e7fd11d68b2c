//! A document as HTML: elements with classes, for the style sheet and scripts of `crate::html`, and readable without them.
//!
//! Recorded names are text here, never markup. Numbers have their exact value as an attribute, by which a script sorts.

use std::fmt::Write;

use super::{BAD, BOLD, Block, Cell, DIM, Document, GOOD, StackLine, Style, Table, Text, WARN};
use crate::escape::Escaped;

impl Document {
    /// The first line is the headline.
    pub fn html(&self) -> String {
        let mut out = String::new();
        self.write_html("headline ", &mut out);
        out
    }

    fn write_html(&self, first: &str, out: &mut String) {
        let is_field = |block: &Block| matches!(block, Block::Field(..));
        let mut first = Some(first);
        for blocks in self.0.chunk_by(|a, b| is_field(a) && is_field(b)) {
            let class = first.take().unwrap_or_default();
            match &blocks[0] {
                Block::Line { text, .. } if text.is_empty() => {}
                Block::Line { indent, text } => {
                    let item = if *indent > 0 { "item " } else { "" };
                    element("p", &format!("{class}{item}{}", class_of(text)), &spans(text), out);
                }
                Block::Heading(text) => element("h2", class_of(text), &spans(text), out),
                Block::Table(table) => table.html(out),
                Block::Stack { lines, .. } => stack(lines, out),
                Block::Field(..) => fields(blocks, out),
                Block::Tree(_) => {
                    let lines: Vec<String> = Document(blocks.to_vec()).plain_lines();
                    element("pre", "", &escape(&lines.join("\n")), out);
                }
                Block::Chart(chart) => {
                    chart.html(out);
                    element("p", "quiet", &escaped(&chart.label), out);
                }
                Block::Folded(title, inner) => {
                    let _ = write!(out, "<details><summary>{}</summary>", spans(title));
                    inner.write_html("", out);
                    out.push_str("</details>\n");
                }
                Block::Warning(text) => element("p", "warning", &spans(text), out),
                Block::Next(text) => {
                    let _ = writeln!(
                        out,
                        "<p><span class=\"quiet\">next: </span><code>{}</code></p>",
                        spans(text)
                    );
                }
            }
        }
    }
}

fn element(tag: &str, class: &str, content: &str, out: &mut String) {
    let class = match class.trim() {
        "" => String::new(),
        class => format!(" class=\"{class}\""),
    };
    let _ = writeln!(out, "<{tag}{class}>{content}</{tag}>");
}

fn name_of(style: Style) -> &'static str {
    match style {
        BOLD => "strong",
        DIM => "quiet",
        BAD => "bad",
        GOOD => "good",
        WARN => "warn",
        _ => "",
    }
}

/// The class of a line all of which has one style.
fn class_of(text: &Text) -> &'static str {
    match text.0.as_slice() {
        [(style, _)] => name_of(*style),
        _ => "",
    }
}

fn spans(text: &Text) -> String {
    let span = |(style, piece): &(Style, String)| match name_of(*style) {
        class if class.is_empty() || text.0.len() == 1 => escape(piece),
        class => format!("<span class=\"{class}\">{}</span>", escape(piece)),
    };
    text.0.iter().map(span).collect()
}

fn fields(blocks: &[Block], out: &mut String) {
    out.push_str("<dl class=\"facts\">\n");
    for block in blocks {
        if let Block::Field(label, text) = block {
            let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(label), spans(text));
        }
    }
    out.push_str("</dl>\n");
}

/// The most frames of a stack; a damaged file may have more.
const FRAMES: usize = 1000;

fn stack(lines: &[StackLine], out: &mut String) {
    out.push_str("<ol class=\"stack code\">");
    let hidden = lines.len().saturating_sub(FRAMES) as u64;
    let rest = (hidden > 0).then(|| StackLine::Note(super::more(hidden, "frame", "")));
    for line in lines.iter().take(FRAMES).chain(&rest) {
        match line {
            StackLine::Note(note) => element("li", "quiet", &escape(note), out),
            StackLine::Frame {
                style,
                name,
                place,
                inlined,
            } => {
                let inlined = if *inlined { " (inlined)" } else { "" };
                let place = match place.is_empty() {
                    true => String::new(),
                    false => format!("<span class=\"at\">{}{inlined}</span>", escape(place)),
                };
                element("li", name_of(*style), &format!("{}{place}", escape(name)), out);
            }
        }
    }
    out.push_str("</ol>\n");
}

impl Table {
    /// What stands below a row is a row of one cell after it.
    fn html(&self, out: &mut String) {
        if self.rows.is_empty() {
            return;
        }
        let is_number = |nth: usize| self.rows.iter().any(|row| row.cells[nth].is_number());
        let parts = if self.adds_up { " adds-up" } else { "" };
        let _ = write!(out, "<table class=\"rows{parts}\"><thead><tr>");
        for (nth, column) in self.columns.iter().enumerate() {
            let class = format!("{}{}", if is_number(nth) { "number" } else { "" }, column.wide());
            match column.heading {
                "" => out.push_str("<td></td>"),
                heading => {
                    let _ = write!(out, "<th scope=\"col\" class=\"{class}\">{}</th>", escape(heading));
                }
            }
        }
        out.push_str("</tr></thead><tbody>\n");
        for (number, row) in self.rows.iter().enumerate() {
            let apart = if row.is_apart { " apart" } else { "" };
            let _ = write!(
                out,
                "<tr data-row=\"{number}\" class=\"{}{apart}\">",
                name_of(row.style)
            );
            for (nth, cell) in row.cells.iter().enumerate() {
                let number = if is_number(nth) { "number" } else { "" };
                cell.html(&format!("{number}{}", self.columns[nth].wide()), out);
            }
            out.push_str("</tr>\n");
            if !row.below.0.is_empty() {
                let _ = write!(
                    out,
                    "<tr class=\"below\"><td class=\"detail\" colspan=\"{}\">",
                    self.columns.len()
                );
                row.below.write_html("", out);
                out.push_str("</td></tr>\n");
            }
        }
        out.push_str("</tbody></table>\n");
    }
}

impl super::Column {
    fn wide(&self) -> &'static str {
        if self.expendable > 0 { " wide" } else { "" }
    }
}

impl Cell {
    fn html(&self, class: &str, out: &mut String) {
        let td = |class: &str, attributes: &str, content: &str| {
            format!("<td class=\"{}\"{attributes}>{content}</td>", class.trim())
        };
        let bytes = |value: &i128| {
            let title = culeak::analysis::words::signed_count(*value);
            format!(
                " data-bytes=\"{value}\" title=\"{} bytes\"",
                title.trim_start_matches('+')
            )
        };
        let text = || spans(&self.text());
        out.push_str(&match self {
            Cell::Size(size) | Cell::Estimate(size, _) => td(class, &bytes(&i128::from(*size)), &text()),
            Cell::Delta(size, _) | Cell::Balance(size) => td(class, &bytes(size), &text()),
            Cell::Count(count) | Cell::Things(count, _) => td(class, &format!(" data-count=\"{count}\""), &text()),
            Cell::Time(ns) => td(class, &format!(" data-value=\"{ns}\""), &text()),
            Cell::Part(part, all) => td(class, "", &format!("<meter value=\"{part}\" max=\"{all}\"></meter>")),
            Cell::Number(_) => td(class, "", &text()),
            Cell::Text(_) => td(&format!("text {class}"), "", &text()),
            Cell::Chart(chart) => {
                let mut image = String::new();
                chart.html(&mut image);
                td(class, "", &image)
            }
            Cell::Site(site) => {
                let behind = |class: &str, text: &str| match text.trim() {
                    "" => String::new(),
                    text => format!(" <span class=\"{class}\">{}</span>", escape(text)),
                };
                let name = format!("<span class=\"name\">{}</span>", escape(&site.name));
                let content = name + &behind("at", &site.place) + &behind("mark", &site.mark);
                td(&format!("site code {class}"), "", &content)
            }
            Cell::Styled(style, cell) => return cell.html(&format!("{} {class}", name_of(*style)), out),
        });
    }
}

/// Text that may have characters that a terminal or a browser interprets.
pub(super) fn escaped(text: &str) -> String {
    escape(&Escaped(text).to_string())
}

/// Escapes text for use between tags and in attributes.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_can_leave_its_element() {
        assert_eq!(
            escape("</pre><script a='\"'>&"),
            "&lt;/pre&gt;&lt;script a=&#39;&quot;&#39;&gt;&amp;"
        );
    }
}
