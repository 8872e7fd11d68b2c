//! One reading of one process: its report as owned rows, which outlive the snapshot.

use std::path::PathBuf;
use std::sync::Arc;

use culeak::analysis::opaque::OpaquePool;
use culeak::analysis::report::{self, Options, Report, Tally, Totals};
use culeak::analysis::site::Fingerprint;
use culeak::analysis::site::text::Site;
use culeak::kind::Kind;
use culeak::snapshot::{Process, Snapshot};

use crate::document::{Document, Text, WARN, counted, dim, styled};
use crate::text::parts::mark_of;
use crate::text::{ledger, units};

/// The most stacks of a row.
const STACKS_KEPT: usize = 200;

#[derive(Debug, Clone)]
pub struct Reading {
    /// Identifies the process.
    pub recording: PathBuf,
    pub process: Process,
    /// On the recording's clock.
    pub at_ns: u64,
    /// The process has ended, so live memory is leaked.
    pub finished: bool,
    /// In order of CUDA's ordinal.
    pub devices: Vec<Device>,
    /// Memory by call site, then objects without an address.
    pub rows: Vec<Arc<Row>>,
    pub totals: Totals,
    /// Memory of caching allocators whose blocks are not recorded.
    pub opaque_pools: Vec<OpaquePool>,
    /// Objects without an address that exist, by kind, most first.
    pub objects: Vec<(&'static str, u64)>,
    pub ledger: Document,
    /// The time of the ledger's figures, which are older than the rows if the driver was asked before.
    pub ledger_at_ns: u64,
    /// What was not recorded, in one line.
    pub losses: Text,
}

#[derive(Debug, Clone)]
pub struct Device {
    pub ordinal: i32,
    pub name: String,
    pub uuid: String,
    pub live: Tally,
    pub peak_bytes: u64,
    /// What all processes use of it, and all that it has, if the driver was asked.
    pub used: Option<[u64; 2]>,
}

/// A call site. Cached memory has a separate row from held memory of the same call site, and so has each kind of object without
/// an address.
pub type RowKey = (Fingerprint, bool, Option<Kind>);

#[derive(Debug, Clone)]
pub struct Row {
    pub key: RowKey,
    /// Of the largest stack.
    pub site: Site,
    pub tally: Tally,
    /// From sampled stacks.
    pub is_estimate: bool,
    /// On the recording's clock.
    pub oldest_ns: u64,
    pub newest_ns: u64,
    /// Most bytes first.
    pub stacks: Vec<RowStack>,
    pub stacks_in_all: usize,
}

#[derive(Debug, Clone)]
pub struct RowStack {
    pub tally: Tally,
    pub site: Site,
    pub stack: Fingerprint,
    pub truncated: bool,
}

impl Reading {
    /// The reading of a snapshot with names.
    pub fn of(snapshot: &Snapshot, recording: PathBuf) -> Reading {
        let report = Report::of(
            snapshot,
            &Options {
                stacks_kept: Some(STACKS_KEPT),
                ..Options::default()
            },
        );
        let at_ns = snapshot.taken.at_ns;
        let used = |ordinal: i32| {
            let mut devices = snapshot.usage.iter().flat_map(|usage| &usage.devices);
            let used = devices
                .find(|used| (snapshot.devices.get(used.device)).is_some_and(|device| device.ordinal == ordinal));
            used.map(|used| [used.used_bytes, used.total_bytes])
        };
        let devices = report.devices.iter().map(|device| Device {
            ordinal: device.ordinal,
            name: device.name.to_owned(),
            uuid: device.uuid.to_owned(),
            live: device.live,
            peak_bytes: device.peak_bytes,
            used: used(device.ordinal),
        });
        let mut devices: Vec<Device> = devices.collect();
        devices.sort_by_key(|device| device.ordinal);
        let rows = report.rows.iter().chain(&report.objects.rows);
        let mut page = Document::default();
        match ledger::known_devices(&report.ledger).next() {
            Some(_) => ledger::write(&report.ledger, &mut page),
            None => page.line("nothing is known of any device yet"),
        }
        Reading {
            recording,
            at_ns,
            finished: report::is_finished(snapshot),
            devices,
            rows: rows.map(|row| Arc::new(Row::of(row, at_ns))).collect(),
            objects: report.objects.kinds.iter().map(|of| (of.kind, of.live)).collect(),
            ledger: page,
            ledger_at_ns: at_ns,
            losses: losses(snapshot),
            process: snapshot.process.clone(),
            opaque_pools: report.opaque_pools,
            totals: report.totals,
        }
    }

    /// Keeps what an earlier reading has from the driver: the driver's figures of then and the blocks of now do not add up.
    pub fn keep_usage_of(&mut self, earlier: &Reading) {
        (self.ledger, self.ledger_at_ns) = (earlier.ledger.clone(), earlier.ledger_at_ns);
        for device in &mut self.devices {
            let mut known = earlier.devices.iter();
            device.used = known
                .find(|known| known.uuid == device.uuid)
                .and_then(|known| known.used);
        }
    }

