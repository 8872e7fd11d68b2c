//! The phases that a thread is inside.
//!
//! Ranges of NVTX alone start no recording. Those that are open when the recording starts are recorded then, as phases that
//! began with it. All state is the thread's own, of a fixed size, and a forked child begins without open phases.

use std::cell::Cell;

use crate::recorder::{self, auto_snapshot};
use culeak::format::{Loss, NONE, PhaseSource, halves, pack};
use culeak::recording::{NewPhase, Recording};

use super::names;

/// The most open phases of a thread.
const DEPTH: usize = 64;
/// In place of a domain: a phase of the client API, which no pop of NVTX ends.
const CLIENT: u32 = i32::MAX as u32;
/// NVTX: the range is not tracked.
const NOT_TRACKED: i32 = -2;

/// An open phase.
#[derive(Clone, Copy)]
struct OpenPhase {
    /// `NONE`: it has no row.
    row: u32,
    /// Number of the name of its domain; 0: the default domain.
    domain: u32,
    /// Number of its name until it is recorded; else 0.
    name: u32,
}

impl OpenPhase {
    /// In the word of a phase without a row: the lower half is the number of its name. Numbers of domains are below it.
    const WAITING: u32 = 1 << 31;

    fn to_word(self) -> u64 {
        match self.name {
            // A place that was never used, all zeros, has no row.
            0 => pack(self.row.wrapping_add(1), self.domain),
            name => pack(name, self.domain | OpenPhase::WAITING),
        }
    }

    fn of_word(word: u64) -> OpenPhase {
        let (number, domain) = halves(word);
        let (row, name) = match domain & OpenPhase::WAITING {
            0 => (number.wrapping_sub(1), 0),
            _ => (NONE, number),
        };
        let domain = domain & !OpenPhase::WAITING;
        OpenPhase { row, domain, name }
    }
}

/// All zeros: none.
struct OpenPhases {
    epoch: Cell<u32>,
    /// The number of phases beyond `DEPTH`, of all domains together. While there are any, a pop of any domain takes one of
    /// them: if ranges of two domains are open at this depth, some end at the pop of the other.
    beyond: Cell<u32>,
    depth: Cell<u16>,
    /// Some phases wait for the recording to start.
    waiting: Cell<bool>,
    /// Words of [`OpenPhase`].
    open: [Cell<u64>; DEPTH],
}

culeak_walker::thread_variable! {
    // SAFETY: integers and a boolean.
    static OPEN: unsafe OpenPhases = "culeak_open_phases";
}

impl OpenPhases {
    /// Runs `work` on the calling thread's phases.
    fn with<R>(work: impl FnOnce(&OpenPhases) -> R) -> R {
        OPEN.with(|phases| {
            let epoch = recorder::epoch();
            if phases.epoch.replace(epoch) != epoch {
                phases.depth.set(0);
                phases.beyond.set(0);
                phases.waiting.set(false);
            }
            work(phases)
        })
    }

    fn depth(&self) -> usize {
        self.depth.get().into()
    }

    fn each(&self) -> impl DoubleEndedIterator<Item = (usize, OpenPhase)> {
        let open = self.open.iter().take(self.depth());
        open.enumerate()
            .map(|(place, word)| (place, OpenPhase::of_word(word.get())))
    }

    /// Adds a phase. False: there is no room.
    fn push(&self, phase: OpenPhase) -> bool {
        let Some(place) = self.open.get(self.depth()) else {
            return false;
        };
        // First the depth: a signal handler in between uses the next place.
        self.depth.set(self.depth.get() + 1);
        place.set(phase.to_word());
        true
    }

    fn remove(&self, place: usize) {
        let depth = self.depth();
        for next in place + 1..depth {
            self.open[next - 1].set(self.open[next].get());
        }
        self.depth.set(depth as u16 - 1);
    }

    /// The innermost phase that has a row. Phases that another thread has ended are removed.
    fn innermost(&self, recording: &Recording) -> Option<u32> {
        while let Some((place, last)) = self.each().next_back()
            && last.domain == CLIENT
            && recording.phase_has_ended(last.row)
        {
            self.remove(place);
        }
        let mut rows = self.each().rev().map(|(_, phase)| phase.row);
        rows.find(|&row| row != NONE)
    }

    /// Records the phases that began before the recording.
    fn record_waiting(&self, recording: &Recording) {
        if !self.waiting.replace(false) {
            return;
        }
        let mut parent = None;
        for (place, phase) in self.each() {
            let mut row = phase.row;
            if let Some(name) = names::name(phase.name) {
                let phase = NewPhase {
                    name,
                    domain: names::name(phase.domain),
                    thread: recorder::thread_row(recording),
                    parent,
                    source: PhaseSource::NvtxPush,
                };
                row = recording.begin_phase_at_start(&phase).unwrap_or(NONE);
            }
            self.open[place].set(OpenPhase { row, name: 0, ..phase }.to_word());
            parent = (row != NONE).then_some(row).or(parent);
        }
    }
}

