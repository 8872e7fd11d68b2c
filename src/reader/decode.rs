//! Turns the sections of a recording into a snapshot: decodes the rows, renumbers them without gaps and resolves references.

use std::collections::{BTreeMap, HashMap};
use std::mem::offset_of;
use std::path::Path;

use super::elapsed::Elapsed;
use super::ends;
use super::liveness::{Liveness, liveness};
use super::records::{CallKey, is_linear, is_loaded};
use super::stacks::Stacks;
use super::totals::framework_of;
use super::{Bytes, RawSnapshot, ReadError, Totals};
use crate::format::*;
use crate::job_variables::{NAME_MAX, VALUE_MAX};
use crate::kind::{Kind, Place};
use crate::lockfree::table::{Attributes, Space};
use crate::reader::progress::{Progress, Unit};
use crate::recording::KERNEL_NAME_MAX;
use crate::rm::Unknown;
use crate::sampling;
use crate::snapshot::allocations::NO_STACK;
use crate::snapshot::{self, *};
use crate::timeline::Site;

/// Row number in the recording → row number in the snapshot, for sections whose unpublished rows are left out.
pub type Renumbered = HashMap<u32, usize>;

/// What [`RawSnapshot::into_snapshot_with_sites`] returns.
pub struct Decoded {
    pub snapshot: Snapshot,
    pub sites: Vec<Site>,
    pub threads: Renumbered,
    /// By stack; empty unless some stacks were to be left empty.
    pub stack_keys: Vec<u64>,
}

/// The order of a snapshot's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    OldestFirst,
    /// As given. Each row is a placeholder for a stack, and the caller computes the live counts ([`agree`]).
    Placeholders,
}

impl RawSnapshot {
    pub fn section(&self, section: Section) -> &Bytes {
        &self.sections[&(section as u32)]
    }

    /// The published rows of a section with their numbers: those that `published` accepts.
    fn rows<R: Row>(
        &self,
        section: Section,
        published: impl Fn(&R::Values) -> bool,
    ) -> impl Iterator<Item = (u32, R::Values)> {
        let rows = (0..).zip(self.section(section).rows::<R>());
        rows.filter(move |(_, row)| published(row))
    }

    pub fn text(&self, text: Text) -> String {
        String::from_utf8_lossy(self.bytes(text)).into_owned()
    }

    pub fn bytes(&self, text: Text) -> &[u8] {
        let (start, length) = (text.offset as usize, text.bytes as usize);
        let bytes = &self.section(Section::Text).bytes;
        bytes.get(start..start + length).unwrap_or_default()
    }

    /// Why this automatic snapshot was taken; `failed`: the failed request, as a row of the snapshot.
    fn automatic(&self, failed: Option<usize>) -> Automatic {
        let [reason, _]: [u32; 2] = self.header.field(offset_of!(Header, dump_reason));
        let name = self.text(self.header.field(offset_of!(Header, dump_name)));
        Automatic {
            reason: Reason::from_number(reason).unwrap_or(Reason::Requested),
            name: (!name.is_empty()).then_some(name),
            failed,
        }
    }

    fn loss(&self, loss: Loss) -> u64 {
        self::loss(&self.header, loss)
    }

    fn header_text(&self, offset: usize) -> Option<String> {
        let text: Text = self.header.field(offset);
        text.present().map(|text| self.text(text))
    }

    pub fn into_snapshot(self, path: &Path, order: Order, totals: Totals) -> Result<Snapshot, ReadError> {
        Ok(self.into_snapshot_with_sites(path, order, totals, &[], None)?.snapshot)
    }

