//! The holders of each call site's memory, for reports.

use std::collections::HashMap;

use serde::Serialize;

use super::gathered::{Gathered, Row, also, grouped};
use super::words::path_text;
use super::{Also, Matched, Modules, Options, OriginKey};
use crate::analysis::filter::Filter;
use crate::analysis::groups::Groups;
use crate::analysis::site::{CallStacks, Fingerprint};
use crate::snapshot::{Class, HolderPath, Snapshot};
use crate::tally::Tally;

/// The holders of one call site's memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SiteHolders {
    pub label: String,
    pub place: Option<String>,
    pub site_fingerprint: Fingerprint,
    #[serde(flatten)]
    pub tally: Tally,
    /// In the order in which an answer for this call site lists them: by origin, largest first.
    pub holders: Vec<SiteHolder>,
    /// Memory of the call site without an answer: it was not searched for, or its holders changed.
    pub not_searched: Tally,
    /// The memory by module of PyTorch; absent: none owns any of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modules: Option<Modules>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SiteHolder {
    pub class: Class,
    /// The class and the origin in words.
    pub origin: String,
    pub path: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub possibly: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Also>,
    #[serde(flatten)]
    pub tally: Tally,
}

/// The holders of each call site's memory that passes the filter, largest call site first; empty if they were not searched
/// for.
pub fn by_site(snapshot: &Snapshot, stacks: &CallStacks, groups: &Groups, filter: &Filter) -> Vec<SiteHolders> {
    let Some(holders) = &snapshot.holders else {
        return Vec::new();
    };
    if snapshot.allocations.is_summed() {
        return Vec::new();
    }
    let options = Options {
        filter: filter.clone(),
        ..Options::default()
    };
    let gathered = Gathered::of(snapshot, holders, stacks, groups, &options, Matched::Site);
    let mut rows: HashMap<Fingerprint, Vec<(Option<usize>, &Row)>> = HashMap::new();
    for (&(path, fingerprint), row) in &gathered.rows {
        rows.entry(fingerprint).or_default().push((path, row));
    }
    let sites = rows.into_iter().map(|(site_fingerprint, rows)| {
        let (label, place) = stacks.get(rows[0].1.stack).site_names();
        let without = rows.iter().filter(|(path, _)| path.is_none());
        let groups = grouped(
            holders,
            rows.iter().map(|(path, row)| ((*path, site_fingerprint), *row)),
        );
        let holder = |(path, _, row): (&HolderPath, Fingerprint, &Row)| SiteHolder {
            class: path.class,
            origin: OriginKey::of(path).text(),
            path: path_text(path),
            possibly: path.possibly,
            also: also(row),
            tally: row.tally,
        };
        SiteHolders {
            label,
            place,
            site_fingerprint,
            tally: Tally::total(rows.iter().map(|(_, row)| row.tally)),
            modules: gathered.modules(holders, Some(site_fingerprint)),
            not_searched: Tally::total(without.map(|(_, row)| row.tally)),
            holders: groups.into_iter().flat_map(|group| group.rows).map(holder).collect(),
        }
    });
    let mut sites: Vec<SiteHolders> = sites.collect();
    sites.sort_by(|a, b| {
        b.tally
            .cmp(&a.tally)
            .then_with(|| a.label.cmp(&b.label))
            .then_with(|| a.site_fingerprint.cmp(&b.site_fingerprint))
    });
    sites
}
