//! Classifies one series of numbers: growing, grown and stopped, periodic, steady …
//!
//! ```text
//!  growing        slowing       grew then       periodic       irregular      shrinking
//!        ╱            ___─       bounded         ╱│ ╱│ ╱│         ╱╲  ╱          ╲
//!      ╱           ╱            ┌──────        ╱ │╱ │╱ │       ╲╱  ╲╱             ╲
//!    ╱           ╱            ──┘             ╱  ╱  ╱                              ╲
//! ```
//!
//! A series is growing if it meets three conditions. Its rise is not chance, by either test of `statistics`. Its
//! minimum rises too, so a wave that happens to end high does not count. A line with a bend does not explain it better,
//! so it has not slowed. All three are required, because a false alarm costs more than another snapshot. Deliberately
//! absent: the meaning of the numbers; bytes and blocks are judged alike.

use serde::Serialize;

use crate::named;

use super::statistics::{Bend, autocorrelation, bend, kendall, median, quantile, signs, theil_sen};

/// The fewest points that are judged: by chance, seven steps all go up once in 128 times.
pub const POINTS_NEEDED: usize = 8;
/// The highest probability of chance at which a series counts as growing.
const CHANCE: f64 = 0.008;
/// Longer series are thinned out, because the number of pairs of points is quadratic.
const POINTS_COMPARED: usize = 200;
/// So many points after growth do not show that it ended.
const PAUSE: usize = 2;
/// So many rises above all earlier points, at the end, may be the beginning of growth.
const RECORDS: usize = 2;
/// So many points at the end of a series show whether it still slows; an odd number, for a middle.
const STRAIGHT: usize = 7;
/// Growth has slowed or stopped if the slope after a bend is below this fraction of the slope before it.
const SLOWED: f64 = 0.5;
const STOPPED: f64 = 0.1;

named! {
    /// The class of a series, most suspicious first.
    #[derive(PartialOrd, Ord, Hash, Serialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "snake_case")]
    pub enum Class {
        /// Grows and has not slowed.
        Growing = "growing",
        /// Grew while the program ran, and was freed when it ended: a leak that a clean exit hides.
        FreedOnlyAtExit = "freed only at exit",
        /// Grows ever more slowly.
        Slowing = "slowing",
        /// Grew and has stopped: a cache, a pool or a warm-up.
        GrewThenBounded = "grew then bounded",
        /// Rises and falls periodically.
        Periodic = "periodic",
        /// Rises and falls without period or trend.
        Irregular = "irregular",
        Shrinking = "shrinking",
        Steady = "steady",
        /// Too few points for a judgement.
        TooFew = "too few snapshots",
    }
}

/// Number of steps between consecutive points, by direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Steps {
    pub up: usize,
    pub down: usize,
    pub same: usize,
}

/// A class and its evidence. Paces are per unit of x: hour, mark or run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Judgement {
    pub class: Class,
    /// 0 to 1: how well the class explains the points, and how unlikely they are by chance.
    pub confidence: f64,
    /// The Theil–Sen estimate, between `pace_low` and `pace_high` with 95 % confidence.
    pub pace: f64,
    pub pace_low: f64,
    pub pace_high: f64,
    /// The fraction of the variance that this pace explains.
    pub r_squared: f64,
    /// The probability that a series without trend rises as consistently.
    pub chance: f64,
    pub steps: Steps,
    /// Growing: the point at which growth began. Bounded: the point at which it stopped. Slowing: the point since which it has not slowed
    /// further. Too few: the point since which it may grow, or may have stopped.
    pub since: Option<usize>,
    /// Periodic: in the units of the pace.
    pub period: Option<f64>,
}

/// Judges a series; `xs` ascend.
pub fn judge(xs: &[f64], ys: &[f64]) -> Judgement {
    let mut judgement = classified(xs, ys);
    let start = appears_at(ys);
    if !matches!(judgement.class, Class::Growing | Class::TooFew | Class::Shrinking)
        && let Some(at) = may_go_on(judgement.class, &xs[start..], &ys[start..])
    {
        judgement.since = Some(start + at);
        if judgement.class != Class::Slowing {
            (judgement.class, judgement.confidence, judgement.period) = (Class::TooFew, 0.0, None);
        }
    }
    judgement
}

/// The point since which growth may go on that the class of all points does not show.
fn may_go_on(class: Class, xs: &[f64], ys: &[f64]) -> Option<usize> {
    let paused = || (1..=PAUSE).find_map(|pause| grew_before(pause, xs, ys));
    let stairs = || (class != Class::Steady).then(|| last_step(ys)).flatten();
    paused()
        .or_else(stairs)
        .or_else(|| climbs_at_end(ys))
        .or_else(|| grows_in_last_part(class, xs, ys))
}

