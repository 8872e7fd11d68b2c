//! Live memory, added up in order of allocation time, in a bounded number of points.
//!
//! Dropped points leave the others exact: each point is the total up to its time.

/// The most points of a curve. At this number every other point is dropped.
pub const POINTS: usize = 100_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Point {
    pub time_ns: u64,
    pub bytes: u64,
    pub count: u64,
}

#[derive(Debug, Default)]
pub struct Curve {
    kept: Vec<Point>,
    /// One in 2^`halvings` points is kept; `seen` counts all.
    halvings: u32,
    seen: u64,
    last: Option<Point>,
}

impl Curve {
    /// Adds an allocation. Times must not decrease.
    pub fn add(&mut self, time_ns: u64, bytes: u64) {
        let before = self.last.unwrap_or_default();
        if let Some(last) = self.last.filter(|last| last.time_ns != time_ns) {
            self.keep(last);
        }
        self.last = Some(Point {
            time_ns,
            bytes: before.bytes.saturating_add(bytes),
            count: before.count + 1,
        });
    }

    fn keep(&mut self, point: Point) {
        if self.seen.is_multiple_of(1 << self.halvings) {
            self.kept.push(point);
        }
        self.seen += 1;
        if self.kept.len() == POINTS {
            let mut nth = 0;
            self.kept.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
            self.halvings += 1;
        }
    }

    /// In order of time; the last point is all live memory.
    pub fn points(mut self) -> Vec<Point> {
        self.kept.extend(self.last);
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(times: impl Iterator<Item = u64>) -> Vec<Point> {
        let mut curve = Curve::default();
        times.for_each(|time| curve.add(time, 2));
        curve.points()
    }

    #[test]
    fn each_time_is_one_point_with_the_total_so_far() {
        let sums: Vec<_> = curve([3, 3, 5, 9].into_iter())
            .iter()
            .map(|point| (point.time_ns, point.bytes, point.count))
            .collect();
        assert_eq!(sums, [(3, 4, 2), (5, 6, 3), (9, 8, 4)]);
        assert_eq!(curve(std::iter::empty()), []);
    }

    #[test]
    fn a_curve_of_millions_keeps_few_exact_points() {
        let times = 7 * POINTS as u64 + 5;
        let points = curve(0..times);
        assert!(points.len() <= POINTS && points.len() > POINTS / 4, "{}", points.len());
        assert!(points.is_sorted_by_key(|point| point.time_ns));
        assert!(points.iter().all(|point| point.count == point.time_ns + 1));
        assert_eq!(points.last().map(|point| point.count), Some(times));
    }
}
