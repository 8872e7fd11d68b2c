//! Turns the sections of a recording into a snapshot: decodes the rows, renumbers them without gaps and resolves references.

use std::mem::offset_of;
use std::path::Path;

use super::counters::{agree, live_by_place};
use super::details::Renumbered;
use super::ends;
use super::raw::events;
use super::records::{CallKey, is_linear, is_loaded};
use super::stacks::Stacks;
use super::totals::framework_of;
use super::{RawSnapshot, ReadError};
use crate::format::*;
use crate::kind::{Kind, Place};
use crate::lockfree::table::{Attributes, Space};
use crate::reader::progress::{Progress, Unit};
use crate::recording::KERNEL_NAME_MAX;
use crate::rm::Unknown;
use crate::sampling;
use crate::snapshot::allocations::NO_STACK;
use crate::snapshot::{self, *};
use crate::timeline::Site;

/// Whether [`Snapshot::totals`] are wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Totals {
    /// Nor what was live at the peaks.
    Unread,
    LeftOut,
    Wanted,
}

/// What [`RawSnapshot::into_snapshot_with_sites`] returns.
pub struct Decoded {
    pub snapshot: Snapshot,
    pub sites: Vec<Site>,
    pub threads: Renumbered,
    /// By stack; empty unless some stacks were to be left empty.
    pub stack_keys: Vec<u64>,
}

impl RawSnapshot {
    /// Why this automatic snapshot was taken; `failed`: the failed request, as a row of the snapshot.
    fn automatic(&self, failed: Option<usize>) -> Automatic {
        let [reason, _]: [u32; 2] = self.header.field(offset_of!(Header, dump_reason));
        let name = self.text(self.header.field(offset_of!(Header, dump_name)));
        Automatic {
            reason: Reason::from_number(reason).unwrap_or(Reason::Requested),
            name: (!name.is_empty()).then_some(name),
            failed,
            limits: GroupLimits::default(),
        }
    }

    pub fn into_snapshot(self, path: &Path, totals: Totals) -> Result<Snapshot, ReadError> {
        Ok(self.into_snapshot_with_sites(path, totals, &[], None)?.snapshot)
    }

    /// As [`RawSnapshot::into_snapshot`], with these sites and the numbers of the threads. `known`: stacks with these keys are
    /// left empty; it is called with a key and whether the process has recorded tensors.
    pub fn into_snapshot_with_sites(
        mut self,
        path: &Path,
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
        allocations.sort();
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
        let objects = allocations.split_off(|call| call.kind.place() == Place::Object);
        let mut segments = allocations.split_off(|call| call.kind.place() == Place::Segment);
        let segments_ended = self.header.loss(Loss::SegmentsEnded) != 0;
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
                stream: None,
                first_ns: row.first_ns,
                last_ns: row.last_ns,
            });
        }

        let (mut counters, device_peaks) = self.counters(&device_numbers);
        let counted = counters.clone();
        agree(&mut counters, &live_by_place(&[&allocations, &objects, &segments]));
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
        if !segments_ended && !is_unread {
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
        let page_pools = self.page_pools();
        let mut domains = self.domains();
        domains.retain(|domain| !domain.is_empty());
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
        let owners = page_pools.iter().flat_map(|pool| &pool.owners);
        let owned = owners.map(|owner| owner.end_ns.unwrap_or(owner.begin_ns)).max();
        let latest = born.max(marked).max(phased).max(owned);
        let latest = latest.max(end.map(|end| end.time_ns)).unwrap_or(0);
        if let Some(what) = self.damage(latest, &counted, &device_peaks, &allocations) {
            return Err(ReadError::Damaged(path.to_path_buf(), what));
        }
        let (process, running_for) = self.process(path);
        let ended: u64 = self.header.field(offset_of!(Header, ended_ns));
        let latest_failed = requests.iter().map(|r| r.last_ns).max().unwrap_or(0);
        let snapshot = Snapshot {
            format: FORMAT.into(),
            version: snapshot::VERSION,
            taken: Capture {
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
            objects_known: true,
            objects_freed_after_end,
            allocated_after_end: Allocations::default(),
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
            page_pools,
            domains,
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

    pub fn api(&self, number: u16) -> String {
        let name = self.section(Section::Apis).row::<NameRow>(number.into()).text;
        if name.bytes == 0 {
            format!("function {number}")
        } else {
            self.text(name)
        }
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
    fn domains(&self) -> Vec<String> {
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
        let loss = |of| self.header.loss(of);
        let unhooked = self.rows::<NameRow>(Section::Unhooked, |row| row.text.bytes > 0);
        Losses {
            lost_allocations: loss(Loss::Allocations),
            lost_stacks: loss(Loss::Stacks),
            lost_python: loss(Loss::Python),
            lost_details: loss(Loss::Details),
            unknown_frees: loss(Loss::UnknownFrees),
            vanished: loss(Loss::Vanished),
            failed_frees: loss(Loss::FailedFrees),
            failed_releases: loss(Loss::FailedReleases),
            teardown_frees: loss(Loss::TeardownFrees),
            implicit_frees: loss(Loss::ImplicitFrees),
            captured_not_launched: loss(Loss::CapturedNodes).saturating_sub(loss(Loss::LaunchedNodes)),
            export_tables: loss(Loss::ExportTables),
            unhooked: unhooked.map(|(_, row)| self.text(row.text)).collect(),
            unknown_blocks: loss(Loss::UnknownBlocks),
            lost_snapshots: loss(Loss::Snapshots),
            lost_events: loss(Loss::TimelineEvents),
            lost_phases: loss(Loss::Phases),
            lost_marks: loss(Loss::Marks),
            lost_segments: loss(Loss::Segments),
            segments_ended: Unknown::text(loss(Loss::SegmentsEnded)),
            recorder_ns: loss(Loss::RecorderNs),
            events: events(self.section(Section::Counters)),
        }
    }
}

fn stream(word: u64) -> Stream {
    match word {
        0 | 1 => Stream::LegacyDefault,
        2 => Stream::PerThreadDefault,
        handle => Stream::Handle(handle),
    }
}

fn unix_now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}