/// The last point before the rises at the end, if they pass all points before, nothing falls, and no pause among them is long.
/// Of a series that only rises, ever more slowly, the class shows it.
fn climbs_at_end(ys: &[f64]) -> Option<usize> {
    let mut from = ys.len().checked_sub(1)?;
    let mut stays = 0;
    while from > 0 && ys[from - 1] <= ys[from] && stays <= PAUSE {
        stays = if ys[from - 1] == ys[from] { stays + 1 } else { 0 };
        from -= 1;
    }
    let before = quantile(&ys[..from], 1.0);
    let last = ys[ys.len() - 1];
    let slows = from == 0 && 2.0 * ys[ys.len() / 2] > ys[0] + last && !has_straight_end(ys);
    let mut records = (from + 1..ys.len()).filter(|&at| ys[at] > ys[at - 1].max(before));
    let first = records.next().filter(|_| !slows)?;
    (1 + records.count() >= RECORDS).then_some(first - 1)
}

/// Whether a series that only rises, and does so more slowly, has stopped slowing: its last points are on a line or steeper, and gain some of
/// what it gained.
fn has_straight_end(ys: &[f64]) -> bool {
    let Some(end) = ys.len().checked_sub(STRAIGHT).map(|from| &ys[from..]) else {
        return false;
    };
    let [first, middle, last] = [0, STRAIGHT / 2, STRAIGHT - 1].map(|at| end[at]);
    2.0 * middle <= first + last && last - first >= 0.01 * (last - ys[0])
}

/// The first point of the last half, quarter or eighth, if this part alone is growing, and to more than before. A quarter or an eighth
/// gains no less than the one before, as the end of a warm-up would.
fn grows_in_last_part(class: Class, xs: &[f64], ys: &[f64]) -> Option<usize> {
    // A spike does not count, but the last wave of a periodic series ends as high as the others.
    let most = if class == Class::Periodic { 1.0 } else { 0.9 };
    let lengths = [2, 4, 8].map(|part| (part, ys.len() / part));
    let is_growing = |&(part, length): &(usize, usize)| {
        let (before, last) = ys.split_at(ys.len() - length);
        let gain = |points: &[f64]| points[length - 1] - points[0];
        let keeps_pace = part == 2 || gain(last) >= gain(&before[before.len() - length..]);
        let passes = median(&last[length - length / 3..]) > quantile(before, most);
        keeps_pace && passes && classified(&xs[before.len()..], last).class == Class::Growing
    };
    let (_, length) = lengths
        .into_iter()
        .filter(|(_, length)| *length >= POINTS_NEEDED)
        .find(is_growing)?;
    Some(ys.len() - length)
}

/// Of a series that rises in steps, stays between them, and never falls: the point at the last step. `None`: it has stayed longer
/// since then than between the others, so no step is due.
fn last_step(ys: &[f64]) -> Option<usize> {
    let least = 0.05 * (quantile(ys, 1.0) - quantile(ys, 0.0));
    let rises = ys.windows(2).enumerate().filter(|(_, pair)| pair[1] - pair[0] > least);
    let rises: Vec<usize> = rises.map(|(at, _)| at + 1).collect();
    let longest = rises.windows(2).map(|pair| pair[1] - pair[0]).max()?;
    let last = *rises.last()?;
    let stays = ys.len() - last;
    (steps(ys).down == 0 && rises.len() >= 3 && longest > PAUSE && 2 * stays <= 3 * longest).then_some(last)
}

/// The last of the zeros before the site appeared; the others do not count.
fn appears_at(ys: &[f64]) -> usize {
    match ys.iter().take_while(|&&y| y == 0.0).count() {
        absent if absent == ys.len() => 0,
        absent => absent.saturating_sub(1),
    }
}

/// The last point before `pause` points, if the series grew until then, and these neither rise nor fall: a pause, or its end.
fn grew_before(pause: usize, xs: &[f64], ys: &[f64]) -> Option<usize> {
    let (grown, paused) = ys.split_at(ys.len().saturating_sub(pause));
    let [.., before, top] = *grown else { return None };
    let band = 0.05 * (quantile(ys, 1.0) - quantile(ys, 0.0));
    let moves = steps(grown);
    let stays = top > before && paused.iter().all(|&y| y <= top && y >= top - band);
    let grew = || match grown.len() < POINTS_NEEDED {
        true => moves.down == 0 && 2 * moves.up > ys.len(),
        false => moves.up > moves.down && classified(&xs[..grown.len()], grown).class == Class::Growing,
    };
    (stays && grew()).then_some(grown.len() - 1)
}

