//! Parts that the renderers share: styles, frames, labels, warnings.

use std::fmt;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use culeak::analysis::estimate::Errors;
use culeak::analysis::filter::Filtered;
use culeak::analysis::function_name::plain;
use culeak::analysis::opaque::OpaquePool;
use culeak::analysis::report::{Cut, ProcessLine, Report, Row, Tally};
use culeak::analysis::site::{CallStack, Frame, Line, Role};
use culeak::analysis::suppressions::{BUILT_IN_NAME, Pattern, Used};
use culeak::kind::Place;
use culeak::snapshot::ProcessState;

use super::units::{self, plural};
use super::{columns, wrap};
use crate::escape::Escaped;

pub const PLAIN: Style = Style::new();
pub const BOLD: Style = Style::new().bold();
pub const DIM: Style = Style::new().dimmed();
pub const BAD: Style = AnsiColor::Red.on_default().bold();
pub const GOOD: Style = AnsiColor::Green.on_default().bold();
pub const WARN: Style = AnsiColor::Yellow.on_default();

/// Text in a style.
pub struct Styled<T>(pub Style, pub T);

impl<T: fmt::Display> fmt::Display for Styled<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Styled(style, text) = self;
        write!(out, "{style}")?;
        text.fmt(out)?;
        write!(out, "{style:#}")
    }
}

/// The widest function name in a row on a terminal. In a file wider names are whole, and do not widen their column.
pub const NAME_WIDTH: usize = 44;

/// A function's qualified name without parameters.
pub fn name(name: &str) -> String {
    Escaped(&plain(name)).to_string()
}

/// As [`name`]; on a terminal, shortened in the middle if it is very long.
pub fn short_name(function: &str) -> String {
    let name = name(function);
    match columns::available() {
        Some(_) => columns::shortened(&name, NAME_WIDTH),
        None => name,
    }
}

/// `[pool]` for memory that a caching allocator keeps, `[cuBLAS]` for memory that a library allocated for itself.
pub fn mark(row: &Row) -> String {
    mark_of(row.pool, row.allocator, row.library)
}

/// As [`mark`], of any memory.
pub fn mark_of(pool: bool, allocator: Option<&str>, library: Option<&str>) -> String {
    match (pool, allocator, library) {
        (true, Some(owner), _) => format!("  [{owner}'s pool]"),
        (true, None, _) => POOL.to_owned(),
        (false, _, Some(library)) => format!("  [{library}]"),
        (false, _, None) => String::new(),
    }
}

/// Marks memory that an unknown caching allocator keeps.
pub const POOL: &str = "  [pool]";

/// The file and line of a frame after two spaces, or nothing: `  train.cu:212`.
pub fn place(frame: Option<&Frame>) -> String {
    let place = frame.and_then(Frame::short_place);
    place.map_or_else(String::new, |place| format!("  {}", Escaped(&place)))
}

/// Writes the callers of a call site on one line, innermost first: `from train_step < main`. Each is a name, and text behind it.
pub fn callers(
    out: &mut dyn Write,
    indent: &str,
    callers: impl Iterator<Item = (impl AsRef<str>, String)>,
) -> io::Result<()> {
    const SHOWN: usize = 3;
    let callers = callers.take(SHOWN + 1);
    let mut names: Vec<_> = callers
        .map(|(name, behind)| short_name(name.as_ref()) + &behind)
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    if let Some(beyond) = names.get_mut(SHOWN) {
        *beyond = "…".to_owned();
    }
    let names = names.join(" < ");
    writeln!(out, "{indent}{}", Styled(DIM, format!("from {names}")))
}

/// Beside a long name, a place is cut to its file and line, and to this width.
const PLACE_NEEDED: usize = 24;
/// Longer names in a stack do not widen the column of names.
const FRAME_WIDTH: usize = 60;

