//! Parts that pages share: labels of call sites, tallies, processes, filters, suppressions.

use std::collections::{HashMap, HashSet};

use culeak::analysis::estimate::Errors;
use culeak::analysis::filter::{Filter, Filtered};
use culeak::analysis::function_name::plain;
use culeak::analysis::opaque::OpaquePool;
use culeak::analysis::report::{Cut, ProcessLine, Report, Row, Tally, shell_word};
use culeak::analysis::site::text::{self, SiteFrame};
use culeak::analysis::site::{CallStack, Frame, Line, Role, fold};
use culeak::analysis::suppressions::{BUILT_IN_NAME, Pattern, Used};
use culeak::kind::Place;
use culeak::snapshot::ProcessState;

use super::units;
pub use crate::document::{BAD, BOLD, DIM, GOOD, WARN, short_name};
use crate::document::{Cell, Document, Site, columns, counted, dim, estimate, fitting, folded, styled};
use crate::escape::Escaped;

/// A function's qualified name without parameters.
pub fn name(name: &str) -> String {
    Escaped(&plain(name)).to_string()
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
    behind(frame.and_then(Frame::short_place).as_deref())
}

/// A place after two spaces, or nothing.
pub fn behind(place: Option<&str>) -> String {
    place.map_or_else(String::new, |place| format!("  {}", Escaped(place)))
}

/// A caller, and the library whose run of frames it may be in.
pub type Caller<'t> = (Site, Option<&'t str>);

/// The callers of a call site on one line, innermost first: `from train_step train.cu:19 < torch: 21 frames < main`. `None`
/// without a caller.
pub fn callers(callers: &[Caller]) -> Option<String> {
    const SHOWN: usize = 3;
    let callers: Vec<&Caller> = callers.iter().collect();
    let lines = fold(&callers, true, |(_, library)| *library);
    let name = |line: Line<&Caller>| match line {
        Line::Frame((caller, _)) => with_place(caller),
        Line::Folded { library, frames } => folded(library, frames),
    };
    let mut names: Vec<String> = lines.into_iter().take(SHOWN + 1).map(name).collect();
    if let Some(beyond) = names.get_mut(SHOWN) {
        *beyond = "…".to_owned();
    }
    (!names.is_empty()).then(|| format!("from {}", names.join(" < ")))
}

/// `train_step train.cu:19`.
pub fn with_place(site: &Site) -> String {
    let name = fitting(&site.name);
    match site.place.as_str() {
        "" => name,
        place => format!("{name} {place}"),
    }
}

/// A call site whose snapshot was dropped, in a table.
pub fn cell(site: &text::Site) -> Site {
    let mark = mark_of(site.pool, site.allocator, site.library);
    Site::at(&site.label, site.place.as_deref(), mark)
}

/// The callers that all stacks of a call site share whose snapshot was dropped, without places.
pub fn callers_of<'t>(site: &'t text::Site, page: &mut Document) {
    let has_user = site.stack.iter().any(|frame| frame.role == Role::User);
    let mut left = site.parts_after.unwrap_or(usize::MAX);
    let shared = site.callers().take_while(|frame| {
        let is_shared = left > 0;
        left -= usize::from(is_shared && frame.role != Role::Wrapper);
        is_shared
    });
    let caller = |frame: &'t SiteFrame| {
        let library = frame.python_library.as_deref().filter(|_| has_user);
        (Site::at(&frame.function, None, ""), library)
    };
    let several = "several callers; --by stack shows each";
    let line = match (callers(&shared.map(caller).collect::<Vec<_>>()), site.parts_after) {
        (None, None) => return,
        (Some(callers), None) => callers,
        (Some(callers), Some(_)) => format!("{callers} < {several}"),
        (None, Some(_)) => format!("from {several}"),
    };
    page.indented(6, dim(line));
}

