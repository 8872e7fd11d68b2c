//! Settings from the environment: size, failures to inject, a log of calls.
//!
//! | variable | meaning |
//! |---|---|
//! | `CULEAK_FAKE_DEVICES` | number of devices (2) |
//! | `CULEAK_FAKE_BYTES` | memory of each device in bytes (8 GiB) |
//! | `CULEAK_FAKE_FAIL` | `cuMemAlloc_v2:3:2,cuMemFree_v2:*:4`: the third call returns 2, every call returns 4 |
//! | `CULEAK_FAKE_LOG` | log file with one line per call: exported name and result (appended, one `write` each) |
//! | `CULEAK_FAKE_KERNEL` | 1: the driver makes its requests to the kernel driver, on `/dev/null` (`kernel.rs`); `peers`: a context also takes memory on other devices |
//! | `CULEAK_FAKE_VERSION` | CUDA version that the driver reports (13040); lookups for newer versions fail |

use std::ffi::{OsString, c_uint};
use std::sync::OnceLock;

const DEVICES: usize = 2;
const DEVICE_BYTES: u64 = 8 << 30;

pub struct Settings {
    pub devices: usize,
    pub device_bytes: u64,
    pub failures: Failures,
}

impl Settings {
    pub fn from_environment() -> Settings {
        Settings {
            devices: number("CULEAK_FAKE_DEVICES").map_or(DEVICES, |count| count as usize),
            device_bytes: number("CULEAK_FAKE_BYTES").unwrap_or(DEVICE_BYTES),
            failures: Failures::parse(&variable("CULEAK_FAKE_FAIL").unwrap_or_default()),
        }
    }
}

/// The variables of this driver when it was loaded. Later, another thread of the program may change the environment, and the C
/// library's `getenv` may crash meanwhile.
static AT_LOAD: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();

#[used]
#[unsafe(link_section = ".init_array")]
static READ_AT_LOAD: extern "C" fn() = read_at_load;

extern "C" fn read_at_load() {
    AT_LOAD.get_or_init(|| {
        let is_ours =
            |(name, _): &(OsString, OsString)| name.to_str().is_some_and(|name| name.starts_with("CULEAK_FAKE_"));
        std::env::vars_os().filter(is_ours).collect()
    });
}

/// The value that a variable had when the driver was loaded. `None` if it was not set, or is not UTF-8.
pub fn variable(name: &str) -> Option<String> {
    read_at_load();
    let (_, value) = AT_LOAD.get()?.iter().find(|(each, _)| each == name)?;
    value.clone().into_string().ok()
}

fn number(name: &str) -> Option<u64> {
    let text = variable(name)?;
    let parsed = text.trim().parse();
    if parsed.is_err() {
        eprintln!("culeak fake driver: {name}={text} is not a number; ignored");
    }
    parsed.ok()
}

/// Calls that are to fail, and how often each of those functions was called so far.
#[derive(Default)]
pub struct Failures {
    rules: Vec<Rule>,
}

struct Rule {
    function: String,
    /// The call that fails, counted from 1; `None`: every one.
    nth: Option<u64>,
    calls: u64,
    result: c_uint,
}

impl Failures {
    pub fn parse(text: &str) -> Failures {
        let rules = text
            .split(',')
            .filter(|rule| !rule.trim().is_empty())
            .filter_map(|text| {
                let rule = Rule::parse(text.trim());
                if rule.is_none() {
                    eprintln!("culeak fake driver: CULEAK_FAKE_FAIL: {text:?} is not function:call:error; ignored");
                }
                rule
            });
        Failures { rules: rules.collect() }
    }

    /// Counts a call, and returns its error if it is to fail.
    pub fn of(&mut self, function: &str) -> Option<c_uint> {
        let mut failure = None;
        for rule in self.rules.iter_mut().filter(|rule| rule.function == function) {
            rule.calls += 1;
            if rule.nth.is_none_or(|nth| nth == rule.calls) {
                failure = Some(rule.result);
            }
        }
        failure
    }
}

impl Rule {
    fn parse(text: &str) -> Option<Rule> {
        let mut parts = text.split(':');
        let (function, nth, result) = (parts.next()?.to_string(), parts.next()?, parts.next()?.parse().ok()?);
        let nth = if nth == "*" { None } else { Some(nth.parse().ok()?) };
        parts.next().is_none().then_some(Rule {
            function,
            nth,
            calls: 0,
            result,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_call_or_every_call_fails() {
        let mut failures = Failures::parse("cuMemAlloc_v2:2:2, cuMemFree_v2:*:4,nonsense");
        assert_eq!([1, 2, 3].map(|_| failures.of("cuMemAlloc_v2")), [None, Some(2), None]);
        assert_eq!([1, 2].map(|_| failures.of("cuMemFree_v2")), [Some(4), Some(4)]);
        assert_eq!(failures.of("nonsense"), None);
    }
}
