//! Why memory is still there: what holds it by the beginning of the path, what would be freed with what, and what was not
//! searched.

use culeak::analysis::report::{Report, Row, Tally, shell_word};
use culeak::analysis::why::modules::{NO_MODULE, folded};
use culeak::analysis::why::words::meaning;
use culeak::analysis::why::{
    Also, HolderRow, Matched, ModuleRow, Modules, One, Origin, OriginKey, Retained, SiteHolder, SiteHolders, Why,
};
use culeak::snapshot::{Class, ProcessState, Step, Stop};
use culeak::table;

use super::report::sums::{Sum, losses_in_words, titled};
use super::{host, objects, parts, units};
use crate::document::{BOLD, Cell, Document, Rows, Site, Text, WARN, bold, counted, dim, short_name, styled, things};
use crate::escape::Escaped;
use crate::text::units::{unless_zero, when};

/// Rows of one origin that text lists.
pub const ROWS_SHOWN: usize = 5;
/// Deeper retainers are not indented further.
const INDENTED: usize = 8;

/// The answer. `modules`: the number of lines by module in place of the holders; `None`: a few lines besides.
pub fn page(why: &Why, modules: Option<usize>) -> Document {
    let mut page = Document::default();
    match &why.block {
        Some(block) => one(block, &mut page),
        None => {
            page.line(headline(why));
            match (modules, &why.modules) {
                (None, _) => origins(why, &mut page),
                (_, None) => page.line("no module of PyTorch owns any of it"),
                _ => {}
            }
            if let Some(of) = &why.modules {
                if modules.is_none() {
                    page.blank();
                    page.line(bold("by module"));
                }
                write_modules(of, modules.unwrap_or(MODULES_SHOWN), 0, &mut page);
            }
            if modules.is_none() {
                retainers(why, &mut page);
                objects_held(why, &mut page);
            }
        }
    }
    page.blank();
    page.fields(sums(why));
    page.next(&why.next);
    page
}

/// `41.9 MiB at 3 call sites: 30 MiB lost, 11.9 MiB held by 1 holder, 2 MiB of it only possibly`.
fn headline(why: &Why) -> Text {
    if why.total.count == 0
        && why.search.host.is_some()
        && why.selector.is_none()
        && why.class.is_none()
        && why.filter.is_none()
    {
        return bold("no GPU memory is known to be held");
    }
    let when: String = why.when.iter().map(|when| format!(" {when}")).collect();
    let filtered = if why.filter.is_some() { " (filtered)" } else { "" };
    if why.total.count == 0 {
        let of: String = why.selector.iter().map(|selector| format!(" of {selector}")).collect();
        let is = words_of(why.class.unwrap_or_default())[2];
        return bold(format!("nothing{of} is {is}{when}{filtered}"));
    }
    let sites = counted(why.call_sites, "call site");
    let matched = match (why.matched, &why.selector) {
        (Some(Matched::Holder), Some(selector)) => format!(", held by what matches {selector}"),
        (Some(Matched::Caller), Some(selector)) => format!(", below callers that match {selector}"),
        _ => String::new(),
    };
    bold(format!(
        "{} at {sites}{when}{matched}: {}",
        units::bytes(why.total.bytes),
        by_class(why)
    )) + filtered
}

/// The memory by class, largest first, and what has none.
fn by_class(why: &Why) -> String {
    let mut parts: Vec<(u64, String)> = (why.classes.iter())
        .map(|of| {
            let what = match of.class {
                Class::Held => format!("held by {}", units::plural(why.roots.count, "holder", "holders")),
                class => is_of(class).to_owned(),
            };
            let possibly = possibly(of.possibly_bytes, of.tally.bytes);
            (of.tally.bytes, format!("{what}{possibly}"))
        })
        .collect();
    let known: u64 = parts.iter().fold(0, |sum, (bytes, _)| bytes.saturating_add(sum));
    let unknown = why.total.bytes.saturating_sub(known);
    parts.extend((unknown > 0).then(|| (unknown, "without an answer".to_owned())));
    parts.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let parts = parts
        .into_iter()
        .map(|(bytes, what)| format!("{} {what}", units::bytes(bytes)));
    parts.collect::<Vec<_>>().join(", ")
}