    /// The ledger, and how old it is.
    pub fn ledger_now(&self) -> Document {
        let mut page = Document::default();
        let age = self.at_ns.saturating_sub(self.ledger_at_ns);
        if age >= 1_000_000_000 {
            page.line(dim(format!(
                "as of {} ago, when the driver was asked",
                units::duration(age)
            )));
        }
        page.append(self.ledger.clone());
        page
    }

    /// What all its devices hold.
    pub fn on_devices(&self) -> Tally {
        Tally::total(self.devices.iter().map(|device| device.live))
    }

    /// What a row is; of a process that was never recorded, a holder.
    pub fn noun(&self) -> &'static str {
        match self.process.recording.is_empty() {
            true => "holder",
            false => "call site",
        }
    }
}

impl Row {
    fn of(row: &report::Row, at_ns: u64) -> Row {
        let object = row.kind_of_objects();
        let stacks = row.stacks.iter().map(|of| RowStack {
            tally: of.tally,
            site: Site::of(&of.stack),
            stack: of.stack.fingerprint,
            truncated: of.stack.truncated,
        });
        Row {
            key: (row.stack().site_fingerprint, row.pool, object),
            site: Site {
                pool: row.pool,
                allocator: row.allocator,
                library: row.library,
                kinds: row.kinds.keys().copied().collect(),
                object: object.map(Kind::name),
                ..Site::of(row.stack())
            },
            tally: row.tally(),
            is_estimate: row.estimated.is_some(),
            oldest_ns: at_ns.saturating_sub(row.oldest_age_ns),
            newest_ns: at_ns.saturating_sub(row.newest_age_ns),
            stacks: stacks.collect(),
            stacks_in_all: row.stacks_in_all,
        }
    }

    /// `  [PyTorch's pool]`: the owner of the pool, or the CUDA library that allocated the memory.
    pub fn mark(&self) -> String {
        mark_of(self.site.pool, self.site.allocator, self.site.library)
    }

    /// What [`Row::matches`] depends on.
    pub fn searched(&self) -> (RowKey, u64) {
        let stacks = self.stacks.iter().map(|stack| stack.stack.0);
        // Kinds are only added.
        let kinds = self.site.kinds.len() as u64;
        (self.key, stacks.fold(kinds, |all, stack| all.rotate_left(1) ^ stack))
    }

    /// Whether all these words, in lower case, occur in it: in its call site, its kinds, or a frame of its stacks.
    pub fn matches(&self, words: &[String]) -> bool {
        let mut text = format!("{} {} {}", self.site.label, self.mark(), self.site.kinds.join(" "));
        for frame in self.stacks.iter().flat_map(|stack| &stack.site.stack) {
            let place = frame.place.as_deref().unwrap_or_default();
            text += &format!("\n{}\n{place}\n{}", frame.function, frame.module);
        }
        let text = text.to_lowercase();
        words.iter().all(|word| text.contains(word.as_str()))
    }
}

fn losses(snapshot: &Snapshot) -> Text {
    let (losses, during) = (&snapshot.losses, snapshot.taken.events_during_read);
    let sampled = snapshot.sampling.map(|sampling| {
        let bytes = units::bytes(sampling.bytes);
        format!("call sites are estimates (≈) from a stack for each {bytes} · ")
    });
    let counts = [
        (losses.lost_allocations, "allocation", ""),
        (losses.lost_stacks.saturating_add(losses.lost_python), "stack", ""),
        (losses.unknown_frees, "unknown free", ""),
        (during, "event", " during the read"),
    ];
    let counts = counts.into_iter().filter(|(count, ..)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, noun, when)| counted(count, noun) + when).collect();
    let counts = match counts.as_slice() {
        [] => "nothing lost".to_owned(),
        counts => counts.join(", "),
    };
    let text = format!("{}not recorded: {counts}", sampled.unwrap_or_default());
    match losses.lost_allocations + losses.lost_stacks {
        0 => dim(text),
        _ => styled(WARN, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::sample::{Sample, leaky, serving, training};

    #[test]
    fn rows_and_totals_are_those_of_the_report() {
        for snapshot in [leaky(), training().finish(9, 9), serving(), Sample::new().finish(0, 0)] {
            let report = Report::of(&snapshot, &Options::default());
            let reading = Reading::of(&snapshot, "a".into());
            let theirs = report.rows.iter().chain(&report.objects.rows);
            let theirs = theirs.map(|row| (row.tally(), row.kind_of_objects(), row.stacks_in_all));
            let ours = reading.rows.iter();
            let ours = ours.map(|row| (row.tally, row.key.2, row.stacks_in_all));
            assert_eq!(ours.collect::<Vec<_>>(), theirs.collect::<Vec<_>>());
            assert_eq!(reading.totals, report.totals);
            let mut keys: Vec<RowKey> = reading.rows.iter().map(|row| row.key).collect();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), reading.rows.len(), "each row has a key of its own");
        }
    }
}