/// Writes the frames of a stack, one per line: functions, then their places, aligned. Unless `full`, runs of a library's frames are
/// one line, and on a terminal names and places are cut to its width.
pub fn stack(out: &mut dyn Write, stack: &CallStack, full: bool, indent: &str) -> io::Result<()> {
    let lines: Vec<Line<&Frame>> = match full {
        true => stack.frames.iter().map(Line::Frame).collect(),
        false => stack.folded(),
    };
    if lines.is_empty() {
        return writeln!(out, "{indent}{}", Styled(DIM, "(recorded without a stack)"));
    }
    let name = |frame: &Frame| {
        let name = frame.name();
        Escaped(&if full { name } else { plain(&name).into_owned() }).to_string()
    };
    let names = lines.iter().map(|line| match *line {
        Line::Frame(frame) => name(frame),
        Line::Folded { library, frames } => folded(library, frames),
    });
    let names: Vec<String> = names.collect();
    let room = columns::available()
        .filter(|_| !full)
        .map(|available| available.saturating_sub(indent.len()));
    let widest = room.map_or(FRAME_WIDTH, |room| FRAME_WIDTH.min(room / 2));
    let of_frames = lines
        .iter()
        .zip(&names)
        .filter(|(line, _)| matches!(line, Line::Frame(_)));
    let widths = of_frames.map(|(_, name)| columns::width(name));
    let width = widths.filter(|&width| width <= widest).max().unwrap_or(0);
    for (line, name) in lines.iter().zip(&names) {
        let Line::Frame(frame) = line else {
            writeln!(out, "{indent}{}", Styled(DIM, name))?;
            continue;
        };
        let style = if frame.role == Role::User { PLAIN } else { DIM };
        let inlined = if frame.inlined { " (inlined)" } else { "" };
        let (name, place) = beside(
            name,
            &long_place(frame),
            width,
            room.map(|room| room.saturating_sub(inlined.len())),
        );
        let gap = if place.is_empty() { "" } else { "  " };
        writeln!(
            out,
            "{indent}{}{gap}{}{inlined}",
            Styled(style, name),
            Styled(DIM, place)
        )?;
    }
    if stack.truncated {
        writeln!(out, "{indent}{}", Styled(DIM, "… (the stack was cut here)"))?;
    }
    Ok(())
}

/// `torch: 21 frames`.
pub fn folded(library: &str, frames: usize) -> String {
    format!("{}: {} frames", Escaped(library), units::count(frames as u64))
}

/// A name, padded to this width, and the place beside it. Both fit in `room` with the two spaces between them: the end of a
/// place is kept, and the beginning and the end of a name.
pub fn beside(name: &str, place: &str, width: usize, room: Option<usize>) -> (String, String) {
    let name = |room: Option<usize>| room.map_or_else(|| name.to_owned(), |room| columns::shortened(name, room));
    if place.is_empty() {
        return (name(room), String::new());
    }
    let room = room.map(|room| room.saturating_sub("  ".len()));
    let file = place
        .rsplit('/')
        .next()
        .map_or(0, |file| columns::width(file) + "…/".chars().count());
    let needed = columns::width(place).min(file).min(PLACE_NEEDED);
    let name = name(room.map(|room| room.saturating_sub(needed).max(room / 2)));
    let padded = columns::padded(&name, width);
    let place = match room {
        Some(room) => columns::end_of(place, room.saturating_sub(columns::width(&padded))),
        None => place.to_owned(),
    };
    (padded, place)
}

/// The path and line of a frame; without a line, the module of a named function.
pub fn long_place(frame: &Frame) -> String {
    let module = || frame.function.map(|_| frame.module_name().to_owned());
    Escaped(&frame.place().or_else(module).unwrap_or_default()).to_string()
}

/// `≈ ` in front of totals that are estimates.
pub fn about(report: &Report) -> &'static str {
    match report.totals_estimated {
        true => "≈ ",
        false => "",
    }
}

/// `1.1 GiB`; `≈ 1.1 GiB ± 20 MiB` if it is an estimate from sampled stacks, `at most 20 MiB` if no block was chosen.
pub fn bytes(bytes: u64, estimated: Option<Errors>) -> String {
    match estimated {
        None => units::bytes(bytes),
        Some(errors) if bytes == 0 => format!("at most {}", units::bytes(errors.bytes_error)),
        Some(errors) => format!("≈ {} ± {}", units::bytes(bytes), units::bytes(errors.bytes_error)),
    }
}

