//! Takes the calling thread's native stack for the price of a few loads a frame.
//!
//! ```text
//!            registers of the caller
//!                  │
//!   ┌──────▶ code address ──▶ table: rule? ──yes──▶ CFA = rsp+n, rbp+n or *(rbp+n), within the stack? ──▶ load the return
//!   │                              │ no                        │ no                                       address and rbp
//!   │                              ▼                           ▼                                               │
//!   │                  loader ─▶ .eh_frame ─▶ rule ──▶ read with care, other stacks, expressions               │
//!   └──────────────────────────────┴───────────────────────────┴───────────────────────────────────────────────┘
//! ```
//!
//! What an unwinder works out from a function's unwind table depends on nothing but the code address, and nearly always
//! comes to one of three shapes that fit half a word. So each is worked out once ([`cfi`]) and kept in a lock-free
//! [`table`]; a warm walk never looks at an unwind table again.
//!
//! It lives in other people's processes, so it takes no lock, never allocates, never panics, leaves `errno` alone, and
//! may run in signal handlers and while the loader holds its locks. It reads without care only from the thread's own
//! stack ([`stack`]); whatever the unwind tables claim, the worst outcome is a stack marked [`End::Lost`].
//!
//! The addresses are those that libgcc's `_Unwind_Backtrace` reports, which the tests use as the oracle, with these
//! differences:
//!
//! * libgcc reports the missing caller of the outermost function as a last address 0; here that is [`End::Root`].
//! * Where a rule leads off the stack, down the stack or to an odd address, libgcc follows it, to a fault if need be.
//!   Here the stack ends, marked. The only such place met: while libgcc jumps to a landing pad it has already overwritten
//!   its own frame, and a signal handler just then sees unwind information that is wrong.
//! * Code announced with `__register_frame` (some just-in-time compilers) is known to libgcc only. Here the stack ends at
//!   such code, marked, as it does for both where nobody has announced it.
//! * Modules with an `.eh_frame` but no sorted index of it: libgcc searches them from end to end, here they count as
//!   having no unwind information. Linkers have been writing the index by default for twenty years.
//!
//! Deliberately absent: guessing by frame pointers where code has no unwind information; unwinding of anything but the
//! calling thread.

mod cfi;
mod modules;
mod rule;
mod stack;
mod table;
mod trail;

pub use modules::exported;
pub use stack::{read, read_each, readable};
pub use trail::{Summary, Trail, mix_in};

#[cfg(target_arch = "aarch64")]
#[path = "machine/aarch64.rs"]
mod machine;
#[cfg(target_arch = "x86_64")]
#[path = "machine/x86_64.rs"]
mod machine;

use cfi::{Frame, Step};
use machine::{ADDRESS_BITS, FP, RA, SP};
use rule::{Base, Packed, Rule};
use stack::{Bounds, Memory};
use table::Table;

/// What the table is made of; models put something else in its place.
use std::sync::atomic as sync;

static TABLE: Table = Table::new();

/// Where a walk begins: the state of a function at one of its calls. On aarch64: pc, sp and x29.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    /// A return address, or another address behind an instruction that was executed in this state.
    pub rip: u64,
    /// The stack pointer as it is when that call has returned.
    pub rsp: u64,
    pub rbp: u64,
}

impl Registers {
    /// Those of the function that this is inlined into, which is then the innermost frame.
    #[inline(always)]
    pub fn here() -> Registers {
        machine::registers()
    }
}

/// Why a stack has no more frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// There are none: the outermost function was reached.
    Root,
    /// The caller's slice is full.
    Full,
    /// The innermost frames only: the last one has no unwind information, or the stack is not as that says.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walked {
    pub count: usize,
    pub end: End,
}

/// The code addresses of a stack, innermost first: return addresses, and exact ones where a signal interrupted.
pub fn walk(start: Registers, addresses: &mut [u64]) -> Walked {
    walk_each(start, |place, pc, _| match addresses.get_mut(place) {
        Some(address) => {
            *address = pc;
            true
        }
        None => false,
    })
}

