//! Memory that several processes of a job have open.

use culeak::analysis::job::JobReport;
use culeak::analysis::job::member::ProcessRef;
use culeak::analysis::job::names::Naming;
use culeak::analysis::job::shared::SharedRow;

use super::super::units;
use super::name;
use crate::document::{Document, counted};
use crate::escape::Escaped;

/// Lines of the text.
const SHOWN: usize = 10;

pub fn write(job: &JobReport, page: &mut Document) {
    if job.shared.is_empty() {
        return;
    }
    page.blank();
    page.line("shared between processes, and counted once, for the process that allocated it:");
    lines(job).take(SHOWN).for_each(|line| page.item(line));
    page.more(job.shared.len().saturating_sub(SHOWN), "line", "; --json lists all");
}

/// `64 MiB in 2 blocks of rank 0, weights  train.py:12; open in ranks 1-7, attach  train.py:40`
fn lines(job: &JobReport) -> impl Iterator<Item = String> {
    let naming = Naming::of((job.processes.iter()).map(|process| process.row.member.rank));
    // Handles are valid on one host.
    let list = move |of: &[ProcessRef]| naming.list(&of.iter().map(ProcessRef::name).collect::<Vec<_>>(), false);
    let host = |row: &SharedRow| match row.users.first() {
        Some(user) if job.hosts > 1 => format!(" on {}", Escaped(&user.host)),
        _ => String::new(),
    };
    job.shared.iter().map(move |row| {
        let owner = match (&row.owner, &row.site) {
            (Some(owner), Some(site)) => format!("{}, {}", list(std::slice::from_ref(owner)), name(site)),
            _ => "a process that is not among these".to_owned(),
        };
        let more = match row.of_users.saturating_sub(row.users.len() as u64) {
            0 => String::new(),
            more => format!(" and {} more", units::count(more)),
        };
        let (bytes, blocks) = (units::bytes(row.bytes), counted(row.blocks, "block"));
        let (users, host, opened_at) = (list(&row.users), host(row), name(&row.opened_at));
        format!("{bytes} in {blocks} of {owner}; open in {users}{more}{host}, {opened_at}")
    })
}
