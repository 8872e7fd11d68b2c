//! The ledger: one block per device, one line per owner, the remainder last, then the usage of segments.

use culeak::analysis::ledger::{Cache, CacheSegment, DeviceLedger, Ledger, Line};
use culeak::snapshot::GroupLimits;

pub mod change;
mod words;

pub use words::briefly;

use super::units;
use crate::document::cells::balance;
use crate::document::{BOLD, Cell, DIM, Document, Rows, WARN, bold, counted, dim};
use crate::escape::Escaped;
use crate::text::units::when;

/// Segments with a separate bar, per allocator.
const SEGMENTS_SHOWN: usize = 5;
/// Parts of a line.
const DETAILS_SHOWN: usize = 3;

/// Rows that belong to no device: host memory, and the mode of PyTorch's allocator.
pub fn beside_devices(ledger: &Ledger) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if !ledger.host.is_empty() {
        let kinds = ledger.host.iter();
        let kinds: Vec<_> = kinds
            .map(|(kind, tally)| format!("{} {kind}", units::bytes(tally.bytes)))
            .collect();
        rows.push(("host", kinds.join(", ")));
    }
    rows.extend(ledger.host_lines.iter().map(|line| ("host", words::on_host(line))));
    let modes = ledger.pytorch.iter();
    rows.extend(modes.map(|mode| ("PyTorch", words::mode(*mode).to_owned())));
    rows
}

/// The devices with any entry.
pub fn known_devices<'l, 'a>(ledger: &'l Ledger<'a>) -> impl Iterator<Item = &'l DeviceLedger<'a>> {
    let is_known = |device: &&DeviceLedger| {
        device.driver.is_some() || !device.lines.is_empty() || device.managed.count > 0 || device.process.is_some()
    };
    ledger.devices.iter().filter(is_known)
}

/// The ledger, without devices that have no entry.
pub fn write(ledger: &Ledger, page: &mut Document) {
    let devices: Vec<_> = known_devices(ledger).collect();
    for device in &devices {
        let name = when(!device.name.is_empty(), || format!("  {}", device.name));
        let title = title_of(device, ledger);
        page.line(bold(format!("GPU {}", device.ordinal)) + format!("{name}: {title}"));
        lines(device, ledger, page);
        device.caches.iter().for_each(|cache| segments(cache, page));
    }
    page.fields(beside_devices(ledger));
    if let Some(why) = ledger.missing.as_ref().filter(|_| !devices.is_empty()) {
        page.line(dim(format!("without the driver's figures: {why}")));
    }
    if !devices.is_empty() || !ledger.host.is_empty() {
        page.blank();
    }
}

/// `140 MiB of 140 GiB used (NVML 580)`, or what was recorded.
pub fn title_of(device: &DeviceLedger, ledger: &Ledger) -> String {
    match device.driver {
        Some(driver) => format!(
            "{} of {} used ({}){}",
            units::bytes(driver.used_bytes),
            units::bytes(driver.total_bytes),
            Escaped(ledger.source.unwrap_or("the driver")),
            limits(driver.limits)
        ),
        None if device.process.is_some() => format!("{} taken by this process", balance(device.known)),
        None => format!("{} recorded", balance(device.known)),
    }
}

/// What the limits of a control group allow, behind a semicolon; empty if none is set.
pub fn limits(limits: GroupLimits) -> String {
    limits_in_words(limits).map_or_else(String::new, |limits| format!("; {limits}"))
}

/// As [`limits`], without the semicolon.
pub fn limits_in_words(limits: GroupLimits) -> Option<String> {
    let soft = limits.soft_limit_bytes.map(units::bytes);
    Some(match (limits.limit_bytes.map(units::bytes), soft) {
        (None, None) => return None,
        (Some(hard), None) => format!("the limit of its control group is {hard}"),
        (None, Some(soft)) => format!("the soft limit of its control group is {soft}"),
        (Some(hard), Some(soft)) => format!("the limit of its control group is {hard}, the soft limit {soft}"),
    })
}

/// One line of a device's ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub bytes: i128,
    pub text: String,
    pub of: EntryOf,
    /// The parts of it, with their sizes.
    pub details: Vec<(u64, String)>,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryOf {
    Line,
    /// The sum of the lines of this process.
    Process,
    /// What no line explains.
    Rest,
    /// In no sum.
    Beside,
}

