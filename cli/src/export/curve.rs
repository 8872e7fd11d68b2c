//! Memory over time, in a bounded number of points.
//!
//! Dropped points leave the others exact. Of each group of changes, the lowest, the highest and the last point are kept.

/// The most points of a curve, about.
pub const POINTS: usize = 100_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Point {
    pub time_ns: u64,
    pub bytes: u64,
    /// Live blocks.
    pub count: u64,
}

#[derive(Debug, Default)]
pub struct Curve {
    now: Point,
    /// The most changes there can be.
    changes: usize,
    group: Vec<Point>,
    points: Vec<Point>,
}

impl Curve {
    /// `changes`: the most there can be.
    pub fn of(changes: usize) -> Curve {
        Curve {
            changes,
            ..Curve::default()
        }
    }

    /// What is live before the first change; a block may change twice.
    pub fn expect(&mut self, bytes: u64, is_live: bool) {
        self.changes += 2;
        if is_live {
            self.now.bytes = self.now.bytes.saturating_add(bytes);
            self.now.count += 1;
        }
    }

    /// The first point.
    pub fn begin(&mut self, time_ns: u64) {
        self.now.time_ns = time_ns;
        self.points.push(self.now);
    }

    /// Adds an allocation. Times must not decrease.
    pub fn add(&mut self, time_ns: u64, bytes: u64) {
        self.now.bytes = self.now.bytes.saturating_add(bytes);
        self.now.count += 1;
        self.changed(time_ns);
    }

    /// As [`Curve::add`], of a free.
    pub fn remove(&mut self, time_ns: u64, bytes: u64) {
        self.now.bytes = self.now.bytes.saturating_sub(bytes);
        self.now.count = self.now.count.saturating_sub(1);
        self.changed(time_ns);
    }

    fn changed(&mut self, time_ns: u64) {
        self.now.time_ns = time_ns;
        self.group.push(self.now);
        if self.group.len() > self.changes * 3 / POINTS {
            self.close();
        }
    }

    fn close(&mut self) {
        let Some(last) = self.group.len().checked_sub(1) else {
            return;
        };
        let by_bytes = |nth: &usize| self.group[*nth].bytes;
        let lowest = (0..=last).min_by_key(by_bytes).unwrap_or(last);
        let highest = (0..=last).max_by_key(by_bytes).unwrap_or(last);
        let mut kept = vec![lowest, highest, last];
        kept.sort_unstable();
        kept.dedup();
        self.points.extend(kept.into_iter().map(|nth| self.group[nth]));
        self.group.clear();
    }

    /// In order of time; the last point is the last state.
    pub fn points(mut self) -> Vec<Point> {
        self.close();
        self.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_a_point_with_the_total_so_far() {
        let mut curve = Curve::of(4);
        for (time, bytes) in [(3, 2), (5, 2)] {
            curve.add(time, bytes);
        }
        curve.remove(9, 2);
        let points = curve.points();
        let sums: Vec<_> = points
            .iter()
            .map(|point| (point.time_ns, point.bytes, point.count))
            .collect();
        assert_eq!(sums, [(3, 2, 1), (5, 4, 2), (9, 2, 1)]);
        assert_eq!(Curve::default().points(), []);
    }

    #[test]
    fn a_curve_of_millions_keeps_few_exact_points() {
        let times = 7 * POINTS as u64 + 5;
        let mut curve = Curve::of(times as usize);
        (0..times).for_each(|time| curve.add(time, 2));
        let points = curve.points();
        assert!(points.len() <= POINTS && points.len() > POINTS / 4, "{}", points.len());
        assert!(points.is_sorted_by_key(|point| point.time_ns));
        assert!(points.iter().all(|point| point.count == point.time_ns + 1));
        assert_eq!(points.last().map(|point| point.count), Some(times));
    }
}
