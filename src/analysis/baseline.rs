//! A baseline: known memory and objects by call site, so that a check reports only what is new or has grown.
//!
//! It is a small JSON file, to be committed with the code. [`pair`] matches its sites, so edits elsewhere in the file,
//! another build or another machine change nothing. Deliberately absent: stacks; all stacks of a site are one entry.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::analysis::function_name::plain;
use crate::analysis::pairing::{Key, pair};
use crate::analysis::program::Program;
use crate::analysis::report::Row;
use crate::analysis::site::Fingerprint;
use crate::kind::Kind;
use crate::point::Point;
use crate::tally::Tally;

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
    pub objects: Option<Vec<Site>>,
}

/// The memory of a call site, or its objects of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Site {
    /// The name of the [`Kind`] of objects; `None`: it is memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The function, for readers; not used for matching.
    pub label: String,
    /// File and line, for readers.
    pub place: Option<String>,
    /// `site_fingerprint` and `loose_site_fingerprint` of a report.
    pub fingerprint: String,
    pub loose_fingerprint: String,
    /// `loose_fingerprint` without the classes of Python's methods, if that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unqualified_fingerprint: Option<String>,
    pub line: Option<u32>,
    /// `None`: they are objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    pub count: u64,
}

impl Site {
    fn of(row: &Row) -> Site {
        let (stack, tally, kind) = (row.stack(), row.tally(), row.kind_of_objects());
        Site {
            kind: kind.map(|kind| kind.name().to_owned()),
            label: row.label.clone(),
            place: stack.site().and_then(|site| site.short_place()),
            fingerprint: stack.site_fingerprint.to_string(),
            loose_fingerprint: stack.loose_site_fingerprint.to_string(),
            unqualified_fingerprint: Some(stack.unqualified_site_fingerprint())
                .filter(|print| *print != stack.loose_site_fingerprint)
                .map(|print| print.to_string()),
            line: stack.site().and_then(|site| site.line),
            bytes: kind.is_none().then_some(tally.bytes),
            count: tally.count,
        }
    }

    fn tally(&self) -> Tally {
        Tally::new(self.bytes.unwrap_or(0), self.count)
    }

    /// `None`: this version does not know the kind.
    fn key(&self) -> Option<Key> {
        let print = |text: &str| Fingerprint(u64::from_str_radix(text, 16).unwrap_or_default());
        let key = Key {
            exact: print(&self.fingerprint),
            loose: print(&self.loose_fingerprint),
            unqualified: print(self.unqualified_fingerprint.as_ref().unwrap_or(&self.loose_fingerprint)),
            line: self.line,
            pool: false,
        };
        match &self.kind {
            Some(kind) => Some(key.of_kind(Kind::from_name(kind)?)),
            None => Some(key),
        }
    }
}

/// Each site once, sorted by name so that a new version of the file differs little.
fn sorted(sites: impl IntoIterator<Item = Site>, join: fn(u64, u64) -> u64) -> Vec<Site> {
    let mut all: BTreeMap<_, Site> = BTreeMap::new();
    for site in sites {
        let Site {
            kind,
            label,
            place,
            fingerprint,
            ..
        } = site.clone();
        all.entry((kind, label, place, fingerprint))
            .and_modify(|known| {
                known.bytes = known.bytes.zip(site.bytes).map(|(a, b)| join(a, b));
                known.count = join(known.count, site.count);
            })
            .or_insert(site);
    }
    all.into_values().collect()
}

impl Baseline {
    /// The sites of these rows.
    pub fn of(program: Program, at: Vec<Point>, rows: &[Row], objects: Option<&[Row]>) -> Baseline {
        Baseline {
            format: FORMAT.to_owned(),
            version: VERSION,
            programs: vec![program],
            at,
            sites: sorted(rows.iter().map(Site::of), u64::saturating_add),
            objects: objects.map(|rows| sorted(rows.iter().map(Site::of), u64::saturating_add)),
        }
    }

