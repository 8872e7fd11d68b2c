//! The page: a skeleton, the styles and scripts, the policy that allows only these, and the data.
//!
//! Recorded text is in three places: the title and the documents, which are escaped, and the data, whose alphabet
//! (base64) has no special characters of HTML. The policy names every script and style by the hash of its text, so even
//! injected markup cannot run, and nothing can be loaded or sent. The policy also forbids turning strings into markup
//! (trusted types), which the page's scripts never do.

use std::io::{self, Write};

use data_encoding::BASE64;
use sha2::{Digest, Sha256};

use super::graph::Graphs;
use crate::document::Document;
use crate::document::html::escape;

const SKELETON: &str = include_str!("page.html");

const PAGE_STYLE: &str = include_str!("page.css");
const ELEMENTS: &str = include_str!("elements.js");
const UNITS: &str = include_str!("units.js");
const TABLES: &str = include_str!("tables.js");
const START: &str = include_str!("page.js");

/// Libraries first, then the page's scripts in order of their dependencies.
const PLAIN: &[&str] = &[ELEMENTS, UNITS, TABLES, START];
const WITH_GRAPHS: &[&str] = &[
    include_str!("vendor/d3-hierarchy.min.js"),
    include_str!("vendor/d3-selection.min.js"),
    ELEMENTS,
    UNITS,
    TABLES,
    include_str!("data.js"),
    include_str!("graph.js"),
    include_str!("view.js"),
    include_str!("spans.js"),
    include_str!("area.js"),
    include_str!("timeline.js"),
    START,
];

/// With [`NOTICES`] in it, where the libraries are.
const LIBRARIES: [&str; 2] = [
    "  <details>\n    <summary>Libraries in this file and their licences</summary>\n    <pre>",
    "</pre>\n  </details>\n",
];

/// Names, versions and licences of the libraries in vendor/.
const NOTICES: &str = include_str!("vendor/NOTICES.txt");

/// What a page shows of one of its processes.
pub struct Section {
    /// The entry of the list of processes.
    pub name: String,
    pub document: Document,
    /// What follows the graphs, if there are any.
    pub below: Document,
}

/// Writes the page.
pub fn write(title: &str, sections: &[Section], graphs: Option<Graphs>, out: &mut dyn Write) -> io::Result<()> {
    let has_graphs = graphs.is_some();
    let scripts = if has_graphs { WITH_GRAPHS } else { PLAIN };
    let data = graphs.map_or_else(|| Ok(Vec::new()), Graphs::write)?;
    // Only the skeleton is split at placeholders; inserted text is never searched for them.
    for (nth, part) in SKELETON.split("{{").enumerate() {
        let Some((name, text)) = part.split_once("}}").filter(|_| nth > 0) else {
            out.write_all(part.as_bytes())?;
            continue;
        };
        match name {
            "title" => out.write_all(escape(title).as_bytes())?,
            "policy" => out.write_all(policy(scripts).as_bytes())?,
            "styles" => wrapped("style", &[PAGE_STYLE], out)?,
            "scripts" => wrapped("script", scripts, out)?,
            "content" => sections.iter().try_for_each(|section| content(section, out))?,
            "made-by" => write!(out, "culeak {}", env!("CARGO_PKG_VERSION"))?,
            "notices" if !has_graphs => {}
            "notices" => write!(out, "{}{}{}", LIBRARIES[0], escape(NOTICES), LIBRARIES[1])?,
            "data" => out.write_all(BASE64.encode(&data).as_bytes())?,
            _ => unreachable!("page.html asks for {name}"),
        }
        out.write_all(text.as_bytes())?;
    }
    Ok(())
}

fn content(section: &Section, out: &mut dyn Write) -> io::Result<()> {
    let (name, document, below) = (escape(&section.name), section.document.html(), section.below.html());
    writeln!(
        out,
        "<section class=\"process\" data-name=\"{name}\">\n{document}<div class=\"graphs\"></div>\n{below}</section>"
    )
}

fn wrapped(element: &str, texts: &[&str], out: &mut dyn Write) -> io::Result<()> {
    texts
        .iter()
        .try_for_each(|text| writeln!(out, "<{element}>{text}</{element}>"))
}

/// A policy that allows only the styles and scripts of this build.
fn policy(scripts: &[&str]) -> String {
    let hashes = |texts: &[&str]| -> String {
        let each = texts.iter().map(|text| hash(text));
        each.map(|hash| format!(" 'sha256-{hash}'")).collect()
    };
    format!(
        "default-src 'none'; script-src{}; style-src{}; base-uri 'none'; form-action 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
        hashes(scripts),
        hashes(&[PAGE_STYLE])
    )
}

fn hash(text: &str) -> String {
    BASE64.encode(&Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_script_or_style_ends_its_own_element() {
        for text in WITH_GRAPHS.iter().chain([&PAGE_STYLE]) {
            assert!(!text.contains("</script") && !text.contains("</style") && !text.contains("<!--"));
            assert!(
                !text.contains('\r'),
                "a browser reads it as a line feed, so the hash would differ"
            );
        }
    }
}