/// As [`tally`]; `≈ 1.1 GiB ± 20 MiB in ≈ 128 blocks` if it is an estimate from sampled stacks.
pub fn tally_about(tally: Tally, estimated: Option<Errors>) -> String {
    match estimated {
        None => self::tally(tally),
        Some(errors) if tally.count == 0 => format!(
            "{}{}",
            bytes(tally.bytes, estimated),
            match errors.count_error {
                Some(count) => format!(" in at most {}", plural(count, "block", "blocks")),
                None => String::new(),
            }
        ),
        Some(_) => format!(
            "{} in ≈ {}",
            bytes(tally.bytes, estimated),
            plural(tally.count, "block", "blocks")
        ),
    }
}

/// `1.1 GiB in 128 blocks`.
pub fn tally(tally: Tally) -> String {
    format!(
        "{} in {}",
        units::bytes(tally.bytes),
        plural(tally.count, "block", "blocks")
    )
}

/// The names with the most memory, and the number of others; with sizes if there are several.
pub fn listed<'a>(tallies: impl ExactSizeIterator<Item = (&'a str, Tally)>) -> String {
    const SHOWN: usize = 3;
    let total = tallies.len();
    let mut tallies: Vec<_> = tallies.collect();
    tallies.sort_by(|a, b| (b.1.bytes, b.1.count, a.0).cmp(&(a.1.bytes, a.1.count, b.0)));
    let mut parts: Vec<String> = tallies
        .iter()
        .take(SHOWN)
        .map(|(name, tally)| match total {
            1 => Escaped(name).to_string(),
            _ => format!("{} ({})", Escaped(name), units::bytes(tally.bytes)),
        })
        .collect();
    if total > SHOWN {
        parts.push(format!("{} more", total - SHOWN));
    }
    parts.join(", ")
}

/// The options that show all rows.
pub fn all_rows(cut: Cut) -> &'static str {
    match (cut.below_min, cut.beyond_top) {
        (0, _) => "--top 0",
        (_, 0) => "--min-bytes 0",
        _ => "--top 0 --min-bytes 0",
    }
}

/// The command line, or the executable if the command line is unknown.
pub fn command(command_line: &[String], executable: &str) -> String {
    match command_line {
        [] => Escaped(executable).to_string(),
        words => Escaped(&words.join(" ")).to_string(),
    }
}

/// `4711 python train.py, RANK 3, on node7, exited after 12 s`.
pub fn process(process: &ProcessLine) -> String {
    let command = command(process.command_line, process.executable);
    let mut text = format!("{} {}", process.pid, columns::start_of(&command, 60));
    for (variable, value) in process.ranks {
        text.push_str(&format!(", {} {}", Escaped(variable), Escaped(value)));
    }
    if !process.host.is_empty() {
        text.push_str(&format!(", on {}", Escaped(process.host)));
    }
    let lasted = units::duration(process.lasted_ns);
    text.push_str(&match process.state {
        ProcessState::Running => format!(", running for {lasted}"),
        ProcessState::Exited => format!(", exited after {lasted}"),
        ProcessState::Ended => format!(", ended without exit handlers after {lasted}"),
        ProcessState::Unknown => format!(", last seen after {lasted}"),
    });
    text
}

