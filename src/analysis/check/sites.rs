//! A call site that was judged: what the baseline has of it, and whether it is a reason for a failure.

use serde::Serialize;

use super::figure::Figure;
use super::limits::{Measure, Scope};
use super::totals::Hidden;
use crate::analysis::function_name::plain;
use crate::analysis::report::{Row, Tally};
use crate::analysis::site::Fingerprint;

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

/// A call site that was judged: its memory, or its objects of one kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Judged<'a> {
    #[serde(flatten)]
    pub row: Row<'a>,
    /// `None` without a baseline.
    pub standing: Option<Standing>,
    /// What the baseline contains for this site; objects have no bytes.
    pub known: Option<Tally>,
    /// The site is a reason for the failure: it is over a limit, new or grown, part of a total over its limit, or has blocks of
    /// a class that must not exist.
    pub to_blame: bool,
    /// Its blocks' classes, or what other processes hold, are the only reason.
    #[serde(skip)]
    pub only_by_class: bool,
}

impl Judged<'_> {
    pub fn key(&self) -> SiteKey {
        (self.row.stack().site_fingerprint, self.row.pool)
    }

    /// Makes the site a reason for the failure, besides limits and the baseline; its name.
    pub(super) fn blame_apart(&mut self) -> String {
        self.only_by_class |= !self.to_blame;
        self.to_blame = true;
        self.row.name()
    }
}

/// What limits and a baseline need of a row: its memory, or its objects of one kind.
impl Row<'_> {
    /// What a limit of the row counts.
    pub fn measure(&self) -> Measure {
        match self.objects {
            Some(_) => Measure::Objects,
            None => Measure::Bytes,
        }
    }

    /// What a limit of the row is compared with.
    pub(super) fn figure(&self, hidden: &Hidden) -> Figure {
        match self.objects {
            Some(_) => Figure::exact(self.count),
            None => hidden.around(self.bytes, self.estimated.map_or(0, |errors| errors.bytes_error)),
        }
    }

    /// Whether a total of this scope contains a part of the row.
    pub fn is_in(&self, of: &Scope) -> bool {
        match (of, self.kind_of_objects()) {
            (Scope::Kind(kind), Some(own)) => *kind == own,
            (Scope::Kind(kind), None) => self.kinds.contains_key(kind.name()),
            (Scope::Site, _) | (_, Some(_)) => false,
            (Scope::All, None) => true,
            (Scope::Pattern(pattern), None) => self.stacks.iter().any(|stack| pattern.matches_stack(&stack.stack)),
        }
    }

    /// The call site in words.
    pub fn name(&self) -> String {
        let place = self.site().and_then(|site| site.short_place());
        let place: String = place.iter().map(|place| format!(" {place}")).collect();
        format!("{}{place}", plain(&self.label))
    }
}