    /// As [`RawSnapshot::into_snapshot`], with these sites and the numbers of the threads. `known`: stacks with these keys are
    /// left empty; it is called with a key and whether the process has recorded tensors.
    pub fn into_snapshot_with_sites(
        mut self,
        path: &Path,
        order: Order,
        totals: Totals,
        sites: &[TotalKey],
        known: Option<&dyn Fn(u64, bool) -> bool>,
    ) -> Result<Decoded, ReadError> {
        let (devices, device_numbers) = self.devices();
        let (contexts, context_numbers) = self.contexts(&device_numbers);
        let (mut threads, thread_numbers) = self.threads();
        let (modules, module_numbers) = self.modules();
        let mut records = std::mem::take(&mut self.records);
        let has_tensors = known.is_some() && self.has_tensors(&device_numbers);
        let is_known = |key| known.is_some_and(|known| known(key, has_tensors));
        let mut stacks = Stacks::new(&self, path, &module_numbers);
        if known.is_some() {
            stacks.skip(&is_known, &modules);
        }
        let mut unknown_thread = None;
        let mut thread_of = |number: u32| {
            thread_numbers.get(&number).copied().unwrap_or_else(|| {
                *unknown_thread.get_or_insert_with(|| {
                    threads.push(Thread {
                        tid: 0,
                        name: "?".into(),
                        first_seen_ns: 0,
                    });
                    threads.len() - 1
                })
            })
        };

        let mut rows = std::mem::take(&mut records.rows);
        let progress = Progress::over("following stacks", rows.len() as u64, Unit::Of("records"));
        for (nth, row) in rows.iter_mut().enumerate() {
            progress.tick(nth);
            row.stack = stacks.of(row.stack)?.map_or(NO_STACK, |stack| stack as u32);
        }
        drop(progress);
        let end = self.end(&records);
        let mut freed_rows = ends::live_at(end, &records.freed_after);
        for row in &mut freed_rows {
            row.stack = stacks.of(row.stack)?.map_or(NO_STACK, |stack| stack as u32);
        }
        let calls = records.calls.iter();
        let calls = calls.map(|key| self.call(key, &device_numbers, &context_numbers, &mut thread_of));
        let mut allocations = Allocations {
            calls: calls.collect(),
            rows,
            ..Allocations::default()
        };
        // Records are in no order. Two allocations in the same nanosecond have no order either.
        if order == Order::OldestFirst {
            allocations.sort();
        }
        let mut freed_after_end = Allocations::default();
        let (mut objects_freed_after_end, mut segments_freed_after_end) =
            (Allocations::default(), Allocations::default());
        if !freed_rows.is_empty() {
            (freed_after_end.calls, freed_after_end.rows) = (allocations.calls.clone(), freed_rows);
            freed_after_end.sort();
            objects_freed_after_end = freed_after_end.split_off(|call| call.kind.place() == Place::Object);
            segments_freed_after_end = freed_after_end.split_off(|call| call.kind.place() == Place::Segment);
            freed_after_end.split_off(|call| !call.kind.place().is_memory());
        }
        let (mut objects, mut segments) = (Allocations::default(), Allocations::default());
        if order == Order::OldestFirst {
            objects = allocations.split_off(|call| call.kind.place() == Place::Object);
            segments = allocations.split_off(|call| call.kind.place() == Place::Segment);
        }
        let segments_ended = self.loss(Loss::SegmentsEnded) != 0;
        if segments_ended {
            // Frees were no longer observed either.
            (segments, segments_freed_after_end) = Default::default();
        }

        let mut requests = Vec::new();
        let dumped_plus_one: u64 = self.header.field(offset_of!(Header, dumped_plus_one));
        let dumped = dumped_plus_one.checked_sub(1);
        let [_, failed_plus_one]: [u32; 2] = self.header.field(offset_of!(Header, dump_reason));
        let mut failed = None;
        for (number, row) in self.rows::<FailureRow>(Section::Failures, |row| row.count > 0) {
            let parts = Attributes::parts(row.attributes);
            let Some(kind) = Kind::from_number(parts.kind) else {
                continue;
            };
            if failed_plus_one.checked_sub(1) == Some(number) {
                failed = Some(requests.len());
            }
            let (stack, thread) = halves(row.place);
            requests.push(Failed {
                bytes: row.bytes,
                count: row.count,
                kind,
                api: self.api(parts.api),
                device: device_numbers.get(&parts.device.into()).copied(),
                error: row.error as u32 as i32,
                thread: thread_of(thread),
                stack: stacks.of(stack)?,
                first_ns: row.first_ns,
                last_ns: row.last_ns,
            });
        }

        let (mut counters, device_peaks) = self.counters(&device_numbers);
        if order == Order::OldestFirst {
            agree(&mut counters, &live_by_place(&[&allocations, &objects, &segments]));
        }
        if segments_ended {
            counters.retain(|counter| counter.kind.place() != Place::Segment);
        }
        let (counters, object_counters) = counters
            .into_iter()
            .partition(|counter| counter.kind.place().is_memory());
        let is_unread = totals == Totals::Unread;
        let totals = match totals {
            Totals::Wanted => {
                let is_memory = |kind: Kind| kind.place().is_memory();
                let is_sampled = self.sample_bytes() > 0;
                // Of sampled stacks, totals are estimates that single blocks do not bound.
                let live = allocations.iter().filter(|_| !is_sampled);
                self.totals(&device_numbers, &mut stacks, is_memory, live)?
            }
            Totals::LeftOut | Totals::Unread => Vec::new(),
        };
        let (mut segment_totals, mut segments_at_peaks) = (Vec::new(), Vec::new());
        if order == Order::OldestFirst && !segments_ended && !is_unread {
            let of_device = |kind: Kind| kind == Kind::Segment;
            segment_totals = self.totals(&device_numbers, &mut stacks, of_device, segments.iter())?;
            segment_totals.retain(|total| of_device(total.kind));
            segments_at_peaks = self.at_peaks(&device_numbers, &mut stacks, of_device)?;
        }
        let mut named_sites = Vec::with_capacity(sites.len());
        for key in sites {
            let device = key.slot.checked_sub(1).and_then(|row| device_numbers.get(&row.into()));
            named_sites.push(self.site(key, stacks.of(key.stack)?, device.copied()));
        }
        let at_peaks = self.at_peaks(&device_numbers, &mut stacks, |kind| kind.place().is_memory())?;
        let allocators = self.allocators(&device_numbers);
        let marks = self.marks(&mut thread_of);
        let phases = self.phases(&mut thread_of);
        let sample_bytes = self.sample_bytes();
        let raised = self.header.field::<u64>(offset_of!(Header, sample_raised)) as u8;
        let sampling = (sample_bytes > 0).then_some(Sampling {
            bytes: sample_bytes,
            most_bytes: sampling::mean_of(sample_bytes, raised.min(sampling::RAISED_MAX)),
            left_out: stacks.left_out,
        });
        let (locations, stacks, stack_keys) = stacks.finish();
        // Frees carry no time, so a mark may be the latest known time of a process.
        let born = (allocations.rows.iter().chain(&objects.rows).chain(&segments.rows))
            .map(|row| row.time_ns)
            .max();
        let marked = marks.iter().map(|mark| mark.time_ns).max();
        let phased = phases.iter().map(|phase| phase.end_ns.unwrap_or(phase.begin_ns)).max();
        let latest = born.max(marked).max(phased);
        let latest = latest.max(end.map(|end| end.time_ns)).unwrap_or(0);
        let (process, running_for) = self.process(path);
        let ended: u64 = self.header.field(offset_of!(Header, ended_ns));
        let latest_failed = requests.iter().map(|r| r.last_ns).max().unwrap_or(0);
        let snapshot = Snapshot {
            format: FORMAT.into(),
            version: snapshot::VERSION,
            taken: Taken {
                by: env!("CARGO_PKG_VERSION").into(),
                at_unix_ns: dumped.map_or_else(unix_now, |at| process.started_unix_ns.saturating_add(at)),
                at_ns: match process.state {
                    _ if dumped.is_some() => dumped.unwrap_or(0).max(latest).max(latest_failed),
                    ProcessState::Running => running_for.max(latest),
                    ProcessState::Exited => ended.max(latest),
                    _ => latest.max(latest_failed),
                },
                events_during_read: self
                    .events_during_read
                    .max(self.header.field(offset_of!(Header, dump_events))),
                in_flight: records.in_flight,
                point: None,
                lasted_ns: None,
                after_ns: None,
                automatic: dumped.map(|_| self.automatic(failed)),
            },
            losses: self.losses(),
            process,
            devices,
            contexts,
            threads,
            modules,
            locations,
            stacks,
            allocations,
            objects,
            objects_known: order == Order::OldestFirst,
            objects_freed_after_end,
            segments,
            segments_freed_after_end,
            segment_totals,
            segments_at_peaks,
            freed_after_end,
            holders: None,
            end,
            failed: requests,
            sampling,
            counters,
            object_counters,
            totals,
            device_peaks,
            at_peaks,
            phases,
            allocators,
            marks,
            usage: None,
        };
        snapshot
            .validate()
            .map_err(|what| ReadError::Damaged(path.to_path_buf(), what))?;
        Ok(Decoded {
            snapshot,
            sites: named_sites,
            threads: thread_numbers,
            stack_keys,
        })
    }

