use super::*;
use crate::lockfree::index::mix;

pub(crate) const MEAN: u64 = 512 << 10;

/// A sampler as a thread of the preload library has it.
pub(crate) struct Sampler {
    state: u64,
    left: u64,
}

impl Sampler {
    pub(crate) fn new(seed: u64) -> Sampler {
        let state = next(mix(seed) | 1);
        Sampler {
            state,
            left: distance(state, MEAN),
        }
    }

    pub(crate) fn chooses(&mut self, bytes: u64) -> bool {
        if bytes < self.left {
            self.left -= bytes;
            return false;
        }
        self.state = next(self.state);
        self.left = distance(self.state, MEAN);
        true
    }
}

#[test]
fn the_functions_agree_with_those_of_the_mathematics_library() {
    let mut worst = [0.0f64; 2];
    for step in 1..200_000u64 {
        let x = step as f64 * 2.5e-4;
        let exact = -(-x).exp_m1();
        worst[0] = worst[0].max((one_minus_exp(x) / exact - 1.0).abs());
        let u = (mix(step) >> 11) as f64 / (1u64 << 53) as f64 + 1e-17;
        let exact = -u.ln();
        worst[1] = worst[1].max((minus_ln(u) / exact - 1.0).abs());
    }
    for exponent in -60..0 {
        let x = 2f64.powi(exponent);
        worst[0] = worst[0].max((one_minus_exp(x) / -(-x).exp_m1() - 1.0).abs());
    }
    assert!(worst[0] < 1e-13 && worst[1] < 1e-13, "{worst:?}");
    assert_eq!(probability(0, MEAN), 0.0);
    assert_eq!(probability(u64::MAX, 1), 1.0);
}

#[test]
fn every_size_is_chosen_with_its_probability() {
    let sizes: [u64; 8] = [512, 4 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 3 << 20];
    const ROUNDS: u64 = 200_000;
    let mut sampler = Sampler::new(7);
    let mut chosen = [0u64; 8];
    let mut order = 1;
    for _ in 0..ROUNDS * sizes.len() as u64 {
        order = next(order);
        // Sizes in random order, as a program has them.
        let size = (order % sizes.len() as u64) as usize;
        chosen[size] += u64::from(sampler.chooses(sizes[size]));
    }
    // The same order again, to count how often each size was allocated.
    let (mut order, mut allocated) = (1, [0u64; 8]);
    for _ in 0..ROUNDS * sizes.len() as u64 {
        order = next(order);
        allocated[(order % sizes.len() as u64) as usize] += 1;
    }
    let chi_square: f64 = (0..8)
        .map(|size| {
            let (n, p) = (allocated[size] as f64, probability(sizes[size], MEAN));
            (chosen[size] as f64 - n * p).powi(2) / (n * p * (1.0 - p))
        })
        .sum();
    // 8 degrees of freedom: larger than 26.1 once in a thousand seeds.
    assert!(chi_square < 26.1, "chi-square {chi_square}, chosen {chosen:?}");
}

#[test]
fn consecutive_choices_are_independent() {
    // Pairs of blocks with p = 1 - 1/e: how often both, one and none are chosen.
    let mut sampler = Sampler::new(3);
    let mut pairs = [0u64; 4];
    const PAIRS: u64 = 400_000;
    for _ in 0..PAIRS {
        let (first, second) = (sampler.chooses(MEAN), sampler.chooses(MEAN));
        pairs[usize::from(first) * 2 + usize::from(second)] += 1;
    }
    let p = probability(MEAN, MEAN);
    let expected = [(1.0 - p) * (1.0 - p), p * (1.0 - p), p * (1.0 - p), p * p];
    let chi_square: f64 = (0..4)
        .map(|pair| {
            let expected = expected[pair] * PAIRS as f64;
            (pairs[pair] as f64 - expected).powi(2) / expected
        })
        .sum();
    // 3 degrees of freedom: larger than 16.3 once in a thousand seeds.
    assert!(chi_square < 16.3, "chi-square {chi_square}, pairs {pairs:?}");
}

