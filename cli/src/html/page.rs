//! The page: a skeleton, the styles and scripts, the policy that allows only these, and the data.
//!
//! Recorded text is in three places: the title and the plain text, which are escaped, and the data, whose alphabet
//! (base64) has no special characters of HTML. The policy names every script and style by the hash of its text, so even
//! injected markup cannot run, and nothing can be loaded or sent. The policy also forbids turning strings into markup
//! (trusted types), which the page's scripts never do.

use std::io::{self, Write};

use data_encoding::BASE64;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::data::Data;

const SKELETON: &str = include_str!("page.html");

/// The kind of page, which decides on its styles and scripts.
#[derive(Debug, Clone, Copy)]
pub enum Parts {
    /// Stacks as a graph, rows as tables.
    Graph,
    /// Curves over time.
    Charts,
    /// What holds memory, as a table and a tree.
    Holders,
    /// Processes and call sites of a job, as tables with bars.
    Job,
}

const PAGE_STYLE: &str = include_str!("page.css");
const ELEMENTS: &str = include_str!("elements.js");
const DATA: &str = include_str!("data.js");
const UNITS: &str = include_str!("units.js");
const TABLE: &str = include_str!("table.js");
const HOLDERS: &str = include_str!("holders.js");
const START: &str = include_str!("page.js");

impl Parts {
    fn styles(self) -> Vec<&'static str> {
        match self {
            Parts::Graph | Parts::Holders | Parts::Job => vec![PAGE_STYLE],
            Parts::Charts => vec![include_str!("vendor/uPlot.min.css"), PAGE_STYLE],
        }
    }

    /// Libraries first, then the page's scripts in order of their dependencies.
    fn scripts(self) -> Vec<&'static str> {
        let mut scripts = match self {
            Parts::Graph => vec![
                include_str!("vendor/d3-hierarchy.min.js"),
                include_str!("vendor/d3-selection.min.js"),
            ],
            Parts::Charts => vec![include_str!("vendor/uPlot.iife.min.js")],
            Parts::Holders | Parts::Job => Vec::new(),
        };
        scripts.extend([ELEMENTS, DATA, UNITS, TABLE]);
        scripts.extend(match self {
            Parts::Graph => vec![
                include_str!("graph.js"),
                include_str!("view.js"),
                include_str!("spans.js"),
                include_str!("area.js"),
                include_str!("timeline.js"),
                include_str!("rows.js"),
                HOLDERS,
                include_str!("report.js"),
                include_str!("diff.js"),
            ],
            Parts::Charts => vec![include_str!("chart.js"), include_str!("trend.js")],
            Parts::Holders => vec![HOLDERS, include_str!("why.js")],
            Parts::Job => vec![include_str!("job.js")],
        });
        scripts.push(START);
        scripts
    }
}

/// Names, versions and licences of the libraries in vendor/.
const NOTICES: &str = include_str!("vendor/NOTICES.txt");

/// Writes the page. `plain`: the text for browsers without scripts.
pub fn write(
    parts: Parts,
    title: &str,
    plain: &str,
    data: Data,
    content: &impl Serialize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut data = Some(data);
    // Only the skeleton is split at placeholders; inserted text is never searched for them.
    for (nth, part) in SKELETON.split("{{").enumerate() {
        let Some((name, text)) = part.split_once("}}").filter(|_| nth > 0) else {
            out.write_all(part.as_bytes())?;
            continue;
        };
        match (name, data.take_if(|_| name == "data")) {
            ("title", _) => out.write_all(escape(title).as_bytes())?,
            ("policy", _) => out.write_all(policy(parts).as_bytes())?,
            ("styles", _) => wrapped("style", &parts.styles(), out)?,
            ("scripts", _) => wrapped("script", &parts.scripts(), out)?,
            ("plain", _) => out.write_all(escape(plain).as_bytes())?,
            ("notices", _) => out.write_all(escape(NOTICES).as_bytes())?,
            ("data", Some(data)) => {
                let mut compressed = Vec::new();
                data.write(content, &mut compressed)?;
                out.write_all(BASE64.encode(&compressed).as_bytes())?;
            }
            _ => unreachable!("page.html asks for {name}"),
        }
        out.write_all(text.as_bytes())?;
    }
    Ok(())
}

fn wrapped(element: &str, texts: &[&str], out: &mut dyn Write) -> io::Result<()> {
    texts
        .iter()
        .try_for_each(|text| writeln!(out, "<{element}>{text}</{element}>"))
}

/// A policy that allows only the styles and scripts of this build.
fn policy(parts: Parts) -> String {
    let hashes = |texts: &[&str]| -> String {
        let each = texts.iter().map(|text| hash(text));
        each.map(|hash| format!(" 'sha256-{hash}'")).collect()
    };
    format!(
        "default-src 'none'; script-src{}; style-src{}; base-uri 'none'; form-action 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
        hashes(&parts.scripts()),
        hashes(&parts.styles())
    )
}

fn hash(text: &str) -> String {
    BASE64.encode(&Sha256::digest(text.as_bytes()))
}

/// Escapes text for use between tags and in attributes.
fn escape(text: &str) -> String {
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

    #[test]
    fn no_script_or_style_ends_its_own_element() {
        let parts = [Parts::Graph, Parts::Charts, Parts::Holders, Parts::Job];
        for text in parts
            .into_iter()
            .flat_map(|parts| [parts.styles(), parts.scripts()].concat())
        {
            assert!(!text.contains("</script") && !text.contains("</style") && !text.contains("<!--"));
            assert!(
                !text.contains('\r'),
                "a browser reads it as a line feed, so the hash would differ"
            );
        }
    }
}
