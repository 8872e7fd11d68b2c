//! Lineages: the snapshots of one process, or of one program that was restarted, in order of time.
//!
//! A restarted program begins after its predecessor's last snapshot. Ranks of a job run at the same time, so each is a
//! separate lineage, although all run one program.

use super::Summary;
use crate::analysis::program::Program;

/// One list for each lineage, in order of time, without duplicates.
pub fn lineages(mut summaries: Vec<Summary>) -> Vec<Vec<Summary>> {
    // The end of a killed process is not recorded: the known time may precede its last automatic snapshot.
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
