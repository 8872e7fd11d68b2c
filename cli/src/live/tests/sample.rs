//! Handmade readings and keys for tests.

use std::path::PathBuf;
use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use culeak::kind::Kind;
use culeak::snapshot::Snapshot;

use crate::live::reading::Reading;
use crate::live::state::{Action, State};
use crate::text::sample::{MAIN, MIB, RUNTIME, START, Sample};

const SECOND: u64 = 1_000_000_000;

pub fn state() -> State {
    State::new("waiting for runs/app.culeak, which does not exist yet".to_owned())
}

/// Gives the state a reading of this snapshot.
pub fn show(state: &mut State, snapshot: &Snapshot) {
    let recording = PathBuf::from(&snapshot.process.recording);
    state.add_reading(Arc::new(Reading::of(snapshot, recording)));
}

/// A training program after `step` steps: every step leaks a batch, and some buffers come and go.
pub fn training(pid: u32, step: u64) -> Snapshot {
    let mut sample = Sample::new().running();
    let mut site = |function: &str, place: &str| {
        sample.stack(&[
            RUNTIME,
            (function, place, "/opt/app"),
            ("Trainer::step(int, float*)", "/src/train.cu:90", "/opt/app"),
            MAIN,
            START,
        ])
    };
    let group = site("load_batch(int)", "/src/train.cu:212");
    let cache = site("Cache::grow(unsigned long)", "/src/cache.cu:31");
    let temporary = site("scratch_space()", "/src/train.cu:140");
    let staging = site("staging_buffer()", "/src/io.cu:26");
    sample.holds(Kind::HostPinned, "cudaMallocHost", 32 * MIB, 1, staging);
    sample.holds(Kind::Device, "cudaMalloc", 2 * MIB, 10 * step + 4, group);
    sample.holds(Kind::Async, "cudaMallocAsync", 512 * MIB, 1, cache);
    if step.is_multiple_of(2) {
        sample.holds(Kind::Device, "cudaMalloc", 300 * MIB, 1, temporary);
    }
    let mut snapshot = sample.finish(1200 * MIB, 700 + step);
    snapshot.process.pid = pid;
    snapshot.process.recording = format!("/tmp/app.node7.{pid}.culeak");
    snapshot.taken.at_ns = 60 * SECOND + step * SECOND / 2;
    snapshot
}

pub fn press(state: &mut State, code: KeyCode) -> Option<Action> {
    state.key(KeyEvent::new(code, KeyModifiers::NONE))
}

/// Types text, one key per letter.
pub fn type_in(state: &mut State, text: &str) {
    for letter in text.chars() {
        press(state, KeyCode::Char(letter));
    }
}