/// A filter in words, and the memory that it leaves out; `objects`: the number of objects without an address that it leaves out.
pub fn filter(filtered: &Filtered, objects: u64) -> String {
    let Filtered { filter, left_out } = filtered;
    let any = |texts: Vec<String>| texts.join(" or ");
    let patterns = |patterns: &[Pattern]| {
        any(patterns
            .iter()
            .map(|pattern| Escaped(pattern.text()).to_string())
            .collect())
    };
    let mut conditions = Vec::new();
    if !filter.kinds.is_empty() {
        let kinds = filter.kinds.iter().map(|kind| kind.name().to_owned());
        conditions.push(format!("kind {}", any(kinds.collect())));
    }
    if !filter.devices.is_empty() {
        let devices = filter.devices.iter().map(ToString::to_string);
        conditions.push(format!("on {}", any(devices.collect())));
    }
    if !filter.focus.is_empty() {
        conditions.push(format!("stack matches {}", patterns(&filter.focus)));
    }
    if !filter.ignore.is_empty() {
        conditions.push(format!("stack does not match {}", patterns(&filter.ignore)));
    }
    if !filter.categories.is_empty() {
        let categories = filter.categories.iter().map(|category| category.name().to_owned());
        conditions.push(format!("category {}", any(categories.collect())));
    }
    if let Some(mark) = &filter.since {
        conditions.push(format!("allocated since {}", Escaped(mark)));
    }
    format!(
        "{}; leaves out {}",
        conditions.join(", "),
        with_objects(*left_out, objects)
    )
}

/// As [`tally`], of what the report lists: `32 MiB in 3 segments` if that is what the kernel driver gave.
pub fn tally_of(report: &Report, tally: Tally) -> String {
    let kinds = report.filter.iter().flat_map(|filtered| &filtered.filter.kinds);
    let mut kinds = kinds.map(|kind| kind.place());
    match kinds.any(|place| place == Place::Segment) {
        false => self::tally(tally),
        true => format!(
            "{} in {}",
            units::bytes(tally.bytes),
            units::plural(tally.count, "segment", "segments")
        ),
    }
}

/// `32 MiB in 3 blocks and 40 objects`; a part that is 0 is omitted.
pub fn with_objects(memory: Tally, objects: u64) -> String {
    let counted = units::plural(objects, "object", "objects");
    match (memory.count, objects) {
        (_, 0) => tally(memory),
        (0, _) => counted,
        _ => format!("{} and {counted}", tally(memory)),
    }
}

/// Writes what each rule suppressed, and the user's rules that matched nothing. `objects`: those without an address; `sampled`:
/// the memory is an estimate from sampled stacks.
pub fn suppressions(
    suppressed: Tally,
    objects: u64,
    rules: &[Used],
    sampled: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let with_objects = |memory: Tally, objects: u64| {
        let about = if sampled && memory.count > 0 { "≈ " } else { "" };
        format!("{about}{}", self::with_objects(memory, objects))
    };
    if suppressed.count > 0 || objects > 0 {
        writeln!(out, "suppressed: {}", with_objects(suppressed, objects))?;
    }
    let name = |used: &Used| format!("{} ({}:{})", Escaped(&used.rule), Escaped(&used.source), used.line);
    let has_matched = |used: &&Used| used.suppressed.count > 0 || used.objects > 0;
    for used in rules.iter().filter(has_matched) {
        writeln!(
            out,
            "  {} by {}",
            with_objects(used.suppressed, used.objects),
            name(used)
        )?;
    }
    let own = |used: &&Used| !has_matched(used) && used.source != BUILT_IN_NAME;
    for unused in rules.iter().filter(own) {
        writeln!(out, "  {}", Styled(DIM, format!("never matched: {}", name(unused))))?;
    }
    Ok(())
}

/// Writes a line for each pool of which an unknown part is in use.
pub fn opaque_pools(out: &mut dyn Write, pools: &[OpaquePool]) -> io::Result<()> {
    for pool in pools {
        writeln!(out, "{}", Styled(WARN, pool.sentence(None)))?;
    }
    Ok(())
}

pub fn warnings(out: &mut dyn Write, warnings: &[String]) -> io::Result<()> {
    for warning in warnings {
        writeln!(out, "{} {}", Styled(WARN, "warning:"), Escaped(warning))?;
    }
    Ok(())
}

pub fn next(out: &mut dyn Write, command: &str) -> io::Result<()> {
    let command = Escaped(command).to_string();
    writeln!(
        out,
        "{} {}",
        Styled(BOLD, "next:"),
        wrap::command(&command, "next: ".len())
    )
}
