//! Synthetic series of known classes, with noise, the same in each run.

/// SplitMix64: a seed always gives the same numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0xd134_2543_de82_ef95))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn whole(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low + 1) as u64) as usize
    }

    fn either(&mut self) -> bool {
        self.whole(0, 1) == 1
    }

    /// Mean 0, standard deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.between(0.0, 1.0)).sum::<f64>() - 6.0
    }

    /// A number of snapshots.
    fn count(&mut self) -> usize {
        self.whole(8, 120)
    }
}

/// A kind of series: its name, and a function that makes one.
pub type Family = (&'static str, fn(&mut Random) -> Vec<f64>);

/// In MiB. Each is bounded, and reaches its bound within the series.
pub const BOUNDED: [Family; 8] = [
    ("random walk between two walls", |random| {
        let count = random.count();
        let bound = random.between(3.0, 12.0);
        let moves = random.between(0.3, 1.0);
        let mut at = random.between(0.0, bound);
        let mut step = || {
            if random.between(0.0, 1.0) < moves {
                at = (at + random.normal()).abs();
                at = if at > bound { (2.0 * bound - at).max(0.0) } else { at };
            }
            10.0 * at
        };
        (0..count).map(|_| step()).collect()
    }),
    ("blocks allocated and freed", |random| {
        let count = random.count();
        let most = random.whole(3, 12);
        let mut blocks = random.whole(0, most);
        let mut step = || {
            blocks = match random.whole(0, 2) {
                0 => blocks.saturating_sub(1),
                1 => blocks,
                _ => most.min(blocks + 1),
            };
            64.0 * blocks as f64
        };
        (0..count).map(|_| step()).collect()
    }),
    ("sawtooth", |random| {
        let count = random.count();
        let (cycles, phase) = (random.between(2.0, 8.0), random.between(0.0, 1.0));
        let (floor, height) = (random.between(0.0, 100.0), random.between(10.0, 200.0));
        let noise = random.between(0.0, 0.1) * height;
        let wave = |nth: usize| (nth as f64 / count as f64 * cycles + phase).fract();
        (0..count)
            .map(|nth| floor + height * wave(nth) + noise * random.normal())
            .collect()
    }),
    ("on and off", |random| {
        let count = random.count();
        let (floor, height) = (random.between(0.0, 50.0), random.between(10.0, 200.0));
        let turns = random.between(0.1, 0.6);
        let mut on = random.either();
        let mut step = || {
            on ^= random.between(0.0, 1.0) < turns;
            floor + if on { height } else { 0.0 }
        };
        (0..count).map(|_| step()).collect()
    }),
    ("steps, then flat", |random| {
        let count = random.count();
        let places: Vec<usize> = (0..random.whole(1, 4))
            .map(|_| random.whole(1, count * 2 / 3))
            .collect();
        let (floor, height) = (random.between(0.0, 100.0), random.between(10.0, 200.0));
        let noise = if random.either() {
            random.between(0.0, 0.03) * height
        } else {
            0.0
        };
        let up = |nth: usize| places.iter().filter(|&&place| place <= nth).count() as f64;
        (0..count)
            .map(|nth| floor + height * up(nth) + noise * random.normal())
            .collect()
    }),
    ("noisy plateau", |random| {
        let count = random.count();
        let level = random.between(50.0, 1000.0);
        let noise = random.between(0.001, 0.3) * level;
        (0..count).map(|_| level + noise * random.normal()).collect()
    }),
    ("warm-up", |random| {
        let count = random.count();
        let pace = random.between(0.02, 0.3);
        let (floor, height) = (random.between(0.0, 50.0), random.between(10.0, 500.0));
        let noise = if random.either() {
            random.between(0.0, 0.05) * height
        } else {
            0.0
        };
        let warm = |nth: usize| 1.0 - (-(nth as f64 / count as f64) / pace).exp();
        (0..count)
            .map(|nth| floor + height * warm(nth) + noise * random.normal())
            .collect()
    }),
    ("cache that fills", |random| {
        let count = random.count();
        let (full, height) = (random.between(0.1, 0.7), random.between(10.0, 500.0));
        (0..count)
            .map(|nth| height * (nth as f64 / count as f64 / full).min(1.0))
            .collect()
    }),
];

/// In MiB. Leaks.
pub const GROWING: [Family; 7] = [
    ("line", |random| {
        let count = random.count();
        let (floor, slope) = (random.between(0.0, 1000.0), random.between(0.1, 50.0));
        (0..count).map(|nth| floor + slope * nth as f64).collect()
    }),
    ("line under noise", |random| {
        let count = random.count();
        let (floor, slope) = (random.between(0.0, 1000.0), random.between(0.1, 50.0));
        let noise = random.between(0.0, 0.15) * slope * count as f64;
        (0..count)
            .map(|nth| floor + slope * nth as f64 + noise * random.normal())
            .collect()
    }),
    ("stairs", |random| {
        let count = random.count().max(24);
        let every = random.whole(1, count / 10);
        let floor = random.between(0.0, 1000.0);
        (0..count).map(|nth| floor + 64.0 * (nth / every) as f64).collect()
    }),
    ("rising sawtooth", |random| {
        let count = random.count().max(30);
        let cycles = random.between(5.0, count as f64 / 5.0);
        let height = random.between(10.0, 100.0);
        let slope = height * random.between(1.0, 5.0) / count as f64;
        let wave = |nth: usize| (nth as f64 / count as f64 * cycles).fract();
        let value = |nth: usize| 100.0 + slope * nth as f64 + height * wave(nth);
        (0..count)
            .map(|nth| value(nth) + 0.02 * height * random.normal())
            .collect()
    }),
    ("site that appears late", |random| {
        let count = random.count().max(20);
        let from = random.whole(count / 10, count / 2);
        let slope = random.between(0.1, 50.0);
        (0..count).map(|nth| slope * nth.saturating_sub(from) as f64).collect()
    }),
    ("leak that begins late", |random| {
        let count = random.count().max(20);
        let from = random.whole(count / 10, count / 2);
        let slope = random.between(0.1, 50.0);
        (0..count)
            .map(|nth| 500.0 + slope * nth.saturating_sub(from) as f64)
            .collect()
    }),
    ("faster and faster", |random| {
        let count = random.count();
        let slope = random.between(0.01, 1.0);
        (0..count).map(|nth| 10.0 + slope * (nth * nth) as f64).collect()
    }),
];

/// In MiB. Leaks that begin late, are small beside what preceded them, or grow ever more slowly: some are called growing, and
/// `--fail-on growing` must not pass with the others.
pub const HARD_TO_SEE: [Family; 8] = [
    ("constant, then 3 to 8 rises", |random| {
        let count = random.count().max(9);
        let (from, slope) = (count - 1 - random.whole(3, 8), random.between(0.1, 50.0));
        (0..count)
            .map(|nth| 500.0 + slope * nth.saturating_sub(from) as f64)
            .collect()
    }),
    ("noise, then 3 to 8 rises", |random| {
        let count = random.count().max(20);
        let (from, slope) = (count - 1 - random.whole(3, 8), random.between(0.1, 50.0));
        let noise = slope * random.between(0.1, 0.5);
        (0..count)
            .map(|nth| 500.0 + noise * random.normal() + slope * nth.saturating_sub(from) as f64)
            .collect()
    }),
    ("warm-up, then a slow line", |random| {
        let count = random.count().max(20);
        let (until, height) = (random.whole(1, count / 2), random.between(100.0, 1000.0));
        let slope = height * random.between(0.0001, 0.02);
        let value =
            |nth: usize| height * nth.min(until) as f64 / until as f64 + slope * nth.saturating_sub(until) as f64;
        (0..count).map(value).collect()
    }),
    ("warm-up, then a slow line under noise", |random| {
        let count = random.count().max(30);
        let (until, height) = (random.whole(2, count / 3), random.between(100.0, 1000.0));
        let slope = height * random.between(0.002, 0.02);
        let noise = slope * random.between(0.1, 2.0);
        let value =
            |nth: usize| height * nth.min(until) as f64 / until as f64 + slope * nth.saturating_sub(until) as f64;
        (0..count).map(|nth| value(nth) + noise * random.normal()).collect()
    }),
    ("warm-up, then low stairs", |random| {
        let count = random.count().max(30);
        let (until, height) = (random.whole(2, count / 3), random.between(100.0, 1000.0));
        let (rise, every) = (height * random.between(0.002, 0.05), random.whole(2, count / 8));
        let value = |nth: usize| {
            height * nth.min(until) as f64 / until as f64 + rise * (nth.saturating_sub(until) / every) as f64
        };
        (0..count).map(value).collect()
    }),
    ("square root", |random| {
        let count = random.count();
        let factor = random.between(1.0, 50.0);
        (0..count).map(|nth| 50.0 + factor * (nth as f64).sqrt()).collect()
    }),
    ("growth, a pause, growth", |random| {
        let count = random.count().max(30);
        let (until, from) = (count / 4, count - random.whole(4, count / 4));
        (0..count)
            .map(|nth| 100.0 + 10.0 * (nth.min(until) + nth.saturating_sub(from)) as f64)
            .collect()
    }),
    ("spike, then a line", |random| {
        let count = random.count().max(20);
        let (at, slope) = (random.whole(1, 4), random.between(0.1, 5.0));
        let spike = random.between(100.0, 2000.0);
        (0..count)
            .map(|nth| 50.0 + if nth == at { spike } else { slope * nth as f64 })
            .collect()
    }),
];
