//! What is compared: processes of both sides.

use std::collections::{BTreeMap, HashMap};

use super::By;
use crate::analysis::facts::Instant;
use crate::analysis::job::sites::ProcessSums;
use crate::analysis::site::file_name;

/// The indices of processes before and after that are compared, and why.
pub fn partners(before: &[ProcessSums], after: &[ProcessSums], warnings: &mut Vec<String>) -> Vec<(usize, usize, By)> {
    let mut found: Vec<(usize, usize, By)> = Vec::new();
    let mut taken = (vec![false; before.len()], vec![false; after.len()]);
    // The result is the number of processes that may have several partners.
    let mut pass = |by: By, key: &dyn Fn(&Instant) -> Option<String>| -> usize {
        let by_key = |side: &[ProcessSums], taken: &[bool]| {
            let mut found: BTreeMap<String, Vec<usize>> = BTreeMap::new();
            for (number, sums) in side.iter().enumerate().filter(|(number, _)| !taken[*number]) {
                if let Some(key) = key(&sums.row) {
                    found.entry(key).or_default().push(number);
                }
            }
            found
        };
        let (known, wanted) = (by_key(before, &taken.0), by_key(after, &taken.1));
        let mut twice = 0;
        for (key, news) in wanted {
            let Some(olds) = known.get(&key) else { continue };
            let mut pairs: Vec<(usize, usize)> = Vec::new();
            for &new in &news {
                let member = &after[new].row.member;
                let like = |old: &&usize| {
                    let other = &before[**old].row.member;
                    other.program.is_like(&member.program) && other.rank == member.rank
                };
                let mut likes = olds.iter().filter(like);
                match (likes.next(), likes.next()) {
                    (Some(&old), None) => pairs.push((old, new)),
                    (Some(_), Some(_)) => twice += 1,
                    (None, _) => {}
                }
            }
            // Two later processes may have one earlier partner.
            let mut used: HashMap<usize, usize> = HashMap::new();
            pairs.iter().for_each(|pair| *used.entry(pair.0).or_default() += 1);
            for (old, new) in pairs {
                match used[&old] {
                    1 => {
                        (taken.0[old], taken.1[new]) = (true, true);
                        found.push((old, new, by));
                    }
                    _ => twice += 1,
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
    found
}
