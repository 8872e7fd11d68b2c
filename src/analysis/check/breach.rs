//! The reasons why a check fails.

use serde::Serialize;

use super::limits::{Limit, Measure};
use super::sites::SiteKey;
use crate::analysis::report::Row;
use crate::kind::Kind;
use crate::snapshot::Class;

/// One reason why the check failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Breach {
    /// More than a limit allows: in all, or at one call site.
    Total(OverLimit),
    /// A call site that the baseline does not have, or that has more than the baseline allows.
    Baseline(BeyondBaseline),
    /// Memory of a class that must not exist, of one call site and one path.
    Class(OfClass),
    /// More than the other processes of the job hold, at one call site or in all.
    Outlier(UnlikeOthers),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OverLimit {
    #[serde(flatten)]
    pub limit: Limit,
    pub found: u64,
    /// The call site that is over the limit, or that has most of the objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// How many of the objects the call site has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_site: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BeyondBaseline {
    pub site: String,
    pub measure: Measure,
    /// The kind of objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// What the baseline has; `None`: the call site is new.
    pub known: Option<u64>,
    pub limit: u64,
    pub found: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OfClass {
    pub class: Class,
    pub site: String,
    /// What holds it, in words.
    pub held_by: String,
    pub found: u64,
    pub count: u64,
    #[serde(skip)]
    pub key: SiteKey,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UnlikeOthers {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    pub found: u64,
    /// The median over the processes that do the same work, and how many these are.
    pub usual: u64,
    pub of: u64,
    /// How many of the others have any.
    pub others_with_any: u64,
    /// `pipeline stage 1`, if not all processes of the program are compared with each other.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    #[serde(skip)]
    pub key: Option<SiteKey>,
}

impl Breach {
    /// Whether it is about a total that contains a part of the row.
    pub(super) fn contains(&self, row: &Row) -> bool {
        let is_of_objects = |measure: Measure| measure == Measure::Objects;
        matches!(self, Breach::Total(OverLimit { limit, .. })
            if is_of_objects(limit.measure) == is_of_objects(row.measure()) && row.is_in(&limit.of))
    }

    /// The call site, if neither a limit nor the baseline is the reason.
    pub fn key_apart(&self) -> Option<SiteKey> {
        match self {
            Breach::Total(_) | Breach::Baseline(_) => None,
            Breach::Class(of) => Some(of.key),
            Breach::Outlier(of) => of.key,
        }
    }
}
