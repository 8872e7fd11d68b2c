//! Why memory is still there, as text: what holds it by the beginning of the path, what would be freed with what, and what
//! was not searched.

use std::io::{self, Write};

use culeak::analysis::report::{Tally, shell_word};
use culeak::analysis::why::words::{class_and_origin, meaning};
use culeak::analysis::why::{Also, HolderRow, Matched, One, Origin, Retained, SiteHolder, SiteHolders, Why};
use culeak::snapshot::{Class, Step};

use super::columns;
use super::parts::{self, BOLD, DIM, NAME_WIDTH, Styled, WARN};
use super::report::sums::{Sum, losses_in_words, titled};
use super::units::{self, plural};
use crate::escape::Escaped;

/// Rows of one origin that text lists.
pub const ROWS_SHOWN: usize = 5;
/// Deeper retainers are not indented further.
const INDENTED: usize = 8;
/// The least room for a label.
const LABEL_NEEDED: usize = 12;

/// Writes the answer.
pub fn write(why: &Why, out: &mut dyn Write) -> io::Result<()> {
    if let Some(block) = &why.block {
        one(block, out)?;
    } else {
        headline(why, out)?;
        origins(why, out)?;
        retainers(why, out)?;
    }
    writeln!(out)?;
    for (name, text) in sums(why) {
        writeln!(out, "{}  {text}", Styled(BOLD, format!("{name:12}")))?;
    }
    parts::next(out, &why.next)
}

/// `41.9 MiB at 3 call sites; 1 root retains 41.9 MiB`.
fn headline(why: &Why, out: &mut dyn Write) -> io::Result<()> {
    let when = why.when.iter().map(|when| format!(" {}", Escaped(when)));
    let when: String = when.collect();
    let filtered = if why.filter.is_some() { " (filtered)" } else { "" };
    if why.total.count == 0 {
        let of = why.selector.iter().map(|selector| format!(" of {}", Escaped(selector)));
        let of: String = of.collect();
        let is = nothing_is(why.class.unwrap_or_default());
        return writeln!(out, "{}", Styled(BOLD, format!("nothing{of} is {is}{when}{filtered}")));
    }
    let sites = plural(why.call_sites as u64, "call site", "call sites");
    let roots = match why.roots.count {
        0 => "no root retains any of it".to_owned(),
        n => format!(
            "{} {}",
            plural(n, "root retains", "roots retain"),
            units::bytes(why.roots.bytes)
        ),
    };
    let selector = why.selector.as_deref().map(Escaped);
    let matched = match (why.matched, selector) {
        (Some(Matched::Holder), Some(selector)) => format!(", held by what matches {selector}"),
        (Some(Matched::Caller), Some(selector)) => format!(", below callers that match {selector}"),
        _ => String::new(),
    };
    let text = format!("{} at {sites}{when}{matched}; {roots}", units::bytes(why.total.bytes));
    writeln!(out, "{}{filtered}", Styled(BOLD, text))
}

/// What no memory is, after `nothing is`.
fn nothing_is(class: Class) -> &'static str {
    match class {
        Class::Held => "held",
        Class::Cycle => "held by an uncollected cycle",
        Class::NativeHolder => "held by native code through a Python object",
        Class::OverCounted => "over-counted",
        Class::Lost => "lost",
    }
}

/// The widths of the columns of rows.
struct Widths {
    size: usize,
    blocks: usize,
    label: usize,
    place: usize,
    /// Paths have lines of their own, for lack of room.
    apart: bool,
}

/// Spaces before a row.
const INDENT: &str = "    ";

