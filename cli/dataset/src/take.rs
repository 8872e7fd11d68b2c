//! Rows of one process: what a report adds up, without adding it up.

use std::borrow::Cow;

use culeak::analysis::categories::{Categories, Category, Sorter};
use culeak::analysis::function_name::plain;
use culeak::analysis::groups::{Groups, Level};
use culeak::analysis::job::member::Member;
use culeak::analysis::report::is_finished;
use culeak::analysis::site::{CallStack, CallStacks, Fingerprint, Frame, is_pool};
use culeak::analysis::tally::Tally;
use culeak::job_variables::Dimension;
use culeak::kind::{Kind, Place};
use culeak::point::Point;
use culeak::snapshot::{ProcessState, Snapshot};
use foldhash::{HashMap, HashSet};

use crate::NOW;
use crate::folder;
use crate::rows::{Rows, Value};
use crate::schema::{self, Table};

/// The job of a process of which none is known.
const UNNAMED: &str = "unnamed";

/// The rows of one process at one point, in all tables.
#[derive(Debug, Clone)]
pub struct Batch {
    pub process: String,
    /// What distinguishes this point from others of the process: it has one end and one peak, and many points at which it runs.
    pub point: String,
    pub is_now: bool,
    /// A peak is no state that a process is left in.
    pub is_peak: bool,
    /// The wall clock of the snapshot.
    pub taken_unix_ns: u64,
    pub processes: Rows,
    pub points: Rows,
    pub sites: Rows,
    pub stacks: Rows,
    pub blocks: Rows,
    pub objects: Rows,
}

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

/// Identifies a process.
pub fn process_id(snapshot: &Snapshot) -> String {
    let process = &snapshot.process;
    // Snapshots that PyTorch took of itself have no process id: their file stands for it.
    let file = if process.pid == 0 {
        process.recording.as_str()
    } else {
        ""
    };
    let text = format!("{}\0{}\0{}\0{file}", process.host, process.pid, process.started_unix_ns);
    format!("{:016x}", folder::hash(text.as_bytes()))
}

/// The values that all rows of a process share.
struct Common {
    job: String,
    host: String,
    rank: Option<u64>,
    process: String,
    point: String,
    at_unix_ns: u64,
}

impl Common {
    fn of(snapshot: &Snapshot, about: &About) -> Common {
        let member = Member::of(snapshot);
        let at_ns = at_ns(snapshot);
        let job = about.job.or(member.job.as_deref()).unwrap_or(UNNAMED);
        Common {
            job: folder::fitting(&(about.escape)(job)),
            host: folder::fitting(&(about.escape)(&member.host)),
            rank: member.rank.map(u64::from),
            process: process_id(snapshot),
            point: point(snapshot, about),
            at_unix_ns: member.started_unix_ns.saturating_add(at_ns),
        }
    }

    fn who(&self) -> [Value<'_>; 4] {
        let host = Some(self.host.as_str()).filter(|host| !host.is_empty());
        [
            Value::Text(&self.job),
            host.into(),
            self.rank.into(),
            Value::Text(&self.process),
        ]
    }

    fn when(&self) -> [Value<'_>; 2] {
        [Value::Text(&self.point), Value::of(self.at_unix_ns)]
    }
}

fn at_ns(snapshot: &Snapshot) -> u64 {
    match snapshot.taken.point {
        // Devices have their own peaks; the last counts.
        Some(Point::Peak) => snapshot.device_peaks.iter().map(|peak| peak.time_ns).max().unwrap_or(0),
        Some(Point::End) => snapshot.end.map_or(snapshot.taken.at_ns, |end| end.time_ns),
        _ => snapshot.taken.at_ns,
    }
}

fn point(snapshot: &Snapshot, about: &About) -> String {
    let runs =
        snapshot.process.state == ProcessState::Running || snapshot.taken.automatic.is_some() || about.is_running;
    match &snapshot.taken.point {
        Some(Point::Exit) | None if runs => NOW.to_owned(),
        Some(point) => (about.escape)(&point.to_string()),
        None => Point::Exit.to_string(),
    }
}

/// A call site as text.
struct SiteText {
    fingerprint: String,
    loose: String,
    label: String,
    file: Option<String>,
    line: Option<u32>,
    module: String,
    library: Option<&'static str>,
}

