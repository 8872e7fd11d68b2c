//! A call site that was judged: its limit, what the baseline contains of it, and its part in totals over their limits.

use serde::Serialize;

use super::{Breach, FailOn, Limits, sampled};
use crate::analysis::function_name::plain;
use crate::analysis::report::{Row, Tally};
use crate::analysis::site::{Fingerprint, Frame};
use crate::analysis::suppressions::Pattern;

/// What identifies a call site among the judged ones: memory that its caching allocators hold is apart.
pub type SiteKey = (Fingerprint, bool);

/// A call site compared with the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    New,
    Grown,
    Known,
}

/// A call site that was judged.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judged<'a> {
    #[serde(flatten)]
    pub row: Row<'a>,
    /// `None` without a baseline.
    pub standing: Option<Standing>,
    /// What the baseline contains for this site.
    pub known: Option<Tally>,
    /// The site is a reason for the failure: it is over a limit, new or grown, part of a total over its limit, or has blocks of
    /// a class that must not exist.
    pub to_blame: bool,
    /// Its blocks' classes, or what other processes hold, are the only reason.
    #[serde(skip)]
    pub only_by_class: bool,
}

impl Judged<'_> {
    /// `None` without a stack.
    pub fn key(&self) -> Option<SiteKey> {
        let stack = self.row.stacks.first()?;
        Some((stack.stack.site_fingerprint, self.row.pool))
    }
}

pub(super) fn standing(row: &Row, known: Option<Tally>, limits: &Limits) -> Standing {
    match known {
        None => Standing::New,
        Some(known) if sampled::at_least(row) > limits.tolerance.allows(known.bytes) => Standing::Grown,
        Some(_) => Standing::Known,
    }
}

/// A call site in words.
pub(super) fn site_name(row: &Row) -> String {
    name_with_place(&row.label, row.site())
}

pub(super) fn name_with_place(label: &str, site: Option<&Frame>) -> String {
    match site.and_then(|site| site.short_place()) {
        Some(place) => format!("{} {place}", plain(label)),
        None => plain(label).into_owned(),
    }
}

pub(super) fn of_site(judged: &Judged, limits: &Limits) -> Vec<Breach> {
    let row = &judged.row;
    let site = || site_name(row);
    let mut breaches = Vec::new();
    if let Some(limit) = limits.max_per_site.filter(|&limit| sampled::at_least(row) > limit) {
        breaches.push(Breach::Site {
            site: site(),
            limit,
            found: row.bytes,
        });
    }
    match (judged.standing, limits.fail_on) {
        // The tolerance applies to growth only, not to sites that the baseline does not contain.
        (Some(Standing::New), FailOn::New | FailOn::Grown) => {
            breaches.push(Breach::New {
                site: site(),
                found: row.bytes,
            });
        }
        (Some(Standing::Grown), FailOn::Grown) => {
            let known = judged.known.unwrap_or_default().bytes;
            breaches.push(Breach::Grown {
                site: site(),
                known,
                limit: limits.tolerance.allows(known),
                found: row.bytes,
            });
        }
        _ => {}
    }
    breaches
}

/// If a total is over its limit, every site that contributes to it is to blame.
pub(super) fn blame_totals(judged: &mut [Judged], breaches: &[Breach]) {
    for row in judged {
        row.to_blame |= breaches.iter().any(|breach| match breach {
            Breach::Bytes { .. } | Breach::Count { .. } => true,
            Breach::Kind { kind, .. } => row.row.kinds.contains_key(kind),
            Breach::Budget { pattern, .. } => Pattern::parse(pattern)
                .is_ok_and(|pattern| row.row.stacks.iter().any(|stack| pattern.matches_stack(&stack.stack))),
            _ => false,
        });
    }
}