impl Widths {
    fn of(why: &Why) -> Widths {
        let rows = || why.origins.iter().flat_map(|origin| &origin.holders);
        let paths = why.origins.iter();
        let paths = paths.flat_map(|origin| origin.holders.iter().map(|row| path(row, origin)));
        let tallies = why.origins.iter().map(|origin| origin.tally);
        let tallies = || tallies.clone().chain(rows().map(|row| row.tally));
        let labels = rows().map(|row| columns::width(&parts::short_name(&row.label)));
        let mut widths = Widths {
            size: tallies()
                .map(|tally| units::bytes(tally.bytes).len())
                .max()
                .unwrap_or(0),
            blocks: rows().map(|row| blocks(row.tally).len()).max().unwrap_or(0),
            label: labels.filter(|&width| width <= NAME_WIDTH).max().unwrap_or(0),
            place: rows().map(|row| columns::width(&place(row))).max().unwrap_or(0),
            apart: false,
        };
        if let Some(available) = columns::available() {
            let path = paths.map(|path| columns::width(&path)).max().unwrap_or(0);
            let fixed = INDENT.len() + widths.size + " in ".len() + widths.blocks + "  ".len();
            widths.apart = fixed + widths.label + "  ".len() + widths.place + "  ".len() + path > available;
            let room = available.saturating_sub(fixed + "  ".len() + widths.place);
            widths.label = widths.label.min(room.max(LABEL_NEEDED));
        }
        widths
    }
}

/// `20 blocks`; the singular is as wide as the plural.
fn blocks(tally: Tally) -> String {
    let space = if tally.count == 1 { " " } else { "" };
    plural(tally.count, "block", "blocks") + space
}

fn place(row: &HolderRow) -> String {
    row.place
        .as_deref()
        .map(|place| Escaped(place).to_string())
        .unwrap_or_default()
}

/// The path, and whether it is certain, unless the origin says so for all of its paths.
pub fn path(row: &HolderRow, origin: &Origin) -> String {
    let possibly = if row.possibly && !origin.possibly { POSSIBLY } else { "" };
    format!("{possibly}{}", Escaped(&row.path)).trim_end().to_owned()
}

/// Precedes a path that may be stale.
const POSSIBLY: &str = "possibly ";

fn origins(why: &Why, out: &mut dyn Write) -> io::Result<()> {
    let widths = Widths::of(why);
    for origin in &why.origins {
        let style = if origin.class == Class::Held { BOLD } else { WARN };
        let size = format!("{:>width$}", units::bytes(origin.tally.bytes), width = widths.size);
        let text = Escaped(&origin.text()).to_string();
        writeln!(
            out,
            "  {}  {}{}",
            Styled(BOLD, size),
            Styled(style, text),
            frees(origin)
        )?;
        for row in &origin.holders {
            write_row(row, path(row, origin), &widths, out)?;
        }
        if origin.hidden_rows > 0 {
            let rows = plural(origin.hidden_rows as u64, "more row", "more rows");
            let text = format!("… and {rows} with {}; --top 0 shows all", parts::tally(origin.hidden));
            writeln!(out, "{INDENT}{}", Styled(DIM, text))?;
        }
    }
    if why.hidden_origins > 0 {
        let holders = plural(why.hidden_origins as u64, "more holder", "more holders");
        let text = format!(
            "… and {holders} with {}; --top 0 --min-bytes 0 shows all",
            parts::tally(why.hidden)
        );
        writeln!(out, "  {}", Styled(DIM, text))?;
    }
    Ok(())
}

/// What would be freed with the origin, if others hold a part of its memory.
pub fn frees(origin: &Origin) -> String {
    match origin.retained {
        Some(retained) if retained.count == 0 => "; dropping it alone frees nothing".to_owned(),
        Some(retained) if retained.bytes < origin.tally.bytes => {
            format!("; dropping it frees {}", units::bytes(retained.bytes))
        }
        _ => String::new(),
    }
}

/// Other holders of a row that text names.
const OTHERS_NAMED: usize = 3;

/// `also held by __main__.other, __main__.best (1 MiB) and 2 more`; `None` if nothing else holds the memory.
pub fn also_text(also: &[Also], of: Tally) -> Option<String> {
    let name = |also: &Also| {
        let name = Escaped(&also.name);
        match also.tally.bytes < of.bytes {
            true => format!("{name} ({})", units::bytes(also.tally.bytes)),
            false => name.to_string(),
        }
    };
    let named: Vec<String> = also.iter().take(OTHERS_NAMED).map(name).collect();
    let more = match also.len().saturating_sub(OTHERS_NAMED) {
        0 => String::new(),
        n => format!(" and {} more", units::count(n as u64)),
    };
    (!named.is_empty()).then(|| format!("also held by {}{more}", listed(&named)))
}

