//! What one series of numbers does: grows, grew and stopped, goes up and down, stays.
//!
//! ```text
//!  growing        slowing       grew then       periodic       irregular      shrinking
//!        ╱            ___─       bounded         ╱│ ╱│ ╱│         ╱╲  ╱          ╲
//!      ╱           ╱            ┌──────        ╱ │╱ │╱ │       ╲╱  ╲╱             ╲
//!    ╱           ╱            ──┘             ╱  ╱  ╱                              ╲
//! ```
//!
//! A series grows when the movement upward is more than chance (either test of `statistics`), when its floor rises too,
//! so that a wave which happens to end high does not count, and when a bend explains it no better, that is when it has
//! not slowed. All of that is asked before a word is said, since a false alarm costs more than another snapshot.
//! Deliberately absent: what the numbers are; bytes and blocks are judged alike.

use serde::Serialize;

use super::statistics::{Bend, bend, kendall, likeness, median, quantile, signs, theil_sen};

/// Below this nothing is judged: seven steps that all go up happen by chance once in 128 times.
pub const POINTS_NEEDED: usize = 8;
/// Chance may explain a growth this often, at most.
const CHANCE: f64 = 0.008;
/// More points than this are thinned out: pairs of points are compared, and their number grows with the square.
const POINTS_COMPARED: usize = 200;
/// Behind a bend, a slope below this share of the one before it has slowed, and below the other it has stopped.
const SLOWED: f64 = 0.5;
const STOPPED: f64 = 0.1;

/// What a series does, most suspicious first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// More and more, and it has not slowed.
    Growing,
    /// As above while the program ran, and given back when it ended: a leak that tidy endings hide.
    FreedOnlyAtExit,
    /// Still growing, but ever more slowly.
    Slowing,
    /// A cache, a pool or a warm-up: grew, and has stopped.
    GrewThenBounded,
    /// Up and down in a rhythm.
    Periodic,
    /// Up and down without rhythm or trend.
    Irregular,
    Shrinking,
    Steady,
    /// Too few points to say.
    TooFew,
}

/// What two neighbouring points say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Steps {
    pub up: usize,
    pub down: usize,
    pub same: usize,
}

/// A class and what speaks for it. Slopes are per unit of x.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    pub class: Class,
    /// 0 to 1: how well the class explains the points, and how unlikely chance would.
    pub confidence: f64,
    pub slope: f64,
    pub slope_low: f64,
    pub slope_high: f64,
    pub r_squared: f64,
    /// How likely a series without trend would rise so consistently.
    pub chance: f64,
    pub steps: Steps,
    /// Growing: the point from which on. Bounded: the point at which it stopped.
    pub since: Option<usize>,
    /// Periodic: in units of x.
    pub period: Option<f64>,
}

/// Judges a series; `xs` ascend.
pub fn judge(xs: &[f64], ys: &[f64]) -> Judgement {
    // What was not there yet says nothing, except that it came.
    let absent = ys.iter().take_while(|&&y| y == 0.0).count();
    let start = if absent == ys.len() {
        0
    } else {
        absent.saturating_sub(1)
    };
    let steps = steps(ys);
    let series = Series::of(&xs[start..], &ys[start..]);
    let mut judgement = Judgement {
        class: Class::TooFew,
        confidence: 0.0,
        slope: 0.0,
        slope_low: 0.0,
        slope_high: 0.0,
        r_squared: 0.0,
        chance: 1.0,
        steps,
        since: None,
        period: None,
    };
    if let Some(line) = theil_sen(&series.xs, &series.ys) {
        let scale = series.height / series.width;
        (judgement.slope, judgement.slope_low, judgement.slope_high) =
            (line.slope * scale, line.low * scale, line.high * scale);
        judgement.r_squared = line.r_squared;
    }
    if ys.len() < POINTS_NEEDED {
        return judgement;
    }
    if steps.up + steps.down == 0 {
        (judgement.class, judgement.confidence) = (Class::Steady, 1.0);
        return judgement;
    }
    if series.xs.len() < POINTS_NEEDED && absent > 0 {
        return judgement;
    }
    series.judge(&mut judgement);
    judgement.since = judgement.since.map(|at| start + series.index[at]);
    judgement.period = judgement.period.map(|period| period * series.width);
    judgement
}

fn steps(ys: &[f64]) -> Steps {
    let mut steps = Steps::default();
    for pair in ys.windows(2) {
        match pair[1].total_cmp(&pair[0]) {
            std::cmp::Ordering::Less => steps.down += 1,
            std::cmp::Ordering::Equal => steps.same += 1,
            std::cmp::Ordering::Greater => steps.up += 1,
        }
    }
    steps
}

