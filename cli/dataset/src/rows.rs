//! The facts of one process at one point as rows of all tables.

use culeak::analysis::categories::{Categories, Sorter};
use culeak::analysis::facts::{Facts, Sites};
use culeak::analysis::function_name::plain;
use culeak::analysis::groups::{Groups, Level};
use culeak::analysis::job::member::Member;
use culeak::analysis::report::is_finished;
use culeak::analysis::site::{CallStacks, Frame};
use culeak::job_variables::Dimension;
use culeak::kind::Place;
use culeak::point::Point;
use culeak::snapshot::{ProcessState, Snapshot};
use culeak::tally::Tally;

use crate::folder;
use crate::schema::{Block, Instant, Process, SiteRow, StackRow};

/// The job of a process of which none is known.
const UNNAMED: &str = "unnamed";
/// The point of a process that was running.
const NOW: &str = "now";

/// What a snapshot does not say about itself.
#[derive(Debug, Clone)]
pub struct About<'a> {
    /// `None`: the id that the scheduler or launcher gave to the job, if it is known.
    pub job: Option<&'a str>,
    /// The input, as it was named.
    pub source: &'a str,
    /// The process may go on running, so this is one of many points.
    pub is_running: bool,
    pub blocks: bool,
    pub categories: &'a Categories,
    /// Makes names from recordings safe to print.
    pub escape: fn(&str) -> String,
}

/// The process and the point that rows belong to.
pub struct Subject {
    pub job: String,
    host: Option<String>,
    rank: Option<i64>,
    pub process: String,
    point: String,
    at_ns: u64,
    at_unix_ns: i64,
}

/// What is added up over all rows.
pub struct Totals {
    held: Tally,
    pool: Tally,
}