    fn has_tensors(&self, devices: &Renumbered) -> bool {
        let (counters, _) = self.counters(devices);
        counters
            .iter()
            .any(|counter| counter.kind == Kind::Tensor && counter.total_count > 0)
    }

    pub fn api(&self, number: u16) -> String {
        let name = self.section(Section::Apis).row::<NameRow>(number.into()).text;
        if name.bytes == 0 {
            format!("function {number}")
        } else {
            self.text(name)
        }
    }

    pub fn devices(&self) -> (Vec<Device>, Renumbered) {
        renumbered(
            self.rows::<DeviceRow>(Section::Devices, |row| row.ordinal_plus_one != 0),
            |row| Device {
                ordinal: row.ordinal_plus_one as i32 - 1,
                uuid: uuid_text(row.uuid_kind, &bytes_of(&row.uuid)),
                name: until_zero(&bytes_of(&row.name)),
            },
        )
    }

    fn contexts(&self, devices: &Renumbered) -> (Vec<Context>, Renumbered) {
        renumbered(
            self.rows::<ContextRow>(Section::Contexts, |row| row.seen_plus_one != 0),
            |row| Context {
                handle: row.handle,
                device: devices.get(&row.device).copied(),
                primary: row.created == 0,
                first_seen_ns: row.seen_plus_one - 1,
                destroyed_ns: row.destroyed_plus_one.checked_sub(1),
                heap_limit: Some(row.heap_limit).filter(|&limit| limit > 0),
            },
        )
    }