/// A series brought to width and height 1, so that thresholds mean the same for bytes, blocks, seconds and weeks.
struct Series {
    xs: Vec<f64>,
    ys: Vec<f64>,
    /// Where each point was before thinning.
    index: Vec<usize>,
    width: f64,
    height: f64,
    /// The largest value, in heights.
    level: f64,
}

impl Series {
    fn of(xs: &[f64], ys: &[f64]) -> Series {
        let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let extent = |values: &[f64]| (most(values) - least(values)).max(f64::MIN_POSITIVE);
        let (width, height) = if xs.is_empty() {
            (1.0, 1.0)
        } else {
            (extent(xs), extent(ys))
        };
        let (left, floor) = (least(xs), least(ys));
        let index = thinned(ys);
        Series {
            xs: index.iter().map(|&at| (xs[at] - left) / width).collect(),
            ys: index.iter().map(|&at| (ys[at] - floor) / height).collect(),
            level: most(ys) / height,
            index,
            width,
            height,
        }
    }

    fn judge(&self, judgement: &mut Judgement) {
        let Some(line) = theil_sen(&self.xs, &self.ys) else {
            // All points at one place: nothing has moved with x.
            judgement.class = Class::Irregular;
            return;
        };
        let residuals = line.residuals(&self.xs, &self.ys);
        let moves = steps(&self.ys);
        let by_steps = signs(moves.up, moves.up + moves.down);
        let by_pairs = kendall(&self.ys, &residuals);
        let turned: Vec<f64> = self.ys.iter().map(|y| -y).collect();
        let turned_residuals: Vec<f64> = residuals.iter().map(|r| -r).collect();
        judgement.chance = by_steps.min(by_pairs);
        let rises = (by_steps <= CHANCE && self.straightness() >= 0.5) || by_pairs <= CHANCE / 5.0;
        // What a line explains almost whole has no rhythm worth a word.
        let rhythm = if line.r_squared < 0.95 {
            rhythm(&residuals)
        } else {
            None
        };

        if let Some(period) = rhythm {
            judgement.period = Some(period as f64 / (self.xs.len() - 1) as f64);
            if let Some(chance) = lifted(&self.ys, period) {
                judgement.chance = chance;
                self.grows(judgement);
            } else if self.level >= 20.0 {
                // Ripples of a few percent are none.
                (judgement.class, judgement.confidence) = (Class::Steady, 1.0 - 1.0 / self.level);
            } else {
                judgement.class = Class::Periodic;
                judgement.confidence = likeness(&residuals, period).clamp(0.0, 1.0);
            }
        } else if let Some((at, confidence)) = self.settled() {
            (judgement.class, judgement.confidence) = (Class::GrewThenBounded, confidence);
            judgement.since = Some(at);
        } else if rises && self.floor_rises() {
            self.grows(judgement);
        } else if judgement.chance <= 0.05
            && let Some(bend) = self.bend()
            && bend.before > 0.0
            && bend.stopped()
            && !self.climbs_behind(&bend)
        {
            (judgement.class, judgement.confidence) = (Class::GrewThenBounded, 1.0 - judgement.chance);
            judgement.since = Some(bend.at);
        } else if (kendall(&turned, &turned_residuals) <= CHANCE / 5.0)
            || (signs(moves.down, moves.up + moves.down) <= CHANCE && -self.straightness() >= 0.5)
        {
            judgement.class = Class::Shrinking;
            judgement.confidence = judgement.r_squared;
        } else if quantile(&self.ys, 0.9) - quantile(&self.ys, 0.1) <= 0.25 * self.level {
            (judgement.class, judgement.confidence) = (Class::Steady, 1.0 - 1.0 / self.level.max(1.0));
        } else {
            (judgement.class, judgement.confidence) = (Class::Irregular, 1.0 - judgement.r_squared);
        }
    }

    /// It does rise: on and on, or less and less?
    fn grows(&self, judgement: &mut Judgement) {
        judgement.class = Class::Growing;
        judgement.confidence = (1.0 - judgement.chance) * judgement.r_squared;
        match self.bend() {
            Some(bend) if bend.before > 0.0 && bend.stopped() && !self.climbs_behind(&bend) => {
                judgement.class = Class::GrewThenBounded;
                judgement.since = Some(bend.at);
            }
            Some(bend) if bend.before > 0.0 && bend.after < bend.before * SLOWED => judgement.class = Class::Slowing,
            Some(bend) if bend.before < bend.after * STOPPED => judgement.since = Some(bend.at),
            _ => {}
        }
    }

    /// Whether it still goes up from snapshot to snapshot, however little that is for the time that passed: a program that
    /// rests between bursts has not stopped growing.
    fn climbs_behind(&self, bend: &Bend) -> bool {
        let behind = steps(&self.ys[bend.at..]);
        behind.down == 0 && behind.up >= 3 && behind.up > behind.same
    }

