//! A quantity over time, in a bounded number of points.
//!
//! When the points run out, each pair merges into one that keeps the larger value, so a short peak stays visible in a
//! chart of hours. All points cover time spans of equal length.

/// More than a terminal has columns; even, because points merge in pairs.
const POINTS: usize = 1024;

#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// The largest value of each span; `None` for spans without a reading.
    points: Vec<Option<u64>>,
    span_ns: u64,
    began_ns: Option<u64>,
}

impl History {
    /// `span_ns`: the expected time between two readings.
    pub fn new(span_ns: u64) -> History {
        History {
            points: Vec::new(),
            span_ns: span_ns.max(1),
            began_ns: None,
        }
    }

    /// Adds a value. A time before the last value's counts as that value's time.
    pub fn add(&mut self, at_ns: u64, value: u64) {
        let began = *self.began_ns.get_or_insert(at_ns);
        let since = at_ns.saturating_sub(began);
        while since / self.span_ns >= POINTS as u64 {
            self.points = self
                .points
                .chunks(2)
                .map(|pair| pair.iter().copied().max().flatten())
                .collect();
            self.span_ns = self.span_ns.saturating_mul(2);
        }
        let point = ((since / self.span_ns) as usize).max(self.points.len().saturating_sub(1));
        if point >= self.points.len() {
            self.points.resize(point + 1, None);
        }
        self.points[point] = self.points[point].max(Some(value));
    }

    /// The whole history in at most `columns` values, oldest first. A span without a reading repeats the value before.
    pub fn columns(&self, columns: usize) -> Vec<u64> {
        let mut last = 0;
        let filled: Vec<u64> = self
            .points
            .iter()
            .map(|point| {
                last = point.unwrap_or(last);
                last
            })
            .collect();
        if filled.len() <= columns || columns == 0 {
            return filled;
        }
        (0..columns)
            .map(|column| {
                let from = column * filled.len() / columns;
                let to = ((column + 1) * filled.len() / columns).max(from + 1);
                filled[from..to].iter().copied().max().unwrap_or(0)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_short_history_is_shown_point_by_point() {
        let mut history = History::new(10);
        for (at, value) in [(100, 5), (110, 7), (130, 6)] {
            history.add(at, value);
        }
        assert_eq!(history.columns(40), [5, 7, 7, 6]);
    }

    #[test]
    fn a_peak_of_one_reading_survives_hours() {
        let mut history = History::new(10);
        for reading in 0..100_000 {
            history.add(reading * 10, if reading == 12_345 { 99 } else { reading % 7 });
        }
        assert!(history.points.len() <= POINTS);
        assert_eq!(history.columns(60).len(), 60);
        assert_eq!(history.columns(60).into_iter().max(), Some(99));
    }

    proptest! {
        #[test]
        fn any_times_and_values_are_accepted(times in proptest::collection::vec(any::<(u64, u64)>(), 0..50), columns in 0usize..100) {
            let mut history = History::new(1_000_000);
            for (at, value) in &times {
                history.add(*at, *value);
            }
            prop_assert!(history.points.len() <= POINTS);
            let shown = history.columns(columns);
            prop_assert!(columns == 0 || shown.len() <= columns);
            if columns > 0 {
                prop_assert_eq!(shown.into_iter().max(), times.iter().map(|(_, value)| *value).max());
            }
        }
    }
}
