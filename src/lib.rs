//! culeak, a leak profiler for CUDA memory: data formats, the lock-free recording, and its analysis.
//!
//! # One allocation, from the call to the report
//!
//! ```text
//! cudaMalloc(&p, 4 << 20)                          the program
//!   └─ hook        shim/src/hooks.rs               one per row of src/cuda_functions.rs
//!      └─ effect   shim/src/effects.rs             "allocates": call the driver, then record
//!         └─ event shim/src/recorder.rs            size, kind, thread, context, device, label
//!            ├─ stack  shim/src/stacks.rs          return addresses, each with its module, Python frames in between
//!            └─ record src/recording/allocations.rs  64 bytes in a mapped file,
//!                      src/lockfree/table.rs       found by address when the memory is freed
//!
//! recording ──► reader ────────► snapshot ────────► symbols ──────────────► analysis ────────► text, HTML, JSON
//! src/format.rs src/reader.rs    src/snapshot.rs   cli/src/symbolize.rs    src/analysis.rs   cli/src
//!                                                                            │
//!               ┌────────────────────────────────────────────────────────────┘
//!               └► site.rs ────► groups.rs ──────► ledger.rs ───────────► report.rs | diff.rs | trend.rs | check.rs
//!                  call sites    records grouped   bytes by holder        what is left, changed, grows, is allowed
//! ```
//!
//! Where to look, by function:
//!
//! - **An allocation's size, into the file**: `effects::allocates`, `recorder::allocated`,
//!   `Recording::allocated_at` (`recording/allocations.rs`), `TableIn::insert` (`lockfree/table.rs`), `Record::write`
//!   (`lockfree/table/record.rs`).
//! - **Its size, out of the file**: `decoded` (`reader/records.rs`), a row of `snapshot/allocations.rs`, `Groups`
//!   (`analysis/groups.rs`), a row of the report (`analysis/report/grouping.rs`), `ranking`
//!   (`cli/src/text/report/ranking.rs`).
//! - **A free**: `effects::frees` withdraws the record, calls the driver, and settles (`recorder::Held::settle`): the
//!   record is committed, or restored if the call failed.
//! - **A Python line**: `shim/cpython` reads code objects and offsets, `recording/python.rs` stores each code object's
//!   line table once, and `reader/python_line.rs` decodes it.
//! - **The JSON of a report, diff, trend or check**: serialized from the value that the analysis returns, such as
//!   [`analysis::diff::Diff`].
//!
//! # Modules
//!
//! | used by | module | contents |
//! |---|---|---|
//! | shim, CLI | [`cuda_functions`] | every CUDA function that is hooked, one row each |
//! | | [`cpython`] | where each version of CPython keeps things |
//! | | [`kind`] | kinds of memory, and where each of them counts |
//! | | [`quantities`] | sizes and times as people write them |
//! | | [`variables`] | the environment variables `CULEAK_*` |
//! | | [`messages`] | the lines that the shim writes to stderr |
//! | | [`job_variables`] | the environment variables of launchers |
//! | | [`wildcard`] | `*` and `?` in names |
//! | | [`system`] | system calls that leave no trace in another program's process |
//! | | [`format`](mod@format) | the recording file: header, directory, sections, losses |
//! | | [`file`](mod@file) | that file as its writer extends it |
//! | | [`lockfree`] | what many threads change at once: table, index, segmented array, shards, peak, intervals |
//! | | `named`, `table` | macros: enums whose values have names, and tables |
//! | | `numbered` | enums whose numbers are part of the format (private) |
//! | | [`proof`] | the file in which the shim reports to `culeak run` what it did |
//! | | [`hold`] | where a process waits until `culeak run --why` has copied its memory |
//! | | [`recording`] | the recording as its writer sees it |
//! | | [`sampling`] | which blocks get a stack, and what those stand for |
//! | CLI only | [`reader`] | a recording, even of a running process, read into a snapshot |
//! | (`read`) | [`snapshot`] | the memory of one process at one instant, as tables |
//! | | [`proc`] | what `/proc` says of processes |
//! | | [`tally`] | bytes and a count together |
//! | | [`point`] | points in time: the end, the peak, exit, marks |
//! | | [`timeline`] | every allocation and free, in order of time |
//! | | [`analysis`] | call sites, groups, ledger, report, diff, trend, check |
//!
//! This crate contains no hooks, no symbol files and no terminal. The shim uses it without the `read` feature.
//!
//! # Decisions
//!
//! - **Each allocation is recorded at the driver layer, once.** Every runtime allocation reaches exactly one public
//!   driver function (observed on driver 580 with cudart 13, shared and static). Runtime hooks add the name of the call
//!   that the program wrote. A runtime hook records an event only if no driver hook did.
//! - **Three lookups are interposed**: exported symbols, `dlsym`/`dlvsym`, and `cuGetProcAddress`. cudart uses only the
//!   last two. The address that the real resolver returns decides which hook is handed out, so no table of ABI versions
//!   exists.
//! - **Frees are recorded first**: a record is withdrawn before the real free, and restored if that fails
//!   ([`lockfree::table`]).
//! - **One file per process, complete at every instant** ([`format`](mod@format), [`file`](mod@file)): nothing needs
//!   to be flushed, so a killed process loses nothing. Blocks are allocated before they are written, so a full disk
//!   costs records and never raises a signal.
//! - **Stacks are taken on allocations only**, stored once as a trie of (module, address), and named later in another
//!   process. Python frames are read from the interpreter's memory, without the GIL and without calling the
//!   interpreter. They replace the frames of the interpreter itself. Each function is described once.
//! - **Segments are recorded at `ioctl`** ([`rm`]): what the kernel driver gives to the process is the sum that NVML reports, and
//!   the stack is that of whoever needed it first. No call of CUDA is made for it. Segments contain the driver's own memory and
//!   all recorded memory, so they are in no sum of either.
//! - **A leak** is memory that is still live at exit and whose context was not destroyed. Destroying a context frees
//!   linear, host and managed memory and arrays, but no pool and no VMM memory. VMM memory lives as long as a handle or
//!   a mapping does. An opened IPC handle maps another process's memory and counts 0 bytes. Graph memory is live from a
//!   launch to its free, not from its capture.
//! - **Every report ends with its losses** ([`snapshot::Losses`]): what could not be seen or recorded.
//!
//! # Libraries
//!
//! - `libc`: system calls, `errno`, `getenv`, `dlsym` and the structures of the loader, in the shim, its walker and its
//!   Python reader, in [`system`], [`recording`] and [`reader`], and for files and child processes of the CLI.
//! - `redhook`: exports the functions of the client API (`shim/src/frameworks/client_api.rs`). Nothing can unwind out
//!   of those, and the macro catches panics. CUDA hooks do not use the macro, because exceptions, thread cancellation
//!   and `longjmp` must pass through them as through the bare function.
//! - `backtrace`: unwinds through libgcc in place of the walker if `CULEAK_UNWINDER=libgcc` is set
//!   (`shim/src/stacks.rs`), and is the reference that the walker's tests and benchmarks compare with.
//! - `serde_json`: reads and writes snapshots, and writes every `--json` document ([`snapshot`], `cli/src/json.rs`).
//! - `foldhash`: hashes the keys of large maps, in [`reader`], [`analysis`] and the CLI.
//! - `cudarc`: types for the arguments of hooks and of the fake driver, and the signatures that every row of
//!   [`cuda_functions`] is checked against when the shim is compiled. None of its functions is called: those open the
//!   driver.
#![recursion_limit = "256"]

pub mod cpython;
pub mod cuda_functions;
pub mod hold;
pub mod job_variables;
pub mod kind;
pub mod messages;
mod named;
mod numbered;
pub mod quantities;
pub mod rm;
pub mod system;
mod table;
pub mod variables;
pub mod wildcard;

pub mod file;
pub mod format;
pub mod lockfree;
pub mod proof;
#[cfg(not(loom))]
pub mod recording;
pub mod sampling;

#[cfg(feature = "read")]
pub mod analysis;
#[cfg(feature = "read")]
pub mod point;
#[cfg(feature = "read")]
pub mod proc;
#[cfg(feature = "read")]
pub mod reader;
#[cfg(feature = "read")]
pub mod snapshot;
#[cfg(feature = "read")]
pub mod tally;
#[cfg(feature = "read")]
pub mod timeline;

#[cfg(all(test, feature = "read"))]
mod schemas_tests;

/// Hand-made snapshots, shared with the tests of the CLI, where `culeak` is another crate.
#[cfg(all(test, feature = "read"))]
#[path = "../tests/support/sample.rs"]
mod sample;
#[cfg(test)]
extern crate self as culeak;