#[test]
fn estimates_are_unbiased_and_their_error_is_the_one_stated() {
    // 1,000 runs of a site with blocks of several sizes: the mean of the estimates is the truth, and their deviation from it
    // is what the estimated variance says.
    const RUNS: u64 = 1000;
    let sizes: Vec<u64> = (0..400).map(|nth| 4096 * (1 + nth % 40)).collect();
    let (bytes, count): (u64, u64) = (sizes.iter().sum(), sizes.len() as u64);
    let (mut sum, mut squares, mut variance, mut counted) = (0.0, 0.0, 0.0, 0.0);
    for run in 0..RUNS {
        let mut sampler = Sampler::new(100 + run);
        let chosen = sizes.iter().filter(|&&size| sampler.chooses(size));
        let weights: Vec<Weight> = chosen.map(|&size| Weight::of(size, MEAN)).collect();
        let estimate: f64 = weights.iter().map(|weight| weight.bytes).sum();
        sum += estimate;
        squares += (estimate - bytes as f64).powi(2);
        variance += weights.iter().map(|weight| weight.bytes_variance).sum::<f64>();
        counted += weights.iter().map(|weight| weight.count).sum::<f64>();
    }
    let runs = RUNS as f64;
    let error_of_mean = (squares / runs).sqrt() / runs.sqrt();
    assert!(
        (sum / runs - bytes as f64).abs() < 4.0 * error_of_mean,
        "{} of {bytes}",
        sum / runs
    );
    assert!((variance / squares - 1.0).abs() < 0.2, "{variance} against {squares}");
    assert!(
        (counted / runs / count as f64 - 1.0).abs() < 0.1,
        "{} of {count}",
        counted / runs
    );
}

#[test]
fn whole_weights_are_unbiased_and_depend_on_the_key_alone() {
    let weights = (0..100_000u64).map(|key| whole_weight(MEAN, MEAN, key).1);
    let mean = weights.sum::<u64>() as f64 / 1e5;
    let exact = 1.0 / probability(MEAN, MEAN);
    // The standard deviation of one rounding is at most 1/2.
    assert!(
        (mean - exact).abs() < 4.0 * 0.5 / 1e5f64.sqrt(),
        "{mean} against {exact}"
    );
    assert_eq!(whole_weight(4096, MEAN, 17), whole_weight(4096, MEAN, 17));
    assert_eq!(whole_weight(1 << 40, MEAN, 17), (1 << 40, 1));
}

#[test]
fn distances_are_at_least_one_byte() {
    let mut state = 1;
    for _ in 0..10_000 {
        state = next(state);
        assert!(distance(state, SMALLEST) >= 1);
        assert!(distance(state, LARGEST) < 1 << 47);
    }
}

/// A sampler with a limit of stacks a second, as a thread of the preload library has it.
struct Regulated {
    state: u64,
    left: u64,
    rate: u64,
    raised: u8,
    taken: u32,
    window_ns: u64,
}

impl Regulated {
    fn new(seed: u64, rate: u64) -> Regulated {
        let state = next(mix(seed) | 1);
        Regulated {
            state,
            left: distance(state, MEAN),
            rate,
            raised: 0,
            taken: 0,
            window_ns: 0,
        }
    }

    /// The mean distance by which the block is chosen.
    fn chooses(&mut self, bytes: u64, now_ns: u64) -> Option<u64> {
        if bytes < self.left {
            self.left -= bytes;
            return None;
        }
        let mean = mean_of(MEAN, self.raised);
        self.taken += 1;
        let elapsed = now_ns - self.window_ns;
        if let Some(raised) = regulated(self.raised, self.taken, elapsed, self.rate) {
            (self.raised, self.taken, self.window_ns) = (raised, 0, now_ns);
        }
        self.state = next(self.state);
        self.left = distance(self.state, mean_of(MEAN, self.raised));
        Some(mean)
    }
}