    fn threads(&self) -> (Vec<Thread>, Renumbered) {
        renumbered(self.rows::<ThreadRow>(Section::Threads, |row| row.tid != 0), |row| {
            Thread {
                tid: row.tid,
                name: until_zero(&bytes_of(&row.name)),
                first_seen_ns: row.seen_ns,
            }
        })
    }

    fn modules(&self) -> (Vec<Module>, Renumbered) {
        renumbered(
            self.rows::<ModuleRow>(Section::Modules, |row| row.seen_plus_one != 0),
            |row| {
                let id = bytes_of(&row.build_id);
                let id = &id[..(row.build_id_bytes as usize).min(BUILD_ID_MAX)];
                Module {
                    path: self.text(row.path),
                    build_id: id.iter().map(|byte| format!("{byte:02x}")).collect(),
                    bias: row.bias,
                    start: row.start,
                    end: row.end,
                    first_seen_ns: row.seen_plus_one - 1,
                    unloaded_ns: row.unloaded_plus_one.checked_sub(1),
                }
            },
        )
    }

    fn counters(&self, devices: &Renumbered) -> (Vec<Counter>, Vec<DevicePeak>) {
        let peaks = self.section(Section::Peaks);
        let peak = |key: CounterKey| {
            let row = peaks.row::<PeakRow>(key.number());
            (row.credit.peak, row.time_ns)
        };
        let device = |key: CounterKey| key.slot.checked_sub(1).and_then(|row| devices.get(&row).copied());
        let mut counters: BTreeMap<(u32, u32), Counter> = BTreeMap::new();
        for (_, row) in self.rows::<CounterRow>(Section::Counters, |row| row.key_plus_one != 0) {
            let key = CounterKey::from_word(row.key_plus_one - 1);
            let Some(kind) = u8::try_from(key.kind).ok().and_then(Kind::from_number) else {
                continue;
            };
            let (peak_bytes, peak_ns) = peak(key);
            let counter = counters.entry((key.slot, key.kind)).or_insert_with(|| Counter {
                device: device(key),
                kind,
                live_bytes: 0,
                live_count: 0,
                peak_bytes,
                peak_ns,
                total_bytes: 0,
                total_count: 0,
                freed_count: 0,
                failed_count: 0,
            });
            for (sum, more) in [
                (&mut counter.total_bytes, row.total_bytes),
                (&mut counter.total_count, row.total_count),
                (&mut counter.freed_count, row.freed_count),
                (&mut counter.failed_count, row.failed_count),
            ] {
                *sum = sum.wrapping_add(more);
            }
        }
        let of_devices = (0..peaks.len().div_ceil(COUNTER_STRIDE)).filter_map(|slot| {
            let key = CounterKey {
                slot: slot as u32,
                kind: 0,
            };
            let (peak_bytes, time_ns) = peak(key);
            let device = device(key).filter(|_| peak_bytes > 0)?;
            Some(DevicePeak {
                device,
                peak_bytes,
                time_ns,
            })
        });
        let counted = counters.into_values();
        let counted = counted.filter(|c| (c.peak_bytes, c.total_count, c.failed_count) != (0, 0, 0));
        (counted.collect(), of_devices.collect())
    }

