//! Grouping live records into rows, and the order of the rows.

use super::*;

/// What the members of a row have in common.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The innermost frame of the user's own.
    #[default]
    Site,
    Stack,
    Kind,
    Device,
    Stream,
    Thread,
    Api,
    /// The module of the site, or its file for a line of Python.
    Module,
    /// The innermost line of Python that the user wrote.
    PythonLine,
    /// The library of CUDA's that asked.
    Library,
    /// The exact size.
    Size,
}

impl By {
    pub const ALL: &'static [By] = &[
        By::Site,
        By::Stack,
        By::Kind,
        By::Device,
        By::Stream,
        By::Thread,
        By::Api,
        By::Module,
        By::PythonLine,
        By::Library,
        By::Size,
    ];

    /// The word on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            By::Site => "site",
            By::Stack => "stack",
            By::Kind => "kind",
            By::Device => "device",
            By::Stream => "stream",
            By::Thread => "thread",
            By::Api => "api",
            By::Module => "module",
            By::PythonLine => "python-line",
            By::Library => "library",
            By::Size => "size",
        }
    }

    pub fn from_name(name: &str) -> Option<By> {
        By::ALL.iter().copied().find(|by| by.name() == name)
    }
}

/// What comes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sort {
    #[default]
    Bytes,
    Count,
    /// Oldest first.
    Age,
}

impl Sort {
    pub const ALL: &'static [Sort] = &[Sort::Bytes, Sort::Count, Sort::Age];

    /// The word on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Sort::Bytes => "bytes",
            Sort::Count => "count",
            Sort::Age => "age",
        }
    }

    pub fn from_name(name: &str) -> Option<Sort> {
        Sort::ALL.iter().copied().find(|sort| sort.name() == name)
    }

    /// Orders rows; equal ones by label, so that output never depends on a hash map.
    pub fn apply(self, rows: &mut [Row]) {
        let key = |row: &Row| match self {
            Sort::Bytes => (row.bytes, row.count),
            Sort::Count => (row.count, row.bytes),
            Sort::Age => (row.oldest_age_ns, row.bytes),
        };
        let first = |row: &Row| row.stacks.first().map(|stack| stack.stack.fingerprint);
        rows.sort_by(|a, b| {
            key(b)
                .cmp(&key(a))
                .then_with(|| a.label.cmp(&b.label))
                .then_with(|| first(a).cmp(&first(b)))
        });
    }
}

/// What two records must share to stand in one row.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    /// With what caching allocators keep apart from what is held, though one line may cause both.
    Print(Fingerprint, bool),
    Number(u64),
    Device(Option<usize>),
    Stream(Option<usize>, Option<Stream>),
    Text(&'a str),
    Line(Option<(Option<&'a str>, Option<u32>, Option<&'a str>)>),
}

pub(super) fn rows<'a>(
    snapshot: &'a Snapshot,
    stacks: &CallStacks<'a>,
    allocations: impl Iterator<Item = &'a Allocation>,
    by: By,
) -> Vec<Row<'a>> {
    let mut groups: HashMap<Key, Vec<&Allocation>> = HashMap::new();
    for allocation in allocations {
        groups.entry(key(stacks, allocation, by)).or_default().push(allocation);
    }
    groups
        .into_values()
        .map(|members| row(snapshot, stacks, &members, by))
        .collect()
}

fn key<'a>(stacks: &CallStacks<'a>, allocation: &'a Allocation, by: By) -> Key<'a> {
    let stack = stacks.get(allocation.stack);
    match by {
        By::Site => Key::Print(stack.site_fingerprint, stacks.is_pool(allocation)),
        By::Stack => Key::Print(stack.fingerprint, stacks.is_pool(allocation)),
        By::Kind => Key::Number(allocation.kind as u64),
        By::Device => Key::Device(allocation.device),
        // Handles are unique within a context only.
        By::Stream => Key::Stream(allocation.context, allocation.stream),
        By::Thread => Key::Number(allocation.thread as u64),
        By::Api => Key::Text(&allocation.api),
        By::Module => Key::Text(stack.site().map_or("", module_of)),
        By::PythonLine => Key::Line(
            stack
                .python_line()
                .map(|frame| (frame.file, frame.line, frame.function)),
        ),
        By::Library => Key::Text(origin(stack)),
        By::Size => Key::Number(allocation.bytes),
    }
}

