//! The statistics behind a judgement, each robust against the outliers that memory series have.
//!
//! Slopes are Theil–Sen estimates: the median of the slopes between all pairs of points, which tolerates 29 % of
//! outliers. Two tests with different weaknesses decide whether there is a trend. [`signs`] counts single steps: a
//! random walk does not mislead it, but noise hides the trend from it. [`kendall`] compares all pairs: it finds a trend
//! in noise, but would take a random walk for a trend, so it counts only as many points as are independent.
//! Deliberately absent: anything that assumes a normal distribution of bytes.

/// A straight line through a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    pub slope: f64,
    /// The bounds of the slope with 95 % confidence.
    pub low: f64,
    pub high: f64,
    pub intercept: f64,
    /// The fraction of the variance that the line explains, 0 to 1.
    pub r_squared: f64,
}

impl Line {
    pub fn at(&self, x: f64) -> f64 {
        self.intercept + self.slope * x
    }

    pub fn residuals(&self, xs: &[f64], ys: &[f64]) -> Vec<f64> {
        xs.iter().zip(ys).map(|(&x, &y)| y - self.at(x)).collect()
    }
}

/// The Theil–Sen line; `None` if all points have the same x.
pub fn theil_sen(xs: &[f64], ys: &[f64]) -> Option<Line> {
    let mut slopes = Vec::with_capacity(xs.len() * xs.len() / 2);
    for later in 1..xs.len() {
        for earlier in 0..later {
            let width = xs[later] - xs[earlier];
            if width > 0.0 {
                slopes.push((ys[later] - ys[earlier]) / width);
            }
        }
    }
    if slopes.is_empty() {
        return None;
    }
    slopes.sort_unstable_by(f64::total_cmp);
    let slope = median_of_sorted(&slopes);
    // Sen's interval: ranks on either side of the median.
    let residuals: Vec<f64> = xs.iter().zip(ys).map(|(&x, &y)| y - slope * x).collect();
    let spread = 1.96 * (variance_of_score(ys) * repetition(&residuals)).sqrt();
    let ranks = slopes.len() as f64;
    let rank = |rank: f64| slopes[rank.round().clamp(0.0, ranks - 1.0) as usize];
    let intercept = median(&residuals);
    let line = Line {
        slope,
        low: rank((ranks - spread) / 2.0),
        high: rank((ranks + spread) / 2.0),
        intercept,
        r_squared: 0.0,
    };
    Some(Line {
        r_squared: explained(ys, &line.residuals(xs, ys)),
        ..line
    })
}

/// The fraction of a series' variance that a model with these residuals explains.
pub fn explained(ys: &[f64], residuals: &[f64]) -> f64 {
    let all = squares_around_mean(ys);
    let left: f64 = residuals.iter().map(|residual| residual * residual).sum();
    if all > 0.0 {
        (1.0 - left / all).clamp(0.0, 1.0)
    } else {
        1.0
    }
}

pub fn squares_around_mean(ys: &[f64]) -> f64 {
    let mean = ys.iter().sum::<f64>() / ys.len().max(1) as f64;
    ys.iter().map(|y| (y - mean) * (y - mean)).sum()
}

pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    median_of_sorted(&sorted)
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => 0.0,
        (count, middle) if count % 2 == 1 => sorted[middle],
        (_, middle) => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The value below which this fraction of all values lies.
pub fn quantile(values: &[f64], fraction: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((fraction * last as f64).round() as usize)
        .copied()
        .unwrap_or(0.0)
}

/// The probability that at least `up` of `of` steps go up if up and down are equally likely.
pub fn signs(up: usize, of: usize) -> f64 {
    // Binomial coefficients over 2^of, from the top, in logarithms so that thousands of steps do not overflow.
    let mut log = -(of as f64) * std::f64::consts::LN_2;
    let mut sum = log.exp();
    for down in 0..of.saturating_sub(up) {
        log += ((of - down) as f64 / (down + 1) as f64).ln();
        sum += log.exp();
    }
    sum.min(1.0)
}

/// The probability that later points are above earlier ones as often in a series without trend (one-sided Mann–Kendall
/// test), counting only as many points as the residuals show to be independent.
pub fn kendall(ys: &[f64], residuals: &[f64]) -> f64 {
    let mut score = 0.0;
    for later in 1..ys.len() {
        for earlier in 0..later {
            score += match ys[later].total_cmp(&ys[earlier]) {
                std::cmp::Ordering::Less => -1.0,
                std::cmp::Ordering::Equal => 0.0,
                std::cmp::Ordering::Greater => 1.0,
            };
        }
    }
    let deviation = (variance_of_score(ys) * repetition(residuals)).sqrt();
    if deviation > 0.0 {
        above((score - 1.0) / deviation)
    } else {
        1.0
    }
}

/// Variance of Kendall's score for points in random order; ties do not count.
fn variance_of_score(ys: &[f64]) -> f64 {
    let term = |n: f64| n * (n - 1.0) * (2.0 * n + 5.0);
    let mut sorted = ys.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let ties: f64 = sorted
        .chunk_by(|a, b| a == b)
        .map(|equal| term(equal.len() as f64))
        .sum();
    (term(ys.len() as f64) - ties) / 18.0
}

