//! Flame graphs as one SVG file for a browser, with search and zoom, drawn by `inferno`.
//!
//! A graph of two snapshots shows the later one: red where a stack holds more than before, blue where it holds less.
//! Stacks that are gone have no width in the later snapshot, so the subtitle has their total.

use std::collections::BTreeMap;
use std::io::{self, Write};

use culeak::analysis::profile::Profile;
use inferno::flamegraph::{Options, TextTruncateDirection, from_lines};

use super::folded::{self, Cost};
use crate::names::Detail;
use crate::text::{parts, units};

/// Totals beyond this come from damaged files; the drawing code adds without overflow checks.
const BEYOND_REASON: u64 = 1 << 60;

/// The graph of one snapshot.
pub fn write(profile: &Profile, detail: Detail, out: &mut dyn Write) -> io::Result<()> {
    let stacks = folded::stacks(profile, detail, Cost::Bytes);
    let lines: Vec<String> = stacks
        .iter()
        .filter(|(_, sum)| **sum > 0)
        .map(|(stack, sum)| format!("{stack} {sum}"))
        .collect();
    let total = stacks.values().fold(0, |total: u64, sum| total.saturating_add(*sum));
    let suppressed = match profile.suppressed.count {
        0 => String::new(),
        _ => format!("; suppressed: {}", parts::tally(profile.suppressed)),
    };
    let filter = profile
        .filter
        .as_ref()
        .map(|filter| format!("; filter: {}", parts::filter(filter, 0)));
    let filter = filter.unwrap_or_default();
    let subtitle = format!("{}{filter}{suppressed}", units::bytes(total));
    draw(&lines, &title(profile), subtitle, total, out)
}

/// The graph of the later of two snapshots, coloured by the change since the earlier.
pub fn write_difference(before: &Profile, after: &Profile, detail: Detail, out: &mut dyn Write) -> io::Result<()> {
    let mut stacks: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (stack, sum) in folded::stacks(before, detail, Cost::Bytes) {
        stacks.entry(stack).or_default().0 = sum;
    }
    for (stack, sum) in folded::stacks(after, detail, Cost::Bytes) {
        stacks.entry(stack).or_default().1 = sum;
    }
    let sum = |side: fn(&(u64, u64)) -> u64| stacks.values().map(side).fold(0, u64::saturating_add);
    let (earlier, later) = (sum(|both| both.0), sum(|both| both.1));
    let gone: u64 = stacks.values().filter(|both| both.1 == 0).map(|both| both.0).sum();
    let lines: Vec<String> = stacks
        .iter()
        .filter(|(_, (_, after))| *after > 0)
        .map(|(stack, (before, after))| format!("{stack} {before} {after}"))
        .collect();
    let subtitle = format!(
        "{}, before {}; in stacks that are gone: {}; red: more than before, blue: less",
        units::bytes(later),
        units::bytes(earlier),
        units::bytes(gone)
    );
    draw(&lines, &title(after), subtitle, earlier.max(later), out)
}

fn draw(lines: &[String], title: &str, subtitle: String, total: u64, out: &mut dyn Write) -> io::Result<()> {
    if total >= BEYOND_REASON {
        return Err(io::Error::other(format!(
            "the sizes add up to {total} bytes, more than any machine has, so the snapshot is damaged; export another snapshot"
        )));
    }
    let mut options = Options::default();
    options.title = title.to_owned();
    options.subtitle = Some(subtitle);
    options.count_name = "bytes".to_owned();
    options.name_type = "Frame:".to_owned();
    options.deterministic = true;
    // Names differ at their beginning.
    options.text_truncate_direction = TextTruncateDirection::Right;
    // inferno rejects an empty graph, so draw one frame that explains it.
    let nothing = ["nothing held 1".to_owned()];
    let lines = if lines.is_empty() { &nothing } else { lines };
    from_lines(&mut options, lines.iter().map(String::as_str), out)
}

fn title(profile: &Profile) -> String {
    let process = &profile.snapshot.process;
    let command = parts::command(&process.command_line, &process.executable);
    format!("GPU memory of {} {command}", process.pid)
}
