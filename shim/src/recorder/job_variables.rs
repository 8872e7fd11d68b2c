//! The variables of launchers (`culeak::job_variables`), stored when the recording starts and once more at the first context.
//!
//! Some processes set them for themselves after their start: workers of Ray Train, children of `torch.multiprocessing`. They do
//! so before they use a GPU, but not always before their first CUDA call, so what was missing at the start is looked for again.
//!
//! Settings of PyTorch's allocator that the program makes by a call are stored here, too.
//!
//! Another thread may call `setenv` meanwhile, which may move the list of the environment and, in some C libraries, free
//! entries. So the second look follows no pointer of it: the list and its entries are copied by the kernel, which returns an
//! error where nothing is mapped. What is missed then stays unrecorded. The first look is `getenv`, as for all settings.

use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};

use crate::settings;
use culeak::format::RANK_VARIABLES;
use culeak::job_variables::{JOB_VARIABLES, JobVariable, NAME_MAX, SET_BY_PROGRAM, SET_MOST, States, VALUE_MAX};
use culeak::recording::Recording;

/// Rows of `JOB_VARIABLES` that are stored, as bits.
static STORED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static LOOKED_AGAIN: AtomicBool = AtomicBool::new(false);
/// The settings that the program made first, in the order of the calls. It may change them in each step.
static SET: [Set; SET_MOST] = [const { Set::new() }; SET_MOST];
static SET_COUNT: AtomicUsize = AtomicUsize::new(0);
/// In place of settings of the allocator that do not fit: half a setting would be another one.
const TOO_LONG: &[u8] = b"(too long)";
/// The most entries of the environment that are looked at again.
const ENTRIES: usize = 4096;

/// The text of a call.
pub struct Set {
    text: [AtomicU8; VALUE_MAX],
    /// Its length and 1; 0: not yet written.
    length: AtomicUsize,
}

impl Set {
    const fn new() -> Set {
        Set {
            text: [const { AtomicU8::new(0) }; VALUE_MAX],
            length: AtomicUsize::new(0),
        }
    }

    pub fn store(&self, recording: &Recording) {
        // First the length: another thread writes it when the text is whole.
        if let Some(length) = self.length.load(Acquire).checked_sub(1) {
            let text: [u8; VALUE_MAX] = std::array::from_fn(|nth| self.text[nth].load(Relaxed));
            store(recording, SET_BY_PROGRAM, &text[..length]);
        }
    }
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Whether this call marks the row.
fn mark(row: usize) -> bool {
    let bit = 1 << (row % 64);
    STORED[row / 64].fetch_or(bit, Relaxed) & bit == 0
}

/// The process's rank for the name of the recording; `0` if it has none.
pub fn rank(buffer: &mut [u8; VALUE_MAX]) -> &[u8] {
    let ranks = JOB_VARIABLES.iter().filter(|row| row.states == States::Rank);
    let value = ranks.filter_map(|row| value(row.name)).find(|value| !value.is_empty());
    let value = value.unwrap_or(b"0");
    let length = value.len().min(buffer.len());
    buffer[..length].copy_from_slice(&value[..length]);
    &buffer[..length]
}

fn value(name: &str) -> Option<&'static [u8]> {
    let mut buffer = [0u8; NAME_MAX + 1];
    buffer[..name.len()].copy_from_slice(name.as_bytes());
    CStr::from_bytes_until_nul(&buffer).ok().and_then(settings::variable)
}

/// Stores the variables that are set at the start of the recording.
pub fn record(recording: &Recording) {
    // A forked child has a recording of its own.
    STORED.iter().for_each(|word| word.store(0, Relaxed));
    LOOKED_AGAIN.store(false, Relaxed);
    for (number, row) in JOB_VARIABLES.iter().enumerate() {
        if let Some(value) = value(row.name)
            && mark(number)
            // The header has these.
            && !RANK_VARIABLES.contains(&row.name)
        {
            store(recording, row.name, value);
        }
    }
    SET.iter().for_each(|set| set.store(recording));
}

/// The program has set these, or PyTorch what is in the environment. The caller stores them if there is a recording now; one that starts
/// later does so itself.
pub fn set_by_program(text: &[u8]) -> Option<&'static Set> {
    let text = if text.len() <= VALUE_MAX { text } else { TOO_LONG };
    let Some(set) = SET.get(SET_COUNT.fetch_add(1, Relaxed)) else {
        SET_COUNT.store(SET_MOST, Relaxed);
        return None;
    };
    set.text
        .iter()
        .zip(text)
        .for_each(|(byte, &new)| byte.store(new, Relaxed));
    set.length.store(text.len() + 1, Release);
    Some(set)
}

fn store(recording: &Recording, name: &str, value: &[u8]) {
    let is_of_allocator = |row: &JobVariable| row.name == name && row.states == States::Allocator;
    let value = match value.split_at_checked(VALUE_MAX) {
        Some((_, [_, ..])) if JOB_VARIABLES.iter().any(is_of_allocator) => TOO_LONG,
        Some((cut, _)) => cut,
        None => value,
    };
    recording.variable(name.as_bytes(), value);
}

/// Stores, once, those that have been set since then.
pub fn record_later(recording: &Recording) {
    if LOOKED_AGAIN.load(Relaxed) || LOOKED_AGAIN.swap(true, Relaxed) {
        return;
    }
    // SAFETY: the C library's variable; the pointer is not followed here.
    let list = unsafe { std::ptr::addr_of!(environ).read_volatile() } as u64;
    for number in 0..ENTRIES as u64 {
        let mut entry = [0u64];
        if list == 0 || !culeak_walker::read(list + 8 * number, &mut entry) || entry[0] == 0 {
            return;
        }
        // A byte more shows that a value is too long.
        let mut text = [0u8; NAME_MAX + 1 + VALUE_MAX + 1];
        let length = copy(entry[0], &mut text);
        let Some((name, value)) = split(&text[..length]) else {
            continue;
        };
        let mut rows = (0..).zip(JOB_VARIABLES);
        if let Some((number, row)) = rows.find(|(_, row)| row.name.as_bytes() == name)
            && mark(number)
        {
            store(recording, row.name, value);
        }
    }
}

/// Copies the beginning of a C string; the number of bytes that are readable.
fn copy(address: u64, text: &mut [u8]) -> usize {
    const PAGE: u64 = 4096;
    // Its page is readable; whether the next one is does not matter if the text ends before.
    let first = ((PAGE - address % PAGE) as usize).min(text.len());
    let (here, beyond) = text.split_at_mut(first);
    if !culeak_walker::read(address, here) {
        return 0;
    }
    let ends_here = here.contains(&0);
    if !ends_here && !beyond.is_empty() && culeak_walker::read(address + first as u64, beyond) {
        return text.len();
    }
    first
}

/// Name and value of an entry, of which the value may be cut off.
fn split(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = entry.iter().position(|&byte| byte == 0).unwrap_or(entry.len());
    let entry = &entry[..end];
    let equals = entry.iter().position(|&byte| byte == b'=')?;
    Some((&entry[..equals], &entry[equals + 1..]))
}
