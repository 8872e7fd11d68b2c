//! `--between A B`: a window of time, for recordings with an event log.

use clap::Args;
use culeak::point::Point;

use super::parse_moment;

#[derive(Debug, Clone, Default, Args)]
pub struct BetweenArgs {
    /// Show what was allocated between two times and is alive at the second: start, end, exit, mark:NAME, or a time such as
    /// 12.5s; needs a recording of run --timeline
    #[arg(long, num_args = 2, value_names = ["A", "B"], value_parser = parse_moment)]
    pub between: Option<Vec<Point>>,
}

impl BetweenArgs {
    pub fn points(&self) -> Option<[&Point; 2]> {
        match self.between.as_deref() {
            Some([from, to]) => Some([from, to]),
            _ => None,
        }
    }
}
