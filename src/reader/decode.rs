//! From sections as they were read to a snapshot: rows are decoded, renumbered without gaps, and tied together.

use std::collections::{BTreeMap, HashMap};
use std::mem::offset_of;
use std::path::Path;

use super::elapsed::Elapsed;
use super::liveness::{Liveness, liveness};
use super::records::CallKey;
use super::stacks::Stacks;
use super::{Bytes, RawSnapshot, ReadError, Totals, header_word};
use crate::format::*;
use crate::kind::Kind;
use crate::lockfree::table::{Attributes, Space};
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::allocations::NO_STACK;
use crate::snapshot::{self, *};

/// Old row number → row number in the snapshot, for sections whose unpublished rows are left out.
pub type Renumbered = HashMap<u32, usize>;

/// Of the rows in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    OldestFirst,
    /// None: each stands for a stack, and somebody else counts what is live ([`agree`]).
    StandIns,
}

impl RawSnapshot {
    pub fn rows(&self, section: Section) -> &Bytes {
        &self.sections[&(section as u32)]
    }

    pub fn text(&self, word: u64) -> String {
        String::from_utf8_lossy(self.bytes(word)).into_owned()
    }

    pub fn bytes(&self, word: u64) -> &[u8] {
        let (offset, bytes) = halves(word);
        let text = self.rows(Section::Text);
        text.bytes
            .get(offset as usize..offset as usize + bytes as usize)
            .unwrap_or_default()
    }

    fn header_at(&self, place: usize) -> u64 {
        header_word(&self.header, place)
    }

    /// Why the recorder kept this copy; `failed`: the request that failed, as a row of the snapshot.
    fn automatic(&self, failed: Option<usize>) -> Automatic {
        let (reason, _) = halves(self.header_at(offset_of!(Header, dump_reason)));
        let name = self.text(self.header_at(offset_of!(Header, dump_name)));
        Automatic {
            reason: Reason::from_number(reason).unwrap_or(Reason::Requested),
            name: (!name.is_empty()).then_some(name),
            failed,
        }
    }

    fn loss(&self, loss: Loss) -> u64 {
        self::loss(&self.header, loss)
    }

    fn header_text(&self, at: usize) -> Option<String> {
        let word = header_word(&self.header, at);
        (halves(word).1 != NONE).then(|| self.text(word))
    }

