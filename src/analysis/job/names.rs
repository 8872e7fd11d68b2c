//! How processes are named in sentences about a part of a job: `rank 5`, `ranks 8-15`, `processes node1:4711, node2:80`.

use super::member::ranges;
use super::outliers::Naming;
use crate::analysis::words;

/// Ranges of numbers, or processes, that a sentence lists.
const SHOWN: usize = 8;

/// A process, as far as its name needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Named<'a> {
    pub rank: Option<u32>,
    pub host: &'a str,
    pub pid: u32,
}

/// Ranks name processes if each has its own.
pub fn naming<'a>(all: impl Iterator<Item = Named<'a>>) -> Naming {
    let mut ranks: Vec<Option<u32>> = all.map(|process| process.rank).collect();
    ranks.sort_unstable();
    let each_has_its_own = ranks.iter().all(Option::is_some) && ranks.windows(2).all(|pair| pair[0] != pair[1]);
    match each_has_its_own {
        true => Naming::Rank,
        false => Naming::Pid,
    }
}

/// `rank` or `process`, in the number that fits.
pub fn noun(naming: Naming, count: u64) -> &'static str {
    match (naming, count) {
        (Naming::Rank, 1) => "rank",
        (Naming::Rank, _) => "ranks",
        (Naming::Pid, 1) => "process",
        (Naming::Pid, _) => "processes",
    }
}

/// The names of these processes. `several_hosts`: those of the job are on several, so that a pid alone names none.
pub fn list(named: &[Named], naming: Naming, several_hosts: bool) -> String {
    let noun = noun(naming, named.len() as u64);
    match naming {
        Naming::Rank => {
            let mut ranks: Vec<u32> = named.iter().filter_map(|process| process.rank).collect();
            ranks.sort_unstable();
            format!("{noun} {}", ranges(&ranks, 0, SHOWN))
        }
        Naming::Pid if several_hosts => {
            let mut sorted = named.to_vec();
            sorted.sort_unstable_by_key(|process| (process.host, process.pid));
            let shown = sorted.iter().take(SHOWN);
            let shown: Vec<String> = shown
                .map(|process| format!("{}:{}", process.host, process.pid))
                .collect();
            let more = match sorted.len().saturating_sub(SHOWN) {
                0 => String::new(),
                more => format!(" and {} more", words::count(more as u64)),
            };
            format!("{noun} {}{more}", shown.join(", "))
        }
        Naming::Pid => {
            let mut pids: Vec<u32> = named.iter().map(|process| process.pid).collect();
            pids.sort_unstable();
            format!("{noun} {}", ranges(&pids, 0, SHOWN))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_named_by_rank_if_each_has_its_own() {
        let process = |rank, pid| Named { rank, host: "a", pid };
        let ranks = [process(Some(9), 1), process(Some(8), 2), process(Some(3), 3)];
        assert_eq!(naming(ranks.into_iter()), Naming::Rank);
        assert_eq!(list(&ranks, Naming::Rank, true), "ranks 3, 8-9");
        assert_eq!(list(&ranks[..1], Naming::Rank, true), "rank 9");
        assert_eq!(
            naming([process(Some(1), 1), process(Some(1), 2)].into_iter()),
            Naming::Pid
        );
        assert_eq!(naming([process(Some(1), 1), process(None, 2)].into_iter()), Naming::Pid);
        assert_eq!(list(&ranks, Naming::Pid, false), "processes 1-3");
        assert_eq!(list(&ranks[2..], Naming::Pid, true), "process a:3");
    }
}
