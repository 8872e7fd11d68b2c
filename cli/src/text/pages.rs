//! Pools of pages: the states, and the owners that hold pages.

use culeak::analysis::pages::{OwnerOfPages, PagesOfPool};

use super::units;
use crate::document::{BAD, Cell, Document, PLAIN, Rows, bold, things};
use crate::escape::Escaped;

pub fn write(pools: &[PagesOfPool], page: &mut Document) {
    pools.iter().for_each(|pool| write_pool(pool, page));
}

fn write_pool(pool: &PagesOfPool, page: &mut Document) {
    let states = [
        (pool.pages.live, "live"),
        (pool.pages.reclaimable, "only cached"),
        (pool.pages.waiting, "waiting for a transfer"),
        (pool.pages.free, "free"),
    ];
    let states: Vec<String> = (states.iter().filter(|(count, _)| *count > 0))
        .map(|(count, state)| format!("{} {state}", units::count(*count)))
        .collect();
    page.line(
        bold(format!("pages of {}", Escaped(pool.domain)))
            + format!("  {}; {} each", states.join(", "), units::bytes(pool.page_bytes)),
    );
    let size = |pages: u64| Cell::Size(pages.saturating_mul(pool.page_bytes));
    let no_owner = (pool.unowned > 0).then(|| (pool.unowned, "of no owner, at least".to_owned(), String::new(), true));
    let owners = pool.owners.iter().map(|owner| {
        let is_bad = owner.ended_age_ns.is_some();
        (owner.pages.held(), Escaped(owner.name).to_string(), age(owner), is_bad)
    });
    let rows: Vec<_> = no_owner.into_iter().chain(owners).collect();
    if rows.is_empty() {
        return;
    }
    page.table(
        Rows::of(&rows)
            .bare()
            .column("bytes", |row| size(row.0))
            .column("pages", |row| things(row.0, "page"))
            .column("owner", |row| row.1.clone())
            .column("age", |row| row.2.clone())
            .style(|row| if row.3 { BAD } else { PLAIN }),
    );
    page.more(pool.hidden_owners, "owner", "; --top 0 shows all");
}

/// `ended 2 m 3 s ago, waiting for a transfer, 2 m 10 s old`.
fn age(owner: &OwnerOfPages) -> String {
    let ended = owner
        .ended_age_ns
        .map(|age| format!("ended {} ago", units::duration(age)));
    let waits = (owner.pages.waiting > 0).then(|| "waiting for a transfer".to_owned());
    let age = format!("{} old", units::duration(owner.age_ns));
    let parts: Vec<String> = ended.into_iter().chain(waits).chain([age]).collect();
    parts.join(", ")
}