/// The class by all points.
fn classified(xs: &[f64], ys: &[f64]) -> Judgement {
    let start = appears_at(ys);
    let steps = steps(ys);
    let series = Series::of(&xs[start..], &ys[start..]);
    let mut judgement = Judgement {
        class: Class::TooFew,
        confidence: 0.0,
        pace: 0.0,
        pace_low: 0.0,
        pace_high: 0.0,
        r_squared: 0.0,
        chance: 1.0,
        steps,
        since: None,
        period: None,
    };
    if let Some(line) = theil_sen(&series.xs, &series.ys) {
        let scale = series.height / series.width;
        (judgement.pace, judgement.pace_low, judgement.pace_high) =
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
    if series.xs.len() < POINTS_NEEDED && ys[0] == 0.0 {
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

/// A series scaled to width and height 1, so that thresholds do not depend on units.
struct Series {
    xs: Vec<f64>,
    ys: Vec<f64>,
    /// Index of each point before thinning.
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
            // All points have the same x, so there is no trend.
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
        // If a line explains nearly everything, a period is not worth reporting.
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
                // Ripples of a few percent do not count.
                (judgement.class, judgement.confidence) = (Class::Steady, 1.0 - 1.0 / self.level);
            } else {
                judgement.class = Class::Periodic;
                judgement.confidence = autocorrelation(&residuals, period).clamp(0.0, 1.0);
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

    /// Classifies a series that rises: does it go on, slow down or stop?
    fn grows(&self, judgement: &mut Judgement) {
        judgement.class = Class::Growing;
        judgement.confidence = (1.0 - judgement.chance) * judgement.r_squared;
        match self.bend() {
            Some(bend) if bend.before > 0.0 && bend.stopped() && !self.climbs_behind(&bend) => {
                judgement.class = Class::GrewThenBounded;
                judgement.confidence = (1.0 - judgement.chance) * bend.r_squared;
                judgement.since = Some(bend.at);
            }
            Some(bend) if bend.before > 0.0 && bend.after < bend.before * SLOWED => {
                judgement.class = Class::Slowing;
                judgement.confidence = (1.0 - judgement.chance) * bend.r_squared;
            }
            Some(bend) if bend.before < bend.after * STOPPED => judgement.since = Some(bend.at),
            _ => {}
        }
    }

    /// Whether it still rises from snapshot to snapshot after the bend, however slowly: a program that pauses between
    /// bursts has not stopped growing.
    fn climbs_behind(&self, bend: &Bend) -> bool {
        let behind = steps(&self.ys[bend.at..]);
        behind.down == 0 && behind.up >= 3 && behind.up > behind.same
    }

    /// The bend, if two lines explain the points clearly better than one.
    fn bend(&self) -> Option<Bend> {
        let margin = 3.max(self.xs.len() / 10);
        // More than the usual 4, because the bend is the best of many candidates.
        bend(&self.xs, &self.ys, margin).filter(|bend| bend.gain >= 12.0)
    }

    /// Net change divided by total movement: 1 if all steps go up, 0 for a wave.
    fn straightness(&self) -> f64 {
        let way: f64 = self.ys.windows(2).map(|pair| (pair[1] - pair[0]).abs()).sum();
        let net = self.ys[self.ys.len() - 1] - self.ys[0];
        if way > 0.0 { net / way } else { 0.0 }
    }

    /// Whether the minimum of each third is above that of the previous one.
    fn floor_rises(&self) -> bool {
        let third = self.ys.len().div_ceil(3);
        let least = |points: &[f64]| points.iter().copied().fold(f64::INFINITY, f64::min);
        let floors: Vec<f64> = self.ys.chunks(third).map(least).collect();
        // Growth may begin late, but must not end early.
        floors.len() == 3 && floors[1] >= floors[0] - 0.05 && floors[2] >= floors[1] + 0.05
    }

    /// The point at which a rising series became constant, and the confidence in that.
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
        // A series that still rises steadily within the band has not settled.
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

/// The points to compare: all, or the median of each of [`POINTS_COMPARED`] groups.
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

/// The number of points after which the residuals of a line repeat, if they do so at least three times.
fn rhythm(residuals: &[f64]) -> Option<usize> {
    let count = residuals.len();
    let mut fallen = false;
    let mut best: Option<(usize, f64)> = None;
    for lag in 1..=count / 3 {
        let autocorrelation = autocorrelation(residuals, lag) * count as f64 / (count - lag) as f64;
        fallen |= autocorrelation < 0.0;
        if fallen && autocorrelation >= 0.6 && best.is_none_or(|(_, most)| autocorrelation > most + 0.1) {
            best = Some((lag, autocorrelation));
        }
    }
    best.map(|(lag, _)| lag)
}

/// Whether a wave rises: both the minimum and the maximum of its periods do. Returns the probability that this is
/// chance.
fn lifted(ys: &[f64], period: usize) -> Option<f64> {
    let least = |points: &[f64]| points.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |points: &[f64]| points.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let floors: Vec<f64> = ys.chunks_exact(period).map(least).collect();
    let ceilings: Vec<f64> = ys.chunks_exact(period).map(most).collect();
    let all_up = |values: &[f64]| steps(values).up + 1 == values.len();
    // Of all orders of the periods, one is ascending.
    let orders: f64 = (1..=floors.len()).map(|n| n as f64).product();
    if floors.len() >= 4 && all_up(&floors) && all_up(&ceilings) {
        return Some(1.0 / orders);
    }
    let chance = kendall(&floors, &[]).max(kendall(&ceilings, &[]));
    (floors.len() >= 5 && chance <= CHANCE).then_some(chance)
}
