//! Changes of a job as text: the call sites that changed, each with who changed by how much, then the processes.

use std::io::{self, Write};

use culeak::analysis::job::diff::{By, JobDiff, Pair, SideLine, SiteChange};
use culeak::analysis::job::sites::ProcessRow;
use culeak::analysis::report::shell_word;
use culeak::analysis::tally::Tally;

use super::{Table, name};
use crate::escape::Escaped;
use crate::text::parts::{self, BAD, BOLD, DIM, GOOD, PLAIN, Styled, WARN};
use crate::text::units::{self, plural};

/// Processes of one side alone that are named.
const LONE: usize = 8;
/// Unreadable inputs that are listed.
const UNREADABLE: usize = 10;

/// Writes at most `top` processes; the call sites were cut before.
pub fn write(diff: &JobDiff, top: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    headline(diff, out)?;
    sites(diff, out)?;
    writeln!(out)?;
    processes(diff, top, out)?;
    for (side, word) in [(&diff.before, "before"), (&diff.after, "after")] {
        unreadable(side, word, out)?;
    }
    parts::warnings(out, &diff.warnings)?;
    let apart = || {
        diff.sites
            .iter()
            .find_map(|row| row.stands_out.as_ref()?.processes.first())
    };
    let apart = apart().map(|changed| (changed.before.as_str(), changed.after.as_str()));
    let most = || diff.pairs.iter().max_by_key(|pair| pair.change().unsigned_abs());
    let most = || most().map(|pair| (pair.before.source.as_str(), pair.after.source.as_str()));
    match apart.or_else(most) {
        Some((before, after)) => {
            let command = format!("culeak diff {} {} --stacks", shell_word(before), shell_word(after));
            parts::next(out, &command)
        }
        None => Ok(()),
    }
}

/// `8 processes of train on 1 host: +30 MiB between two runs, from 256 MiB to 286 MiB`.
fn headline(diff: &JobDiff, out: &mut dyn Write) -> io::Result<()> {
    let processes = plural(diff.pairs.len() as u64, "process", "processes");
    let of = match diff.programs.as_slice() {
        [program] => program.to_string(),
        programs => plural(programs.len() as u64, "program", "programs"),
    };
    let hosts = plural(diff.hosts as u64, "host", "hosts");
    let delta = i128::from(diff.held_after.bytes) - i128::from(diff.held_before.bytes);
    let what = match (diff.same_processes, delta) {
        (_, 0) if diff.sites.is_empty() && diff.hidden_sites == 0 => "no change".to_owned(),
        (true, 0..) => format!("grew by {}", units::bytes(u64::try_from(delta).unwrap_or(u64::MAX))),
        (true, _) => format!("shrank by {}", units::bytes(u64::try_from(-delta).unwrap_or(u64::MAX))),
        (false, _) => format!("{} between two runs", units::signed_bytes(delta)),
    };
    let kinds = match diff.kinds.as_slice() {
        [] => String::new(),
        kinds => format!(", {} memory", kinds.join(" and ")),
    };
    let style = match delta {
        1.. => BAD,
        0 => PLAIN,
        _ => GOOD,
    };
    writeln!(
        out,
        "{}{kinds}: {}, from {} to {}",
        Styled(BOLD, format!("{processes} of {} on {hosts}", Escaped(&of))),
        Styled(style, what),
        units::bytes(diff.held_before.bytes),
        units::bytes(diff.held_after.bytes),
    )?;
    parts::opaque_pools(out, &diff.opaque_pools)?;
    for (rows, word) in [(&diff.only_before, "before"), (&diff.only_after, "after")] {
        if !rows.is_empty() {
            writeln!(out, "{}", Styled(WARN, lone(rows, word)))?;
        }
    }
    for (side, word) in [(&diff.before, "before"), (&diff.after, "after")] {
        if side.earlier_snapshots > 0 {
            let earlier = plural(side.earlier_snapshots as u64, "earlier snapshot", "earlier snapshots");
            writeln!(
                out,
                "{}",
                Styled(DIM, format!("{word}: {earlier} of the same processes left out"))
            )?;
        }
    }
    Ok(())
}

/// `only before: 2 processes with 64 MiB, not compared: rank 6, rank 7`.
fn lone(rows: &[ProcessRow], word: &str) -> String {
    let held = Tally::total(rows.iter().map(|row| row.held));
    let names = rows.iter().take(LONE).map(|row| match row.member.rank {
        Some(rank) => format!("rank {rank}"),
        None => format!("{}:{}", Escaped(&row.member.host), row.member.pid),
    });
    let mut names: Vec<String> = names.collect();
    if rows.len() > LONE {
        names.push(format!("{} more", units::count((rows.len() - LONE) as u64)));
    }
    let processes = plural(rows.len() as u64, "process", "processes");
    format!(
        "only {word}: {processes} with {}, not compared: {}",
        units::bytes(held.bytes),
        names.join(", ")
    )
}

