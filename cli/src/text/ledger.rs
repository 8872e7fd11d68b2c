//! The ledger as text: one block per device, one line per owner, the remainder last, then the usage of segments.

use std::io::{self, Write};

use culeak::analysis::ledger::{Cache, CacheSegment, DeviceLedger, Ledger, Line, What};

mod words;

use super::parts::{BOLD, DIM, Styled, WARN};
use super::units::{self, plural};
use crate::escape::Escaped;

/// Segments with a separate bar, per allocator.
const SEGMENTS_SHOWN: usize = 5;
/// Parts of a line.
const DETAILS_SHOWN: usize = 3;
/// Cells of a bar.
const BAR: u64 = 20;

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

/// Writes the ledger, without devices that have no entry.
pub fn write(ledger: &Ledger, out: &mut dyn Write) -> io::Result<()> {
    let devices: Vec<_> = known_devices(ledger).collect();
    for device in &devices {
        title(device, ledger, out)?;
        lines(device, ledger, out)?;
        for cache in &device.caches {
            segments(cache, out)?;
        }
    }
    for (name, text) in beside_devices(ledger) {
        writeln!(out, "{}  {text}", Styled(BOLD, name))?;
    }
    if let Some(why) = ledger.missing.as_ref().filter(|_| !devices.is_empty()) {
        let text = format!("without the driver's figures: {}", Escaped(why));
        writeln!(out, "{}", Styled(DIM, text))?;
    }
    if devices.is_empty() && ledger.host.is_empty() {
        return Ok(());
    }
    writeln!(out)
}

/// `140 MiB of 140 GiB used (NVML 580)`, or what was recorded.
pub fn title_of(device: &DeviceLedger, ledger: &Ledger) -> String {
    match device.driver {
        Some(driver) => format!(
            "{} of {} used ({})",
            units::bytes(driver.used_bytes),
            units::bytes(driver.total_bytes),
            Escaped(ledger.source.unwrap_or("the driver"))
        ),
        None if device.process.is_some() => format!("{} taken by this process", large(device.known)),
        None => format!("{} recorded", large(device.known)),
    }
}

fn title(device: &DeviceLedger, ledger: &Ledger, out: &mut dyn Write) -> io::Result<()> {
    let name = if device.name.is_empty() {
        String::new()
    } else {
        format!("  {}", Escaped(device.name))
    };
    let text = title_of(device, ledger);
    writeln!(out, "{}{name}: {text}", Styled(BOLD, format!("GPU {}", device.ordinal)))
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
    Line(What),
    /// The sum of the lines of this process.
    Process,
    /// What no line explains.
    Rest,
    /// In no sum.
    Beside,
}

impl EntryOf {
    pub fn in_sum(self) -> bool {
        matches!(self, EntryOf::Line(_) | EntryOf::Rest)
    }
}

/// All lines of a device: the owners, the sum of this process, the remainder, and memory that is in no total.
pub fn entries(device: &DeviceLedger, ledger: &Ledger) -> Vec<Entry> {
    let shown = |line: &&Line| line.bytes != 0 || line.count > 0;
    let (own, others): (Vec<&Line>, Vec<&Line>) =
        (device.lines.iter().filter(shown)).partition(|line| line.what.is_of_process());
    let entry = |line: &Line| Entry {
        bytes: line.bytes,
        text: words::line(line, device, ledger),
        of: EntryOf::Line(line.what),
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
        let text = "managed, on the device or the host; in no sum above";
        entries.push(plain(device.managed.bytes.into(), EntryOf::Beside, text.to_owned()));
    }
    if device.outside.count > 0 {
        let blocks = plural(device.outside.count, "block", "blocks");
        let text = format!("in {blocks} outside all recorded memory; in no sum above");
        entries.push(plain(device.outside.bytes.into(), EntryOf::Beside, text));
    }
    entries
}