/// The same, to whoever does something with each frame while the next one is on its way from memory: `keep` is given
/// place, code address and stack pointer, and says whether it was wanted. At place 0 the walk begins, perhaps anew.
#[inline(always)]
pub fn walk_each(start: Registers, mut keep: impl FnMut(usize, u64, u64) -> bool) -> Walked {
    let believe = TABLE.usable();
    let mut at = Cursor {
        pc: start.rip,
        sp: start.rsp,
        fp: start.rbp,
        back: 1,
    };
    let mut bounds = stack::bounds(at.sp);
    let mut count = 0;
    loop {
        if at.pc == 0 {
            return Walked { count, end: End::Root };
        }
        if !keep(count, at.pc, at.sp) {
            return Walked { count, end: End::Full };
        }
        count += 1;
        if believe && at.is_code() && at.quick(bounds) {
            continue;
        }
        match at.careful(&mut bounds, believe) {
            Step::Caller => {}
            Step::Root => return Walked { count, end: End::Root },
            Step::Lost => return Walked { count, end: End::Lost },
            Step::Unknown => {
                return walk_with_all_registers(start, &mut keep).unwrap_or(Walked { count, end: End::Lost });
            }
        }
    }
}

/// What the three rules need to know of a frame.
#[derive(Clone, Copy)]
struct Cursor {
    pc: u64,
    sp: u64,
    fp: u64,
    /// From a return address to the call: its unwind information counts, since the next line may already belong to
    /// another function. 0 for an interrupted address.
    back: u64,
}

impl Cursor {
    #[inline(always)]
    fn is_code(&self) -> bool {
        self.pc >> ADDRESS_BITS == 0
    }

    /// A step by an ordinary rule on the thread's own stack; false and nothing done if that is not what it takes.
    #[inline(always)]
    fn quick(&mut self, bounds: Bounds) -> bool {
        TABLE
            .find(self.pc - self.back)
            .is_some_and(|rule| self.step(rule, bounds))
    }

    /// The same where the rule is known.
    #[inline(always)]
    fn step(&mut self, rule: Packed, bounds: Bounds) -> bool {
        let offset = rule.offset() as u64;
        let cfa = match rule.base() {
            Some(Base::Stack) => self.sp.wrapping_add(offset),
            Some(Base::Frame) => self.fp.wrapping_add(offset),
            Some(Base::Saved) => {
                let saved = self.fp.wrapping_add(offset);
                if !bounds.contain_word(saved) {
                    return false;
                }
                // SAFETY: a word within the stack.
                unsafe { load(saved) }
            }
            None => return false,
        };
        let returns_at = cfa.wrapping_sub(rule.ra() * 8);
        let fp_at = cfa.wrapping_sub(rule.fp() * 8);
        // An empty stack has top 0: no CFA passes.
        if cfa <= self.sp || cfa > bounds.top || cfa % 8 != 0 || returns_at < bounds.low || fp_at < bounds.low {
            return false;
        }
        // SAFETY: at least one word below the CFA, which is at most the top, and not below `low`.
        self.pc = machine::code_address(unsafe { load(returns_at) });
        if rule.fp() != 0 {
            // SAFETY: as above.
            self.fp = unsafe { load(fp_at) };
        }
        self.sp = cfa;
        self.back = 1;
        true
    }

    /// A step of any kind, from anywhere.
    #[cold]
    #[inline(never)]
    fn careful(&mut self, bounds: &mut Bounds, believe: bool) -> Step {
        if !self.is_code() {
            return Step::Lost;
        }
        let address = self.pc - self.back;
        let mut memory = Memory::new(*bounds);
        let step = match TABLE.find(address).filter(|_| believe) {
            Some(known) => self.follow(known.rule(), &mut memory),
            None => self.look_up(address, &mut memory, believe),
        };
        if !bounds.hold(self.sp) {
            *bounds = stack::bounds(self.sp);
        }
        step
    }

    fn look_up(&mut self, address: u64, memory: &mut Memory, believe: bool) -> Step {
        let ticket = TABLE.ticket();
        let enter = |rule: Rule| {
            if believe && let Some(packed) = Packed::of(rule) {
                TABLE.insert(address, packed, ticket);
            }
        };
        let module = modules::containing(address, !believe);
        let described = module.and_then(|module| {
            cfi::with_line(&module, address, |line| match line.rule() {
                Some(rule) => {
                    enter(rule);
                    self.follow(rule, memory)
                }
                None => {
                    let mut frame = self.frame();
                    let step = frame.step(line, memory);
                    if step == Step::Caller { self.go_to(&frame) } else { step }
                }
            })
        });
        match described {
            Some(step) => step,
            // Not entered: what lies at an address without a module may change at any time.
            None if cfi::returns_from_signal(self.pc) => self.follow(Rule::Signal, memory),
            None => Step::Lost,
        }
    }