    /// Where two lines explain the points clearly better than one.
    fn bend(&self) -> Option<Bend> {
        let margin = 3.max(self.xs.len() / 10);
        // The place of the bend was chosen to be the best of many, hence more than the usual 4.
        bend(&self.xs, &self.ys, margin).filter(|bend| bend.gain >= 12.0)
    }

    /// How direct the way from the first point to the last is: 1 without a step back, 0 for a wave.
    fn straightness(&self) -> f64 {
        let way: f64 = self.ys.windows(2).map(|pair| (pair[1] - pair[0]).abs()).sum();
        let net = self.ys[self.ys.len() - 1] - self.ys[0];
        if way > 0.0 { net / way } else { 0.0 }
    }

    /// What is least in each third is more than in the one before.
    fn floor_rises(&self) -> bool {
        let third = self.ys.len().div_ceil(3);
        let least = |points: &[f64]| points.iter().copied().fold(f64::INFINITY, f64::min);
        let floors: Vec<f64> = self.ys.chunks(third).map(least).collect();
        // It may have begun late, but it must not have ended early.
        floors.len() == 3 && floors[1] >= floors[0] - 0.05 && floors[2] >= floors[1] + 0.05
    }

    /// The point from which on the series stays where it came to from below, and how surely.
    fn settled(&self) -> Option<(usize, f64)> {
        const BAND: f64 = 0.1;
        let count = self.ys.len();
        let plateau = &self.ys[count - (count / 3).max(4)..];
        let level = median(plateau);
        let stays = self.ys.iter().rev().take_while(|&&y| (y - level).abs() <= BAND).count();
        let at = count - stays;
        if stays < plateau.len() || at == 0 || level - self.ys[0] < 0.5 {
            return None;
        }
        let (xs, ys) = (&self.xs[at..], &self.ys[at..]);
        let line = theil_sen(xs, ys)?;
        // What still climbs steadily within the band has not settled.
        let climbs = steps(ys);
        if line.slope > 0.0
            && (signs(climbs.up, climbs.up + climbs.down) <= 0.05 || kendall(ys, &line.residuals(xs, ys)) <= 0.05)
        {
            return None;
        }
        let modelled: Vec<f64> = ys.iter().map(|y| y - level).collect();
        Some((at, 1.0 - modelled.iter().fold(0.0, |most: f64, r| most.max(r.abs()))))
    }
}

impl Bend {
    fn stopped(&self) -> bool {
        self.after < self.before * STOPPED || self.after_deviations < 2.0
    }
}

/// Which points to compare: all, or the middle one by size of each of equally many groups.
fn thinned(ys: &[f64]) -> Vec<usize> {
    if ys.len() <= POINTS_COMPARED {
        return (0..ys.len()).collect();
    }
    let group = |nth: usize| nth * ys.len() / POINTS_COMPARED;
    let middle = |nth: usize| {
        let mut members: Vec<usize> = (group(nth)..group(nth + 1)).collect();
        members.sort_by(|&a, &b| ys[a].total_cmp(&ys[b]));
        members[members.len() / 2]
    };
    (0..POINTS_COMPARED).map(middle).collect()
}

/// The number of points after which the residuals of a line repeat, if they do, three times at least.
fn rhythm(residuals: &[f64]) -> Option<usize> {
    let count = residuals.len();
    let mut fallen = false;
    let mut best: Option<(usize, f64)> = None;
    for lag in 1..=count / 3 {
        let likeness = likeness(residuals, lag) * count as f64 / (count - lag) as f64;
        fallen |= likeness < 0.0;
        if fallen && likeness >= 0.6 && best.is_none_or(|(_, most)| likeness > most + 0.1) {
            best = Some((lag, likeness));
        }
    }
    best.map(|(lag, _)| lag)
}

/// Whether a wave is lifted: the least and the most of its periods rise. The answer is how likely that is by chance.
fn lifted(ys: &[f64], period: usize) -> Option<f64> {
    let least = |points: &[f64]| points.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |points: &[f64]| points.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let floors: Vec<f64> = ys.chunks_exact(period).map(least).collect();
    let ceilings: Vec<f64> = ys.chunks_exact(period).map(most).collect();
    let all_up = |values: &[f64]| steps(values).up + 1 == values.len();
    // In random order, so many values stand in ascending order once in as many times as there are orders.
    let orders: f64 = (1..=floors.len()).map(|n| n as f64).product();
    if floors.len() >= 4 && all_up(&floors) && all_up(&ceilings) {
        return Some(1.0 / orders);
    }
    let chance = kendall(&floors, &[]).max(kendall(&ceilings, &[]));
    (floors.len() >= 5 && chance <= CHANCE).then_some(chance)
}