    /// The mean distance of sampled stacks; 0: each block has its stack.
    fn sample_bytes(&self) -> u64 {
        self.header.field(offset_of!(Header, sample_bytes))
    }

    fn call(
        &self,
        key: &CallKey,
        devices: &Renumbered,
        contexts: &Renumbered,
        mut thread_of: impl FnMut(u32) -> usize,
    ) -> Call {
        let parts = Attributes::parts(key.attributes);
        let kind = Kind::from_number(parts.kind).unwrap_or(Kind::Device);
        let counts = parts.flags & Attributes::COUNTS != 0;
        let is_graph = kind == Kind::GraphExec;
        let is_named = parts.flags & Attributes::NAMED != 0 || is_loaded(kind);
        let kernel = is_named.then(|| self.text(Text::from_word(key.extra).at_most(KERNEL_NAME_MAX)));
        let (references, mappings) = if counts && !is_graph { halves(key.extra) } else { (0, 0) };
        Call {
            kind,
            domain: match kind {
                Kind::Block if parts.space == Space::Block as u8 => {
                    let domain = self.section(Section::Domains).row::<NameRow>(key.domain.into());
                    Some(self.text(domain.text))
                }
                _ => framework_of(kind).map(str::to_owned),
            },
            api: self.api(parts.api),
            device: devices.get(&parts.device.into()).copied(),
            context: contexts.get(&parts.context.into()).copied(),
            stream: (parts.flags & Attributes::HAS_STREAM != 0).then(|| stream(key.extra)),
            pool: (parts.flags & Attributes::HAS_POOL != 0).then_some(key.pool),
            shared: match kind {
                Kind::Ipc => Some(key.pool),
                _ if is_linear(kind) && parts.flags & Attributes::HAS_STREAM == 0 => Some(key.extra),
                _ => None,
            }
            .filter(|number| *number != 0),
            thread: thread_of(key.thread),
            sample_bytes: (parts.raised > 0).then(|| sampling::mean_of(self.sample_bytes(), parts.raised)),
            references,
            mappings,
            nodes: (counts && is_graph).then_some(key.extra),
            kernel: kernel.filter(|name| !name.is_empty()),
        }
    }