    pub fn into_snapshot(mut self, path: &Path, order: Order, totals: Totals) -> Result<Snapshot, ReadError> {
        let (devices, device_numbers) = self.devices();
        let (contexts, context_numbers) = self.contexts(&device_numbers);
        let (mut threads, thread_numbers) = self.threads();
        let (modules, module_numbers) = self.modules();
        let mut records = std::mem::take(&mut self.records);
        let mut stacks = Stacks::new(&self, path, &module_numbers);
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
        let calls = records.calls.iter();
        let calls = calls.map(|key| self.call(key, &device_numbers, &context_numbers, &mut thread_of));
        let mut allocations = Allocations {
            calls: calls.collect(),
            rows,
        };
        // Records are taken in any order; two allocations at one nanosecond have no order.
        if order == Order::OldestFirst {
            allocations.sort();
        }

        let rows = self.rows(Section::Failures);
        let mut requests = Vec::new();
        let dumped = self.header_at(offset_of!(Header, dumped_plus_one)).checked_sub(1);
        let (_, failed_plus_one) = halves(self.header_at(offset_of!(Header, dump_reason)));
        let mut failed = None;
        for row in 0..rows.len() {
            let word = |index| rows.word(row, index);
            let (kind, _, _, device, api, _) = Attributes::parts(word(4));
            let (Some(kind), true) = (Kind::from_number(kind), word(1) > 0) else {
                continue;
            };
            if failed_plus_one.checked_sub(1) == Some(row as u32) {
                failed = Some(requests.len());
            }
            let (stack, thread) = halves(word(5));
            requests.push(Failed {
                bytes: word(0),
                count: word(1),
                kind,
                api: self.api(api),
                device: device_numbers.get(&device.into()).copied(),
                error: word(6) as u32 as i32,
                thread: thread_of(thread),
                stack: stacks.of(stack)?,
                first_ns: word(2),
                last_ns: word(3),
            });
        }

        let (mut counters, device_peaks) = self.counters(&device_numbers);
        if order == Order::OldestFirst {
            agree(&mut counters, &live_by_place(&allocations));
        }
        let totals = match totals {
            Totals::Wanted => self.totals(&device_numbers, &mut stacks, allocations.iter())?,
            Totals::LeftOut => Vec::new(),
        };
        let allocators = self.allocators(&device_numbers);
        let marks = self.marks(&mut thread_of);
        let (locations, stacks) = (stacks.locations, stacks.stacks);
        // Frees have no time, so marks may be the last that is known of a process.
        let born = allocations.rows.iter().map(|row| row.time_ns).max();
        let latest = born.max(marks.iter().map(|mark| mark.time_ns).max()).unwrap_or(0);
        let (process, running_for) = self.process(path);
        let ended = self.header_at(offset_of!(Header, ended_ns));
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
                    .max(self.header_at(offset_of!(Header, dump_events))),
                in_flight: records.in_flight,
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
            failed: requests,
            counters,
            totals,
            device_peaks,
            allocators,
            marks,
            usage: None,
        };
        snapshot
            .validate()
            .map_err(|what| ReadError::Damaged(path.to_path_buf(), what))?;
        Ok(snapshot)
    }

    fn api(&self, number: u16) -> String {
        let word = self.rows(Section::Apis).word(number.into(), 0);
        if halves(word).1 == 0 {
            format!("function {number}")
        } else {
            self.text(word)
        }
    }

    pub fn devices(&self) -> (Vec<Device>, Renumbered) {
        let rows = self.rows(Section::Devices);
        let (mut devices, mut numbers) = (Vec::new(), Renumbered::new());
        for row in 0..rows.len() {
            let (ordinal, uuid_kind) = halves(rows.word(row, 0));
            if ordinal == 0 {
                continue;
            }
            numbers.insert(row as u32, devices.len());
            let uuid: Vec<u8> = (1..3).flat_map(|word| rows.word(row, word).to_le_bytes()).collect();
            let name: Vec<u8> = (3..16).flat_map(|word| rows.word(row, word).to_le_bytes()).collect();
            devices.push(Device {
                ordinal: ordinal as i32 - 1,
                uuid: uuid_text(uuid_kind, &uuid),
                name: until_zero(&name),
            });
        }
        (devices, numbers)
    }

    fn contexts(&self, devices: &Renumbered) -> (Vec<Context>, Renumbered) {
        let rows = self.rows(Section::Contexts);
        let (mut contexts, mut numbers) = (Vec::new(), Renumbered::new());
        for row in 0..rows.len() {
            let (device, created) = halves(rows.word(row, 1));
            let Some(first_seen_ns) = rows.word(row, 2).checked_sub(1) else {
                continue;
            };
            numbers.insert(row as u32, contexts.len());
            contexts.push(Context {
                handle: rows.word(row, 0),
                device: devices.get(&device).copied(),
                primary: created == 0,
                first_seen_ns,
                destroyed_ns: rows.word(row, 3).checked_sub(1),
            });
        }
        (contexts, numbers)
    }

    fn threads(&self) -> (Vec<Thread>, Renumbered) {
        let rows = self.rows(Section::Threads);
        let (mut threads, mut numbers) = (Vec::new(), Renumbered::new());
        for row in 0..rows.len() {
            let (tid, _) = halves(rows.word(row, 0));
            if tid == 0 {
                continue;
            }
            numbers.insert(row as u32, threads.len());
            let name: Vec<u8> = (1..3).flat_map(|word| rows.word(row, word).to_le_bytes()).collect();
            threads.push(Thread {
                tid,
                name: until_zero(&name),
                first_seen_ns: rows.word(row, 3),
            });
        }
        (threads, numbers)
    }

    fn modules(&self) -> (Vec<Module>, Renumbered) {
        let rows = self.rows(Section::Modules);
        let (mut modules, mut numbers) = (Vec::new(), Renumbered::new());
        for row in 0..rows.len() {
            let Some(first_seen_ns) = rows.word(row, 0).checked_sub(1) else {
                continue;
            };
            numbers.insert(row as u32, modules.len());
            let id: Vec<u8> = (7..12).flat_map(|word| rows.word(row, word).to_le_bytes()).collect();
            let id = &id[..(rows.word(row, 6) as usize).min(BUILD_ID_MAX)];
            modules.push(Module {
                path: self.text(rows.word(row, 5)),
                build_id: id.iter().map(|byte| format!("{byte:02x}")).collect(),
                bias: rows.word(row, 2),
                start: rows.word(row, 3),
                end: rows.word(row, 4),
                first_seen_ns,
                unloaded_ns: rows.word(row, 1).checked_sub(1),
            });
        }
        (modules, numbers)
    }

    fn counters(&self, devices: &Renumbered) -> (Vec<Counter>, Vec<DevicePeak>) {
        let peaks = self.rows(Section::Peaks);
        let peak = |sums: Sums| peaks.word(sums.number(), 1);
        let device = |sums: Sums| sums.slot.checked_sub(1).and_then(|row| devices.get(&row).copied());
        let rows = self.rows(Section::Counters);
        let mut counters: BTreeMap<(u32, u32), Counter> = BTreeMap::new();
        for row in 0..rows.len() {
            let Some(sums) = rows.word(row, 0).checked_sub(1).map(Sums::from_word) else {
                continue;
            };
            let Some(kind) = u8::try_from(sums.kind).ok().and_then(Kind::from_number) else {
                continue;
            };
            let counter = counters.entry((sums.slot, sums.kind)).or_insert_with(|| Counter {
                device: device(sums),
                kind,
                live_bytes: 0,
                live_count: 0,
                peak_bytes: peak(sums),
                total_bytes: 0,
                total_count: 0,
                freed_count: 0,
                failed_count: 0,
            });
            for (sum, word) in [
                (&mut counter.total_bytes, 4),
                (&mut counter.total_count, 5),
                (&mut counter.freed_count, 6),
                (&mut counter.failed_count, 7),
            ] {
                *sum = sum.wrapping_add(rows.word(row, word));
            }
        }
        let of_devices = (0..peaks.len().div_ceil(COUNTER_STRIDE)).filter_map(|slot| {
            let sums = Sums {
                slot: slot as u32,
                kind: 0,
            };
            let peak_bytes = peak(sums);
            let device = device(sums).filter(|_| peak_bytes > 0)?;
            Some(DevicePeak { device, peak_bytes })
        });
        let counted = counters.into_values();
        let counted = counted.filter(|c| (c.peak_bytes, c.total_count, c.failed_count) != (0, 0, 0));
        (counted.collect(), of_devices.collect())
    }

    fn call(
        &self,
        key: &CallKey,
        devices: &Renumbered,
        contexts: &Renumbered,
        mut thread_of: impl FnMut(u32) -> usize,
    ) -> Call {
        let (kind, space, flags, device, api, context) = Attributes::parts(key.attributes);
        let kind = Kind::from_number(kind).unwrap_or(Kind::Device);
        let counts = flags & Attributes::COUNTS != 0;
        let (references, mappings) = if counts { halves(key.extra) } else { (0, 0) };
        Call {
            kind,
            domain: match kind {
                Kind::Tensor => Some("pytorch".to_string()),
                Kind::Buffer => Some("xla".to_string()),
                Kind::Block if space == Space::Block as u8 => {
                    Some(self.text(self.rows(Section::Domains).word(key.domain.into(), 0)))
                }
                _ => None,
            },
            api: self.api(api),
            device: devices.get(&device.into()).copied(),
            context: contexts.get(&context.into()).copied(),
            stream: (flags & Attributes::HAS_STREAM != 0).then(|| stream(key.extra)),
            pool: (flags & Attributes::HAS_POOL != 0).then_some(key.pool),
            thread: thread_of(key.thread),
            references,
            mappings,
        }
    }

    fn allocators(&self, devices: &Renumbered) -> Vec<Allocator> {
        let rows = self.rows(Section::Allocators);
        let told = (0..rows.len()).filter(|&row| rows.word(row, 2) > 0);
        told.map(|row| Allocator {
            domain: "pytorch".to_string(),
            device: devices.get(&(row as u32)).copied(),
            live_bytes: rows.word(row, 0),
            reserved_bytes: rows.word(row, 1),
            events: rows.word(row, 2),
            mismatches: rows.word(row, 3),
            unseen_bytes: rows.word(row, 4),
        })
        .collect()
    }

    /// Names by number; empty where there is none.
    pub fn domains(&self) -> Vec<String> {
        let rows = self.rows(Section::Domains);
        (0..rows.len()).map(|row| self.text(rows.word(row, 0))).collect()
    }

    fn marks(&self, mut thread_of: impl FnMut(u32) -> usize) -> Vec<Mark> {
        let rows = self.rows(Section::Marks);
        let published = (0..rows.len()).filter_map(|row| Some((row, rows.word(row, 0).checked_sub(1)?)));
        let mut marks: Vec<Mark> = published
            .map(|(row, time_ns)| Mark {
                time_ns,
                name: self.text(rows.word(row, 1)),
                thread: thread_of(rows.word(row, 2) as u32),
            })
            .collect();
        marks.sort_by_key(|mark| mark.time_ns);
        marks
    }

    fn losses(&self) -> Losses {
        let unhooked = self.rows(Section::Unhooked);
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
            unhooked: (0..unhooked.len())
                .map(|row| unhooked.word(row, 0))
                .filter(|word| halves(*word).1 > 0)
                .map(|word| self.text(word))
                .collect(),
            unknown_blocks: self.loss(Loss::UnknownBlocks),
            lost_snapshots: self.loss(Loss::Snapshots),
            recorder_ns: self.loss(Loss::RecorderNs),
            events: events(self.rows(Section::Counters)),
        }
    }

    /// Who was recorded, and how long it has been running if it still is.
    fn process(&self, path: &Path) -> (Process, u64) {
        let header = &self.header;
        let pid = header.half(offset_of!(Header, pid));
        let host = self.header_text(offset_of!(Header, host)).unwrap_or_default();
        let same_host = host_name().is_some_and(|name| name == host);
        let ended = header_word(header, offset_of!(Header, ended_ns)) != 0;
        let is_copy = self.header_at(offset_of!(Header, dumped_plus_one)) != 0;
        let (state, pid_here) = match (ended, same_host) {
            // A copy kept while the process ran: that is what it shows.
            _ if is_copy => (ProcessState::Running, None),
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
        let process = Process {
            pid,
            pid_here: pid_here.filter(|&here| here != pid),
            parent_pid: header.half(offset_of!(Header, parent_pid)),
            executable: self.header_text(offset_of!(Header, executable)).unwrap_or_default(),
            command_line: command_line.split_terminator('\0').map(str::to_string).collect(),
            host,
            ranks,
            started_unix_ns: header_word(header, offset_of!(Header, started_unix_ns)),
            state,
            depth: header.half(offset_of!(Header, depth)),
            recording: path.display().to_string(),
            python: self.python(),
        };
        (process, Elapsed::since_start(header).ns())
    }
}

