//! The calls that a thread is inside: the runtime function that the program called, which names what the driver layer
//! records, and another interposer's driver function, whose own calls of the driver are part of the one being recorded.

use crate::recorder::call::Call;
use crate::recorder::thread::{THREAD, ThreadState};
use culeak::cuda_functions::Api;

pub use crate::recorder::call::FrameWord;

/// Stores the caller's address for the body of a hook; called by the assembly entries.
#[unsafe(link_section = ".text.culeak_events")]
pub extern "C" fn note_caller(caller: u64) {
    THREAD.with(|thread| thread.caller.set(caller));
}

/// The address that the entry stored; 0 if the hook was entered through a pointer to its body.
#[inline]
pub fn take_caller() -> u64 {
    THREAD.with(|thread| thread.caller.replace(0))
}

/// The caller, as [`take_caller`], and whether this thread is inside another interposer's driver function that a hook has
/// called.
#[inline]
pub fn take_caller_and_nesting() -> (u64, bool) {
    THREAD.with(|thread| {
        let inside = thread.inside_call.get();
        let is_inside = !inside.is_none() && is_on_stack(inside);
        (thread.caller.replace(0), is_inside)
    })
}

#[inline(never)]
fn is_on_stack(call: Call) -> bool {
    call.is_on_stack()
}

/// This thread is inside another interposer's driver function, until [`Inside::leave`].
pub struct Inside {
    before: Call,
}

impl Inside {
    #[inline]
    pub fn enter(word: &mut FrameWord) -> Inside {
        THREAD.with(|thread| Inside {
            before: thread.inside_call.replace(Call::begin(&thread.calls, word)),
        })
    }

    #[inline]
    pub fn leave(self, word: &mut FrameWord) {
        Call::end(word);
        THREAD.with(|thread| thread.inside_call.set(self.before));
    }
}

/// This thread is inside a runtime function, until [`Label::end`].
pub struct Label {
    before: (u16, bool, Call),
}

impl Label {
    /// The outermost label stays: it is the function that the program called.
    #[inline]
    pub fn set(api: Api, word: &mut FrameWord) -> Label {
        THREAD.with(|thread| {
            drop_abandoned_label(thread);
            let before = (thread.label.get(), thread.recorded.get(), thread.label_call.get());
            if before.0 == 0 {
                thread.label.set(api.0 + 1);
                thread.label_call.set(Call::begin(&thread.calls, word));
            }
            thread.recorded.set(false);
            Label { before }
        })
    }

    /// Whether the driver layer recorded an event since this label was set.
    pub fn was_recorded(&self) -> bool {
        THREAD.with(|thread| thread.recorded.get())
    }

    #[inline]
    pub fn end(self, word: &mut FrameWord) {
        Call::end(word);
        THREAD.with(|thread| {
            thread.label.set(self.before.0);
            thread.recorded.set(thread.recorded.get() | self.before.1);
            thread.label_call.set(self.before.2);
        });
    }
}

/// The driver layer saw the event: the runtime function around it need not record it.
#[inline]
pub fn mark_recorded() {
    THREAD.with(|thread| thread.recorded.set(true));
}

/// The row that an event is recorded under: the runtime function that this thread is inside, or the called one.
#[inline]
pub fn named(api: Api) -> u16 {
    let label = THREAD.with(|thread| {
        drop_abandoned_label(thread);
        thread.label.get()
    });
    if label != 0 && api.is_driver() {
        label - 1
    } else {
        api.0
    }
}

/// A runtime function that was left without returning has not removed its label.
#[inline]
fn drop_abandoned_label(thread: &ThreadState) {
    if thread.label.get() != 0 {
        drop_label_unless_inside(thread);
    }
}

#[inline(never)]
fn drop_label_unless_inside(thread: &ThreadState) {
    if !thread.label_call.get().is_on_stack() {
        thread.label.set(0);
        thread.recorded.set(false);
    }
}