fn lines(device: &DeviceLedger, ledger: &Ledger, out: &mut dyn Write) -> io::Result<()> {
    let rows: Vec<_> = entries(device, ledger)
        .into_iter()
        .map(|entry| (large(entry.bytes), entry))
        .collect();
    let width = rows.iter().map(|(size, _)| size.chars().count()).max().unwrap_or(0);
    for (size, entry) in rows {
        let style = if entry.of == EntryOf::Rest { WARN } else { BOLD };
        let sign = if entry.of == EntryOf::Process { "= " } else { "  " };
        let size = Styled(style, format!("{size:>width$}"));
        writeln!(out, "{sign}{size}  {}", entry.text)?;
        let (shown, more) = entry.details.split_at(entry.details.len().min(DETAILS_SHOWN));
        for (bytes, text) in shown {
            let text = format!("{}  {text}", units::bytes(*bytes));
            writeln!(out, "  {:width$}    {}", "", Styled(DIM, text))?;
        }
        if !more.is_empty() {
            let bytes = more.iter().map(|(bytes, _)| *bytes).fold(0, u64::saturating_add);
            let text = format!("{}  in {} more", units::bytes(bytes), more.len());
            writeln!(out, "  {:width$}    {}", "", Styled(DIM, text))?;
        }
    }
    Ok(())
}

fn segments(cache: &Cache, out: &mut dyn Write) -> io::Result<()> {
    if cache.segments.is_empty() {
        return Ok(());
    }
    let count = plural(cache.segments.len() as u64, "segment", "segments");
    writeln!(
        out,
        "  {count} of {}, {} in all",
        cache.owner,
        units::bytes(cache.bytes)
    )?;
    let size = |segment: &CacheSegment| units::bytes(segment.bytes);
    let (shown, rest) = cache.segments.split_at(cache.segments.len().min(SEGMENTS_SHOWN));
    let width = shown.iter().map(|segment| size(segment).len()).max().unwrap_or(0);
    for segment in shown {
        writeln!(
            out,
            "    {:>width$}  {}  {} in {}, largest free run {}{}",
            size(segment),
            Styled(DIM, bar(segment.live_bytes, segment.bytes)),
            units::bytes(segment.live_bytes),
            plural(segment.blocks, "block", "blocks"),
            units::bytes(segment.largest_free_run),
            if segment.expandable { ", expandable" } else { "" }
        )?;
    }
    if !rest.is_empty() {
        let sum = |part: fn(&CacheSegment) -> u64| rest.iter().map(part).fold(0, u64::saturating_add);
        let text = format!(
            "… and {} with {} of {} in use",
            plural(rest.len() as u64, "more segment", "more segments"),
            units::bytes(sum(|segment| segment.live_bytes)),
            units::bytes(sum(|segment| segment.bytes))
        );
        writeln!(out, "    {}", Styled(DIM, text))?;
    }
    Ok(())
}

/// A bar of the bytes in use. It is empty or full only if the segment is.
fn bar(live: u64, bytes: u64) -> String {
    let cells = (u128::from(live) * u128::from(BAR))
        .checked_div(bytes.into())
        .unwrap_or(0) as u64;
    let cells = match live {
        0 => 0,
        _ if live >= bytes => BAR,
        _ => cells.clamp(1, BAR - 1),
    };
    let part = |text: &str, count: u64| text.repeat(count as usize);
    part("█", cells) + &part("░", BAR - cells)
}

/// Totals of a damaged file may exceed 64 bits; they are capped.
pub fn large(bytes: i128) -> String {
    let size = units::bytes(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX));
    if bytes < 0 { format!("-{size}") } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_empty_or_full_only_when_the_segment_is() {
        assert_eq!(bar(0, 100), "░".repeat(20));
        assert_eq!(bar(100, 100), "█".repeat(20));
        assert_eq!(bar(1, 1 << 40).matches('█').count(), 1);
        assert_eq!(bar((1 << 40) - 1, 1 << 40).matches('█').count(), 19);
        assert_eq!(bar(50, 100).matches('█').count(), 10);
    }
}