fn row<'a>(snapshot: &'a Snapshot, stacks: &CallStacks<'a>, members: &[&'a Allocation], by: By) -> Row<'a> {
    let now = snapshot.taken.at_ns;
    let age = |allocation: &&Allocation| now.saturating_sub(allocation.time_ns);
    let mut row = Row {
        label: label(snapshot, stacks, members[0], by),
        bytes: 0,
        count: members.len() as u64,
        claims: 0,
        pool: false,
        allocator: None,
        library: shared(members.iter().map(|allocation| stacks.get(allocation.stack).library)),
        kinds: BTreeMap::new(),
        devices: BTreeMap::new(),
        streams: BTreeMap::new(),
        threads: BTreeMap::new(),
        apis: BTreeMap::new(),
        smallest: members.iter().map(|a| a.bytes).min().unwrap_or(0),
        largest: members.iter().map(|a| a.bytes).max().unwrap_or(0),
        oldest_age_ns: members.iter().map(age).max().unwrap_or(0),
        newest_age_ns: members.iter().map(age).min().unwrap_or(0),
        stacks: Vec::new(),
        stacks_in_all: 0,
    };
    let mut per_stack: HashMap<Fingerprint, (Share, Option<usize>)> = HashMap::new();
    let mut devices: HashMap<Option<usize>, Share> = HashMap::new();
    let mut streams: HashMap<Option<Stream>, Share> = HashMap::new();
    let mut threads: HashMap<usize, Share> = HashMap::new();
    for allocation in members {
        row.bytes = row.bytes.saturating_add(allocation.bytes);
        row.claims += u64::from(allocation.kind.place() == Place::Nowhere);
        if stacks.is_pool(allocation) {
            row.pool = true;
            row.allocator = row.allocator.or(stacks.get(allocation.stack).allocator);
        }
        row.kinds
            .entry(allocation.kind.name())
            .or_default()
            .add(allocation.bytes);
        row.apis.entry(&allocation.api).or_default().add(allocation.bytes);
        devices.entry(allocation.device).or_default().add(allocation.bytes);
        streams.entry(allocation.stream).or_default().add(allocation.bytes);
        threads.entry(allocation.thread).or_default().add(allocation.bytes);
        let fingerprint = stacks.get(allocation.stack).fingerprint;
        per_stack
            .entry(fingerprint)
            .or_insert((Share::default(), allocation.stack))
            .0
            .add(allocation.bytes);
    }
    row.devices = merge(devices, |device| device_name(snapshot, device));
    row.streams = merge(streams, stream_name);
    row.threads = merge(threads, |thread| thread_name(snapshot, thread));
    row.stacks_in_all = per_stack.len();
    let mut ranked: Vec<_> = per_stack.into_iter().collect();
    ranked.sort_by_key(|(fingerprint, (share, _))| (std::cmp::Reverse((share.bytes, share.count)), *fingerprint));
    row.stacks = ranked
        .into_iter()
        .take(STACKS_KEPT)
        .map(|(_, (share, stack))| RowStack {
            bytes: share.bytes,
            count: share.count,
            stack: stacks.get(stack).clone(),
        })
        .collect();
    row
}

/// Two things of the same name (one pid's thread number used twice) become one entry.
fn merge<K>(shares: HashMap<K, Share>, name: impl Fn(K) -> String) -> BTreeMap<String, Share> {
    let mut named: BTreeMap<String, Share> = BTreeMap::new();
    for (key, share) in shares {
        let total = named.entry(name(key)).or_default();
        total.bytes = total.bytes.saturating_add(share.bytes);
        total.count += share.count;
    }
    named
}

fn thread_name(snapshot: &Snapshot, thread: usize) -> String {
    let thread = &snapshot.threads[thread];
    if thread.name.is_empty() {
        format!("thread {}", thread.tid)
    } else {
        format!("thread {} {}", thread.tid, thread.name)
    }
}

fn label(snapshot: &Snapshot, stacks: &CallStacks, allocation: &Allocation, by: By) -> String {
    let site = stacks.get(allocation.stack).site();
    match by {
        By::Site | By::Stack => site.map_or_else(|| "(no stack)".to_owned(), Frame::name),
        By::Kind => allocation.kind.name().to_owned(),
        By::Device => device_name(snapshot, allocation.device),
        By::Stream => match allocation.device {
            Some(_) => format!(
                "{} of {}",
                stream_name(allocation.stream),
                device_name(snapshot, allocation.device)
            ),
            None => stream_name(allocation.stream),
        },
        By::Thread => thread_name(snapshot, allocation.thread),
        By::Api => allocation.api.clone(),
        By::Module => match site.map_or("", module_of) {
            "" => "(no module)".to_owned(),
            module => file_name(module).to_owned(),
        },
        By::PythonLine => stacks
            .get(allocation.stack)
            .python_line()
            .map_or_else(|| "(no line of Python)".to_owned(), python_line),
        By::Library => origin(stacks.get(allocation.stack)).to_owned(),
        By::Size => format!("{} bytes", allocation.bytes),
    }
}

fn module_of<'a>(frame: &Frame<'a>) -> &'a str {
    if frame.is_python() {
        frame.file.unwrap_or_default()
    } else {
        frame.module
    }
}

/// `train.py:212 in training_step`, as people write it.
fn python_line(frame: &Frame) -> String {
    let place = frame.short_place().unwrap_or_default();
    format!("{place} in {}", frame.function.unwrap_or("?"))
}

fn origin(stack: &CallStack) -> &'static str {
    stack.library.or(stack.allocator).unwrap_or("(the program itself)")
}

/// What all of them say, if they agree.
fn shared<T: PartialEq>(mut each: impl Iterator<Item = Option<T>>) -> Option<T> {
    let first = each.next()??;
    each.all(|other| other.as_ref() == Some(&first)).then_some(first)
}