/// `__main__.keep, __main__.other`. Names with commas, such as those of frames, are separated by semicolons.
fn listed(names: &[String]) -> String {
    let separator = match names.iter().any(|name| name.contains(", ")) {
        true => "; ",
        false => ", ",
    };
    names.join(separator)
}

fn write_row(row: &HolderRow, path: String, widths: &Widths, out: &mut dyn Write) -> io::Result<()> {
    let label = parts::short_name(&row.label);
    let label = match columns::available() {
        Some(_) => columns::shortened(&label, widths.label),
        None => label,
    };
    let head = format!(
        "{INDENT}{:>size$} in {:<blocks$}  {}  {}",
        units::bytes(row.tally.bytes),
        blocks(row.tally),
        columns::padded(&label, widths.label),
        columns::padded(&place(row), widths.place),
        size = widths.size,
        blocks = widths.blocks,
    );
    match path.is_empty() {
        true => writeln!(out, "{}", head.trim_end()),
        false if widths.apart => {
            writeln!(out, "{}", head.trim_end())?;
            writeln!(out, "{INDENT}  {}", Styled(DIM, path))
        }
        false => writeln!(out, "{head}  {}", Styled(DIM, path)),
    }?;
    match also_text(&row.also, row.tally) {
        Some(also) => writeln!(out, "{INDENT}  {also}"),
        None => Ok(()),
    }
}

fn retainers(why: &Why, out: &mut dyn Write) -> io::Result<()> {
    let retainers = &why.retainers;
    if retainers.is_empty() {
        return Ok(());
    }
    let unknown = (why.unretained.count > 0).then_some(why.unretained);
    let tallies = || retainers.iter().map(|retainer| retainer.tally).chain(unknown);
    writeln!(out, "\n{}", Styled(BOLD, "dropping a holder frees"))?;
    let size = tallies()
        .map(|tally| units::bytes(tally.bytes).len())
        .max()
        .unwrap_or(0);
    let counts = tallies().map(|tally| blocks(tally).len()).max().unwrap_or(0);
    let mut row = |tally: Tally, text: String| {
        let bytes = format!("{:>size$}", units::bytes(tally.bytes));
        writeln!(out, "  {} in {:<counts$}  {text}", Styled(BOLD, bytes), blocks(tally))
    };
    for retainer in retainers {
        let indent = "  ".repeat(retainer.depth.min(INDENTED));
        row(retainer.tally, format!("{indent}{}", retainer_text(retainer)))?;
    }
    if let Some(unknown) = unknown {
        row(unknown, NOT_KNOWN.to_owned())?;
    }
    if why.hidden_retainers > 0 {
        let rows = plural(why.hidden_retainers as u64, "more row", "more rows");
        writeln!(out, "  {}", Styled(DIM, format!("… and {rows}; --top 0 shows all")))?;
    }
    Ok(())
}

/// In place of a holder.
pub const NOT_KNOWN: &str = "(which holder frees it is not known)";

/// `head['next'] (dict of 2), and 398 more like it below`; `held by 2, only
/// with all of them: __main__.keep (list of 8), __main__.other`.
pub fn retainer_text(retainer: &Retained) -> String {
    let mut text = match retainer.is_shared() {
        false => Escaped(&retainer.name).to_string(),
        true => {
            let also = &retainer.also;
            let all_named = [&retainer.name].into_iter().chain(also);
            let names: Vec<String> = all_named.map(|name| Escaped(name).to_string()).collect();
            let more = match retainer.also_unnamed {
                0 => String::new(),
                n => format!(" and {} more", units::count(n)),
            };
            let all = 1 + also.len() as u64 + retainer.also_unnamed;
            format!(
                "held by {}, only with all of them: {}{more}",
                units::count(all),
                listed(&names)
            )
        }
    };
    if retainer.repeated > 0 {
        text += &format!(", and {} more like it below", units::count(retainer.repeated as u64));
    }
    text
}