/// `, 2 MiB of it only possibly`: the part of held memory whose pointers may be stale, of lost memory that may be held.
fn possibly(bytes: u64, of: u64) -> String {
    match bytes {
        0 => String::new(),
        _ if bytes >= of => ", only possibly".to_owned(),
        _ => format!(", {} of it only possibly", units::bytes(bytes)),
    }
}

/// Of each class: the name of its sum, what a call site's memory is, and what no memory is, after `nothing is`.
const CLASSES: [(Class, &str, &str, &str); 5] = table! {
    Class::Held, "held", "held by a variable", "held";
    Class::Cycle, "cycles", "in a cycle", "held by an uncollected cycle";
    Class::NativeHolder, "native code", "held by native code", "held by native code through a Python object";
    Class::OverCounted, "over-counted", "over-counted", "over-counted";
    Class::Lost, "lost", "lost", "lost";
};

fn words_of(class: Class) -> [&'static str; 3] {
    let row = CLASSES.iter().find(|(of, ..)| *of == class);
    row.map_or([""; 3], |&(_, sum, is, nothing_is)| [sum, is, nothing_is])
}

/// What memory of a class is.
pub fn is_of(class: Class) -> &'static str {
    words_of(class)[1]
}

/// Lines of modules besides the holders.
pub const MODULES_SHOWN: usize = 8;

/// The memory of each module, with that of the modules in it, and what no module owns.
pub fn write_modules(modules: &Modules, most: usize, indent: usize, page: &mut Document) {
    let (mut lines, hidden) = folded(&modules.tree, most);
    if modules.without.count > 0 {
        lines.push(ModuleRow {
            path: NO_MODULE.to_owned(),
            tally: modules.without,
            ..ModuleRow::default()
        });
    }
    module_lines(&lines, hidden, indent, page);
}

/// The modules in the model that a row of a report is.
pub fn write_modules_below(row: &Row, report: &Report, most: usize, indent: usize, page: &mut Document) {
    let rows = report
        .modules
        .as_ref()
        .map_or(&[][..], |modules| modules.of_root(&row.label));
    let (lines, hidden) = folded(rows, most + 1);
    module_lines(lines.get(1..).unwrap_or_default(), hidden, indent, page);
}

fn module_lines(lines: &[ModuleRow], hidden: usize, indent: usize, page: &mut Document) {
    let name = |row: &&ModuleRow| {
        let also = unless_zero(row.also, |also| {
            format!(
                "; {} it or a part of it",
                units::plural(also, "other module has", "other modules have")
            )
        });
        format!("{}{}{also}", "  ".repeat(row.depth.min(INDENTED)), Escaped(&row.text()))
    };
    let rows = Rows::of(lines)
        .bare()
        .indent(indent)
        .tally(
            |row| Cell::Size(row.tally.bytes),
            |row| things(row.tally.count, "block"),
        )
        .column("module", name);
    page.table(rows);
    page.more_at(indent, hidden, "line", "; culeak why --by module --top 0 shows all");
}

/// The path with the tensors on it, and whether it is certain, unless the origin says so for all of its paths.
fn path(row: &HolderRow, origin: &Origin) -> String {
    let possibly = if row.possibly && !origin.possibly { POSSIBLY } else { "" };
    let path = format!("{possibly}{}", Escaped(&row.path));
    format!("{}{}", path.trim_end(), tensors(row))
}