/// All lines of a device: the owners, the sum of this process, the remainder, and memory that is in no total.
pub fn entries(device: &DeviceLedger, ledger: &Ledger) -> Vec<Entry> {
    let shown = |line: &&Line| line.bytes != 0 || line.count > 0;
    let (own, others): (Vec<&Line>, Vec<&Line>) =
        (device.lines.iter().filter(shown)).partition(|line| line.what.is_of_process());
    let entry = |line: &Line| Entry {
        bytes: line.bytes,
        text: words::line(line, device, ledger),
        of: EntryOf::Line,
        details: words::details(line),
    };
    let plain = |bytes, of, text| Entry {
        bytes,
        text,
        of,
        details: Vec::new(),
    };
    let mut entries: Vec<Entry> = own.into_iter().map(entry).collect();
    if let Some(process) = &device.process {
        let text = words::process(process, device);
        entries.push(plain(process.bytes, EntryOf::Process, text));
    }
    entries.extend(others.into_iter().map(entry));
    if let Some(rest) = device.unexplained
        && device.driver.is_some()
    {
        let text = words::rest(rest, device);
        entries.push(plain(rest, EntryOf::Rest, text.to_owned()));
    }
    if device.managed.count > 0 {
        let text = "managed, on the device or the host; in no sum here, but in the one of the headline";
        entries.push(plain(device.managed.bytes.into(), EntryOf::Beside, text.to_owned()));
    }
    if device.outside.count > 0 {
        let blocks = counted(device.outside.count, "block");
        let text = format!("in {blocks} outside all recorded memory; in no sum above");
        entries.push(plain(device.outside.bytes.into(), EntryOf::Beside, text));
    }
    entries
}

fn lines(device: &DeviceLedger, ledger: &Ledger, page: &mut Document) {
    let style = |entry: &Entry| if entry.of == EntryOf::Rest { WARN } else { BOLD };
    let rows = Rows::of(entries(device, ledger))
        .bare()
        .column("bytes", |entry| Cell::Balance(entry.bytes).styled(style(entry)))
        .column("owner", |entry| entry.text.clone())
        .parts(|entry| matches!(entry.of, EntryOf::Process | EntryOf::Beside))
        .sign(|entry| if entry.of == EntryOf::Process { "= " } else { "" })
        .below(|entry, page| details(&entry.details, page));
    page.table(rows);
}

/// The parts of an entry, under its text.
fn details(details: &[(u64, String)], page: &mut Document) {
    const INDENT: usize = 13;
    let (shown, more) = details.split_at(details.len().min(DETAILS_SHOWN));
    for (bytes, text) in shown {
        page.indented(INDENT, dim(format!("{}  {text}", units::bytes(*bytes))));
    }
    let bytes = more.iter().map(|(bytes, _)| *bytes).fold(0, u64::saturating_add);
    page.more_at(INDENT, more.len(), "part", format!(" with {}", units::bytes(bytes)));
}

fn segments(cache: &Cache, page: &mut Document) {
    if cache.segments.is_empty() {
        return;
    }
    let (count, bytes) = (counted(cache.segments.len(), "segment"), units::bytes(cache.bytes));
    page.item(format!("{count} of {}, {bytes} in all", cache.owner));
    let (shown, rest) = cache.segments.split_at(cache.segments.len().min(SEGMENTS_SHOWN));
    let use_of = |segment: &&CacheSegment| {
        let (live, blocks) = (units::bytes(segment.live_bytes), counted(segment.blocks, "block"));
        let free = units::bytes(segment.largest_free_run);
        let expandable = if segment.expandable { ", expandable" } else { "" };
        format!("{live} in {blocks}, largest free run {free}{expandable}")
    };
    let rows = Rows::of(shown)
        .bare()
        .indent(4)
        .column("bytes", |segment| Cell::Size(segment.bytes))
        .column("", |segment| Cell::Part(segment.live_bytes, segment.bytes).styled(DIM))
        .column("in use", use_of);
    page.table(rows);
    let sum = |part: fn(&CacheSegment) -> u64| units::bytes(rest.iter().map(part).fold(0, u64::saturating_add));
    let (live, bytes) = (sum(|segment| segment.live_bytes), sum(|segment| segment.bytes));
    page.more_at(4, rest.len(), "segment", format!(" with {live} of {bytes} in use"));
}