    fn allocators(&self, devices: &Renumbered) -> Vec<Allocator> {
        let reported = self.rows::<AllocatorRow>(Section::Allocators, |row| row.events > 0);
        let allocators = reported.map(|(number, row)| Allocator {
            domain: "pytorch".to_string(),
            device: devices.get(&number).copied(),
            live_bytes: row.live_bytes,
            reserved_bytes: row.reserved_bytes,
            events: row.events,
            mismatches: row.mismatches,
            unseen_bytes: row.unseen_bytes,
        });
        allocators.collect()
    }

    /// Names by number; empty for a domain that was not published.
    pub fn domains(&self) -> Vec<String> {
        let rows = self.section(Section::Domains).rows::<NameRow>();
        rows.map(|row| self.text(row.text)).collect()
    }

    fn marks(&self, mut thread_of: impl FnMut(u32) -> usize) -> Vec<Mark> {
        let published = self.rows::<MarkRow>(Section::Marks, |row| row.time_plus_one != 0);
        let marks = published.map(|(_, row)| Mark {
            time_ns: row.time_plus_one - 1,
            name: self.text(row.name),
            thread: thread_of(row.thread as u32),
        });
        let mut marks: Vec<Mark> = marks.collect();
        marks.sort_by_key(|mark| mark.time_ns);
        marks
    }

    fn losses(&self) -> Losses {
        let unhooked = self.rows::<NameRow>(Section::Unhooked, |row| row.text.bytes > 0);
        Losses {
            lost_allocations: self.loss(Loss::Allocations),
            lost_stacks: self.loss(Loss::Stacks),
            lost_python: self.loss(Loss::Python),
            lost_details: self.loss(Loss::Details),
            unknown_frees: self.loss(Loss::UnknownFrees),
            vanished: self.loss(Loss::Vanished),
            failed_frees: self.loss(Loss::FailedFrees),
            teardown_frees: self.loss(Loss::TeardownFrees),
            implicit_frees: self.loss(Loss::ImplicitFrees),
            captured_not_launched: self
                .loss(Loss::CapturedNodes)
                .saturating_sub(self.loss(Loss::LaunchedNodes)),
            export_tables: self.loss(Loss::ExportTables),
            unhooked: unhooked.map(|(_, row)| self.text(row.text)).collect(),
            unknown_blocks: self.loss(Loss::UnknownBlocks),
            lost_snapshots: self.loss(Loss::Snapshots),
            lost_events: self.loss(Loss::TimelineEvents),
            lost_phases: self.loss(Loss::Phases),
            lost_segments: self.loss(Loss::Segments),
            segments_ended: Unknown::text(self.loss(Loss::SegmentsEnded)),
            recorder_ns: self.loss(Loss::RecorderNs),
            events: events(self.section(Section::Counters)),
        }
    }

    /// The recorded process, and the time since the recording began in nanoseconds.
    fn process(&self, path: &Path) -> (Process, u64) {
        let header = &self.header;
        let pid: u32 = header.field(offset_of!(Header, pid));
        let host = self.header_text(offset_of!(Header, host)).unwrap_or_default();
        let same_host = host_name().is_some_and(|name| name == host);
        let ended = header.field::<u64>(offset_of!(Header, ended_ns)) != 0;
        let is_dump = header.field::<u64>(offset_of!(Header, dumped_plus_one)) != 0;
        let (state, pid_here) = match (ended, same_host) {
            // An automatic snapshot: it was taken while the process ran.
            _ if is_dump => (ProcessState::Running, None),
            (true, _) => (ProcessState::Exited, None),
            (false, false) => (ProcessState::Unknown, None),
            (false, true) => match liveness(header, path) {
                Liveness::Running(here) => (ProcessState::Running, Some(here)),
                Liveness::Gone => (ProcessState::Ended, None),
                Liveness::Unknown => (ProcessState::Unknown, None),
            },
        };
        let command_line = self.header_text(offset_of!(Header, command_line)).unwrap_or_default();
        let mut ranks = BTreeMap::new();
        for (index, name) in RANK_VARIABLES.iter().enumerate() {
            if let Some(value) = self.header_text(offset_of!(Header, ranks) + index * size_of::<Text>()) {
                ranks.insert((*name).to_string(), value);
            }
        }
        for (_, row) in self.rows::<VariableRow>(Section::Variables, |row| row.name.bytes > 0) {
            let (name, value) = (row.name.at_most(NAME_MAX), row.value.at_most(VALUE_MAX));
            ranks.entry(self.text(name)).or_insert_with(|| self.text(value));
        }
        let process = Process {
            pid,
            pid_here: pid_here.filter(|&here| here != pid),
            parent_pid: header.field(offset_of!(Header, parent_pid)),
            executable: self.header_text(offset_of!(Header, executable)).unwrap_or_default(),
            command_line: command_line.split_terminator('\0').map(str::to_string).collect(),
            host,
            ranks,
            started_unix_ns: header.field(offset_of!(Header, started_unix_ns)),
            state,
            depth: header.field(offset_of!(Header, depth)),
            recording: path.display().to_string(),
            python: self.python(),
        };
        (process, Elapsed::since_start(header).ns())
    }
}