/// `, float32[1024, 1024] (20 blocks) and 2 other shapes`; empty if none is known.
fn tensors(row: &HolderRow) -> String {
    let Some((first, rest)) = row.tensors.split_first() else {
        return String::new();
    };
    let name = first.tensor.to_string();
    let part = when(first.tally != row.tally, || {
        format!(" ({})", units::plural(first.tally.count, "block", "blocks"))
    });
    let more = unless_zero(rest.len() as u64, |n| {
        format!(" and {}", units::plural(n, "other shape", "other shapes"))
    });
    format!(", {}{part}{more}", Escaped(&name))
}

/// Precedes a path that may be stale.
const POSSIBLY: &str = "possibly ";

fn origins(why: &Why, page: &mut Document) {
    let style = |origin: &Origin| if origin.key.class == Class::Held { BOLD } else { WARN };
    let rows = Rows::of(&why.origins)
        .bare()
        .column("bytes", |origin| Cell::Size(origin.tally.bytes).styled(BOLD))
        .column("holder", |origin| styled(style(origin), origin.text()) + frees(origin))
        .below(|origin, page| holders(origin, page));
    page.table(rows);
    let hidden = parts::tally(why.hidden);
    page.more(
        why.hidden_origins,
        "holder",
        format!(" with {hidden}; --top 0 --min-bytes 0 shows all"),
    );
}

/// What holds objects without an address.
fn objects_held(why: &Why, page: &mut Document) {
    let (shown, rest) = why.objects.split_at(why.objects.len().min(ROWS_SHOWN));
    if shown.is_empty() {
        return;
    }
    page.blank();
    page.line(bold("objects without an address"));
    let rows = Rows::of(shown).bare();
    page.table(
        rows.column("objects", |row| objects::title(row))
            .below(|row, page| objects::held_by(row, 4, page)),
    );
    page.more(
        rest.len(),
        "call site",
        "; culeak report --view objects lists them".to_owned(),
    );
}

/// The rows of a holder.
fn holders(origin: &Origin, page: &mut Document) {
    let rows = Rows::of(&origin.holders)
        .bare()
        .indent(4)
        .tally(
            |row| Cell::Size(row.tally.bytes),
            |row| things(row.tally.count, "block"),
        )
        .column("call site", |row| Site::at(&row.label, row.place.as_deref(), ""))
        .column("path", |row| dim(path(row, origin)))
        .below(|row, page| {
            also_text(&row.also, row.tally)
                .into_iter()
                .for_each(|also| page.indented(6, also));
        });
    page.table(rows);
    let hidden = parts::tally(origin.hidden);
    page.more_at(
        4,
        origin.hidden_rows,
        "row",
        format!(" with {hidden}; --top 0 shows all"),
    );
}

