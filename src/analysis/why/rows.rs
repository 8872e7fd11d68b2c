//! The rows of an answer: origins, holders, and what would be freed with them.

use serde::Serialize;

use super::OriginKey;
use crate::analysis::site::{CallStack, Fingerprint};
use crate::snapshot::{Class, HeldTensor, HolderPath, RootKind, is_default};
use crate::tally::Tally;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ClassTotal {
    pub class: Class,
    #[serde(flatten)]
    pub tally: Tally,
    /// The part of the bytes that is held or lost only possibly.
    #[serde(skip_serializing_if = "is_default")]
    pub possibly_bytes: u64,
}

/// Memory that a caching allocator keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Pool {
    /// Reserved and not in use by a live block. Not part of the total.
    pub unused_bytes: u64,
    /// Memory whose use is unknown, because the allocator's blocks were not recorded. Part of the total.
    #[serde(flatten)]
    pub unknown: Tally,
}

/// Blocks whose paths have the same beginning.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Origin<'a> {
    #[serde(flatten)]
    pub key: OriginKey<'a>,
    #[serde(flatten)]
    pub tally: Tally,
    /// Each of the paths may be stale.
    #[serde(skip_serializing_if = "is_default")]
    pub possibly: bool,
    /// What would be freed with the origin, if that is known.
    pub retained: Option<Tally>,
    /// Largest first.
    pub holders: Vec<HolderRow>,
    /// Rows that are not listed.
    pub hidden: Tally,
    pub hidden_rows: usize,
}

impl Origin<'_> {
    /// The class and the origin in words: `__main__.keep (list of 60)`.
    pub fn text(&self) -> String {
        let possibly = if self.possibly { "possibly " } else { "" };
        format!("{possibly}{}", self.key.text())
    }
}

/// Blocks of one call site that are held over one path.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HolderRow {
    /// The function of the call site.
    pub label: String,
    /// `train.py:212`.
    pub place: Option<String>,
    pub site_fingerprint: Fingerprint,
    /// The address of one of the blocks.
    pub address: u64,
    /// From the origin on; indices and keys are `*`.
    pub path: String,
    #[serde(skip_serializing_if = "is_default")]
    pub possibly: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub interior: bool,
    /// What else holds it, or a part of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Also>,
    /// What the tensors on the path are, as far as it is known; largest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tensors: Vec<TensorRow>,
    #[serde(flatten)]
    pub tally: Tally,
}

/// Blocks to which tensors of one type and shape lead.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TensorRow {
    #[serde(flatten)]
    pub tensor: HeldTensor,
    #[serde(flatten)]
    pub tally: Tally,
}

/// Another holder of memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Also {
    /// Indices and keys are `*`.
    pub name: String,
    /// What it holds of the memory.
    #[serde(flatten)]
    pub tally: Tally,
}

/// A holder in the tree of retained memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Retained {
    /// Retainers that differ only in an index are one: `20 × __main__.keep[*] (Block)`. Repeated steps are one, and the text
    /// is at most 200 characters long.
    pub name: String,
    /// Other references to it, in the same form. Dropping one of them frees nothing; dropping all frees the memory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// The number of other references that are not named.
    #[serde(skip_serializing_if = "is_default")]
    pub also_unnamed: u64,
    /// Holders below it that repeat its last step, such as the rest of a linked list.
    #[serde(skip_serializing_if = "is_default")]
    pub repeated: usize,
    pub root: RootKind,
    pub depth: usize,
    /// Index of the holder around it in this list.
    pub parent: Option<usize>,
    #[serde(flatten)]
    pub tally: Tally,
    /// The part of the bytes that it holds only possibly: the pointers to it may be stale.
    #[serde(skip_serializing_if = "is_default")]
    pub possibly_bytes: u64,
    /// Host memory that would be freed with it, at least; 0: none, or it was not asked for.
    #[serde(skip_serializing_if = "is_default")]
    pub host_bytes: u64,
}

impl Retained {
    /// Other references hold it too, so that dropping it alone frees nothing.
    pub fn is_shared(&self) -> bool {
        !self.also.is_empty() || self.also_unnamed > 0
    }
}

/// One block with its whole path.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct One<'a> {
    pub address: u64,
    pub bytes: u64,
    pub kind: &'static str,
    /// When the snapshot was taken.
    pub age_ns: u64,
    pub stack: CallStack<'a>,
    /// `None`: its holder was not searched for.
    pub held: Option<&'a HolderPath>,
    /// What the tensor on the path is, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<&'a HeldTensor>,
}

/// The owner of a pool whose allocator is unknown.
pub(super) const UNNAMED_POOL: &str = "a caching allocator";