/// `recorded in full`, or of how many of these recordings, each with its name, that is not true.
pub fn completeness<'r>(recordings: impl Iterator<Item = (bool, &'r str)>, noun: &str, page: &mut Document) {
    let (mut all, mut lacking) = (0u64, Vec::new());
    for (is_complete, source) in recordings {
        all += 1;
        lacking.extend((!is_complete).then_some(source));
    }
    page.line(match lacking.last() {
        None => styled(GOOD, "recorded in full"),
        Some(last) => styled(
            WARN,
            format!(
                "not recorded in full: {} of {}; culeak report {} shows what is missing",
                units::count(lacking.len() as u64),
                counted(all, noun),
                shell_word(last)
            ),
        ),
    });
}

/// `50 s old`, or `50 s to 2 s old`, of memory and of objects.
pub fn ages(count: u64, oldest_ns: u64, newest_ns: u64) -> String {
    let (oldest, newest) = (units::duration(oldest_ns), units::duration(newest_ns));
    match count == 1 || oldest == newest {
        true => format!("{oldest} old"),
        false => format!("{oldest} to {newest} old"),
    }
}

/// `≈ ` in front of an estimate.
pub fn about(is_estimate: bool) -> &'static str {
    if is_estimate { "≈ " } else { "" }
}

/// A size in a table; `≈ 1.1 GiB` if it is an estimate whose error is not known here.
pub fn size_about(bytes: u64, is_estimate: bool) -> Cell {
    match is_estimate {
        true => Cell::Things(bytes, format!("{}{}", about(true), units::bytes(bytes))),
        false => Cell::Size(bytes),
    }
}

/// As [`tally`]; `≈ 1.1 GiB ± 20 MiB in ≈ 128 blocks` if it is an estimate from sampled stacks.
pub fn tally_about(tally: Tally, estimated: Option<Errors>) -> String {
    let bytes = estimate(tally.bytes, estimated);
    match estimated {
        None => self::tally(tally),
        Some(Errors { count_error: None, .. }) if tally.count == 0 => bytes,
        Some(Errors {
            count_error: Some(count),
            ..
        }) if tally.count == 0 => {
            format!("{bytes} in at most {}", counted(count, "block"))
        }
        Some(_) => format!("{bytes} in ≈ {}", counted(tally.count, "block")),
    }
}

/// Names those sites by their whole functions that would look alike, such as two instances of a template. `labels`: of the sites.
pub fn tell_apart<'l>(sites: &mut [Site], labels: impl Iterator<Item = &'l str>) {
    let labels: Vec<&str> = labels.collect();
    let mut of_site: HashMap<Site, HashSet<&str>> = HashMap::new();
    for (site, label) in sites.iter().zip(&labels) {
        of_site.entry(site.clone()).or_default().insert(label);
    }
    for (site, label) in sites.iter_mut().zip(labels) {
        if of_site[site].len() > 1 {
            site.name = Escaped(label).to_string();
        }
    }
}

/// The program's own wrappers that all of these stacks requested memory through: `through gpu_alloc alloc.c:12`.
pub fn through<'s, 'a: 's>(stacks: impl IntoIterator<Item = &'s CallStack<'a>>) -> Option<String> {
    const SHOWN: usize = 3;
    let names = |stack: &CallStack| -> Vec<String> {
        let site = |frame: &Frame| with_place(&Site::of(&frame.name(), Some(frame), ""));
        stack.wrappers().map(site).collect()
    };
    let mut stacks = stacks.into_iter();
    let mut through = names(stacks.next()?);
    if through.is_empty() || !stacks.all(|stack| names(stack) == through) {
        return None;
    }
    if through.len() > SHOWN {
        // The innermost requests the memory; the outermost is what the call site calls.
        through.splice(1..through.len() - 1, ["…".to_owned()]);
    }
    Some(format!("through {}", through.join(" < ")))
}

/// As [`through`], of all stacks of a row.
pub fn through_of(row: &Row) -> Option<String> {
    let all = row.stacks.len() == row.stacks_in_all;
    all.then(|| through(row.stacks.iter().map(|of| &of.stack)))?
}