/// The largest number stands for all larger ones.
fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Subject {
    pub fn of(snapshot: &Snapshot, about: &About) -> Subject {
        let (member, process) = (Member::of(snapshot), &snapshot.process);
        let at_ns = match snapshot.taken.point {
            // Devices have their own peaks; the last counts.
            Some(Point::Peak) => snapshot.device_peaks.iter().map(|peak| peak.time_ns).max().unwrap_or(0),
            Some(Point::End) => snapshot.end.map_or(snapshot.taken.at_ns, |end| end.time_ns),
            _ => snapshot.taken.at_ns,
        };
        let runs = process.state == ProcessState::Running || snapshot.taken.automatic.is_some() || about.is_running;
        let point = match &snapshot.taken.point {
            Some(Point::Exit) | None if runs => NOW.to_owned(),
            Some(point) => (about.escape)(&point.to_string()),
            None => Point::Exit.to_string(),
        };
        // Snapshots that PyTorch took of itself have no process id: their file stands for it.
        let file = if process.pid == 0 {
            process.recording.as_str()
        } else {
            ""
        };
        let identity = format!("{}\0{}\0{}\0{file}", process.host, process.pid, process.started_unix_ns);
        Subject {
            job: (about.escape)(about.job.or(member.job.as_deref()).unwrap_or(UNNAMED)),
            host: Some((about.escape)(&member.host)).filter(|host| !host.is_empty()),
            rank: member.rank.map(i64::from),
            process: format!("{:016x}", folder::hash(identity.as_bytes())),
            point,
            at_ns,
            at_unix_ns: number(member.started_unix_ns.saturating_add(at_ns)),
        }
    }

    /// Whether the process has other points like this one.
    pub fn is_one_of_many(&self) -> bool {
        self.point == NOW
    }

    /// What distinguishes this point from others of the process: it has one end and one peak, and many points at which it runs.
    pub fn point_key(&self) -> String {
        let at = if self.is_one_of_many() { self.at_unix_ns } else { 0 };
        format!("{:016x}", folder::hash(format!("{at}:{}", self.point).as_bytes()))
    }

    pub fn process_row<'a>(&'a self, snapshot: &'a Snapshot, sums: &Totals, about: &About) -> Process<'a> {
        let (process, member) = (&snapshot.process, Member::of(snapshot));
        let ended = snapshot.taken.point == Some(Point::End) && process.state != ProcessState::Running;
        let devices = snapshot.devices.iter().map(|device| device.ordinal.to_string());
        let peaks = snapshot.device_peaks.iter().map(|peak| peak.peak_bytes);
        let group = |dimension| member.groups.get(&dimension).copied().map(i64::from);
        Process {
            host: self.host.as_deref(),
            rank: self.rank,
            process: &self.process,
            pid: process.pid.into(),
            local_rank: member.local_rank.map(i64::from),
            world: member.world.map(i64::from),
            node: member.node.map(i64::from),
            pipeline_stage: group(Dimension::Pipeline),
            tensor_rank: group(Dimension::Tensor),
            expert_rank: group(Dimension::Expert),
            context_rank: group(Dimension::Context),
            data_rank: group(Dimension::Data),
            launcher: member.launcher,
            job_name: member.job_name.as_deref().map(about.escape),
            program: (about.escape)(&member.program.to_string()),
            command_line: (about.escape)(&process.command_line.join(" ")),
            state: process.state.name(),
            finished: is_finished(snapshot) || ended,
            devices: devices.collect::<Vec<_>>().join(","),
            started_unix_ns: number(process.started_unix_ns),
            point: &self.point,
            at_unix_ns: self.at_unix_ns,
            held_bytes: number(sums.held.bytes),
            held_count: number(sums.held.count),
            pool_bytes: number(sums.pool.bytes),
            pool_count: number(sums.pool.count),
            peak_bytes: number(peaks.fold(0, u64::saturating_add)),
            lost_allocations: number(snapshot.losses.lost_allocations),
            recording: (about.escape)(about.source),
            written_by: env!("CARGO_PKG_VERSION"),
        }
    }

    pub fn point_row(&self, snapshot: &Snapshot, sums: &Totals, about: &About) -> Instant<'_> {
        let mark = snapshot.marks.iter().rfind(|mark| mark.time_ns <= self.at_ns);
        Instant {
            host: self.host.as_deref(),
            rank: self.rank,
            process: &self.process,
            point: &self.point,
            at_unix_ns: self.at_unix_ns,
            at_ns: number(self.at_ns),
            held_bytes: number(sums.held.bytes),
            held_count: number(sums.held.count),
            pool_bytes: number(sums.pool.bytes),
            pool_count: number(sums.pool.count),
            object_count: snapshot.objects_known.then(|| number(snapshot.objects.len() as u64)),
            mark: mark.map(|mark| (about.escape)(&mark.name)),
        }
    }

    /// By site.
    pub fn site_rows<'a>(&'a self, snapshot: &Snapshot, facts: &Facts, sites: &'a [SiteText]) -> Vec<SiteRow<'a>> {
        let rows = facts.rows.iter().map(|row| {
            let site = &sites[row.site as usize];
            SiteRow {
                host: self.host.as_deref(),
                rank: self.rank,
                process: &self.process,
                point: &self.point,
                at_unix_ns: self.at_unix_ns,
                site: &site.fingerprint,
                loose_site: &site.loose,
                pool: site.pool,
                level: row.level.map_or("object", Level::name),
                kind: row.kind.map_or("", |kind| kind.name()),
                category: row.category.map(|category| category.name()),
                device: (row.device).map(|device| snapshot.devices[device as usize].ordinal.into()),
                bytes: number(row.tally.bytes),
                count: number(row.tally.count),
                label: &site.label,
                file: site.file.as_deref(),
                line: site.line,
                module: site.module.as_deref(),
                library: site.library,
            }
        });
        let mut rows: Vec<SiteRow> = rows.collect();
        rows.sort_by_key(|row| (row.site, row.pool));
        rows
    }
}

impl Totals {
    pub fn of(groups: &Groups) -> Totals {
        let (mut held, mut pool) = (Tally::default(), Tally::default());
        for group in &groups.all {
            match group.call.kind.place() {
                Place::Nowhere | Place::Segment | Place::Object => {}
                _ if group.level == Level::Held => held.join(group.tally()),
                _ => pool.join(group.tally()),
            }
        }
        Totals { held, pool }
    }
}

/// A call site, safe to print.
pub struct SiteText {
    fingerprint: String,
    loose: String,
    pool: bool,
    label: String,
    file: Option<String>,
    line: Option<i64>,
    module: Option<String>,
    library: Option<&'static str>,
}

