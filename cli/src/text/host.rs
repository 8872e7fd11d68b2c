//! Host memory: by type and arena, and how it changed.

use culeak::analysis::diff::{HostChange, HostChanges};
use culeak::analysis::why::Why;
use culeak::snapshot::{HostMemory, HostRow};

use super::{diff, units, why};
use crate::document::{BOLD, Cell, Document, Rows, bold, styled};
use crate::escape::Escaped;

/// What is resident by type or arena, the largest first, `top` at most.
pub fn page(of: &Why, rows: &[HostRow], top: Option<usize>) -> Document {
    let mut page = Document::default();
    let (shown, rest) = rows.split_at(rows.len().min(top.unwrap_or(usize::MAX)));
    let count = |row: &&HostRow| match row.count {
        0 => Cell::Things(0, String::new()),
        count => Cell::Things(count, format!("in {}", units::count(count))),
    };
    let free = |row: &&HostRow| match row.free_bytes {
        0 => String::new(),
        bytes => format!("and {} free", units::bytes(bytes)),
    };
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
    let changed = diff::changed(same_process, delta);
    let to = format!(", to {} resident", units::bytes(changes.after));
    page.blank();
    page.line(bold("host memory ") + styled(diff::style_of(delta), changed) + to);
    let lists = [
        ("by holder", &changes.holders),
        ("by type", &changes.types),
        ("by arena", &changes.arenas),
    ];
    let count = |row: &&HostChange| match row.count_delta {
        0 => String::new(),
        delta => format!("in {}", units::signed_count(delta)),
    };
    for (title, rows) in lists.into_iter().filter(|(_, rows)| !rows.is_empty()) {
        page.item(title);
        let table = Rows::of(rows).bare().indent(4);
        let table = table.column("change", |row| Cell::Delta(row.bytes_delta, None));
        let table = table.column("to", |row| format!("to {}", units::bytes(row.after)));
        page.table(
            table
                .column("count", count)
                .column("of", |row| Escaped(&row.name).to_string()),
        );
    }
    page.blank();
}
