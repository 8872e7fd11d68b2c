//! How long to wait before the next attempt: exponential, with jitter, and not shorter than the server asks for.

use std::time::{Duration, SystemTime};

use crate::messages::random;

/// The wait before the second attempt, without jitter.
const FIRST: Duration = Duration::from_millis(500);
/// The longest wait that is chosen here.
const LONGEST: Duration = Duration::from_secs(30);
/// The longest wait that a server may ask for.
pub const LONGEST_ASKED: Duration = Duration::from_secs(3600);

/// The wait after this many failed attempts, at least one: between a half and the whole of a time that doubles.
pub fn wait(failed: u32) -> Duration {
    let whole = FIRST.saturating_mul(1 << failed.saturating_sub(1).min(16)).min(LONGEST);
    let thousandths = u32::try_from(random() % 501).unwrap_or_default() + 500;
    whole.saturating_mul(thousandths) / 1000
}

/// The value of a Retry-After header: seconds or a date. `None` if it is neither.
pub fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let asked = match value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
        true => {
            let date = httpdate::parse_http_date(value).ok()?;
            date.duration_since(now).unwrap_or_default()
        }
        // More digits than a number holds are a long time, too.
        false => Duration::from_secs(value.parse().unwrap_or(u64::MAX)),
    };
    Some(asked.min(LONGEST_ASKED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_with_jitter_up_to_a_limit() {
        for (failed, most) in [
            (1, 500),
            (2, 1_000),
            (3, 2_000),
            (6, 16_000),
            (7, 30_000),
            (u32::MAX, 30_000),
        ] {
            for _ in 0..100 {
                let wait = wait(failed).as_millis();
                assert!((most / 2..=most).contains(&wait), "{failed}: {wait}");
            }
        }
        let waits: std::collections::HashSet<Duration> = (0..100).map(|_| wait(7)).collect();
        assert!(waits.len() > 10, "jitter");
    }

    #[test]
    fn servers_ask_in_seconds_or_by_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let seconds = |text| retry_after(text, now).map(|wait| wait.as_secs());
        assert_eq!(seconds("120"), Some(120));
        assert_eq!(seconds(" 0 "), Some(0));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:47 GMT"), Some(10));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:27 GMT"), Some(0));
        assert_eq!(seconds("99999999999999999999999"), Some(3600));
        assert_eq!(seconds("soon"), None);
        assert_eq!(seconds("-1"), None);
        assert_eq!(seconds(""), None);
    }
}
