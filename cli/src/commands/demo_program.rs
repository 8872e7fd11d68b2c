//! The program the demo looks for leaks in: it forgets memory in several known ways, in functions named after them.
//!
//! Part of this executable (`culeak demo-program`, not listed), so that the demo needs no compiler. It announces every
//! block it plants on its standard output, and `demo` holds the recording against that. Each of its two rounds leaks
//! the same; between them it waits for a line on standard input, which is when the demo takes a snapshot. Deliberately
//! absent: any knowledge of being watched.

use std::fmt;
use std::io::{self, BufRead, Write};
use std::process::{self, ExitCode};
use std::str::FromStr;

use culeak::kind::Kind;

use crate::driver::{Driver, DriverError};
use crate::errors::Failure;

const MIB: usize = 1 << 20;
/// More than any GPU has.
const TOO_MUCH: usize = 1 << 50;

/// A line the program says once a round is over.
pub const ROUND_DONE: &str = "round";

/// One thing that a perfect report must contain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Planted {
    /// `None`: the driver refused it.
    pub kind: Option<Kind>,
    pub bytes: u64,
    pub function: String,
}

impl fmt::Display for Planted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.map_or("refused", Kind::name);
        write!(out, "planted {kind} {} {}", self.bytes, self.function)
    }
}

impl FromStr for Planted {
    type Err = ();

    fn from_str(line: &str) -> Result<Planted, ()> {
        let words: Vec<&str> = line.split(' ').collect();
        let ["planted", kind, bytes, function] = words[..] else { return Err(()) };
        let kind = if kind == "refused" { None } else { Some(Kind::from_name(kind).ok_or(())?) };
        Ok(Planted { kind, bytes: bytes.parse().map_err(|_| ())?, function: function.to_owned() })
    }
}

pub fn execute() -> Result<ExitCode, Failure> {
    let failed = |error: DriverError| Failure::with_exit(format!("the demo program: {error}"), 1);
    let driver = Driver::open().map_err(|error| Failure::with_exit(format!("the demo program: {error}"), 1))?;
    driver.use_device(0).map_err(failed)?;
    for round in 1..=2 {
        train(&driver).map_err(failed)?;
        say(format_args!("{ROUND_DONE} {round} done in process {}", process::id()));
        if round == 1 {
            // End of input is as good as a line.
            let _ = io::stdin().lock().read_line(&mut String::new());
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[inline(never)]
fn train(driver: &Driver) -> Result<(), DriverError> {
    well_behaved(driver)?;
    forget_weights(driver)?;
    forget_staging_buffer(driver)?;
    forget_activations(driver)?;
    ask_for_too_much(driver);
    Ok(())
}

/// Gives back everything it takes.
#[inline(never)]
fn well_behaved(driver: &Driver) -> Result<(), DriverError> {
    let device = driver.allocate(2 * MIB)?;
    let pinned = driver.allocate_pinned(MIB)?;
    driver.free_pinned(pinned)?;
    driver.free(device)?;
    if let Ok(ordered) = driver.allocate_async(MIB) {
        driver.free_async(ordered)?;
    }
    driver.synchronize()
}

#[inline(never)]
fn forget_weights(driver: &Driver) -> Result<(), DriverError> {
    for _layer in 0..3 {
        driver.allocate(MIB)?;
        plant(Some(Kind::Device), MIB, "forget_weights");
    }
    Ok(())
}

#[inline(never)]
fn forget_staging_buffer(driver: &Driver) -> Result<(), DriverError> {
    driver.allocate_pinned(MIB / 4)?;
    plant(Some(Kind::HostPinned), MIB / 4, "forget_staging_buffer");
    Ok(())
}

/// Some virtual GPUs have no stream-ordered memory; then there is nothing to forget.
#[inline(never)]
fn forget_activations(driver: &Driver) -> Result<(), DriverError> {
    if driver.allocate_async(MIB / 2).is_ok() {
        plant(Some(Kind::Async), MIB / 2, "forget_activations");
    }
    driver.synchronize()
}

/// A request that no GPU can grant: reported as refused, never as leaked.
#[inline(never)]
fn ask_for_too_much(driver: &Driver) {
    if driver.allocate(TOO_MUCH).is_err() {
        plant(None, TOO_MUCH, "ask_for_too_much");
    }
}

fn plant(kind: Option<Kind>, bytes: usize, function: &str) {
    say(format_args!("{}", Planted { kind, bytes: bytes as u64, function: function.to_owned() }));
}

/// A reader that went away does not end the program.
fn say(line: fmt::Arguments) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_planted_can_be_read_back() {
        for kind in [Some(Kind::HostPinned), None] {
            let planted = Planted { kind, bytes: 4096, function: "forget_weights".to_owned() };
            assert_eq!(planted.to_string().parse(), Ok(planted));
        }
        assert_eq!("planted tape 1 f".parse::<Planted>(), Err(()));
        assert_eq!("round 1 done".parse::<Planted>(), Err(()));
    }
}
