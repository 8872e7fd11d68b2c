//! Names of allocator-like functions without a hook that the driver returned before there was a recording: cudart looks
//! all of its functions up before it initializes the driver.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::*};

use culeak::recording::Recording;

const NAMES: usize = 48;
const LENGTH: usize = 48;

static COUNT: AtomicUsize = AtomicUsize::new(0);
static KEPT: [[AtomicU8; LENGTH]; NAMES] = [const { [const { AtomicU8::new(0) }; LENGTH] }; NAMES];

fn is(kept: &[AtomicU8; LENGTH], name: &[u8]) -> bool {
    (0..LENGTH).all(|index| kept[index].load(Relaxed) == name.get(index).copied().unwrap_or(0))
}

pub fn keep(name: &[u8]) {
    let used = COUNT.load(Acquire).min(NAMES);
    if name.len() >= LENGTH || KEPT[..used].iter().any(|kept| is(kept, name)) {
        return;
    }
    let place = COUNT.fetch_add(1, AcqRel);
    if let Some(kept) = KEPT.get(place) {
        for (byte, &value) in kept.iter().zip(name) {
            byte.store(value, Relaxed);
        }
    }
}

/// Writes the kept names into a new recording. They are kept for a forked child's recording too.
pub fn flush(recording: &Recording) {
    for kept in &KEPT[..COUNT.load(Acquire).min(NAMES)] {
        let name: [u8; LENGTH] = std::array::from_fn(|index| kept[index].load(Relaxed));
        let length = name.iter().position(|&byte| byte == 0).unwrap_or(LENGTH);
        if length > 0 {
            recording.unhooked(&name[..length]);
        }
    }
}
