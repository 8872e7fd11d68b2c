//! Which snapshots belong behind one another: those of one process, and of one program that was restarted.
//!
//! A restarted program begins after its predecessor was last seen. Ranks of one job run side by side, so each is a
//! lineage of its own, though all are one program.

use super::Summary;
use crate::analysis::program::Program;

/// The snapshots in the order of time, one list for each lineage, without those that show one moment twice.
pub fn lineages(mut summaries: Vec<Summary>) -> Vec<Vec<Summary>> {
    // A killed process has no time of its end: what is known may be older than the last snapshot that was kept.
    summaries.sort_by(|a, b| (&a.process, a.at_end, a.at_ns).cmp(&(&b.process, b.at_end, b.at_ns)));
    for nth in 1..summaries.len() {
        let (before, summary) = (&summaries[nth - 1], &summaries[nth]);
        if summary.at_end && summary.process == before.process {
            let (at_ns, marks, mark) = (before.at_ns, before.marks, before.mark.clone());
            let summary = &mut summaries[nth];
            summary.at_ns = summary.at_ns.max(at_ns);
            if summary.marks < marks {
                (summary.marks, summary.mark) = (marks, mark);
            }
        }
    }
    summaries.dedup_by(|later, earlier| {
        later.process == earlier.process && later.at_ns == earlier.at_ns && later.at_end == earlier.at_end
    });
    let mut lineages: Vec<Vec<Summary>> = Vec::new();
    let mut rest = summaries.into_iter().peekable();
    while let Some(first) = rest.next() {
        let mut process = vec![first];
        while let Some(next) = rest.next_if(|next| next.process == process[0].process) {
            process.push(next);
        }
        let predecessor = lineages.iter_mut().find(|lineage| follows(&process, lineage));
        match predecessor {
            Some(lineage) => lineage.extend(process),
            None => lineages.push(process),
        }
    }
    lineages
}

fn follows(process: &[Summary], lineage: &[Summary]) -> bool {
    let (first, last) = (&process[0], &lineage[lineage.len() - 1]);
    first.process.ranks == last.process.ranks
        && first.program.is_like(&last.program)
        && first.process.started_unix_ns >= last.at_unix_ns()
}

/// The different programs among the snapshots.
pub fn programs(summaries: &[Summary]) -> Vec<&Program> {
    let mut found: Vec<&Program> = Vec::new();
    for summary in summaries {
        if !found.iter().any(|known| known.is_like(&summary.program)) {
            found.push(&summary.program);
        }
    }
    found
}