/// `1.1 GiB in 128 blocks`.
pub fn tally(tally: Tally) -> String {
    format!("{} in {}", units::bytes(tally.bytes), counted(tally.count, "block"))
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
        (0, _) => "--top 0 shows all",
        (_, 0) => "--min-bytes 0 shows all",
        _ => "--top 0 --min-bytes 0 shows all",
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
    let mut text = match process.by {
        "" => format!("{} {}", process.pid, columns::start_of(&command, 60)),
        by => format!("{}, recorded by {}", Escaped(process.recording), Escaped(by)),
    };
    for (variable, value) in process.ranks {
        text.push_str(&format!(", {} {}", Escaped(variable), Escaped(value)));
    }
    if !process.host.is_empty() {
        text.push_str(&format!(", on {}", Escaped(process.host)));
    }
    text + &match process.state {
        // How long a process runs that was never recorded is not known.
        ProcessState::Running if process.lasted_ns == 0 => ", running".to_owned(),
        ProcessState::Running if process.is_of_snapshot => {
            format!(", snapshot after {}", units::duration(process.lasted_ns))
        }
        state => format!(", {}", lasted(state, process.lasted_ns)),
    }
}

/// `exited after 12 s`.
pub fn lasted(state: ProcessState, ns: u64) -> String {
    let lasted = units::duration(ns);
    match state {
        ProcessState::Running => format!("running for {lasted}"),
        ProcessState::Exited => format!("exited after {lasted}"),
        ProcessState::Ended => format!("ended without exit handlers after {lasted}"),
        ProcessState::Unknown => format!("last seen after {lasted}"),
    }
}

/// A filter in words, and the memory that it leaves out; `objects`: the number of objects without an address that it leaves out.
pub fn filter(filtered: &Filtered, objects: u64) -> String {
    let left_out = with_objects(filtered.left_out, objects);
    format!("{}; leaves out {left_out}", conditions(&filtered.filter))
}

/// `kind device, stack matches train.py`.
pub fn conditions(filter: &Filter) -> String {
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
    conditions.join(", ")
}

/// As [`tally`], of what the report lists: `32 MiB in 3 segments` if that is what the kernel driver gave.
pub fn tally_of(report: &Report, tally: Tally) -> String {
    let kinds = report.filter.iter().flat_map(|filtered| &filtered.filter.kinds);
    let noun = match kinds.map(|kind| kind.place()).any(|place| place == Place::Segment) {
        false => "block",
        true => "segment",
    };
    format!("{} in {}", units::bytes(tally.bytes), counted(tally.count, noun))
}

/// `32 MiB in 3 blocks and 40 objects`; a part that is 0 is omitted.
pub fn with_objects(memory: Tally, objects: u64) -> String {
    let objects_counted = counted(objects, "object");
    match (memory.count, objects) {
        (_, 0) => tally(memory),
        (0, _) => objects_counted,
        _ => format!("{} and {objects_counted}", tally(memory)),
    }
}

/// What each rule suppressed, and the user's rules that matched nothing. `objects`: those without an address; `sampled`: the
/// memory is an estimate from sampled stacks.
pub fn suppressions(suppressed: Tally, objects: u64, rules: &[Used], sampled: bool, page: &mut Document) {
    let with_objects = |memory: Tally, objects: u64| {
        format!(
            "{}{}",
            about(sampled && memory.count > 0),
            self::with_objects(memory, objects)
        )
    };
    if suppressed.count > 0 || objects > 0 {
        page.line(format!("suppressed: {}", with_objects(suppressed, objects)));
    }
    let name = |used: &Used| format!("{} ({}:{})", used.rule, used.source, used.line);
    let has_matched = |used: &&Used| used.suppressed.count > 0 || used.objects > 0;
    for used in rules.iter().filter(has_matched) {
        page.item(format!(
            "{} by {}",
            with_objects(used.suppressed, used.objects),
            name(used)
        ));
    }
    let own = |used: &&Used| !has_matched(used) && used.source != BUILT_IN_NAME;
    for unused in rules.iter().filter(own) {
        page.item(dim(format!("never matched: {}", name(unused))));
    }
}

/// A line for each pool of which an unknown part is in use.
pub fn opaque_pools(page: &mut Document, pools: &[OpaquePool]) {
    pools
        .iter()
        .for_each(|pool| page.line(styled(WARN, pool.sentence(None))));
}