impl SiteText {
    fn of(stack: &CallStack, escape: fn(&str) -> String) -> SiteText {
        let site = stack.site();
        SiteText {
            fingerprint: stack.site_fingerprint.to_string(),
            loose: stack.loose_site_fingerprint.to_string(),
            label: site.map_or_else(|| "(no stack)".to_owned(), |site| escape(&plain(&site.name()))),
            file: site.and_then(|site| site.file).map(escape),
            line: site.and_then(|site| site.line),
            module: site.map_or_else(String::new, |site| escape(site.module_name())),
            library: stack.library,
        }
    }

    fn keys(&self) -> [Value<'_>; 2] {
        [Value::Text(&self.fingerprint), Value::Text(&self.loose)]
    }

    fn text(&self) -> [Value<'_>; 5] {
        let module = Some(self.module.as_str()).filter(|module| !module.is_empty());
        [
            Value::Text(&self.label),
            self.file.as_deref().into(),
            self.line.map(u64::from).into(),
            module.into(),
            self.library.into(),
        ]
    }
}

fn level(level: Level) -> &'static str {
    match level {
        Level::Held => "held",
        Level::Cached => "cached",
        Level::Behind => "behind",
        Level::Claim => "claim",
    }
}

fn device(snapshot: &Snapshot, kind: Kind, device: Option<usize>) -> Option<i32> {
    let device = kind.place().counts_against(device)?;
    snapshot.devices.get(device).map(|device| device.ordinal)
}

impl Batch {
    /// The rows of a process at the point that a snapshot with names shows.
    pub fn of(snapshot: &Snapshot, about: &About) -> Batch {
        let common = Common::of(snapshot, about);
        let is_now = common.point == NOW;
        let rows = |table: &'static Table| Rows::new(table);
        let mut batch = Batch {
            process: common.process.clone(),
            point: format!("{}:{}", if is_now { common.at_unix_ns } else { 0 }, common.point),
            is_now,
            is_peak: snapshot.taken.point == Some(Point::Peak),
            taken_unix_ns: snapshot.taken.at_unix_ns,
            processes: rows(&schema::PROCESSES),
            points: rows(&schema::POINTS),
            sites: rows(&schema::SITES),
            stacks: rows(&schema::STACKS),
            blocks: rows(&schema::BLOCKS),
            objects: rows(&schema::OBJECTS),
        };
        let stacks = CallStacks::of(snapshot);
        let groups = Groups::of(snapshot, &stacks);
        let (mut held, mut pools) = (Tally::default(), Tally::default());
        for group in &groups.all {
            match group.call.kind.place() {
                Place::Nowhere | Place::Segment | Place::Object => {}
                _ if group.level == Level::Held => held.join(group.tally()),
                _ => pools.join(group.tally()),
            }
        }
        let sums = [held.bytes, held.count, pools.bytes, pools.count].map(Value::of);
        let mut texts = Sites::new(snapshot, &stacks, about);
        add_point(&mut batch, snapshot, &common, sums, about);
        add_sites(&mut batch, &common, &groups, &mut texts);
        add_objects(&mut batch, &common, &mut texts);
        if !batch.is_peak {
            add_process(&mut batch, snapshot, &common, sums, about);
            if about.blocks && !snapshot.allocations.is_summed() {
                add_blocks(&mut batch, &common, &groups, &mut texts);
            }
        }
        add_stacks(&mut batch, &common, &texts);
        batch
    }

    /// The tables in the order in which they are written: a process is there when all of it is.
    pub fn tables(&self) -> [&Rows; 6] {
        [
            &self.stacks,
            &self.blocks,
            &self.objects,
            &self.sites,
            &self.points,
            &self.processes,
        ]
    }
}

