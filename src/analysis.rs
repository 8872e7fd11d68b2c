//! What a snapshot means: call sites, groups of allocations, the ledger, and the documents made of them.
//!
//! ```text
//!              function_name ─► site ─┬─► suppressions ─► filter ─┐
//! snapshot ─►  framework ─────────────┴─► groups ─► ledger ───────┴─► report ─┬─► pairing ─► diff | baseline ─► check
//!                                            └─────────────────► profile      └─► pairing ─► trend
//! ```
//!
//! | module | answers |
//! |---|---|
//! | [`function_name`] | What is a C++, Rust or Python function called, without its decoration? |
//! | [`error_name`](mod@error_name) | What is this CUDA error called? |
//! | [`estimate`] | What do sampled stacks stand for, and how certain is that? |
//! | [`words`] | How are sizes, counts and times written for people? |
//! | [`site`] | Which frame of a stack is the call site, and how is it recognized in another run? |
//! | [`callers`] | Where do the stacks of a call site part? |
//! | [`framework`] | Which frameworks' blocks were recorded, and in which memory do they lie? |
//! | [`groups`] | Which records differ in nothing but size, age and address, and does each count as held? |
//! | [`opaque`] | Which pools have blocks that were not recorded, and how are they recorded? |
//! | [`handles`] | Which physical memory is mapped, and what keeps the rest? |
//! | [`pages`] | Which pages of the program's own pools are live, only cached, waiting, and whose are they? |
//! | [`suppressions`] | Which stacks did the user choose to ignore? |
//! | [`categories`] | What is a tensor for: a parameter, a gradient, an activation …? |
//! | [`filter`] | Which records is a report about? |
//! | [`ledger`] | What holds each byte that the driver reports as used? |
//! | [`points`] | What did the process hold at its end, at exit and at its peaks? |
//! | [`why`] | What keeps the memory alive, and what would be freed with it? |
//! | [`report`] | What is left, by call site, kind, device, thread …? |
//! | [`profile`] | Which stacks requested the memory, as a tree or for other tools? |
//! | `preorder` | In which order is a tree printed? |
//! | [`phases`] | What did each phase of the program hold, allocate and leave behind? |
//! | [`program`] | Which program is this, so that different ones are not compared? |
//! | [`libraries`] | Which libraries have another version in another process? |
//! | [`pairing`] | Which call site of one snapshot is which of another? |
//! | [`diff`] | What changed between two snapshots? |
//! | [`boundaries`] | What does the program hold at a mark that it sets again and again? |
//! | [`baseline`] | What is known and accepted? |
//! | [`check`] | Is there more than allowed? |
//! | [`trend`] | Which call sites grow over many snapshots? |
//! | [`facts`] | What do processes hold, as rows of numbers that are grouped, paired and subtracted? |
//! | [`stack_key`] | Which stack is this in another snapshot, before its names are known? |
//! | [`job`] | What do the processes of a job hold, and which of them differs from the others? |
//! | [`lives`] | Which memory over time lies behind blocks, and which does a filter accept? |
//! | [`over_time`] | How much memory was held when, in levels of detail? |
//! | [`whatif`] | How much would PyTorch's allocator have reserved under other settings? |
//! | [`stats`] | Which call sites allocate often, for a short time, or the same again? |

pub mod baseline;
pub mod boundaries;
pub mod callers;
pub mod categories;
pub mod check;
pub mod diff;
pub mod error_name;
pub mod estimate;
pub mod facts;
pub mod filter;
pub mod framework;
pub mod function_name;
pub mod groups;
pub mod handles;
pub mod job;
pub mod ledger;
pub mod libraries;
pub mod lives;
pub mod objects;
pub mod opaque;
pub mod over_time;
pub mod pages;
pub mod pairing;
pub mod phases;
pub mod points;
mod preorder;
pub mod profile;
pub mod program;
pub mod report;
pub mod site;
pub mod stack_key;
pub mod stats;
pub mod suppressions;
pub mod trend;
pub mod whatif;
pub mod why;
pub mod words;
