//! The holders of each call site's memory, for reports.

use super::*;
use crate::analysis::why::words::path_text;

/// The holders of one call site's memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SiteHolders {
    pub label: String,
    pub place: Option<String>,
    pub site_fingerprint: Fingerprint,
    #[serde(flatten)]
    pub tally: Tally,
    /// Largest first.
    pub holders: Vec<SiteHolder>,
    /// Memory of the call site without an answer.
    pub not_searched: Tally,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SiteHolder {
    pub class: Class,
    /// The class and the origin in words.
    pub origin: String,
    pub path: String,
    #[serde(skip_serializing_if = "is_false")]
    pub possibly: bool,
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
    let mut sites: HashMap<Fingerprint, SiteHolders> = HashMap::new();
    for (&(path, fingerprint), row) in &gathered.rows {
        let (label, place) = site_names(stacks.get(row.stack));
        let site = sites.entry(fingerprint).or_insert_with(|| SiteHolders {
            label,
            place,
            site_fingerprint: fingerprint,
            tally: Tally::default(),
            holders: Vec::new(),
            not_searched: Tally::default(),
        });
        site.tally.join(row.tally);
        match path {
            None => site.not_searched.join(row.tally),
            Some(path) => {
                let path = &holders.paths[path];
                site.holders.push(SiteHolder {
                    class: path.class,
                    origin: class_and_origin(
                        path.class,
                        path.root,
                        &path.origin,
                        &path.origin_type,
                        path.note.as_deref(),
                    ),
                    path: path_text(path),
                    possibly: path.possibly,
                    tally: row.tally,
                });
            }
        }
    }
    let mut sites: Vec<SiteHolders> = sites.into_values().collect();
    for site in &mut sites {
        site.holders.sort_by(|a, b| {
            largest_first(a.tally, b.tally)
                .then_with(|| a.origin.cmp(&b.origin))
                .then_with(|| a.path.cmp(&b.path))
        });
    }
    sites.sort_by(|a, b| {
        largest_first(a.tally, b.tally)
            .then_with(|| a.label.cmp(&b.label))
            .then_with(|| a.site_fingerprint.cmp(&b.site_fingerprint))
    });
    sites
}
