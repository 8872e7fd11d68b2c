//! The table of the functions that handle signals.
//!
//! It is a static array of the interpreter, or from 3.11 on a part of its state, with an entry of 16 bytes for each signal:
//! whether the signal has arrived, and the function. Its place depends on how the interpreter was built, so it is found by
//! its contents: entry 0 is empty, and all others have an object, most of them the numbers that stand for the default action
//! and for none.

use crate::copy::Image;
use crate::modules::Module;
use crate::python::Python;

/// The number of signals of Linux.
pub(super) const SIGNALS: u64 = 64;
const ENTRY: u64 = 16;

/// The names of the signals 1 to 31 on x86-64 and aarch64; real-time signals have numbers.
const NAMES: &str = "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG XCPU \
                     XFSZ VTALRM PROF WINCH IO PWR SYS";

/// What to call a signal: `SIGUSR2`, `64`.
pub(crate) fn name(signal: u32) -> String {
    let place = signal.checked_sub(1);
    let name = place.and_then(|place| NAMES.split(' ').nth(place as usize));
    name.map_or_else(|| signal.to_string(), |name| format!("SIG{name}"))
}

impl Python {
    /// Where the table is in the static memory of the interpreter's file; `None` before the signals are set up.
    pub(super) fn find_handlers(&mut self, copy: &Image, module: &Module) -> Option<u64> {
        let mut words = module.globals.iter().flat_map(|range| copy.words(range.clone()));
        words.find_map(|(at, word)| (word == 0 && self.is_table(copy, at)).then_some(at))
    }

    fn is_table(&mut self, copy: &Image, at: u64) -> bool {
        // Most places are ruled out by these.
        if copy.word(at + 8) != 0 || copy.word(at + ENTRY) > 1 || copy.word(at + ENTRY + 8) == 0 {
            return false;
        }
        let mut numbers = 0;
        for signal in 1..=SIGNALS {
            let entry = at + signal * ENTRY;
            let of = match copy.word(entry) {
                0 | 1 => self.object(copy, copy.word(entry + 8)),
                _ => None,
            };
            let Some(of) = of else { return false };
            numbers += usize::from(self.type_name(of) == "int");
        }
        numbers > SIGNALS as usize / 2
    }

    /// The function of each signal that has one.
    pub(super) fn handlers(&mut self, copy: &Image) -> Vec<(u32, u64)> {
        let Some(table) = self.signal_handlers else {
            return Vec::new();
        };
        let function = |signal: u64| (signal as u32, copy.word(table + signal * ENTRY + 8));
        let functions: Vec<(u32, u64)> = (1..=SIGNALS).map(function).collect();
        let is_function = |(_, function): &(u32, u64)| self.object(copy, *function).is_some_and(|of| !self.is_leaf(of));
        functions.into_iter().filter(is_function).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn signals_have_their_names() {
        let highest = libc::SIGSYS as u32;
        assert_eq!(
            (name(libc::SIGUSR2 as u32), name(highest)),
            ("SIGUSR2".into(), "SIGSYS".into())
        );
        assert_eq!((name(34), name(0)), ("34".into(), "0".into()));
    }
}
