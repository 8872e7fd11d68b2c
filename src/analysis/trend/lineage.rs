//! Lineages: the snapshots of one process, or of one program that was restarted, in order of time.
//!
//! A restarted program begins after its predecessor's last snapshot. Ranks of a job run at the same time, so each is a
//! separate lineage, although all run one program.

use crate::analysis::facts::{Facts, Instant};
use crate::analysis::program::Program;
use crate::job_variables::is_of_job;

/// The facts of each lineage, in order of time, without duplicates.
pub fn lineages(mut all: Vec<Facts>) -> Vec<Facts> {
    // The end of a killed process is not recorded: the known time may precede its last automatic snapshot.
    all.sort_by(|a, b| {
        let (a, b) = (instant(a), instant(b));
        (&a.process, a.at_end, a.at_ns).cmp(&(&b.process, b.at_end, b.at_ns))
    });
    for nth in 1..all.len() {
        let (before, of) = all.split_at_mut(nth);
        let (before, of) = (instant(&before[nth - 1]), &mut of[0].instants[0]);
        if of.at_end && of.process == before.process {
            of.at_ns = of.at_ns.max(before.at_ns);
            if of.marks < before.marks {
                (of.marks, of.mark) = (before.marks, before.mark.clone());
            }
        }
    }
    all.dedup_by(|later, earlier| {
        let (later, earlier) = (instant(later), instant(earlier));
        later.process == earlier.process && later.at_ns == earlier.at_ns && later.at_end == earlier.at_end
    });
    let mut lineages: Vec<Facts> = Vec::new();
    let mut rest = all.into_iter().peekable();
    while let Some(mut process) = rest.next() {
        while let Some(next) = rest.next_if(|next| instant(next).process == instant(&process).process) {
            process.fold(next);
        }
        let predecessor = lineages.iter_mut().find(|lineage| follows(&process, lineage));
        match predecessor {
            Some(lineage) => lineage.fold(process),
            None => lineages.push(process),
        }
    }
    lineages
}

/// The first of the facts' instants.
fn instant(facts: &Facts) -> &Instant {
    &facts.instants[0]
}

fn follows(process: &Facts, lineage: &Facts) -> bool {
    let (first, last) = (instant(process), &lineage.instants[lineage.instants.len() - 1]);
    let of_job = |instant: &Instant| {
        let variables = instant.process.ranks.clone().into_iter();
        variables.filter(|(name, _)| is_of_job(name)).collect::<Vec<_>>()
    };
    of_job(first) == of_job(last)
        && first.member.program.is_like(&last.member.program)
        && first.process.started_unix_ns >= last.time_unix_ns()
}

/// The different programs among the snapshots.
pub fn programs(all: &[Facts]) -> Vec<&Program> {
    let mut programs: Vec<&Program> = Vec::new();
    for instant in all.iter().flat_map(|facts| &facts.instants) {
        if !programs.iter().any(|known| known.is_like(&instant.member.program)) {
            programs.push(&instant.member.program);
        }
    }
    programs
}
