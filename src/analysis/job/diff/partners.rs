//! What is compared: processes of both sides.

use std::collections::BTreeMap;

use super::By;
use crate::analysis::facts::Instant;
use crate::analysis::job::sites::ProcessSums;
use crate::analysis::site::file_name;

/// Processes before and after that are compared, and why.
pub type Partners = (ProcessSums, ProcessSums, By);

/// Pairs of processes, sorted by program, rank, host and pid, and the processes that only one side has.
pub fn partners(
    sides: [Vec<ProcessSums>; 2],
    warnings: &mut Vec<String>,
) -> (Vec<Partners>, [impl Iterator<Item = ProcessSums>; 2]) {
    let [mut olds, mut news] = sides.map(|side| side.into_iter().map(Some).collect::<Vec<_>>());
    let mut found: Vec<Partners> = Vec::new();
    // The result is the number of processes that may have several partners.
    let mut pass = |by: By, key: &dyn Fn(&Instant) -> Option<String>| -> usize {
        let by_key = |side: &[Option<ProcessSums>]| {
            let mut numbers: BTreeMap<String, Vec<usize>> = BTreeMap::new();
            for (number, sums) in side.iter().enumerate() {
                if let Some(key) = sums.as_ref().and_then(|sums| key(&sums.row)) {
                    numbers.entry(key).or_default().push(number);
                }
            }
            numbers
        };
        let (known, wanted) = (by_key(&olds), by_key(&news));
        let mut twice = 0;
        for (key, of_key) in wanted {
            // Two later processes may have one earlier partner.
            let mut later: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for new in of_key {
                let is_like = |old: &&usize| {
                    let [old, new] = [&olds[**old], &news[new]].map(|sums| sums.as_ref().map(|sums| &sums.row.member));
                    let members = old.zip(new);
                    members.is_some_and(|(old, new)| old.program.is_like(&new.program) && old.rank == new.rank)
                };
                let mut likes = known.get(&key).into_iter().flatten().filter(is_like);
                match (likes.next(), likes.next()) {
                    (Some(&old), None) => later.entry(old).or_default().push(new),
                    (Some(_), Some(_)) => twice += 1,
                    (None, _) => {}
                }
            }
            for (old, of_old) in later {
                match of_old[..] {
                    [new] => found.extend(olds[old].take().zip(news[new].take()).map(|(old, new)| (old, new, by))),
                    _ => twice += of_old.len(),
                }
            }
        }
        twice
    };
    let same = |row: &Instant| {
        let member = &row.member;
        (member.pid != 0).then(|| format!("{}\0{}\0{}", member.host, member.pid, member.started_unix_ns))
    };
    pass(By::Process, &same);
    if pass(By::Rank, &|row| Some(row.member.rank?.to_string())) > 0 {
        warnings.push(
            "several processes of a side have the same rank; these may be recordings of several jobs, so they are compared by the \
             names of their files"
                .to_owned(),
        );
    }
    pass(By::Name, &|row| Some(file_name(&row.source).to_owned()));
    pass(By::Program, &|_| Some(String::new()));
    found.sort_by_cached_key(|(_, new, _)| new.row.order());
    (found, [olds, news].map(|left| left.into_iter().flatten()))
}
