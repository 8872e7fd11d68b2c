//! Reference counts of C++ objects.
//!
//! ```text
//! intrusive pointers   object ─ +0: virtual table   +8: count; weak count   (two words, or the halves of one)
//! shared pointers      counts ─ +0: virtual table   +8: count   +12: weak count   +16…: the object, or a pointer to it
//!                      object ─ +8: itself   +16: the counts              if it can make shared pointers to itself
//! ```
//!
//! Which of both a class uses depends on the version of PyTorch, and the words show it.

use crate::copy::Image;

/// No object has more references.
const MOST: u64 = 1 << 28;
/// In the word of both counts: a Python object belongs to the object.
const HAS_OBJECT: u64 = 1 << 63;
/// Where the counts of a shared pointer may have the pointer to the object: behind the counts, and behind a function that
/// frees it.
const POINTERS: [u64; 3] = [16, 24, 32];

/// The number of pointers that own an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Each is one word.
    Intrusive(u64),
    /// Each is a word and the address of these counts.
    Shared(u64, u64),
}

impl Count {
    pub fn number(self) -> u64 {
        match self {
            Count::Intrusive(number) | Count::Shared(_, number) => number,
        }
    }
}

/// That of the object which begins this chunk, or follows its counts there.
pub fn of(copy: &Image, chunk: u64) -> Option<Count> {
    let is_itself = |object: &u64| copy.word(object.wrapping_add(8)) == *object;
    match [chunk, chunk.wrapping_add(16)].into_iter().find(is_itself) {
        Some(object) => shared(copy, chunk, copy.word(object.wrapping_add(16))),
        None => intrusive(copy, chunk).map(Count::Intrusive),
    }
}

fn intrusive(copy: &Image, object: u64) -> Option<u64> {
    let word = copy.word(object.wrapping_add(8));
    let is_count = |count: u64| (1..MOST).contains(&count);
    let (count, weak) = match word >> 32 {
        0 => (word, copy.word(object.wrapping_add(16))),
        _ => (word & 0xffff_ffff, (word & !HAS_OBJECT) >> 32),
    };
    (is_count(count) && is_count(weak)).then_some(count)
}

fn shared(copy: &Image, chunk: u64, counts: u64) -> Option<Count> {
    let count = copy.word(counts.wrapping_add(8)) & 0xffff_ffff;
    (is_of(copy, counts, chunk) && (1..MOST).contains(&count)).then_some(Count::Shared(counts, count))
}

/// Whether these are the counts of the shared pointers to the object that begins this chunk, or follows them in it.
pub fn is_of(copy: &Image, counts: u64, chunk: u64) -> bool {
    let leads_there = |offset: &u64| copy.word(counts.wrapping_add(*offset)) == chunk;
    counts == chunk || POINTERS.iter().any(leads_there)
}

/// Whether a Python object belongs to this object: its first field is a pointer to it, which may follow a flag.
pub fn refers_back(copy: &Image, python: u64, object: u64) -> bool {
    (2..6).any(|place| copy.word(python.wrapping_add(place * 8)) == object)
}

/// Whether a Python object refers to an object that it borrows: a flag is in front of the pointer.
pub fn borrows(copy: &Image, python: u64, object: u64) -> bool {
    let word = |place: u64| copy.word(python.wrapping_add(place * 8));
    (3..6).any(|place| word(place) == object && word(place - 1) == 1)
}

/// Whether a Python object belongs to the object by a mark: one of them owns the other.
pub fn is_marked(copy: &Image, object: u64) -> bool {
    copy.word(object.wrapping_add(8)) & HAS_OBJECT != 0
}

/// Whether the object keeps its Python object, to which this word of it leads: it does as long as something else than that
/// refers to it. Older versions of PyTorch mark the word.
pub fn is_kept(copy: &Image, object: u64, word: u64) -> bool {
    word & 1 != 0 || is_marked(copy, object) && intrusive(copy, object) > Some(1)
}