fn sites(diff: &JobDiff, out: &mut dyn Write) -> io::Result<()> {
    if diff.sites.is_empty() && diff.hidden_sites == 0 {
        return writeln!(out, "no call site changed");
    }
    let row = |row: &SiteChange| {
        let style = match (&row.stands_out, row.bytes_delta) {
            (Some(_), 0..) => BAD,
            _ => PLAIN,
        };
        let changed = format!(
            "{}/{}",
            units::count(row.grown + row.shrunk),
            units::count(row.of_processes)
        );
        let cells = vec![
            units::signed_bytes(row.bytes_delta),
            units::signed_bytes(row.median_delta.into()),
            units::signed_bytes(row.min_delta.into()),
            units::signed_bytes(row.max_delta.into()),
            changed,
            format!("{}  {}", name(&row.site), Escaped(&row.sentence)),
        ];
        (style, cells)
    };
    let table = Table {
        header: vec!["change", "median", "min", "max", "processes", "call site"],
        right: vec![true, true, true, true, true, false],
        rows: diff.sites.iter().map(row).collect(),
    };
    table.write(out)?;
    if diff.hidden_sites > 0 {
        let rows = plural(diff.hidden_sites as u64, "more call site", "more call sites");
        let more = format!("… and {rows} that changed; --top 0 --min-bytes 0 shows all");
        writeln!(out, "  {}", Styled(DIM, more))?;
    }
    if diff.unchanged_sites > 0 {
        let same = plural(diff.unchanged_sites as u64, "call site", "call sites");
        writeln!(out, "  {}", Styled(DIM, format!("{same} did not change")))?;
    }
    Ok(())
}

/// The processes that changed, those unlike the others first, then by change.
fn processes(diff: &JobDiff, top: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    // Peaks are of all kinds.
    let with_peaks = diff.kinds.is_empty();
    let peak_change = |pair: &Pair| if with_peaks { pair.peak_change() } else { 0 };
    let is_same = |pair: &&Pair| pair.change() == 0 && peak_change(pair) == 0 && !pair.stands_out;
    let (same, mut changed): (Vec<&Pair>, Vec<&Pair>) = diff.pairs.iter().partition(is_same);
    changed.sort_by_key(|pair| std::cmp::Reverse((pair.stands_out, pair.change().unsigned_abs())));
    let shown = &changed[..changed.len().min(top.unwrap_or(usize::MAX))];
    let has_ranks = shown.iter().any(|pair| pair.after.member.rank.is_some());
    let by_name = shown.iter().any(|pair| pair.by == By::Name);
    let all: [(&'static str, bool, bool); 9] = [
        ("rank", true, has_ranks),
        ("host", false, true),
        ("pid", true, true),
        ("before", true, true),
        ("after", true, true),
        ("change", true, true),
        ("peak", true, with_peaks),
        ("recording", false, by_name),
        ("", false, true),
    ];
    let wanted: Vec<usize> = (0..all.len()).filter(|&column| all[column].2).collect();
    let row = |pair: &&Pair| {
        let member = &pair.after.member;
        let cells = [
            member.rank.map_or_else(String::new, |rank| rank.to_string()),
            Escaped(&member.host).to_string(),
            member.pid.to_string(),
            units::bytes(pair.before.held.bytes),
            units::bytes(pair.after.held.bytes),
            units::signed_bytes(pair.change()),
            units::signed_bytes(pair.peak_change()),
            Escaped(&pair.after.source).to_string(),
            if pair.stands_out { "<- stands out" } else { "" }.to_owned(),
        ];
        let style = if pair.stands_out { BAD } else { PLAIN };
        (style, wanted.iter().map(|&column| cells[column].clone()).collect())
    };
    if !shown.is_empty() {
        let table = Table {
            header: wanted.iter().map(|&column| all[column].0).collect(),
            right: wanted.iter().map(|&column| all[column].1).collect(),
            rows: shown.iter().map(row).collect(),
        };
        table.write(out)?;
    }
    let hidden = changed.len() - shown.len();
    if hidden > 0 {
        let more = plural(hidden as u64, "more process", "more processes");
        let more = format!("… and {more} that changed; --top 0 shows all");
        writeln!(out, "  {}", Styled(DIM, more))?;
    }
    if !same.is_empty() {
        let same = plural(same.len() as u64, "process", "processes");
        writeln!(out, "  {}", Styled(DIM, format!("{same} did not change in sum")))?;
    }
    Ok(())
}

fn unreadable(side: &SideLine, word: &str, out: &mut dyn Write) -> io::Result<()> {
    if side.unreadable.is_empty() {
        return Ok(());
    }
    let count = plural(side.unreadable.len() as u64, "input", "inputs");
    writeln!(out, "{}", Styled(WARN, format!("not read {word}: {count}")))?;
    for input in side.unreadable.iter().take(UNREADABLE) {
        writeln!(out, "  {}: {}", Escaped(&input.source), Escaped(&input.reason))?;
    }
    Ok(())
}