/// Count and bytes of live records, by device and kind.
pub type Places = HashMap<(Option<usize>, Kind), (u64, u64)>;

/// Corrects the counters by the records, which are authoritative: a thread that was stopped between publishing a record and
/// counting it leaves the counters too low.
pub fn agree(counters: &mut [Counter], live: &Places) {
    for counter in counters {
        let place = (counter.device, counter.kind);
        (counter.live_count, counter.live_bytes) = live.get(&place).copied().unwrap_or_default();
        counter.total_count = counter
            .total_count
            .max(counter.live_count.saturating_add(counter.freed_count));
        counter.peak_bytes = counter.peak_bytes.max(counter.live_bytes);
        counter.total_bytes = counter.total_bytes.max(counter.peak_bytes);
    }
}

fn live_by_place(tables: &[&Allocations]) -> Places {
    let mut by_place = Places::new();
    for allocations in tables {
        let mut by_call = vec![(0, 0); allocations.calls.len()];
        for row in &allocations.rows {
            let (count, bytes): &mut (u64, u64) = &mut by_call[row.call as usize];
            *count += 1;
            *bytes = bytes.saturating_add(row.bytes);
        }
        for (call, sums) in allocations.calls.iter().zip(by_call) {
            let place = by_place.entry((call.device, call.kind)).or_default();
            *place = (place.0 + sums.0, place.1.saturating_add(sums.1));
        }
    }
    by_place
}

/// Decodes rows in order, and maps their numbers to those in the snapshot.
fn renumbered<V, T>(rows: impl Iterator<Item = (u32, V)>, decode: impl Fn(V) -> T) -> (Vec<T>, Renumbered) {
    let (mut decoded, mut numbers) = (Vec::new(), Renumbered::new());
    for (number, row) in rows {
        numbers.insert(number, decoded.len());
        decoded.push(decode(row));
    }
    (decoded, numbers)
}

fn stream(word: u64) -> Stream {
    match word {
        0 | 1 => Stream::LegacyDefault,
        2 => Stream::PerThreadDefault,
        handle => Stream::Handle(handle),
    }
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn uuid_text(kind: u32, bytes: &[u8]) -> String {
    let prefix = match kind {
        1 => "GPU",
        2 => "MIG",
        _ => return String::new(),
    };
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{prefix}-{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

fn until_zero(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn unix_now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

pub fn host_name() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .map(|name| name.trim_end().to_string())
}

pub fn loss(header: &Bytes, loss: Loss) -> u64 {
    header.field(offset_of!(Header, losses) + loss as usize * size_of::<u64>())
}

/// How many allocations, frees and failed requests the counters count.
pub fn events(counters: &Bytes) -> u64 {
    let of = |row: CounterValues| {
        [row.total_count, row.freed_count, row.failed_count]
            .into_iter()
            .fold(0, u64::wrapping_add)
    };
    counters.rows::<CounterRow>().map(of).fold(0, u64::wrapping_add)
}