/// Count and bytes of what is live, by device and kind.
pub type Places = HashMap<(Option<usize>, Kind), (u64, u64)>;

/// Makes counters agree with the records, which are the truth: a thread that was stopped between publishing and counting
/// leaves the sums behind.
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

fn live_by_place(allocations: &Allocations) -> Places {
    let mut by_call = vec![(0, 0); allocations.calls.len()];
    for row in &allocations.rows {
        let (count, bytes): &mut (u64, u64) = &mut by_call[row.call as usize];
        *count += 1;
        *bytes = bytes.saturating_add(row.bytes);
    }
    let mut by_place = Places::new();
    for (call, sums) in allocations.calls.iter().zip(by_call) {
        let place = by_place.entry((call.device, call.kind)).or_default();
        *place = (place.0 + sums.0, place.1.saturating_add(sums.1));
    }
    by_place
}

fn stream(word: u64) -> Stream {
    match word {
        0 | 1 => Stream::LegacyDefault,
        2 => Stream::PerThreadDefault,
        handle => Stream::Handle(handle),
    }
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
    header_word(header, offset_of!(Header, losses) + loss as usize * 8)
}

/// How many allocations, frees and refusals the sums have counted.
pub fn events(counters: &Bytes) -> u64 {
    let of = |row| {
        [5, 6, 7]
            .map(|word| counters.word(row, word))
            .into_iter()
            .fold(0, u64::wrapping_add)
    };
    (0..counters.len()).map(of).fold(0, u64::wrapping_add)
}
