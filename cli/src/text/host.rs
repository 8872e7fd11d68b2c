//! Host memory: by type and arena, and how it changed.

use culeak::analysis::diff::{HostChange, HostChanges};
use culeak::analysis::why::Why;
use culeak::snapshot::{HostMemory, HostRow};

use super::diff::{changed, style_of};
use super::{parts, units, why};
use crate::document::{BOLD, Cell, Document, Rows, bold, styled};
use crate::escape::Escaped;
use crate::text::units::unless_zero;

/// What is resident by type or arena, the largest first, `top` at most.
pub fn page(of: &Why, rows: &[HostRow], top: Option<usize>) -> Document {
    let mut page = Document::default();
    let (shown, rest) = rows.split_at(rows.len().min(top.unwrap_or(usize::MAX)));
    let count = |row: &&HostRow| match row.count {
        0 => Cell::Things(0, String::new()),
        count => Cell::Things(count, format!("in {}", units::count(count))),
    };
    let free = |row: &&HostRow| unless_zero(row.free_bytes, |bytes| format!("and {} free", units::bytes(bytes)));
    page.line(bold("host memory"));
    let table = Rows::of(shown).bare();
    let table = table.column("bytes", |row| Cell::Size(row.bytes).styled(BOLD));
    let table = table.column("count", count);
    let table = table.column_if(shown.iter().any(|row| row.free_bytes > 0), "free", free);
    page.table(table.column("of", |row| Escaped(&row.name).to_string()));
    page.more(rest.len(), "row", "; --top 0 shows all");
    page.blank();
    page.fields(why::sums(of));
    page
}

/// `169.8 MiB resident: 4.5 MiB Python's heap, 154.1 MiB malloc`.
pub fn resident(host: &HostMemory) -> String {
    let parts = host.named().into_iter().filter(|(_, bytes)| *bytes > 0);
    let parts: Vec<String> = parts
        .map(|(name, bytes)| format!("{} {name}", units::bytes(bytes)))
        .collect();
    format!("{} resident: {}", units::bytes(host.resident_bytes), parts.join(", "))
}

/// What changed, by what holds it, by type, and by arena.
pub fn write_changes(changes: &HostChanges, same_process: bool, page: &mut Document) {
    let delta = i128::from(changes.after) - i128::from(changes.before);
    let changed = changed(same_process, delta);
    let to = format!(", to {} resident", units::bytes(changes.after));
    page.blank();
    page.line(bold("host memory ") + styled(style_of(delta), changed) + to);
    let lists = [
        ("by holder", &changes.holders, changes.hidden_holders),
        ("by type", &changes.types, changes.hidden_types),
        ("by arena", &changes.arenas, changes.hidden_arenas),
    ];
    let count = |row: &&HostChange| unless_zero(row.count_delta, |delta| format!("in {}", units::signed_count(delta)));
    let is_shown = |(_, rows, hidden): &(_, &Vec<HostChange>, usize)| !rows.is_empty() || *hidden > 0;
    for (title, rows, hidden) in lists.into_iter().filter(is_shown) {
        page.item(title);
        let table = Rows::of(rows).bare().indent(4);
        let table = table.column("change", |row| Cell::Delta(row.bytes_delta, None));
        let table = table.column("to", |row| format!("to {}", units::bytes(row.after)));
        page.table(
            table
                .column("count", count)
                .column("of", |row| Escaped(&row.name).to_string()),
        );
        page.more_at(4, hidden, "row", format!("; {}", parts::all_rows(changes.cut)));
    }
    page.blank();
}

#[cfg(test)]
mod tests {
    use culeak::analysis::report::Cut;

    use super::*;

    #[test]
    fn rows_that_are_cut_off_are_counted() {
        let row = HostChange {
            name: "dict".to_owned(),
            before: 100,
            after: 200,
            bytes_delta: 100,
            count_delta: 1,
        };
        let changes = HostChanges {
            before: 100,
            after: 500,
            holders: Vec::new(),
            hidden_holders: 0,
            types: vec![row],
            hidden_types: 2,
            arenas: Vec::new(),
            hidden_arenas: 1,
            cut: Cut {
                below_min: 1,
                beyond_top: 2,
            },
        };
        let mut page = Document::default();
        write_changes(&changes, true, &mut page);
        let text = crate::text::tests::plain(|out| page.text(out));
        let all = "; --top 0 --min-bytes 0 shows all";
        assert!(text.contains(&format!("… and 2 more rows{all}")), "{text}");
        assert!(text.contains(&format!("by arena\n    … and 1 more row{all}")), "{text}");
        assert!(!text.contains("by holder"), "{text}");
    }
}
