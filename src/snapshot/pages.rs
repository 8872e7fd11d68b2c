//! Pages of the program's own pools, by state and owner, as the program reported them.

use serde::{Deserialize, Serialize};

/// Numbers of pages by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Pages {
    /// In use.
    pub live: u64,
    /// Kept by a cache alone, which gives them up when pages are needed.
    pub reclaimable: u64,
    /// Kept until a transfer has ended.
    pub waiting: u64,
    pub free: u64,
}

impl Pages {
    /// Those that cannot be handed out now: live and waiting.
    pub fn held(&self) -> u64 {
        self.live.saturating_add(self.waiting)
    }

    pub fn total(&self) -> u64 {
        let available = self.reclaimable.saturating_add(self.free);
        self.held().saturating_add(available)
    }
}

/// A pool of pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PagePool {
    /// The name of the allocator.
    pub domain: String,
    pub page_bytes: u64,
    pub pages: Pages,
    /// How many owners have begun, those included that are gone.
    pub owners_begun: u64,
    /// Those that are there, oldest first.
    pub owners: Vec<PageOwner>,
}

/// An owner of pages, such as a request. Several owners may share a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PageOwner {
    pub name: String,
    pub begin_ns: u64,
    /// `None`: it has not ended.
    pub end_ns: Option<u64>,
    pub pages: Pages,
}