/// One block: where it was allocated, and its whole path, one step per line.
fn one(block: &One, out: &mut dyn Write) -> io::Result<()> {
    let title = format!(
        "{:#x}: {}, {}, {} old",
        block.address,
        units::bytes(block.bytes),
        block.kind,
        units::duration(block.age_ns)
    );
    writeln!(out, "{}", Styled(BOLD, title))?;
    parts::stack(out, &block.stack, false, "  ")?;
    let Some(path) = block.held else {
        return writeln!(out, "{}", Styled(WARN, "its holder was not searched for"));
    };
    let origin = class_and_origin(
        path.class,
        path.root,
        &path.origin,
        &path.origin_type,
        path.note.as_deref(),
    );
    let possibly = if path.possibly { POSSIBLY } else { "" };
    let by = match path.class {
        Class::Held => "held by ",
        _ => "",
    };
    writeln!(out, "\n{}", Styled(BOLD, format!("{possibly}{by}{}", Escaped(&origin))))?;
    let via = |step: &Step| Escaped(step.via.trim()).to_string();
    let widest = path.steps.iter().map(|step| columns::width(&via(step)));
    let width = widest.max().unwrap_or(0).min(NAME_WIDTH);
    for (nth, step) in path.steps.iter().enumerate() {
        let is_last = nth + 1 == path.steps.len();
        let holder = match (step.holder.as_str(), path.interior) {
            ("", true) if is_last => "into the block".to_owned(),
            ("", _) if is_last => "the block".to_owned(),
            (holder, _) => Escaped(holder).to_string(),
        };
        writeln!(out, "  {}  → {holder}", columns::padded(&via(step), width))?;
    }
    Ok(())
}

/// The rows below the holders.
pub fn sums(why: &Why) -> Vec<Sum> {
    let mut rows: Vec<Sum> = Vec::new();
    for total in why.classes.iter().filter(|_| why.block.is_none()) {
        let name = match total.class {
            Class::Held => "held",
            Class::Cycle => "cycles",
            Class::NativeHolder => "native code",
            Class::OverCounted => "over-counted",
            Class::Lost => "lost",
        };
        rows.push((name, format!("{}{}", parts::tally(total.tally), meaning(total.class))));
    }
    if let Some(filter) = &why.filter {
        rows.push(("filter", parts::filter(filter, 0)));
    }
    for (owner, pool) in &why.pools {
        let owner = Escaped(owner);
        if pool.unused_bytes > 0 {
            let unused = units::bytes(pool.unused_bytes);
            rows.push((
                "pools",
                format!("{unused} without a live block, held by {owner}'s caching allocator"),
            ));
        }
        if pool.unknown.count > 0 {
            let unknown = parts::tally(pool.unknown);
            rows.push((
                "pools",
                format!("{unknown} held by {owner}'s caching allocator; which part is in use is unknown"),
            ));
        }
    }
    if why.changed.count > 0 {
        let text = "freed, or held by something else, while the memory was searched";
        rows.push(("changed", format!("{}: {text}", parts::tally(why.changed))));
    }
    rows.extend(titled("not searched", not_searched(why)));
    rows.push(("search", search(why)));
    let lost: Vec<String> = losses_in_words(why.losses, why.taken, false).collect();
    rows.extend(titled("not recorded", lost));
    rows.push(("process", parts::process(&why.process)));
    rows
}

/// Memory without an answer, and what the search could not see.
fn not_searched(why: &Why) -> Vec<String> {
    let search = why.search;
    let mut texts = Vec::new();
    if why.not_searched.count > 0 {
        let others = match search.stopped {
            None => "within another block, or without an address",
            Some(_) => "within another block, without an address, or not reached before the search stopped",
        };
        texts.push(format!(
            "{}: allocated while the memory was searched, {others}",
            parts::tally(why.not_searched)
        ));
    }
    texts.extend(search.limits.iter().map(|limit| Escaped(limit).to_string()));
    if texts.is_empty() {
        texts.push("nothing; device memory that holds device pointers is never searched".to_owned());
    }
    texts
}

