//! Claims about the guides, and about tables of pages that are made from the source.

use super::*;
use crate::options::refusals::TABLE;

/// The texts of the pages. One with sections is there once for each of them.
pub fn pages() -> impl Iterator<Item = &'static str> {
    GUIDES.iter().map(|guide| guide.page)
}

/// Compares what is between `<!-- NAME -->` and `<!-- end of NAME -->` of a page with what is made from the source.
pub fn expect_table(page: &str, name: &str, table: &str) {
    let path = format!("{}/../docs/{page}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect("the page");
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = text.split_once(&begin).expect("where the table begins");
    let (listed, after) = rest.split_once(&end).expect("where it ends");
    if std::env::var_os("CULEAK_BLESS").is_some() {
        std::fs::write(&path, format!("{before}{begin}{table}{end}{after}")).expect("written");
    } else {
        assert_eq!(
            listed, table,
            "docs/{page}: CULEAK_BLESS=1 cargo test -p culeak-cli --bin culeak the_page_lists"
        );
    }
}

/// The refusals as a table of Markdown, for docs/messages.md.
fn refusals() -> String {
    let code = |word: &str| match word.starts_with('-') || word.starts_with("culeak ") {
        true => format!("`{word}`"),
        false => word.to_owned(),
    };
    let mut page = "| this | excludes | because |\n|---|---|---|\n".to_owned();
    // Rows with one reason are one.
    for rows in TABLE.chunk_by(|(.., one), (.., other)| one == other) {
        let asked: Vec<String> = rows.iter().map(|(asked, ..)| code(asked)).collect();
        let mut excluded: Vec<String> = Vec::new();
        for word in rows
            .iter()
            .flat_map(|(_, excluded, _)| excluded.iter())
            .map(|word| code(word))
        {
            if !excluded.contains(&word) {
                excluded.push(word);
            }
        }
        page += &format!("| {} | {} | {} |\n", asked.join(", "), excluded.join(", "), rows[0].2);
    }
    page
}

#[test]
fn the_page_lists_every_message_of_the_library_and_every_refusal() {
    use culeak::messages::{ALL, REASONS};
    let rows = ALL
        .iter()
        .map(|(text, means, remedy)| format!("| `{text}` | {means} | {remedy} |\n"));
    let lines = format!(
        "| line | means | what to do |\n|---|---|---|\n{}",
        rows.collect::<String>()
    );
    expect_table("messages.md", "lines", &lines);
    let rows = REASONS
        .iter()
        .map(|(_, text, remedy)| format!("| {text} | {remedy} |\n"));
    let mut rows: Vec<String> = rows.collect();
    rows.dedup();
    expect_table(
        "messages.md",
        "reasons",
        &format!("| reason | what to do |\n|---|---|\n{}", rows.concat()),
    );
    expect_table("messages.md", "refusals", &refusals());
}

#[test]
fn every_page_of_the_index_is_a_guide_with_a_task_and_a_text() {
    for line in INDEX.lines().filter(|line| line.starts_with("| [")) {
        let link = line.split(['(', ')']).nth(1).expect("a link");
        let known = GUIDES.iter().any(|guide| guide.link == link);
        assert!(known, "{link} is in docs/README.md, and no guide");
    }
    for guide in GUIDES {
        assert!(!guide.task().is_empty(), "{} is not in docs/README.md", guide.link);
        let text = guide.document().plain();
        assert!(text.len() > 300, "{}: {text}", guide.name);
    }
}

#[test]
fn pages_name_each_other_by_commands_that_exist() {
    for guide in GUIDES {
        let text = guide.document().plain();
        // A path that is printed is one that the reader may have: that of a file of the project.
        let links = guide.text();
        let pages = links.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for page in pages.filter(|target| target.split('#').next().is_some_and(|path| path.ends_with(".md"))) {
            let own = page.split('#').next();
            let is_own = guide.link.split('#').next().and_then(|link| link.rsplit('/').next()) == own;
            let above = "../".repeat(guide.link.matches('/').count() + 1);
            let outside = page.starts_with("http") || page.starts_with(&above);
            assert!(
                is_own || outside || guide.command(page).is_some(),
                "{} links to {page}, which no guide shows",
                guide.name
            );
        }
        for word in text
            .split("(culeak help ")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            assert!(guides().any(|name| name == word), "{}: culeak help {word}", guide.name);
        }
    }
}

#[test]
fn the_nearest_names_are_offered_for_an_unknown_one() {
    let names = || guides().chain(["check", "report", "run"]);
    for (word, expected) in [
        ("chek", &["check"][..]),
        ("adaptor", &["adapters"]),
        ("snapshoot", &["snapshots"]),
        ("sampel", &["sampling"]),
        ("environ", &["environment"]),
        ("nothing", &[]),
        ("", &[]),
    ] {
        let near = nearest(word, names());
        assert_eq!(near.first(), expected.first(), "{word}: {near:?}");
        assert!(near.len() <= 3);
    }
}

#[test]
fn a_guide_is_found_by_the_name_of_its_file_too() {
    for (name, expected) in [
        ("frameworks", "python"),
        ("job.md", "jobs"),
        ("docs/fleet.md", "fleet"),
        ("measurements", "costs"),
        ("docs/launchers.md", "launchers"),
        ("launchers", "launchers"),
        ("ci", "ci"),
    ] {
        let found: Vec<&str> = GUIDES
            .iter()
            .filter(|guide| guide.is_called(name))
            .map(|guide| guide.name)
            .collect();
        assert_eq!(found, [expected], "{name}");
    }
}