    fn follow(&mut self, rule: Rule, memory: &mut Memory) -> Step {
        self.caller(rule, memory).map_or_else(
            |step| step,
            |caller| {
                *self = caller;
                Step::Caller
            },
        )
    }

    fn caller(&self, rule: Rule, memory: &mut Memory) -> Result<Cursor, Step> {
        let mut word = |address| memory.word(address).ok_or(Step::Lost);
        match rule {
            Rule::Root => Err(Step::Root),
            Rule::Signal => {
                let at = |offset| self.sp.wrapping_add(offset);
                let (pc, fp) = (word(at(machine::SIGNAL_PC))?, word(at(machine::SIGNAL_FP))?);
                Ok(Cursor {
                    pc,
                    fp,
                    sp: word(at(machine::SIGNAL_SP))?,
                    back: 0,
                })
            }
            Rule::Frame { base, offset, ra, fp } => {
                let cfa = match base {
                    Base::Stack => self.sp.wrapping_add_signed(offset),
                    Base::Frame => self.fp.wrapping_add_signed(offset),
                    Base::Saved => word(self.fp.wrapping_add_signed(offset))?,
                };
                let below = |words: u32| cfa.wrapping_sub(u64::from(words) * 8);
                let pc = machine::code_address(word(below(ra))?);
                let fp = if fp == 0 { self.fp } else { word(below(fp))? };
                if cfi::is_above(self.sp, cfa, memory) {
                    Ok(Cursor {
                        pc,
                        sp: cfa,
                        fp,
                        back: 1,
                    })
                } else {
                    Err(Step::Lost)
                }
            }
        }
    }

    fn frame(&self) -> Frame {
        let mut frame = Frame {
            values: [0; machine::REGISTERS],
            known: 0,
            interrupted: self.back == 0,
        };
        frame.set(RA, Some(self.pc));
        frame.set(SP, Some(self.sp));
        frame.set(FP, Some(self.fp));
        frame
    }

    fn go_to(&mut self, frame: &Frame) -> Step {
        let (Some(pc), Some(sp), Some(fp)) = (frame.get(RA), frame.get(SP), frame.get(FP)) else {
            return Step::Unknown;
        };
        *self = Cursor {
            pc,
            sp,
            fp,
            back: u64::from(!frame.interrupted),
        };
        Step::Caller
    }
}

/// # Safety
/// Eight readable bytes.
#[inline(always)]
unsafe fn load(address: u64) -> u64 {
    // SAFETY: the caller's promise; alignment is not asked of it.
    unsafe { (address as *const u64).read_unaligned() }
}

/// The whole walk again without the table, with every register kept: for a frame that counts from one of the others
/// (the loader's lazy binding, prologues that realign the stack). They are in our own frames, or on the way there, so
/// it begins with those and reports from `start` on. `None` if that was not met.
#[cold]
#[inline(never)]
fn walk_with_all_registers(start: Registers, keep: &mut impl FnMut(usize, u64, u64) -> bool) -> Option<Walked> {
    let (values, known) = machine::preserved();
    let mut frame = Frame {
        values,
        known,
        interrupted: false,
    };
    let mut memory = Memory::new(stack::bounds(frame.get(SP)?));
    while frame.get(SP)? < start.rsp {
        if step(&mut frame, &mut memory) != Step::Caller {
            return None;
        }
    }
    if frame.get(SP)? != start.rsp {
        return None;
    }
    frame.set(RA, Some(start.rip));
    frame.set(FP, Some(start.rbp));
    let mut count = 0;
    loop {
        let pc = frame.get(RA)?;
        if pc == 0 {
            return Some(Walked { count, end: End::Root });
        }
        if !keep(count, pc, frame.get(SP)?) {
            return Some(Walked { count, end: End::Full });
        }
        count += 1;
        match step(&mut frame, &mut memory) {
            Step::Caller => {}
            Step::Root => return Some(Walked { count, end: End::Root }),
            Step::Lost | Step::Unknown => return Some(Walked { count, end: End::Lost }),
        }
    }
}

