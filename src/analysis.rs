//! What a snapshot means: call sites, groups of allocations, the ledger, and the reports made of them.

pub mod baseline;
pub mod check;
pub mod diff;
pub mod error_name;
pub mod filter;
pub mod framework;
pub mod function_name;
pub mod groups;
pub mod ledger;
pub mod pairing;
pub mod profile;
pub mod program;
pub mod report;
pub mod site;
pub mod suppressions;
pub mod tally;
pub mod trend;
pub mod words;
