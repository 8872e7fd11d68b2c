//! A baseline: known memory and objects by call site, so that a check reports only what is new or has grown.
//!
//! It is a small JSON file, to be committed with the code. [`pair`] matches its sites, so edits elsewhere in the file,
//! another build or another machine change nothing. Deliberately absent: stacks; all stacks of a site are one entry.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::analysis::objects::ObjectRow;
use crate::analysis::pairing::{Key, pair};
use crate::analysis::program::Program;
use crate::analysis::report::Row;
use crate::analysis::site::Fingerprint;
use crate::analysis::tally::Tally;
use crate::kind::Kind;
use crate::point::Point;

/// The value of [`Baseline::format`].
pub const FORMAT: &str = "culeak-baseline";
pub const VERSION: u32 = 3;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// Objects without an address; `None`: they are not judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<Vec<ObjectSite>>,
}

/// Objects of one kind, of one call site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ObjectSite {
    /// The name of a [`Kind`].
    pub kind: String,
    /// As those of a [`Site`].
    pub label: String,
    pub place: Option<String>,
    pub fingerprint: String,
    pub loose_fingerprint: String,
    pub line: Option<u32>,
    pub count: u64,
}

impl ObjectSite {
    fn of(row: &ObjectRow) -> ObjectSite {
        let site = row.stack.site();
        ObjectSite {
            kind: row.kind.to_owned(),
            label: row.label.clone(),
            place: site.and_then(|site| site.short_place()),
            fingerprint: row.stack.site_fingerprint.to_string(),
            loose_fingerprint: row.stack.loose_site_fingerprint.to_string(),
            line: site.and_then(|site| site.line),
            count: row.count,
        }
    }

    /// What the file is sorted by.
    fn name(&self) -> (&str, &str, Option<&str>, &str) {
        (&self.kind, &self.label, self.place.as_deref(), &self.fingerprint)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    pub fn of(program: Program, at: Vec<Point>, rows: &[Row], objects: Option<&[ObjectRow]>) -> Baseline {
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
            objects: objects.map(|rows| {
                let mut objects: Vec<ObjectSite> = rows.iter().map(ObjectSite::of).collect();
                objects.sort_by(|one, other| one.name().cmp(&other.name()));
                objects
            }),
        }
    }

    /// The baseline for several processes: for each site, the most that one of them held.
    pub fn most_of(baselines: impl Iterator<Item = Baseline>) -> Baseline {
        let mut sites: BTreeMap<(String, Option<String>, String), Site> = BTreeMap::new();
        let mut objects: Option<BTreeMap<_, ObjectSite>> = Some(BTreeMap::new());
        let mut programs = BTreeSet::new();
        let mut at = Vec::new();
        for baseline in baselines {
            // Those of every process must be known.
            match (&mut objects, baseline.objects) {
                (Some(known), Some(more)) => {
                    for of in more {
                        let name = of.name();
                        let name = (
                            name.0.to_owned(),
                            name.1.to_owned(),
                            name.2.map(str::to_owned),
                            name.3.to_owned(),
                        );
                        let most = known.entry(name).or_insert_with(|| of.clone());
                        most.count = most.count.max(of.count);
                    }
                }
                _ => objects = None,
            }
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
            objects: objects.map(|objects| objects.into_values().collect()),
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

    /// The baseline's number of objects for each row, in the order of the rows. `None`: the baseline has no objects.
    pub fn known_objects(&self, rows: &[ObjectRow]) -> Option<Vec<Option<u64>>> {
        let objects = self.objects.as_ref()?;
        // Those of kinds that this version does not know match nothing.
        let before = objects.iter().filter_map(|of| Some((of, Kind::from_name(&of.kind)?)));
        let (counts, before): (Vec<u64>, Vec<Key>) = before
            .map(|(of, kind)| {
                let key = Key {
                    exact: print(&of.fingerprint),
                    loose: print(&of.loose_fingerprint),
                    line: of.line,
                    pool: false,
                };
                (of.count, key.of_kind(kind))
            })
            .unzip();
        let after = rows.iter().map(|row| {
            let key = Key {
                exact: row.stack.site_fingerprint,
                loose: row.stack.loose_site_fingerprint,
                line: row.stack.site().and_then(|site| site.line),
                pool: false,
            };
            Kind::from_name(row.kind).map_or(key, |kind| key.of_kind(kind))
        });
        let partners = pair(&before, &after.collect::<Vec<_>>(), true);
        Some(
            partners
                .into_iter()
                .map(|partner| partner.map(|site| counts[site]))
                .collect(),
        )
    }

    /// The baseline's tally for each row, in the order of the rows.
    pub fn known(&self, rows: &[Row]) -> Vec<Option<Tally>> {
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

fn print(text: &str) -> Fingerprint {
    Fingerprint(u64::from_str_radix(text, 16).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::groups::Groups;
    use crate::analysis::report::{By, rows_by};
    use crate::analysis::site::CallStacks;
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
            Baseline::of(Program::default(), vec![Point::Exit], rows, None)
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
                Baseline::of(Program::default(), vec![Point::Exit], rows, None)
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
            Baseline::of(Program::default(), vec![Point::Exit], rows, None)
        });
        let json = serde_json::to_string(&baseline).expect("json");
        assert_eq!(serde_json::from_str::<Baseline>(&json).expect("a baseline"), baseline);
    }
}