fn step(frame: &mut Frame, memory: &mut Memory) -> Step {
    let Some(pc) = frame.get(RA).filter(|pc| pc >> ADDRESS_BITS == 0) else {
        return Step::Lost;
    };
    let address = pc.wrapping_sub(u64::from(!frame.interrupted));
    let described = modules::containing(address, true)
        .and_then(|module| cfi::with_line(&module, address, |line| frame.step(line, memory)));
    let step = match described {
        Some(step) => step,
        // The three registers that our own rule reads; the kernel has kept the others, but nobody says so.
        None if cfi::returns_from_signal(pc) => {
            let mut at = Cursor {
                pc,
                sp: frame.get(SP).unwrap_or(0),
                fp: 0,
                back: 1,
            };
            let step = at.follow(Rule::Signal, memory);
            *frame = at.frame();
            step
        }
        None => Step::Lost,
    };
    let Some(sp) = frame.get(SP) else { return Step::Unknown };
    if !memory.bounds.hold(sp) {
        memory.bounds = stack::bounds(sp);
    }
    step
}

/// A module went away: nothing kept about addresses is true any more. To be called between [`closing_began`] and
/// [`closing_ended`].
pub fn generation_changed() {
    modules::changed();
    TABLE.void();
}

/// A `dlclose` begins: until it has ended, walks work every frame out anew.
pub fn closing_began() {
    TABLE.closing_began();
}

pub fn closing_ended() {
    TABLE.closing_ended();
}

/// To be called in the child of a fork, whose parent may have been anywhere.
pub fn forked() {
    TABLE.forked();
    modules::forked();
}

#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;

#[cfg(test)]
extern crate self as culeak_walker;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::{compare, expect_no_difference, same_as_libgcc, shapes};

    /// These tests change the one table of the process.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// Whether the comparison holds, and the return address to our caller, which is on the stack that was compared.
    #[inline(never)]
    fn compared() -> (bool, u64) {
        let same = same_as_libgcc(false);
        let mut addresses = [0; 2];
        walk(Registers::here(), &mut addresses);
        (same, addresses[1])
    }

    #[inline(never)]
    fn once() -> (bool, u64) {
        std::hint::black_box(compared())
    }

    #[test]
    fn a_wrong_rule_shows_as_a_difference() {
        let _alone = ALONE.lock();
        let (same, address) = once();
        assert!(same, "before");
        for wrong in [
            Rule::Frame {
                base: Base::Stack,
                offset: 4096,
                ra: 1,
                fp: 0,
            },
            Rule::Frame {
                base: Base::Frame,
                offset: 64,
                ra: 1,
                fp: 0,
            },
            Rule::Frame {
                base: Base::Saved,
                offset: -8,
                ra: 1,
                fp: 2,
            },
            Rule::Root,
            Rule::Signal,
        ] {
            TABLE.void();
            TABLE.insert(address - 1, Packed::of(wrong).unwrap(), TABLE.ticket());
            assert!(!once().0, "{wrong:?} was not noticed");
        }
        TABLE.void();
        assert!(once().0, "after");
    }

    /// As on a system whose loader has no `_dl_find_object`, from here on and for the other tests too.
    #[test]
    fn an_older_loader_gives_the_same_stacks() {
        let _alone = ALONE.lock();
        modules::without_find_object();
        generation_changed();
        for seed in 0..2_000u64 {
            let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut run = support::Run {
                probe: compare,
                shapes: shapes::ALL.as_ptr(),
                count: shapes::ALL.len() as u64,
                random,
            };
            shapes::ALL[seed as usize % shapes::ALL.len()](&mut run, (seed % 30) as i32);
            if seed % 100 == 0 {
                closing_began();
                compare();
                generation_changed();
                closing_ended();
            }
        }
        expect_no_difference();
        let game = support::Game::new();
        let folder = support::folder().join("older-loader");
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("libframe.so");
        support::compile(&support::source("frame.c"), &path, &["-O2", "-DSIZE=1000"]);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let (game, stop) = (&game, &stop);
                scope.spawn(move || {
                    for seed in (thread..).step_by(2) {
                        game.play(seed, (seed % 30) as i32, compare);
                        if stop.load(std::sync::atomic::Ordering::Relaxed) {
                            break;
                        }
                    }
                });
            }
            for _ in 0..300 {
                let library = support::Library::open(&path, libc::RTLD_NOW);
                // SAFETY: the library's function of this type.
                let call: extern "C" fn(extern "C" fn()) = unsafe { std::mem::transmute(library.symbol("call")) };
                call(compare);
                closing_began();
                library.close();
                generation_changed();
                closing_ended();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        std::fs::remove_dir_all(folder).ok();
        expect_no_difference();
    }
}
