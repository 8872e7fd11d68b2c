//! Memory that several processes of a job have open.

use std::io::{self, Write};

use culeak::analysis::job::JobReport;
use culeak::analysis::job::names::{self, Named};
use culeak::analysis::job::shared::{SharedRow, SharedWith};

use super::super::parts::{DIM, Styled};
use super::super::units::{self, plural};
use super::name;
use crate::escape::Escaped;

/// Lines of the text.
const SHOWN: usize = 10;

pub fn write(job: &JobReport, out: &mut dyn Write) -> io::Result<()> {
    if job.shared.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\nshared between processes, and counted once, for the process that allocated it:"
    )?;
    for line in lines(job).take(SHOWN) {
        writeln!(out, "  {line}")?;
    }
    match job.shared.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "  {}", Styled(DIM, format!("… and {more} more; --json lists all"))),
    }
}

/// `64 MiB in 2 blocks of rank 0, weights  train.py:12; open in ranks 1-7, attach  train.py:40`
pub fn lines(job: &JobReport) -> impl Iterator<Item = String> {
    let named = |row: &SharedWith| Named {
        rank: row.rank,
        host: "",
        pid: row.pid,
    };
    let all = job.processes.iter().map(|process| Named {
        rank: process.row.member.rank,
        host: &process.row.member.host,
        pid: process.row.member.pid,
    });
    let naming = names::naming(all);
    // Handles are valid on one host.
    let list = move |of: &[SharedWith]| names::list(&of.iter().map(named).collect::<Vec<_>>(), naming, false);
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
        format!(
            "{} in {} of {owner}; open in {}{more}{}, {}",
            units::bytes(row.bytes),
            plural(row.blocks, "block", "blocks"),
            list(&row.users),
            host(row),
            name(&row.opened_at)
        )
    })
}
