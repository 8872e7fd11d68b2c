//! Phases: ranges of time that the program names.
//!
//! A phase is one row, which its end completes. Names repeat, so each distinct name is stored once: the index leads from a
//! hash to the place in the text section where these bytes lie. The number of phases and of marks is bounded.

use std::sync::atomic::Ordering::*;

use super::Recording;
use crate::format::*;
use crate::lockfree::index::mix;

/// The most phases, and the most marks.
const MOST: u64 = if cfg!(test) { 1 << 12 } else { 1 << 20 };
/// The longest name of a phase or a domain, in bytes; longer names are truncated.
pub const PHASE_NAME_MAX: usize = 256;
/// The longest name of a mark.
const MARK_NAME_MAX: usize = 1024;

/// A phase that begins.
#[derive(Clone, Copy)]
pub struct NewPhase<'a> {
    pub name: &'a [u8],
    /// `None`: the default domain.
    pub domain: Option<&'a [u8]>,
    pub thread: u32,
    /// Row of the enclosing phase.
    pub parent: Option<u32>,
    pub source: PhaseSource,
}

impl Recording {
    /// Begins a phase now. `None` if there is no room, which is counted.
    pub fn begin_phase(&self, phase: &NewPhase) -> Option<u32> {
        self.begin_phase_at(|| self.now(), phase)
    }

    /// Begins a phase that was open already when the recording began.
    pub fn begin_phase_at_start(&self, phase: &NewPhase) -> Option<u32> {
        self.begin_phase_at(|| 0, phase)
    }

    fn begin_phase_at(&self, time_ns: impl FnOnce() -> u64, phase: &NewPhase) -> Option<u32> {
        // The last quarter is for phases without a parent: those inside would use it up in minutes.
        let most = if phase.parent.is_some() { MOST / 4 * 3 } else { MOST };
        let taken = match self.elements(Section::Phases).load(Relaxed) < most {
            true => self.row(Section::Phases, &self.phases),
            false => None,
        };
        let Some((number, row)) = taken else {
            self.add(Loss::Phases, 1);
            return None;
        };
        let name_once = |name| self.name_once(beginning(name, PHASE_NAME_MAX));
        row.name.store(name_once(phase.name).to_word(), Relaxed);
        let domain = phase.domain.map_or(Text::MISSING, name_once);
        row.domain.store(domain.to_word(), Relaxed);
        row.thread.store(phase.thread, Relaxed);
        row.parent_plus_one
            .store(phase.parent.map_or(0, |parent| parent + 1), Relaxed);
        row.source.store(phase.source as u32, Relaxed);
        // Release: pairs with readers, which accept a row with a time.
        row.begin_plus_one.store(time_ns() + 1, Release);
        Some(number)
    }

    /// Ends a phase of this source. A second end, and the end of a phase that does not exist, have no effect.
    pub fn end_phase(&self, number: u32, source: PhaseSource) {
        let now = self.now();
        if let Some(row) = self.phases.get(self.backing(Section::Phases), number)
            && row.begin_plus_one.load(Relaxed) != 0
            && row.source.load(Relaxed) == source as u32
        {
            let _ = row.end_plus_one.compare_exchange(0, now + 1, Relaxed, Relaxed);
        }
    }

    pub fn phase_has_ended(&self, number: u32) -> bool {
        let row = self.phases.get(self.backing(Section::Phases), number);
        row.is_none_or(|row| row.end_plus_one.load(Relaxed) != 0)
    }

    pub(super) fn mark_name(&self, name: &[u8]) -> Text {
        self.name_once(beginning(name, MARK_NAME_MAX))
    }

    /// The text of a name, which is stored if it is new.
    pub(super) fn name_once(&self, name: &[u8]) -> Text {
        if let Some(known) = self.known_name(name) {
            return known;
        }
        let text = self.text(name);
        if text != Text::EMPTY {
            // A name that cannot be entered is stored again next time.
            let _ = self.text_index.insert(hash_of(name), text.offset);
        }
        text
    }

    /// The text of a name that was stored, or that is empty.
    pub(super) fn known_name(&self, name: &[u8]) -> Option<Text> {
        if name.is_empty() {
            return Some(Text::EMPTY);
        }
        let bytes = name.len() as u32;
        let same = |offset: u32| self.text_is(Text { offset, bytes }, name);
        let offset = self.text_index.find(hash_of(name), same)?.row;
        Some(Text { offset, bytes })
    }

    /// Whether there is room for another mark.
    pub(super) fn has_room_for_mark(&self) -> bool {
        self.elements(Section::Marks).load(Relaxed) < MOST
    }
}

/// The hash of a name.
pub fn hash_of(name: &[u8]) -> u64 {
    let words = name.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(name.len() as u64, |hash, word| mix(hash ^ word))
}

/// The beginning of a text, at most this long, cut between characters.
pub fn beginning(text: &[u8], most: usize) -> &[u8] {
    if text.len() <= most {
        return text;
    }
    let is_inside = |at: usize| text[at] & 0xc0 == 0x80;
    let end = (most.saturating_sub(3)..=most).rev().find(|&at| !is_inside(at));
    &text[..end.unwrap_or(most)]
}
