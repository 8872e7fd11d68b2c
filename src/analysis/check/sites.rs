//! A call site that was judged: its limit, what the baseline contains of it, and its part in totals over their limits.

use serde::Serialize;

use super::totals::Hidden;
use super::{Breach, FailOn, Limits, Rules, Unseen, sampled};
use crate::analysis::function_name::plain;
use crate::analysis::report::{Row, Tally};
use crate::analysis::site::{Fingerprint, Frame};
use crate::analysis::suppressions::Pattern;
use crate::analysis::words;

/// What identifies a call site among the judged ones: memory that its caching allocators hold is apart.
pub type SiteKey = (Fingerprint, bool);

/// A call site compared with the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    New,
    Grown,
    Known,
}

/// A call site that was judged.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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

/// Limits of single call sites that may be broken, because it is not known which call site holds the memory without a stack.
pub(super) fn unseen(judged: &[Judged], hidden: &Hidden, rules: &Rules) -> Vec<Unseen> {
    let limits = &rules.limits;
    let at_most = |row: &Row| {
        let error = row.estimated.map_or(0, |errors| errors.bytes_error);
        hidden.at_most(row.bytes, error)
    };
    let may_exceed = |row: &Row, limit: u64| sampled::at_least(row) <= limit && limit < at_most(row);
    let holds = |row: &Row, limit: u64| {
        format!(
            "{} holds {} to {} with {} allowed: {}",
            site_name(row),
            words::bytes(sampled::at_least(row)),
            words::bytes(at_most(row)),
            words::bytes(limit),
            hidden.why()
        )
    };
    let mut unseen = Vec::new();
    let mut add = |rule: &str, what: String| unseen.push(Unseen::part(rule, what, hidden.next()));
    if let Some(limit) = limits.max_per_site {
        let seen = judged.iter().find(|of| may_exceed(&of.row, limit));
        if let Some(of) = seen {
            add("--allow site=SIZE", holds(&of.row, limit));
        } else if hidden.at_most(0, 0) > limit {
            let what = format!(
                "one call site may hold up to {} with {} allowed: {}",
                words::bytes(hidden.at_most(0, 0)),
                words::bytes(limit),
                hidden.why()
            );
            add("--allow site=SIZE", what);
        }
    }
    let has_hidden = hidden.tally.count > 0;
    if rules.baseline.is_some() && limits.fail_on != FailOn::Any {
        let allowed = |of: &Judged| of.known.map_or(u64::MAX, |known| limits.tolerance.allows(known.bytes));
        let grown = judged.iter().find(|of| may_exceed(&of.row, allowed(of)));
        let grown = grown.filter(|_| limits.fail_on == FailOn::Grown);
        if has_hidden {
            let what = format!("{}: they may be of a call site that the baseline lacks", hidden.why());
            add("--baseline", what);
        } else if let Some(of) = grown {
            add("--baseline", holds(&of.row, allowed(of)));
        }
    }
    if rules.previous.is_some() && has_hidden {
        add(
            "--same-as-last",
            format!("{}: any call site may hold them", hidden.why()),
        );
    }
    unseen
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