    /// The baseline for several processes: for each site, the most that one of them held.
    pub fn most_of(baselines: impl Iterator<Item = Baseline>) -> Baseline {
        let (mut sites, mut objects) = (Vec::new(), Some(Vec::new()));
        let mut programs = BTreeSet::new();
        let mut at = Vec::new();
        for baseline in baselines {
            sites = sorted(sites.into_iter().chain(baseline.sites), u64::max);
            // The objects of every process must be known.
            objects = objects
                .zip(baseline.objects)
                .map(|(all, more)| sorted(all.into_iter().chain(more), u64::max));
            programs.extend(baseline.programs);
            for point in baseline.at {
                if !at.contains(&point) {
                    at.push(point);
                }
            }
        }
        Baseline {
            format: FORMAT.to_owned(),
            version: VERSION,
            programs: programs.into_iter().collect(),
            at,
            sites,
            objects,
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

    /// Matches rows with the sites of the baseline.
    pub fn paired(&self, rows: &[Row]) -> Paired<'_> {
        let key = |row: &Row| {
            let key = Key::of_call_site(row.stack());
            row.kind_of_objects().map_or(key, |kind| key.of_kind(kind))
        };
        let sites = self.sites.iter().chain(self.objects.iter().flatten());
        let (before, sites): (Vec<Key>, Vec<&Site>) = sites.filter_map(|site| Some((site.key()?, site))).unzip();
        let partners = pair(&before, &rows.iter().map(key).collect::<Vec<Key>>(), true);
        Paired { sites, partners }
    }
}

/// Rows, matched with a baseline.
pub struct Paired<'b> {
    /// The sites that can be compared.
    sites: Vec<&'b Site>,
    /// For each row the index of its site.
    partners: Vec<Option<usize>>,
}

impl Paired<'_> {
    /// What the baseline has of the row with this number: memory, or objects of its kind.
    pub fn known(&self, row: usize) -> Option<Tally> {
        Some(self.sites[self.partners[row]?].tally())
    }

    /// That the function of one of these rows may have been renamed: the row is new, and a site of the baseline held as much and is
    /// gone.
    pub fn renamed(&self, rows: &[Row]) -> Option<String> {
        let here: BTreeSet<usize> = self.partners.iter().flatten().copied().collect();
        let gone = (self.sites.iter().enumerate()).filter(|(nth, site)| site.kind.is_none() && !here.contains(nth));
        let gone: Vec<&Site> = gone.map(|(_, site)| *site).collect();
        let mut new = rows.iter().zip(&self.partners).filter(|(_, partner)| partner.is_none());
        new.find_map(|(row, _)| {
            let old = gone.iter().find(|site| site.tally() == row.tally())?;
            let place: String = old.place.iter().map(|place| format!(" {place}")).collect();
            Some(format!(
                "{} holds as much as {}{place} of the baseline, which holds nothing any more; if its function was renamed, write the \
                 baseline again with --update-baseline",
                row.name(),
                plain(&old.label)
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::groups::Groups;
    use crate::analysis::report::{By, rows_by};
    use crate::analysis::site::CallStacks;
    use crate::sample::{MAIN, MIB, PYTHON, RUNTIME, Sample};
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
            let paired = baseline.paired(rows);
            let counts = rows.iter().enumerate();
            counts
                .map(|(nth, row)| (row.count, paired.known(nth).map(|known| known.count)))
                .collect()
        })
    }

    #[test]
    fn methods_match_those_of_an_interpreter_that_knows_no_classes() {
        let leaking = |name| {
            let mut sample = Sample::new();
            let stack = sample.stack(&[RUNTIME, (name, "/src/train.py:8", PYTHON)]);
            sample.holds(Kind::Device, "cudaMalloc", MIB, 3, stack);
            sample.finish(0, 0)
        };
        for (before, after) in [("step", "Trainer.step"), ("Trainer.step", "step")] {
            let baseline = with_rows(&leaking(before), |rows| {
                Baseline::of(Program::default(), vec![Point::Exit], rows, None)
            });
            let written = serde_json::to_string(&baseline).expect("JSON");
            let read: Baseline = serde_json::from_str(&written).expect("a baseline");
            let known = with_rows(&leaking(after), |rows| read.paired(rows).known(0));
            assert_eq!(known, Some(Tally::new(3 * MIB, 3)), "{before}");
        }
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
            with_rows(&of_file(after), |rows| baseline.paired(rows).known(0).is_some())
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
