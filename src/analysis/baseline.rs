//! A baseline: known memory by call site, so that a check reports only what is new or has grown.
//!
//! It is a small JSON file, to be committed with the code. [`pair`] matches its sites, so edits elsewhere in the file,
//! another build or another machine change nothing. Deliberately absent: stacks; all stacks of a site are one entry.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::analysis::pairing::{Key, pair};
use crate::analysis::program::Program;
use crate::analysis::report::Row;
use crate::analysis::site::Fingerprint;
use crate::analysis::tally::Tally;
use crate::point::Point;

/// The value of [`Baseline::format`].
pub const FORMAT: &str = "culeak-baseline";
pub const VERSION: u32 = 3;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    /// Always [`FORMAT`].
    pub format: String,
    pub version: u32,
    /// The programs that the sites belong to; empty if unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<Program>,
    /// The points in time at which the sites held this memory; empty: at exit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<Point>,
    pub sites: Vec<Site>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// The function, for readers; not used for matching.
    pub label: String,
    /// File and line, for readers.
    pub place: Option<String>,
    /// `site_fingerprint` and `loose_site_fingerprint` of a report.
    pub fingerprint: String,
    pub loose_fingerprint: String,
    pub line: Option<u32>,
    pub bytes: u64,
    pub count: u64,
}

impl Baseline {
    /// The sites of these rows, sorted by name so that a new version of the file differs little.
    pub fn of(program: Program, at: Vec<Point>, rows: &[Row]) -> Baseline {
        let mut sites: BTreeMap<(String, Option<String>, Fingerprint), Site> = BTreeMap::new();
        for row in rows {
            let key = Key::of_site(row);
            let place = row.site().and_then(|site| site.short_place());
            let site = sites
                .entry((row.label.clone(), place.clone(), key.exact))
                .or_insert(Site {
                    label: row.label.clone(),
                    place,
                    fingerprint: key.exact.to_string(),
                    loose_fingerprint: key.loose.to_string(),
                    line: key.line,
                    bytes: 0,
                    count: 0,
                });
            site.bytes = site.bytes.saturating_add(row.bytes);
            site.count = site.count.saturating_add(row.count);
        }
        Baseline {
            format: FORMAT.to_owned(),
            version: VERSION,
            programs: vec![program],
            at,
            sites: sites.into_values().collect(),
        }
    }

    /// The baseline for several processes: for each site, the most that one of them held.
    pub fn most_of(baselines: impl Iterator<Item = Baseline>) -> Baseline {
        let mut sites: BTreeMap<(String, Option<String>, String), Site> = BTreeMap::new();
        let mut programs = BTreeSet::new();
        let mut at = Vec::new();
        for baseline in baselines {
            programs.extend(baseline.programs);
            for point in baseline.at {
                if !at.contains(&point) {
                    at.push(point);
                }
            }
            for site in baseline.sites {
                let key = (site.label.clone(), site.place.clone(), site.fingerprint.clone());
                let most = sites.entry(key).or_insert_with(|| site.clone());
                most.bytes = most.bytes.max(site.bytes);
                most.count = most.count.max(site.count);
            }
        }
        Baseline {
            format: FORMAT.to_owned(),
            version: VERSION,
            programs: programs.into_iter().collect(),
            at,
            sites: sites.into_values().collect(),
        }
    }

    /// Whether the baseline may be of this program. One without programs may be of any.
    pub fn is_of(&self, program: &Program) -> bool {
        self.programs.is_empty() || self.programs.iter().any(|known| known.is_like(program))
    }

    /// The points at which the memory was held; not empty.
    pub fn points(&self) -> Vec<Point> {
        match self.at.is_empty() {
            true => vec![Point::Exit],
            false => self.at.clone(),
        }
    }