fn add_process(batch: &mut Batch, snapshot: &Snapshot, common: &Common, sums: [Value; 4], about: &About) {
    let (process, member) = (&snapshot.process, Member::of(snapshot));
    let state = match process.state {
        ProcessState::Running => "running",
        ProcessState::Exited => "exited",
        ProcessState::Ended => "ended",
        ProcessState::Unknown => "unknown",
    };
    let finished =
        is_finished(snapshot) || snapshot.taken.point == Some(Point::End) && process.state != ProcessState::Running;
    let devices: Vec<String> = snapshot
        .devices
        .iter()
        .map(|device| device.ordinal.to_string())
        .collect();
    let peaks = snapshot.device_peaks.iter().map(|peak| peak.peak_bytes);
    let program = (about.escape)(&member.program.to_string());
    let command_line = (about.escape)(&process.command_line.join(" "));
    let (devices, source) = (devices.join(","), (about.escape)(about.source));
    let group = |dimension| Value::from(member.groups.get(&dimension).copied().map(u64::from));
    let job_name = member.job_name.as_deref().map(about.escape);
    let mut row = common.who().to_vec();
    row.extend([
        Value::of(process.pid.into()),
        member.local_rank.map(u64::from).into(),
        member.world.map(u64::from).into(),
        member.node.map(u64::from).into(),
        group(Dimension::Pipeline),
        group(Dimension::Tensor),
        group(Dimension::Expert),
        group(Dimension::Context),
        group(Dimension::Data),
        member.launcher.into(),
        job_name.as_deref().into(),
        Value::Text(&program),
        Value::Text(&command_line),
        Value::Text(state),
        Value::Flag(finished),
        Value::Text(&devices),
        Value::of(process.started_unix_ns),
    ]);
    row.extend(common.when());
    row.extend(sums);
    row.extend([
        Value::of(peaks.fold(0, u64::saturating_add)),
        Value::of(snapshot.losses.lost_allocations),
        Value::Text(&source),
        Value::Text(env!("CARGO_PKG_VERSION")),
    ]);
    batch.processes.push(&row);
}

fn add_point(batch: &mut Batch, snapshot: &Snapshot, common: &Common, sums: [Value; 4], about: &About) {
    let at_ns = at_ns(snapshot);
    let mark = snapshot.marks.iter().rfind(|mark| mark.time_ns <= at_ns);
    let mark = mark.map(|mark| (about.escape)(&mark.name));
    let objects = snapshot.objects_known.then(|| snapshot.objects.len() as u64);
    let mut row = common.who().to_vec();
    row.extend(common.when());
    row.push(Value::of(at_ns));
    row.extend(sums);
    row.extend([Value::from(objects), mark.as_deref().into()]);
    batch.points.push(&row);
}

/// The call sites of a snapshot as text, each made once.
struct Sites<'a, 's> {
    snapshot: &'a Snapshot,
    stacks: &'s CallStacks<'a>,
    sorter: Sorter<'s>,
    escape: fn(&str) -> String,
    /// By stack; the last is of records without a stack.
    texts: Vec<Option<SiteText>>,
}

impl<'a, 's> Sites<'a, 's> {
    fn new(snapshot: &'a Snapshot, stacks: &'s CallStacks<'a>, about: &About<'s>) -> Sites<'a, 's>
    where
        'a: 's,
    {
        let mut texts = Vec::new();
        texts.resize_with(snapshot.stacks.len() + 1, || None);
        Sites {
            snapshot,
            stacks,
            sorter: Sorter::new(about.categories, snapshot),
            escape: about.escape,
            texts,
        }
    }

    fn text(&mut self, stack: Option<usize>) -> &SiteText {
        let at = stack.unwrap_or(self.texts.len() - 1);
        let (stacks, escape) = (self.stacks, self.escape);
        self.texts[at].get_or_insert_with(|| SiteText::of(stacks.get(stack), escape))
    }

    /// The stacks of which a row was made.
    fn used(&self) -> impl Iterator<Item = (Option<usize>, &SiteText)> {
        let last = self.texts.len() - 1;
        let all = self.texts.iter().enumerate();
        all.filter_map(move |(at, text)| Some(((at < last).then_some(at), text.as_ref()?)))
    }
}

