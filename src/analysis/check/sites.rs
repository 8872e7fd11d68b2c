//! A call site that was judged: what the baseline has of it, and whether it is a reason for a failure.

use serde::Serialize;

use super::compare::Figure;
use super::limits::{Measure, Scope};
use super::totals::Hidden;
use crate::analysis::function_name::plain;
use crate::analysis::objects::ObjectRow;
use crate::analysis::report::{Row, Tally};
use crate::analysis::site::{CallStack, Fingerprint};
use crate::kind::Kind;

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
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Judged{R}"))]
pub struct Judged<R> {
    #[serde(flatten)]
    pub row: R,
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

impl<R: SiteRow> Judged<R> {
    pub fn key(&self) -> SiteKey {
        (self.row.stack().site_fingerprint, self.row.is_pool())
    }

    /// Makes the site a reason for the failure, besides limits and the baseline; its name.
    pub(super) fn blame_apart(&mut self) -> String {
        self.only_by_class |= !self.to_blame;
        self.to_blame = true;
        self.row.name()
    }
}

/// A row that limits and a baseline apply to.
pub trait SiteRow {
    /// What a limit of the row counts.
    const MEASURE: Measure;

    fn label(&self) -> &str;

    /// The largest stack.
    fn stack(&self) -> &CallStack<'_>;

    /// `None`: it is memory.
    fn kind_of_objects(&self) -> Option<Kind>;

    fn tally(&self) -> Tally;

    /// What a limit of the row is compared with.
    fn figure(&self, hidden: &Hidden) -> Figure;

    /// Whether a total of this scope contains a part of the row.
    fn is_in(&self, of: &Scope) -> bool;

    fn is_pool(&self) -> bool {
        false
    }

    /// The call site in words.
    fn name(&self) -> String {
        let place = self.stack().site().and_then(|site| site.short_place());
        let place: String = place.iter().map(|place| format!(" {place}")).collect();
        format!("{}{place}", plain(self.label()))
    }
}

impl SiteRow for Row<'_> {
    const MEASURE: Measure = Measure::Bytes;

    fn label(&self) -> &str {
        &self.label
    }

    fn stack(&self) -> &CallStack<'_> {
        &self.stacks[0].stack
    }

    fn kind_of_objects(&self) -> Option<Kind> {
        None
    }

    fn tally(&self) -> Tally {
        Row::tally(self)
    }

    fn figure(&self, hidden: &Hidden) -> Figure {
        hidden.around(self.bytes, self.estimated.map_or(0, |errors| errors.bytes_error))
    }

    fn is_in(&self, of: &Scope) -> bool {
        match of {
            Scope::All => true,
            Scope::Kind(kind) => self.kinds.contains_key(kind.name()),
            Scope::Pattern(pattern) => self.stacks.iter().any(|stack| pattern.matches_stack(&stack.stack)),
            Scope::Site => false,
        }
    }

    fn is_pool(&self) -> bool {
        self.pool
    }
}

impl SiteRow for ObjectRow<'_> {
    const MEASURE: Measure = Measure::Objects;

    fn label(&self) -> &str {
        &self.label
    }

    fn stack(&self) -> &CallStack<'_> {
        &self.stack
    }

    fn kind_of_objects(&self) -> Option<Kind> {
        Kind::from_name(self.kind)
    }

    fn tally(&self) -> Tally {
        Tally::new(0, self.count)
    }

    fn figure(&self, _: &Hidden) -> Figure {
        Figure::exact(self.count)
    }

    fn is_in(&self, of: &Scope) -> bool {
        matches!(of, Scope::Kind(kind) if kind.name() == self.kind)
    }
}