    /// The baseline's tally for each row, in the order of the rows.
    pub fn known(&self, rows: &[Row]) -> Vec<Option<Tally>> {
        let print = |text: &str| Fingerprint(u64::from_str_radix(text, 16).unwrap_or_default());
        let before: Vec<Key> = self
            .sites
            .iter()
            .map(|site| Key {
                exact: print(&site.fingerprint),
                loose: print(&site.loose_fingerprint),
                line: site.line,
                pool: false,
            })
            .collect();
        let after = rows.iter().map(|row| Key {
            pool: false,
            ..Key::of_site(row)
        });
        let partners = pair(&before, &after.collect::<Vec<_>>(), true);
        let tally = |site: usize| Tally {
            bytes: self.sites[site].bytes,
            count: self.sites[site].count,
        };
        partners.into_iter().map(|partner| partner.map(tally)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::groups::Groups;
    use crate::analysis::report::{By, rows_by};
    use crate::analysis::site::CallStacks;
    use crate::kind::Kind;
    use crate::sample::{MAIN, MIB, RUNTIME, Sample};
    use crate::snapshot::Snapshot;

    /// A program whose function `fill` leaks this number of blocks on each line.
    fn leaking(lines: &[(u32, u64)]) -> Snapshot {
        let mut sample = Sample::new();
        for (line, blocks) in lines {
            let place = format!("/src/cache.cu:{line}");
            let stack = sample.stack(&[RUNTIME, ("Cache::fill()", &place, "/opt/app"), MAIN]);
            sample.holds(Kind::Device, "cudaMalloc", MIB, *blocks, stack);
        }
        sample.finish(0, 0)
    }

    fn with_rows<T>(snapshot: &Snapshot, look: impl FnOnce(&[Row]) -> T) -> T {
        let stacks = CallStacks::of(snapshot);
        let groups = Groups::of(snapshot, &stacks);
        look(&rows_by(snapshot, &stacks, groups.all.iter(), By::Site))
    }

    /// Blocks now and blocks known, by line.
    fn known(before: &[(u32, u64)], after: &[(u32, u64)]) -> Vec<(u64, Option<u64>)> {
        let baseline = with_rows(&leaking(before), |rows| {
            Baseline::of(Program::default(), vec![Point::Exit], rows)
        });
        with_rows(&leaking(after), |rows| {
            let known = baseline.known(rows);
            let counts = rows.iter().zip(known);
            counts
                .map(|(row, known)| (row.count, known.map(|known| known.count)))
                .collect()
        })
    }

    #[test]
    fn sites_match_after_their_lines_moved() {
        assert_eq!(known(&[(8, 3)], &[(8, 4)]), [(4, Some(3))]);
        assert_eq!(known(&[(8, 3)], &[(19, 4)]), [(4, Some(3))]);
        assert_eq!(
            known(&[(8, 3), (12, 5)], &[(10, 4), (14, 6)]),
            [(6, Some(5)), (4, Some(3))]
        );
    }

    #[test]
    fn the_line_decides_between_sites_of_one_function() {
        assert_eq!(known(&[(8, 3), (12, 5)], &[(12, 6)]), [(6, Some(5))]);
        // One more site in the same function is new.
        assert_eq!(known(&[(8, 3)], &[(8, 4), (12, 2)]), [(4, Some(3)), (2, None)]);
    }

    #[test]
    fn a_function_with_the_same_name_in_another_file_is_another_site() {
        let of_file = |place: &str| {
            let mut sample = Sample::new();
            let stack = sample.stack(&[RUNTIME, ("operator()", place, "/opt/app"), MAIN]);
            sample.holds(Kind::Device, "cudaMalloc", MIB, 1, stack);
            sample.finish(0, 0)
        };
        let known = |before: &str, after: &str| {
            let baseline = with_rows(&of_file(before), |rows| {
                Baseline::of(Program::default(), vec![Point::Exit], rows)
            });
            with_rows(&of_file(after), |rows| baseline.known(rows)[0].is_some())
        };
        assert!(!known("/src/cache.cu:8", "/src/plan.cu:8"));
        // Edited, and built in another folder.
        assert!(known("/src/cache.cu:8", "/build/7/cache.cu:12"));
    }

    #[test]
    fn a_written_baseline_reads_back_equal() {
        let baseline = with_rows(&leaking(&[(8, 3)]), |rows| {
            Baseline::of(Program::default(), vec![Point::Exit], rows)
        });
        let json = serde_json::to_string(&baseline).expect("json");
        assert_eq!(serde_json::from_str::<Baseline>(&json).expect("a baseline"), baseline);
    }
}