/// `1,204,511 objects and pieces of memory in 640 MiB of Python 3.12.3, in 640 ms; 2 copies, the first in 210 ms; the process
/// was not stopped`.
fn search(why: &Why) -> String {
    let search = why.search;
    let python = match &search.python {
        Some(version) => format!(", Python {}", Escaped(version)),
        None => String::new(),
    };
    let torn = match search.torn {
        0 => String::new(),
        n => format!("; {} led to no live object", plural(n, "reference", "references")),
    };
    let objects = format!(
        "{} objects and pieces of memory in {}{python}, in {}",
        units::count(search.visited),
        units::bytes(search.copied_bytes),
        units::duration(search.took_ns)
    );
    if let Some(core) = &why.core {
        return format!("{objects}; of the core file {}{torn}", Escaped(core));
    }
    let stopped = match search.paused_ns {
        0 => "the process was not stopped".to_owned(),
        ns => format!("the process was stopped for {}", units::duration(ns)),
    };
    format!(
        "{objects}; {}, the first in {}; {stopped}{torn}",
        plural(search.copies.into(), "copy", "copies"),
        units::duration(search.copy_ns)
    )
}

/// Holders that are listed for each call site of a report.
const HOLDERS_SHOWN: usize = 3;

/// The section of a report: for each of the largest call sites, what holds most of its memory. `source`: the input as the
/// user named it.
pub fn write_sites(sites: &[SiteHolders], most: usize, source: &str, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", Styled(BOLD, "held by"))?;
    for site in sites.iter().take(most) {
        let place = site.place.iter().map(|place| format!("  {}", Escaped(place)));
        let (name, place) = (parts::short_name(&site.label), place.collect::<String>());
        writeln!(out, "  {}  {name}{place}", Styled(BOLD, units::bytes(site.tally.bytes)))?;
        write_holders(site, HOLDERS_SHOWN, INDENT, out)?;
    }
    if sites.len() > most {
        let more = plural((sites.len() - most) as u64, "more call site", "more call sites");
        writeln!(out, "  {}", Styled(DIM, format!("… and {more}; --top 0 shows all")))?;
    }
    let command = format!("culeak why {}", shell_word(source));
    writeln!(
        out,
        "  {}",
        Styled(
            DIM,
            format!("all holders, and what each of them frees: {}", Escaped(&command))
        )
    )?;
    writeln!(out)
}

/// The holders of one call site, one per line.
pub fn write_holders(site: &SiteHolders, most: usize, indent: &str, out: &mut dyn Write) -> io::Result<()> {
    let shown = &site.holders[..site.holders.len().min(most)];
    let sizes = shown.iter().map(|holder| units::bytes(holder.tally.bytes).len());
    let size = sizes.max().unwrap_or(0);
    for holder in shown {
        let bytes = units::bytes(holder.tally.bytes);
        writeln!(out, "{indent}{bytes:>size$}  {}", holder_text(holder))?;
    }
    let more = site.holders.len() - shown.len();
    if more > 0 {
        let rest = Tally::total(site.holders[shown.len()..].iter().map(|holder| holder.tally));
        let text = format!(
            "… and {} with {}",
            plural(more as u64, "more holder", "more holders"),
            parts::tally(rest)
        );
        writeln!(out, "{indent}{}", Styled(DIM, text))?;
    }
    if site.not_searched.count > 0 {
        let text = format!("{} without an answer", parts::tally(site.not_searched));
        writeln!(out, "{indent}{}", Styled(DIM, text))?;
    }
    Ok(())
}

/// `__main__.keep (list of 60): keep[*] → Tensor → storage`.
pub fn holder_text(holder: &SiteHolder) -> String {
    let possibly = if holder.possibly { POSSIBLY } else { "" };
    let path = match holder.path.as_str() {
        "" => String::new(),
        path => format!(": {}", Escaped(path)),
    };
    let also = match also_text(&holder.also, holder.tally) {
        Some(also) => format!("; {also}"),
        None => String::new(),
    };
    format!("{possibly}{}{path}{also}", Escaped(&holder.origin))
}