/// Half a second of a program: its blocks, and the time from each to the next.
#[derive(Clone, Copy)]
enum Pace {
    /// 1 MiB every 20 us.
    Busy,
    /// 256 KiB every 10 ms.
    Quiet,
}

impl Pace {
    fn block(self) -> (u64, u64) {
        match self {
            Pace::Busy => (1 << 20, 20_000),
            Pace::Quiet => (256 << 10, 10_000_000),
        }
    }

    fn blocks(self) -> u64 {
        500_000_000 / self.block().1
    }
}

#[test]
fn estimates_stay_unbiased_while_the_distance_follows_the_pace_of_the_program() {
    use Pace::*;
    const RUNS: u64 = 200;
    const RATE: u64 = 1000;
    let paces = [Quiet, Busy, Busy, Quiet, Quiet, Busy, Quiet];
    // For each part: the sums of the estimates, of their squared differences from the truth, of the variances, and of stacks.
    let mut sums = [[0.0; 4]; 7];
    let mut lowest = [RAISED_MAX; 7];
    for run in 0..RUNS {
        let mut sampler = Regulated::new(1000 + run, RATE);
        let mut now = 0;
        for (part, pace) in paces.iter().enumerate() {
            let (bytes, step) = pace.block();
            let (mut estimate, mut variance, mut stacks) = (0.0, 0.0, 0.0);
            for _ in 0..pace.blocks() {
                now += step;
                if let Some(mean) = sampler.chooses(bytes, now) {
                    let weight = Weight::of(bytes, mean);
                    estimate += weight.bytes;
                    variance += weight.bytes_variance;
                    stacks += 1.0;
                }
            }
            let truth = (pace.blocks() * bytes) as f64;
            let figures = [estimate, (estimate - truth).powi(2), variance, stacks];
            (0..4).for_each(|at| sums[part][at] += figures[at]);
            lowest[part] = lowest[part].min(sampler.raised);
        }
        let (bytes, step) = Quiet.block();
        for nth in 1..20_000 {
            sampler.chooses(bytes, now + nth * step);
        }
        assert_eq!(sampler.raised, 0, "run {run}: after 200 quiet seconds");
    }
    for (part, pace) in paces.iter().enumerate() {
        let [estimate, squares, variance, stacks] = sums[part].map(|sum| sum / RUNS as f64);
        let truth = (pace.blocks() * pace.block().0) as f64;
        let error_of_mean = (squares / RUNS as f64).sqrt();
        assert!(
            (estimate - truth).abs() < 4.0 * error_of_mean,
            "part {part}: {estimate} of {truth} ± {error_of_mean}"
        );
        // Parts with few stacks after a fast one: the variance of a variance.
        let tolerance = if matches!(pace, Busy) { 0.3 } else { 0.7 };
        assert!(
            (variance / squares - 1.0).abs() < tolerance,
            "part {part}: variance {variance}, squares {squares}"
        );
        // At most the rate, and a window of each step up to it.
        let most = RATE as f64 / 2.0 + 4.0 * RATE as f64 / 16.0;
        assert!(stacks < most, "part {part}: {stacks} stacks in half a second");
        if matches!(pace, Busy) {
            assert!(stacks > RATE as f64 / 16.0, "part {part}: {stacks} stacks");
            assert!(lowest[part] >= 2, "part {part}: raised {} times", lowest[part]);
        }
    }
}

#[test]
fn a_mean_distance_stays_within_its_limits() {
    assert_eq!(mean_of(MEAN, 0), MEAN);
    assert_eq!(mean_of(MEAN, 2), 16 * MEAN);
    assert_eq!(mean_of(LARGEST, RAISED_MAX), LARGEST);
    assert_eq!(regulated(RAISED_MAX, u32::MAX, 1, 1_000_000), Some(RAISED_MAX));
    assert_eq!(regulated(RAISED_MAX, 1, u64::MAX, 1_000_000), Some(0));
    assert_eq!(regulated(0, 1, u64::MAX, 1), None, "nothing to lower");
    assert_eq!(regulated(3, 1, 0, 1000), None);
}
