//! The self-contained page of `report -o FILE.html`.

use std::io::{self, Write};

use culeak::analysis::report;

use super::Input;
use crate::html::{Item, write_report};

pub fn export(input: &Input, out: &mut dyn Write) -> io::Result<()> {
    let options = &input.options;
    let pages = input.items.iter().map(|item| Item {
        snapshot: &item.snapshot,
        timeline: item.timeline.as_ref(),
        options: report::Options {
            source: item.source.clone(),
            is_of_snapshot: item.is_of_snapshot,
            filter: options.filter.clone(),
            suppressions: options.suppressions.clone(),
            points: item.points.clone(),
            ..report::Options::default()
        },
        full_stacks: options.full_stacks,
    });
    write_report(&pages.collect::<Vec<_>>(), out)
}