/// A range of the calling thread begins. `domain`: number of the domain's name, or 0. Returns its level in its domain.
pub fn push(domain: u32, name: &[u8]) -> i32 {
    let pushed = recorder::quietly(|| {
        OpenPhases::with(|phases| {
            let level = phases.each().filter(|(_, phase)| phase.domain == domain).count();
            if phases.depth() == DEPTH {
                phases.beyond.set(phases.beyond.get() + 1);
                if let Some(recording) = recorder::running() {
                    recording.add(Loss::Phases, 1);
                }
                return level;
            }
            let Some(recording) = recorder::running() else {
                let (row, name) = (NONE, names::number(name));
                phases.push(OpenPhase { row, domain, name });
                phases.waiting.set(true);
                return level;
            };
            phases.record_waiting(recording);
            let phase = NewPhase {
                name,
                domain: names::name(domain),
                thread: recorder::thread_row(recording),
                parent: phases.innermost(recording),
                source: PhaseSource::NvtxPush,
            };
            let row = recording.begin_phase(&phase).unwrap_or(NONE);
            phases.push(OpenPhase { row, domain, name: 0 });
            level
        })
    });
    pushed.map_or(NOT_TRACKED, |level| level as i32)
}

/// The calling thread's innermost range of the domain ends. Returns its level, or a negative number if none is open.
pub fn pop(domain: u32) -> i32 {
    let popped = recorder::quietly(|| {
        OpenPhases::with(|phases| {
            if phases.beyond.get() > 0 {
                phases.beyond.set(phases.beyond.get() - 1);
                return Some(DEPTH);
            }
            if let Some(recording) = recorder::running() {
                phases.record_waiting(recording);
            }
            let (place, phase) = phases.each().rev().find(|(_, phase)| phase.domain == domain)?;
            phases.remove(place);
            if let Some(recording) = recorder::running()
                && phase.row != NONE
            {
                recording.end_phase(phase.row, PhaseSource::NvtxPush);
            }
            Some(phases.each().filter(|(_, phase)| phase.domain == domain).count())
        })
    });
    popped.flatten().map_or(NOT_TRACKED, |level| level as i32)
}

/// A range of the process begins. Returns its id, which is never 0.
pub fn start(domain: u32, name: &[u8]) -> u64 {
    let started = recorder::quietly(|| {
        let recording = recorder::running()?;
        recording.begin_phase(&NewPhase {
            name,
            domain: names::name(domain),
            thread: recorder::thread_row(recording),
            parent: None,
            source: PhaseSource::NvtxStart,
        })
    });
    id_of(started.flatten())
}

pub fn end(id: u64) {
    end_by_id(id, PhaseSource::NvtxStart);
}

/// `culeak_phase_begin`.
pub fn begin(name: &[u8]) -> u64 {
    let begun = recorder::quietly(|| {
        let recording = recorder::recording()?;
        OpenPhases::with(|phases| {
            phases.record_waiting(recording);
            let row = recording.begin_phase(&NewPhase {
                name,
                domain: None,
                thread: recorder::thread_row(recording),
                parent: phases.innermost(recording),
                source: PhaseSource::Client,
            })?;
            let domain = CLIENT;
            phases.push(OpenPhase { row, domain, name: 0 });
            Some(row)
        })
    });
    id_of(begun.flatten())
}

/// `culeak_phase_end`, on any thread.
pub fn finish(id: u64) {
    let row = end_by_id(id, PhaseSource::Client);
    recorder::quietly(|| {
        OpenPhases::with(|phases| {
            let is_it = |(_, phase): &(usize, OpenPhase)| phase.domain == CLIENT && Some(phase.row) == row;
            if let Some((place, _)) = phases.each().rev().find(is_it) {
                phases.remove(place);
            }
        });
    });
}

pub fn mark(name: &[u8]) {
    recorder::quietly(|| {
        let Some(recording) = recorder::running() else { return };
        recording.mark(name, recorder::thread_row(recording));
        auto_snapshot::marked(recording, name);
    });
}

/// The id of a phase: its row, and the process it belongs to, since a forked child may end a range of its parent.
fn id_of(row: Option<u32>) -> u64 {
    pack(row.map_or(NONE, |row| row + 1), recorder::epoch())
}

/// Ends a phase of this process, and returns its row.
fn end_by_id(id: u64, source: PhaseSource) -> Option<u32> {
    let (row_plus_one, epoch) = halves(id);
    if epoch != recorder::epoch() || row_plus_one == NONE {
        return None;
    }
    let row = row_plus_one.checked_sub(1)?;
    recorder::quietly(|| {
        if let Some(recording) = recorder::running() {
            recording.end_phase(row, source);
        }
    });
    Some(row)
}