/// What would be freed with the origin, if others hold a part of its memory.
fn frees(origin: &Origin) -> String {
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
fn also_text(also: &[Also], of: Tally) -> Option<String> {
    let name = |also: &Also| {
        let name = Escaped(&also.name);
        match also.tally.bytes < of.bytes {
            true => format!("{name} ({})", units::bytes(also.tally.bytes)),
            false => name.to_string(),
        }
    };
    let named: Vec<String> = also.iter().take(OTHERS_NAMED).map(name).collect();
    let more = unless_zero(also.len().saturating_sub(OTHERS_NAMED), |n| {
        format!(" and {} more", units::count(n as u64))
    });
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

/// What would be freed with what.
pub fn retainers(why: &Why, page: &mut Document) {
    if why.retainers.is_empty() {
        return;
    }
    let indent = |retainer: &Retained| "  ".repeat(retainer.depth.min(INDENTED));
    let text = |retainer: &Retained| format!("{}{}", indent(retainer), retainer_text(retainer));
    let known = why
        .retainers
        .iter()
        .map(|retainer| (retainer.tally, retainer.host_bytes, text(retainer)));
    let unknown = (why.unretained.count > 0).then(|| (why.unretained, 0, NOT_KNOWN.to_owned()));
    let host = |bytes: u64| match bytes {
        0 => Cell::Things(0, String::new()),
        _ => Cell::Things(bytes, format!("at least {} of the host", units::bytes(bytes))),
    };
    page.blank();
    page.line(bold("dropping a holder frees"));
    let rows = Rows::of(known.chain(unknown)).bare().tally(
        |(tally, ..)| Cell::Size(tally.bytes),
        |(tally, ..)| things(tally.count, "block"),
    );
    let rows = match why.retainers.iter().any(|retainer| retainer.host_bytes > 0) {
        true => rows.column("host", |(_, bytes, _)| host(*bytes)),
        false => rows,
    };
    let rows = rows.column("holder", |(.., text)| text.clone());
    page.table(rows);
    page.more(why.hidden_retainers, "row", "; --top 0 shows all");
}

/// In place of a holder.
const NOT_KNOWN: &str = "(which holder frees it is not known)";

/// `head['next'] (dict of 2), and 398 more like it below`; `held by 2, only
/// with all of them: __main__.keep (list of 8), __main__.other`.
fn retainer_text(retainer: &Retained) -> String {
    let mut text = match retainer.is_shared() {
        false => Escaped(&retainer.name).to_string(),
        true => {
            let also = &retainer.also;
            let all_named = [&retainer.name].into_iter().chain(also);
            let names: Vec<String> = all_named.map(|name| Escaped(name).to_string()).collect();
            let more = unless_zero(retainer.also_unnamed, |n| format!(" and {} more", units::count(n)));
            let all = 1 + also.len() as u64 + retainer.also_unnamed;
            format!(
                "held by {}, only with all of them: {}{more}",
                units::count(all),
                listed(&names)
            )
        }
    };
    text += &possibly(retainer.possibly_bytes, retainer.tally.bytes);
    if retainer.repeated > 0 {
        text += &format!(", and {} more like it below", units::count(retainer.repeated as u64));
    }
    text
}

/// One block: where it was allocated, and its whole path, one step per line.
fn one(block: &One, page: &mut Document) {
    let (bytes, age) = (units::bytes(block.bytes), units::duration(block.age_ns));
    let tensor = block.tensor.map_or(String::new(), |tensor| format!(", {tensor}"));
    page.line(bold(format!(
        "{:#x}: {bytes}, {}{}, {age} old",
        block.address,
        block.kind,
        Escaped(&tensor)
    )));
    page.stack(&block.stack, false, 2);
    let Some(path) = block.held else {
        return page.line(styled(WARN, "its holder was not searched for"));
    };
    let origin = OriginKey::of(path).text();
    let possibly = if path.possibly { POSSIBLY } else { "" };
    let by = if path.class == Class::Held { "held by " } else { "" };
    page.blank();
    page.line(bold(format!("{possibly}{by}{origin}")));
    let holder = |&(nth, step): &(usize, &Step)| match (step.holder.as_str(), path.interior) {
        ("", true) if nth + 1 == path.steps.len() => "→ into the block".to_owned(),
        ("", _) if nth + 1 == path.steps.len() => "→ the block".to_owned(),
        (holder, _) => format!("→ {holder}"),
    };
    let steps = Rows::of(path.steps.iter().enumerate()).bare();
    page.table(
        steps
            .column("via", |(_, step)| step.via.trim())
            .flexible()
            .column("holder", holder),
    );
}

/// The rows below the holders.
pub(super) fn sums(why: &Why) -> Vec<Sum> {
    let mut rows: Vec<Sum> = Vec::new();
    for total in why.classes.iter().filter(|_| why.block.is_none()) {
        let [name, ..] = words_of(total.class);
        let possibly = possibly(total.possibly_bytes, total.tally.bytes);
        rows.push((
            name,
            format!("{}{possibly}{}", parts::tally(total.tally), meaning(total.class)),
        ));
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
        let again = match why.process.state {
            ProcessState::Running => "; culeak why PID finds more with --pause, or --copies 32",
            _ => "",
        };
        let text = format!("freed, or held by something else, while the memory was searched{again}");
        rows.push(("changed", format!("{}: {text}", parts::tally(why.changed))));
    }
    rows.extend(titled("not searched", not_searched(why)));
    rows.extend(why.search.host.as_ref().map(|host| ("host", host::resident(host))));
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
            Some(Stop::Stack) => {
                "within another block, without an address, or perhaps held by a stack that was not found"
            }
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
    let torn = unless_zero(search.torn, |n| {
        format!("; {} led to no live object", counted(n, "reference"))
    });
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
        units::plural(search.copies.into(), "copy", "copies"),
        units::duration(search.copy_ns)
    )
}

/// Holders that are listed for each call site of a report.
const HOLDERS_SHOWN: usize = 3;

/// The section of a report: for each of the largest call sites, what holds most of its memory. `source`: the input as the
/// user named it.
pub fn write_sites(sites: &[SiteHolders], most: usize, source: &str, page: &mut Document) {
    page.line(bold("held by"));
    for site in sites.iter().take(most) {
        let place: String = site.place.iter().map(|place| format!("  {place}")).collect();
        let name = format!("  {}{place}", short_name(&site.label));
        page.item(bold(units::bytes(site.tally.bytes)) + name);
        write_holders(site, HOLDERS_SHOWN, 4, page);
    }
    page.more(sites.len().saturating_sub(most), "call site", "; --top 0 shows all");
    let command = format!("culeak why {}", shell_word(source));
    page.item(dim(format!("all holders, and what each of them frees: {command}")));
    page.blank();
}

/// The holders of one call site, one per line.
pub fn write_holders(site: &SiteHolders, most: usize, indent: usize, page: &mut Document) {
    let (shown, rest) = site.holders.split_at(site.holders.len().min(most));
    let rows = Rows::of(shown)
        .bare()
        .indent(indent)
        .column("bytes", |holder| Cell::Size(holder.tally.bytes));
    page.table(rows.column("holder", |holder| {
        doubted_words(holder, &[&holder.origin, &holder.path])
    }));
    let others = parts::tally(Tally::total(rest.iter().map(|holder| holder.tally)));
    page.more_at(indent, rest.len(), "holder", format!(" with {others}"));
    if site.not_searched.count > 0 {
        page.indented(
            indent,
            dim(format!("{} without an answer", parts::tally(site.not_searched))),
        );
    }
}

/// `held by __main__.keep (list of 60): keep[*] → Tensor → storage`, `possibly held by …`, `lost: …`.
pub fn holder_text(holder: &SiteHolder) -> String {
    let held_by = held_by(holder, holder.possibly);
    format!("{held_by}{}", holder_words(holder, &[&holder.origin, &holder.path]))
}

/// `held by `, `possibly held by `; the origin follows.
pub fn held_by(holder: &SiteHolder, possibly: bool) -> String {
    let possibly = if possibly { POSSIBLY } else { "" };
    let held_by = if holder.class == Class::Held { "held by " } else { "" };
    format!("{possibly}{held_by}")
}

/// As [`holder_text`], without the origin.
pub fn path_text(holder: &SiteHolder) -> String {
    doubted_words(holder, &[&holder.path])
}

fn doubted_words(holder: &SiteHolder, words: &[&str]) -> String {
    let possibly = if holder.possibly { POSSIBLY } else { "" };
    format!("{possibly}{}", holder_words(holder, words))
}

fn holder_words(holder: &SiteHolder, words: &[&str]) -> String {
    let words: Vec<&str> = words.iter().copied().filter(|words| !words.is_empty()).collect();
    let also = match also_text(&holder.also, holder.tally) {
        Some(also) => format!("; {also}"),
        None => String::new(),
    };
    format!("{}{also}", Escaped(&words.join(": ")))
}
