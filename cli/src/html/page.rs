//! The page itself: a skeleton, the styles and scripts, the policy that allows nothing else, and the data.
//!
//! What comes from a recording stands in three places: the title and the plain text, escaped, and the data, whose
//! alphabet (base64) has no character that means anything to HTML. The policy names every script and style by the hash
//! of its text. So even markup that slipped through could not run, and nothing can be loaded or sent. It also forbids
//! turning strings into markup (trusted types), which the page's own scripts never do.

use std::io::{self, Write};

use data_encoding::BASE64;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::data::Data;

const SKELETON: &str = include_str!("page.html");
const STYLES: [&str; 1] = [include_str!("page.css")];

/// Libraries first, then the page's own in the order they build on each other.
const SCRIPTS: [&str; 7] = [
    include_str!("vendor/d3-hierarchy.min.js"),
    include_str!("vendor/d3-selection.min.js"),
    include_str!("data.js"),
    include_str!("units.js"),
    include_str!("graph.js"),
    include_str!("table.js"),
    include_str!("page.js"),
];

/// Names, versions and licences of what stands in vendor/.
const NOTICES: &str = include_str!("vendor/NOTICES.txt");

/// Writes the page. `plain` is what a browser without scripts shows.
pub fn write(title: &str, plain: &str, data: Data, content: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    let mut data = Some(data);
    // The skeleton is taken apart at its own marks alone; what was put in is never looked at again.
    for (nth, part) in SKELETON.split("{{").enumerate() {
        let Some((name, text)) = part.split_once("}}").filter(|_| nth > 0) else {
            out.write_all(part.as_bytes())?;
            continue;
        };
        match (name, data.take_if(|_| name == "data")) {
            ("title", _) => out.write_all(escape(title).as_bytes())?,
            ("policy", _) => out.write_all(policy().as_bytes())?,
            ("styles", _) => wrapped("style", &STYLES, out)?,
            ("scripts", _) => wrapped("script", &SCRIPTS, out)?,
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

/// Nothing is allowed but the styles and scripts of this build.
fn policy() -> String {
    let hashes = |texts: &[&str]| -> String {
        let each = texts.iter().map(|text| hash(text));
        each.map(|hash| format!(" 'sha256-{hash}'")).collect()
    };
    format!(
        "default-src 'none'; script-src{}; style-src{}; base-uri 'none'; form-action 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
        hashes(&SCRIPTS),
        hashes(&STYLES)
    )
}

fn hash(text: &str) -> String {
    BASE64.encode(&Sha256::digest(text.as_bytes()))
}

/// Text for HTML, safe between tags and in attributes.
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
        for text in STYLES.iter().chain(&SCRIPTS) {
            assert!(!text.contains("</script") && !text.contains("</style") && !text.contains("<!--"));
            assert!(
                !text.contains('\r'),
                "a browser would read it as a line feed, and its hash would differ"
            );
        }
    }
}