fn add_sites(batch: &mut Batch, common: &Common, groups: &Groups, texts: &mut Sites) {
    type SiteKey = (Fingerprint, bool, Level, Kind, Category, Option<i32>);
    let mut sums: HashMap<SiteKey, (Tally, Option<usize>)> = HashMap::default();
    let mut order: Vec<SiteKey> = Vec::new();
    for group in groups.listed() {
        let (call, stack) = (group.call, texts.stacks.get(group.stack));
        let key = (
            stack.site_fingerprint,
            is_pool(call.kind, stack.pool),
            group.level,
            call.kind,
            texts.sorter.category(group.stack, call, texts.stacks),
            device(texts.snapshot, call.kind, call.device),
        );
        let sum = sums.entry(key).or_insert_with(|| {
            order.push(key);
            (Tally::default(), group.stack)
        });
        sum.0.join(group.tally());
    }
    for key in order {
        let (_, pool, of, kind, category, device) = key;
        let (tally, stack) = sums[&key];
        let text = texts.text(stack);
        let mut row = common.who().to_vec();
        row.extend(common.when());
        row.extend(text.keys());
        row.extend([
            Value::Flag(pool),
            Value::Text(level(of)),
            Value::Text(kind.name()),
            Value::Text(category.name()),
            device.map_or(Value::Null, |device| Value::Number(device.into())),
            Value::of(tally.bytes),
            Value::of(tally.count),
        ]);
        row.extend(text.text());
        batch.sites.push(&row);
    }
}

fn add_objects(batch: &mut Batch, common: &Common, texts: &mut Sites) {
    let mut sums: HashMap<(Kind, Fingerprint), (u64, Option<usize>)> = HashMap::default();
    let mut order = Vec::new();
    for (index, object) in texts.snapshot.objects.iter().enumerate() {
        let key = (object.kind, texts.stacks.get(object.stack).site_fingerprint);
        let sum = sums.entry(key).or_insert_with(|| {
            order.push(key);
            (0, object.stack)
        });
        sum.0 += texts.snapshot.objects.count(index);
    }
    for key in order {
        let (count, stack) = sums[&key];
        let text = texts.text(stack);
        let mut row = common.who().to_vec();
        row.extend(common.when());
        row.push(Value::Text(key.0.name()));
        row.extend(text.keys());
        row.push(Value::of(count));
        row.extend(text.text());
        batch.objects.push(&row);
    }
}

fn add_blocks(batch: &mut Batch, common: &Common, groups: &Groups, texts: &mut Sites) {
    let (snapshot, stacks) = (texts.snapshot, texts.stacks);
    let mut fingerprints: HashMap<Option<usize>, String> = HashMap::default();
    for block in snapshot.allocations.iter() {
        let stack = stacks.get(block.stack);
        let category = texts.sorter.category(block.stack, block.call, stacks);
        let fingerprint = fingerprints
            .entry(block.stack)
            .or_insert_with(|| stack.fingerprint.to_string());
        let site = texts.text(block.stack);
        let api = Cow::Borrowed(block.api());
        let mut row = common.who().to_vec();
        row.extend([
            Value::of(block.address),
            Value::of(block.bytes),
            Value::of(block.requested),
            Value::Text(block.kind.name()),
            Value::Text(level(groups.level(&block, stacks))),
            Value::Text(&api),
            block.domain().into(),
            Value::Text(category.name()),
            device(snapshot, block.kind, block.device).map_or(Value::Null, |device| Value::Number(device.into())),
            Value::of(snapshot.process.started_unix_ns.saturating_add(block.time_ns)),
            Value::Text(&site.fingerprint),
            Value::Text(fingerprint),
            snapshot
                .sampling
                .map_or(Value::Null, |sampling| Value::of(sampling.of(block.call))),
        ]);
        batch.blocks.push(&row);
    }
}

fn add_stacks(batch: &mut Batch, common: &Common, texts: &Sites) {
    let mut known = HashSet::default();
    for (number, site) in texts.used() {
        let stack = texts.stacks.get(number);
        if !known.insert(stack.fingerprint.0) {
            continue;
        }
        let fingerprint = stack.fingerprint.to_string();
        let mut frames: Vec<String> = stack.shown().map(|frame| frame_text(frame, texts.escape)).collect();
        frames.reverse();
        let frames = frames.join(";");
        let mut row = vec![Value::Text(&common.job), Value::Text(&fingerprint)];
        row.extend(site.keys());
        row.extend(site.text());
        row.extend([
            stack.allocator.into(),
            Value::Flag(stack.truncated),
            Some(frames.as_str()).filter(|frames| !frames.is_empty()).into(),
        ]);
        batch.stacks.push(&row);
    }
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
