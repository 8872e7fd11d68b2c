//! A chart of values side by side: over time, or by process.
//!
//! In a table of text it is a row of characters; elsewhere in text it is left out, since its numbers are in the tables. In HTML it is
//! an image of lines and bars, each with its name and value on demand.

use std::fmt::Write;

use culeak::analysis::words::{self, bytes};

use super::html::escaped;

/// The width of a row of characters.
const CHARACTERS: usize = 24;
/// Bars of a chart; of more values, a bar is as high as the largest of several.
const BARS: usize = 400;
/// Both sides of the image.
const SIDE: f64 = 100.0;

/// Values with names.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// What it shows, in words.
    pub label: String,
    pub points: Vec<ChartPoint>,
    pub form: Form,
    /// The values are numbers of things, not bytes.
    pub counts: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A line from point to point.
    Curve,
    /// A curve for each part, over one another. A point's name has the values of all.
    Curves,
    /// One bar for each point.
    Bars,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ChartPoint {
    pub name: String,
    pub x: f64,
    pub value: u64,
    /// A curve has a gap between points of different parts.
    pub part: usize,
    pub stands_out: bool,
}

/// A character whose height is this part of the most.
pub fn character(value: u64, most: u64) -> char {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    BLOCKS[(u128::from(value) * 7 / u128::from(most.max(1))) as usize]
}

impl Chart {
    fn most(&self) -> u64 {
        self.points.iter().map(|point| point.value).max().unwrap_or(0)
    }

    fn words(&self, value: u64) -> String {
        if self.counts { words::count(value) } else { bytes(value) }
    }

    /// One character for each point, from 0 to the maximum, with a gap between parts; of many points, for the largest of several.
    pub(super) fn characters(&self) -> String {
        let (points, most) = (&self.points, self.most());
        let columns = points.len().min(CHARACTERS);
        let mut line = String::new();
        let mut part = points.first().map(|point| point.part);
        for column in 0..columns {
            let of = &points[column * points.len() / columns..(column + 1) * points.len() / columns];
            let began = of.first().map(|point| point.part);
            if began != part {
                line.push(' ');
            }
            part = began;
            line.push(character(of.iter().map(|point| point.value).max().unwrap_or(0), most));
        }
        line
    }

    pub(super) fn html(&self, out: &mut String) {
        let label = format!("{}: at most {}", self.label, self.words(self.most()));
        let _ = write!(
            out,
            "<svg class=\"chart\" viewBox=\"0 0 {SIDE} {SIDE}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
            escaped(&label)
        );
        match self.form {
            Form::Curve | Form::Curves => self.curve(out),
            Form::Bars => self.bars(out),
        }
        out.push_str("</svg>");
    }

    fn height(&self, value: u64) -> f64 {
        value as f64 * SIDE / self.most().max(1) as f64
    }

    fn curve(&self, out: &mut String) {
        let x = || self.points.iter().map(|point| point.x);
        let (from, to) = (x().fold(f64::MAX, f64::min), x().fold(f64::MIN, f64::max));
        let scale = if to > from { SIDE / (to - from) } else { 0.0 };
        let at = |point: &ChartPoint| ((point.x - from) * scale, SIDE - self.height(point.value));
        for points in self.points.chunk_by(|a, b| a.part == b.part) {
            let class = match (self.form, points[0].part) {
                (Form::Curves, 0) => " class=\"first\"",
                _ => "",
            };
            let _ = write!(out, "<polyline{class} points=\"");
            // A point alone is a short line.
            for point in points.iter().chain(points.first().filter(|_| points.len() == 1)) {
                let (x, y) = at(point);
                let _ = write!(out, "{x:.2},{y:.2} ");
            }
            out.push_str("\"/>");
        }
        let mut points: Vec<&ChartPoint> = self.points.iter().collect();
        if self.form == Form::Curves {
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            points.dedup_by(|a, b| a.x == b.x);
        }
        let xs: Vec<f64> = points.iter().map(|point| at(point).0).collect();
        for (nth, point) in points.into_iter().enumerate() {
            let begin = nth.checked_sub(1).map_or(0.0, |before| (xs[before] + xs[nth]) / 2.0);
            let end = xs.get(nth + 1).map_or(SIDE, |after| (after + xs[nth]) / 2.0);
            let value = match self.form {
                Form::Curves => String::new(),
                _ => format!(": {}", self.words(point.value)),
            };
            let _ = write!(
                out,
                "<rect class=\"point\" x=\"{begin:.2}\" y=\"0\" width=\"{:.2}\" height=\"{SIDE}\"><title>{}{value}</title></rect>",
                (end - begin).max(0.0),
                escaped(&point.name),
            );
        }
    }

    fn bars(&self, out: &mut String) {
        let each = self.points.len().div_ceil(BARS).max(1);
        let wide = SIDE / self.points.len().div_ceil(each).max(1) as f64;
        for (nth, points) in self.points.chunks(each).enumerate() {
            let Some(largest) = points.iter().max_by_key(|point| point.value) else {
                continue;
            };
            let name = match points {
                [first, .., last] => format!("{} to {}, at most ({})", first.name, last.name, largest.name),
                _ => largest.name.clone(),
            };
            let height = self.height(largest.value);
            let class = if largest.stands_out { " class=\"out\"" } else { "" };
            let _ = write!(
                out,
                "<rect{class} x=\"{:.3}\" y=\"{:.2}\" width=\"{:.3}\" height=\"{height:.2}\" data-bytes=\"{}\"><title>{}: {}</title></rect>",
                nth as f64 * wide,
                SIDE - height,
                wide * 0.9,
                largest.value,
                escaped(&name),
                self.words(largest.value)
            );
        }
    }
}
