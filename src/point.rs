//! Points in time at which a recording can be shown: `--at end`, `peak`, `exit`, `mark:NAME`, `12.5s`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::quantities;

/// A point in time of a recorded process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Point {
    /// The end of the program's own work: the Python interpreter began to finalize, or `main` returned.
    End,
    /// The peak of each device, which need not be one instant: tensors and driver memory have their own peaks.
    Peak,
    /// The last state: at exit, or now if the process is running.
    Exit,
    /// The last mark of this name.
    Mark(String),
    /// Nanoseconds since the recording began.
    Time(u64),
}

/// The syntax of a point in time, for messages.
pub const POINT: &str = "end, peak, exit, mark:NAME, or a time since the start such as 12.5s";

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Point, String> {
        match text {
            "end" => Ok(Point::End),
            "peak" => Ok(Point::Peak),
            "exit" => Ok(Point::Exit),
            _ => match text.strip_prefix("mark:") {
                Some("") => Err("expected the name of a mark after mark:".to_owned()),
                Some(name) => Ok(Point::Mark(name.to_owned())),
                None => quantities::point_in_time(text)
                    .map(Point::Time)
                    .map_err(|_| format!("expected {POINT}")),
            },
        }
    }
}

/// In the syntax that [`Point::from_str`] reads.
impl fmt::Display for Point {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Point::End => write!(out, "end"),
            Point::Peak => write!(out, "peak"),
            Point::Exit => write!(out, "exit"),
            Point::Mark(name) => write!(out, "mark:{name}"),
            Point::Time(ns) => write!(out, "{}s", *ns as f64 / 1e9),
        }
    }
}

impl Serialize for Point {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Point {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Point, D::Error> {
        String::deserialize(input)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_written_as_they_are_read() {
        for text in ["end", "peak", "exit", "mark:epoch 3", "12.5s", "0.001s"] {
            assert_eq!(text.parse::<Point>().unwrap().to_string(), text);
        }
        assert_eq!("500ms".parse(), Ok(Point::Time(500_000_000)));
        for ns in [0, 1, 998_498, 999_999, 1_234_567_891, 86_400_000_000_001] {
            assert_eq!(Point::Time(ns).to_string().parse(), Ok(Point::Time(ns)));
        }
        assert!("mark:".parse::<Point>().is_err());
        assert!("beginning".parse::<Point>().unwrap_err().contains("end, peak"));
    }
}
