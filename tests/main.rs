//! Claims about culeak, each with a program that would break it. They need a C compiler, and no GPU.
//!
//! The programs are in `victims/`. `fake_driver/` takes the place of the GPU, and `support/` runs a program under the
//! recorder and checks the result. Tests that need a real GPU are in `gpu/`.

mod adapters;
mod audit;
mod auto_snapshots;
mod backward;
mod buffers;
mod children;
mod client_api;
mod coexist;
mod contexts;
mod cost;
mod coverage;
mod cudart;
mod details;
mod disk;
mod doctor;
mod endings;
mod ends;
mod file_systems;
mod frees;
mod gates;
mod graphs;
mod holders;
mod hostile_holders;
#[path = "../shim/cpython/tests/support/mod.rs"]
mod interpreters;
mod job;
mod job_views;
mod killed;
mod kinds;
mod ledger;
mod lookup;
mod mcp;
mod model;
mod namespaces;
mod native_holders;
mod objects;
mod phases;
mod plugins;
mod points;
mod pools;
mod python;
mod recording_file;
mod sampling;
mod segments;
mod segments_over_time;
mod signals;
mod soak;
mod stack_frames;
mod support;
mod surroundings;
mod tensors;
mod threads;
mod timeline;
mod transparent;
mod trend;
mod undisturbed;
mod vmm;
mod whatif;
mod whole_system;
mod why;
mod why_running;
mod without_cuda;
mod wrappers;