impl SiteText {
    pub fn all(sites: &Sites, escape: fn(&str) -> String) -> Vec<SiteText> {
        let text = |id| {
            let site = sites.text(id);
            SiteText {
                fingerprint: site.fingerprint.to_string(),
                loose: sites.key(id).loose.to_string(),
                pool: site.pool,
                label: escape(&site.label),
                file: site.file.as_deref().map(escape),
                line: site.line.map(i64::from),
                module: Some(escape(&site.module)).filter(|module| !module.is_empty()),
                library: site.library,
            }
        };
        (0..sites.len() as u32).map(text).collect()
    }
}

/// The stacks of a snapshot that have blocks, sums or objects; the last is that of memory without a stack.
pub struct StackText {
    pub fingerprint: String,
    site: String,
    allocator: Option<&'static str>,
    truncated: bool,
    frames: Option<String>,
}

/// By stack; `None`: nothing was allocated there.
pub fn stack_texts(snapshot: &Snapshot, stacks: &CallStacks, escape: fn(&str) -> String) -> Vec<Option<StackText>> {
    let none = snapshot.stacks.len();
    let mut all: Vec<Option<StackText>> = (0..=none).map(|_| None).collect();
    let memory = snapshot.allocations.iter().map(|block| block.stack);
    for stack in memory.chain(snapshot.objects.iter().map(|object| object.stack)) {
        all[stack.unwrap_or(none)].get_or_insert_with(|| {
            let stack = stacks.get(stack);
            let mut frames: Vec<String> = stack.shown().map(|frame| frame_text(frame, escape)).collect();
            frames.reverse();
            StackText {
                fingerprint: stack.fingerprint.to_string(),
                site: stack.site_fingerprint.to_string(),
                allocator: stack.allocator,
                truncated: stack.truncated,
                frames: Some(frames.join(";")).filter(|frames| !frames.is_empty()),
            }
        });
    }
    all
}

/// `Trainer::step (train.cu:212)`, without the character that separates frames.
fn frame_text(frame: &Frame, escape: fn(&str) -> String) -> String {
    let name = frame.name();
    let name = plain(&name);
    let text = match frame.short_place() {
        Some(place) => format!("{name} ({place})"),
        None => name.into_owned(),
    };
    escape(&text).replace(';', ",")
}

/// By stack, each once.
pub fn stack_rows(texts: &[Option<StackText>]) -> Vec<StackRow<'_>> {
    let rows = texts.iter().flatten().map(|stack| StackRow {
        stack: &stack.fingerprint,
        site: &stack.site,
        allocator: stack.allocator,
        truncated: stack.truncated,
        frames: stack.frames.clone(),
    });
    let mut rows: Vec<StackRow> = rows.collect();
    rows.sort_by_key(|row| row.stack);
    rows.dedup_by_key(|row| row.stack);
    rows
}

/// By site and address.
pub fn block_rows<'a>(
    subject: &'a Subject,
    snapshot: &'a Snapshot,
    groups: &Groups,
    stacks: &CallStacks,
    texts: &'a [Option<StackText>],
    categories: &Categories,
) -> Vec<Block<'a>> {
    let sorter = Sorter::new(categories, snapshot);
    let rows = snapshot.allocations.iter().filter_map(|block| {
        let text = texts[block.stack.unwrap_or(texts.len() - 1)].as_ref()?;
        let device = block.kind.place().counts_against(block.device);
        Some(Block {
            host: subject.host.as_deref(),
            rank: subject.rank,
            process: &subject.process,
            address: number(block.address),
            bytes: number(block.bytes),
            requested: number(block.requested),
            kind: block.kind.name(),
            level: groups.level(&block, stacks).name(),
            api: block.api(),
            domain: block.call.domain.as_deref(),
            category: sorter.category(block.stack, block.call, stacks).name(),
            device: device.and_then(|device| Some(snapshot.devices.get(device)?.ordinal.into())),
            allocated_unix_ns: number(snapshot.process.started_unix_ns.saturating_add(block.time_ns)),
            site: &text.site,
            stack: &text.fingerprint,
            sample_bytes: snapshot.sampling.map(|sampling| number(sampling.of(block.call))),
        })
    });
    let mut rows: Vec<Block> = rows.collect();
    rows.sort_by_key(|row| (row.site, row.address));
    rows
}