/// How many points carry the information of one independent point: 1 if all are independent.
fn repetition(residuals: &[f64]) -> f64 {
    let count = residuals.len() as f64;
    if count < 6.0 {
        return 1.0;
    }
    // A line that is fitted to a short random walk follows it, so its residuals look more independent than they are.
    let autocorrelation = (count * autocorrelation(residuals, 1) + 2.0) / (count - 4.0);
    let autocorrelation = autocorrelation.clamp(0.0, 0.95);
    (1.0 + autocorrelation) / (1.0 - autocorrelation)
}

/// Autocorrelation at this lag: 1 for a series that repeats, 0 for an independent one.
pub fn autocorrelation(residuals: &[f64], lag: usize) -> f64 {
    let mean = residuals.iter().sum::<f64>() / residuals.len().max(1) as f64;
    let all: f64 = residuals.iter().map(|r| (r - mean) * (r - mean)).sum();
    let shifted = residuals.iter().zip(residuals.iter().skip(lag));
    let pairs: f64 = shifted.map(|(a, b)| (a - mean) * (b - mean)).sum();
    if all > 0.0 { pairs / all } else { 0.0 }
}

/// The fraction of a normal distribution above this number of standard deviations (Abramowitz and Stegun 7.1.26, error
/// below 1e-7).
fn above(deviations: f64) -> f64 {
    let x = deviations.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let series = [
        0.254_829_592,
        -0.284_496_736,
        1.421_413_741,
        -1.453_152_027,
        1.061_405_429,
    ];
    let sum = series.iter().rev().fold(0.0, |sum, factor| (sum + factor) * t);
    let tail = 0.5 * sum * (-x * x).exp();
    if deviations < 0.0 { 1.0 - tail } else { tail }
}

/// The best fit of two lines that meet at a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bend {
    /// Index of the point at the bend.
    pub at: usize,
    pub before: f64,
    pub after: f64,
    /// The slope after the bend, in standard deviations.
    pub after_deviations: f64,
    /// F ratio of two lines against one.
    pub gain: f64,
    /// The fraction of the variance that the two lines explain, 0 to 1.
    pub r_squared: f64,
}

/// The least-squares fit over all bends that leave `margin` points on both sides.
pub fn bend(xs: &[f64], ys: &[f64], margin: usize) -> Option<Bend> {
    let count = xs.len();
    let straight = squares_left(&fit(xs, ys, None)?, xs, ys, None);
    let all = squares_around_mean(ys);
    let mut best: Option<(f64, Bend)> = None;
    for at in margin..count.saturating_sub(margin) {
        let Some(fitted) = fit(xs, ys, Some(xs[at])) else {
            continue;
        };
        let left = squares_left(&fitted, xs, ys, Some(xs[at]));
        if best.as_ref().is_some_and(|(least, _)| *least <= left) {
            continue;
        }
        let freedom = (count as f64 - 4.0).max(1.0);
        let noise = left / freedom;
        let gain = if noise > 0.0 {
            (straight - left) / noise
        } else {
            f64::INFINITY
        };
        let after = fitted[1] + fitted[2];
        let width = squares_around_mean(&xs[at..]);
        let after_deviations = if noise > 0.0 {
            after * (width / noise).sqrt()
        } else {
            after.signum() * f64::INFINITY
        };
        best = Some((
            left,
            Bend {
                at,
                before: fitted[1],
                after,
                after_deviations,
                gain,
                r_squared: if all > 0.0 { (1.0 - left / all).max(0.0) } else { 1.0 },
            },
        ));
    }
    best.map(|(_, bend)| bend)
}

/// The terms of a bent line: 1, x, and the distance of x beyond the bend.
fn terms(x: f64, bend: Option<f64>) -> [f64; 3] {
    [1.0, x, bend.map_or(0.0, |bend| (x - bend).max(0.0))]
}

fn squares_left(factors: &[f64; 3], xs: &[f64], ys: &[f64], bend: Option<f64>) -> f64 {
    let left = xs.iter().zip(ys).map(|(&x, &y)| {
        let fitted: f64 = terms(x, bend)
            .iter()
            .zip(factors)
            .map(|(term, factor)| term * factor)
            .sum();
        (y - fitted) * (y - fitted)
    });
    left.sum()
}

/// Least squares by the normal equations, with three unknowns, or two without a bend.
fn fit(xs: &[f64], ys: &[f64], bend: Option<f64>) -> Option<[f64; 3]> {
    let unknowns = if bend.is_some() { 3 } else { 2 };
    let mut matrix = [[0.0; 4]; 3];
    for (&x, &y) in xs.iter().zip(ys) {
        let terms = terms(x, bend);
        for row in 0..unknowns {
            for column in 0..unknowns {
                matrix[row][column] += terms[row] * terms[column];
            }
            matrix[row][3] += terms[row] * y;
        }
    }
    for pivot in 0..unknowns {
        let largest = (pivot..unknowns).max_by(|&a, &b| matrix[a][pivot].abs().total_cmp(&matrix[b][pivot].abs()))?;
        matrix.swap(pivot, largest);
        if matrix[pivot][pivot].abs() < 1e-12 {
            return None;
        }
        let pivoted = matrix[pivot];
        for (_, row) in matrix.iter_mut().enumerate().filter(|(row, _)| *row != pivot) {
            let factor = row[pivot] / pivoted[pivot];
            for (cell, above) in row.iter_mut().zip(pivoted) {
                *cell -= factor * above;
            }
        }
    }
    let mut factors = [0.0; 3];
    for row in 0..unknowns {
        factors[row] = matrix[row][3] / matrix[row][row];
    }
    Some(factors)
}
