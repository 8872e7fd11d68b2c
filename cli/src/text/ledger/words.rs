//! The sentences of the ledger: what each line is, whom it is for, and what gives the memory back.

use culeak::analysis::ledger::{
    DeviceLedger, HostLine, HostLineKind, Ledger, Line, LineKind, MemoryPool, Mode, Part, PoolOf, ProcessSum, Purpose,
};

use super::{balance, counted, units};
use crate::document::short_name;
use crate::escape::Escaped;
use crate::text::parts;
use crate::text::units::{plural, when};

/// Parts of a peak.
const PURPOSES_SHOWN: usize = 4;

/// What a line is, without its number.
pub fn name(what: LineKind, of: Option<&str>) -> String {
    let of = Escaped(of.unwrap_or_default());
    let name = match what {
        LineKind::Blocks => return format!("live blocks of {of}"),
        LineKind::Cached => return format!("cached by {of}"),
        LineKind::Pool => return format!("held by {of}'s pool; the part in use is unknown"),
        LineKind::Library => return of.to_string(),
        LineKind::ForBlocks => return format!("memory of {of}"),
        LineKind::Program => "allocated by the program itself",
        LineKind::Rounding => "free in pages that blocks keep",
        LineKind::CudaPools => "held by CUDA's pools beyond live blocks",
        LineKind::Arrays => "rounding of arrays",
        LineKind::LocalMemory => "local memory and stacks of kernels",
        LineKind::DeviceHeap => "heap of malloc in kernels",
        LineKind::Code => "code, globals and constants of kernels",
        LineKind::Streams => "streams",
        LineKind::GraphExecs => "executable graphs",
        LineKind::GreenContexts => "green contexts",
        LineKind::OtherCalls => "taken in other driver calls",
        LineKind::UnnamedCalls => "taken by the driver beyond recorded blocks, not divided",
        LineKind::Context => "contexts",
        LineKind::Unrecorded => "taken for blocks that were not recorded",
        LineKind::Checkpointed => "on the host, by a checkpoint",
        LineKind::OtherProcesses => "other processes",
        LineKind::DriverContexts => "the driver's own, for contexts",
        LineKind::DriverDevice => "the driver's own, for the device",
        LineKind::PageTables => "page tables of pinned host memory",
    };
    name.to_owned()
}

/// A line of a device.
pub fn line(line: &Line, device: &DeviceLedger, ledger: &Ledger) -> String {
    let (of, name) = (Escaped(line.of.unwrap_or_default()), name(line.what, line.of));
    let blocks = counted(line.count, "block");
    let pieces = counted(line.count, "piece");
    let text = match line.what {
        LineKind::Blocks => match line.of {
            Some("PyTorch") => plural(line.count, "live tensor of PyTorch", "live tensors of PyTorch"),
            Some("XLA") => plural(line.count, "live buffer of XLA", "live buffers of XLA"),
            _ => format!("{} of {of}", counted(line.count, "live block")),
        },
        LineKind::Cached => {
            let cache = device.caches.iter().find(|cache| Some(cache.owner) == line.of);
            let broken = cache
                .filter(|cache| cache.free_bytes > 0)
                .map_or(String::new(), |cache| {
                    format!(
                        ", {:.0} % fragmented: the largest free run is {}",
                        cache.fragmentation * 100.0,
                        units::bytes(cache.largest_free_run)
                    )
                });
            name + &broken
        }
        LineKind::Pool => format!("held by {of}'s pool, in {blocks}; the part in use is unknown"),
        LineKind::Library | LineKind::Program => format!("{name}, in {blocks}"),
        LineKind::ForBlocks => match line.of {
            Some("pools") => format!("CUDA's pools, in {}", counted(line.count, "chunk")),
            Some("arrays") => format!("arrays, in {pieces}"),
            _ => format!("blocks of {of}, in {pieces}"),
        },
        LineKind::Rounding => format!("free in {} of 2 MiB that blocks keep", counted(line.count, "page")),
        LineKind::CudaPools => format!("{name}, in {}", counted(line.count, "chunk")),
        LineKind::Arrays => format!("rounding of {}", counted(line.count, "array")),
        LineKind::DeviceHeap => format!("{name}, kept until the context is destroyed"),
        LineKind::Code | LineKind::OtherCalls => format!("{name}, in {pieces}"),
        LineKind::Streams => kept(line, "stream", "streams"),
        LineKind::GraphExecs => kept(line, "executable graph", "executable graphs"),
        LineKind::GreenContexts => kept(line, "green context", "green contexts"),
        LineKind::UnnamedCalls => format!(
            "taken by the driver beyond recorded blocks, in {pieces}; not divided: its functions have no names, in the recording \
             or here, where libcuda.so.1 is missing or is another version; or the process was restored from a checkpoint"
        ),
        LineKind::Context if device.process.is_some() && line.count == 1 => "the context itself".to_owned(),
        LineKind::Context if device.process.is_some() => format!("{} contexts themselves", units::count(line.count)),
        LineKind::Context => {
            let why = ledger.segments_missing.as_ref();
            let why = why.map_or(String::new(), |why| format!("; not divided: {}", Escaped(why)));
            format!("context and modules of this process{why}")
        }
        LineKind::Unrecorded if line.bytes < 0 => {
            "recorded blocks whose memory from the driver was not recorded".to_owned()
        }
        LineKind::Checkpointed => "on the host until the process is restored: it seems to be checkpointed".to_owned(),
        LineKind::OtherProcesses => plural(line.count, "other process", "other processes"),
        LineKind::DriverContexts => format!("the driver's own, for {}", counted(line.count, "context")),
        LineKind::LocalMemory | LineKind::Unrecorded | LineKind::DriverDevice | LineKind::PageTables => name,
    };
    let estimated = if line.exact { "" } else { " (estimated)" };
    let only = match &line.parts[..] {
        [only] if details(line).is_empty() => format!(": {}", part(line, only)),
        _ => String::new(),
    };
    let remedy = if line.what == LineKind::LocalMemory {
        remedy(line)
    } else {
        ""
    };
    format!("{text}{estimated}{only}{remedy}")
}

/// A line in a few words, if it is of memory that no row of a report lists.
pub fn briefly(line: &Line) -> Option<String> {
    let objects = |one: &str, many: &str| match line.count {
        0 => format!("kept of destroyed {many}"),
        count => plural(count, one, many),
    };
    Some(match line.what {
        LineKind::Blocks | LineKind::Pool | LineKind::Library | LineKind::Program | LineKind::ForBlocks => return None,
        // It is said of the rows.
        LineKind::Checkpointed => return None,
        LineKind::Cached => format!("cached by {}", Escaped(line.of.unwrap_or_default())),
        LineKind::Rounding => "in pages that blocks keep".to_owned(),
        LineKind::CudaPools => "in CUDA's pools".to_owned(),
        LineKind::Arrays => "rounding of arrays".to_owned(),
        LineKind::LocalMemory => "local memory of kernels".to_owned(),
        LineKind::DeviceHeap => "heap of malloc in kernels".to_owned(),
        LineKind::Code => "code of kernels".to_owned(),
        LineKind::Streams => objects("stream", "streams"),
        LineKind::GraphExecs => objects("executable graph", "executable graphs"),
        LineKind::GreenContexts => objects("green context", "green contexts"),
        LineKind::OtherCalls | LineKind::UnnamedCalls => "taken in other driver calls".to_owned(),
        LineKind::Context => plural(line.count.max(1), "context", "contexts"),
        LineKind::Unrecorded => "not recorded as blocks".to_owned(),
        LineKind::OtherProcesses => plural(line.count, "other process", "other processes"),
        LineKind::DriverContexts | LineKind::DriverDevice => "the driver's own".to_owned(),
        LineKind::PageTables => "page tables".to_owned(),
    })
}

/// Objects, and what the driver keeps of destroyed ones.
fn kept(line: &Line, one: &str, many: &str) -> String {
    let existing = plural(line.count, one, many);
    let each = u64::try_from(line.bytes)
        .unwrap_or(0)
        .checked_div(line.count)
        .unwrap_or(0);
    match (line.count, line.destroyed.unwrap_or(0)) {
        (0, 0) => format!("taken for {many}"),
        (0, destroyed) => format!(
            "kept by the driver for reuse, of {}",
            plural(destroyed, &format!("destroyed {one}"), &format!("destroyed {many}"))
        ),
        (1, 0) => existing,
        (_, 0) => format!("{existing}, {} each on average", units::bytes(each)),
        (_, destroyed) => format!(
            "{existing}, and what the driver keeps of {} destroyed for reuse",
            units::count(destroyed)
        ),
    }
}

/// What gives local memory back.
fn remedy(line: &Line) -> &'static str {
    let taken_in = |prefix: &str| {
        line.parts
            .iter()
            .any(|part| part.call.is_some_and(|call| call.starts_with(prefix)))
    };
    if taken_in("cuCtxSetLimit") {
        "; a smaller CU_LIMIT_STACK_SIZE gives it back"
    } else if taken_in("cuLaunch") || taken_in("cuGraphLaunch") {
        "; cuCtxSetLimit(CU_LIMIT_STACK_SIZE) gives back what large frames of kernels took, not what assert and printf need"
    } else if taken_in("cuModule") || taken_in("cuLibrary") || taken_in("cuKernel") {
        "; kept until the context is destroyed"
    } else {
        "; a smaller CU_LIMIT_STACK_SIZE reduces it"
    }
}

/// The parts of a line with several, with their sizes. Pools, unless there is only the device's default one.
pub fn details(line: &Line) -> Vec<(u64, String)> {
    if line.pools.iter().any(|pool| pool.of != PoolOf::Device) {
        let free = |of: &MemoryPool| of.bytes.saturating_sub(of.live_bytes);
        return line.pools.iter().map(|of| (free(of), pool(of))).collect();
    }
    let several = line.parts.iter().filter(|_| line.parts.len() > 1);
    several.map(|of| (of.bytes, part(line, of))).collect()
}

fn pool(pool: &MemoryPool) -> String {
    let handle = pool.handle.map_or(String::new(), |handle| format!(" {handle:#x}"));
    let place = parts::behind(pool.place.as_deref());
    let of = match (pool.of, &pool.name) {
        (PoolOf::Device, _) => "default pool".to_owned(),
        (PoolOf::Graphs, _) => "memory of graphs".to_owned(),
        (PoolOf::Program, None) => format!("destroyed pool{handle}"),
        (PoolOf::Program, Some(name)) => format!("pool{handle} of {}{place}", Escaped(&short_name(name))),
    };
    let live = match pool.blocks {
        0 => "no live blocks".to_owned(),
        blocks => format!("{} in {}", units::bytes(pool.live_bytes), counted(blocks, "live block")),
    };
    format!(
        "{of}: {} in {}, {live}",
        units::bytes(pool.bytes),
        counted(pool.chunks, "chunk")
    )
}

fn part(line: &Line, part: &Part) -> String {
    let name = Escaped(&short_name(&part.name)).to_string();
    let place = parts::behind(part.place.as_deref());
    let call = part.call.map_or(String::new(), |call| format!("{} in ", Escaped(call)));
    let text = match (line.what, part.replaced_bytes) {
        (LineKind::Rounding, _) => format!("blocks of {name}{place}"),
        (LineKind::Code, _) if part.call.is_some() => format!("kernel {name}{place}"),
        (LineKind::Code, _) => name,
        (LineKind::LocalMemory, Some(before)) => {
            let by = units::bytes(part.bytes.saturating_sub(before));
            format!("enlarged by {by} by {call}{name}{place}")
        }
        _ => format!("{call}{name}{place}"),
    };
    let estimated = if part.exact || !line.exact { "" } else { " (estimated)" };
    text + estimated
}

/// The sum of the process's lines, compared with the driver's figure.
pub fn process(process: &ProcessSum, device: &DeviceLedger) -> String {
    if process.is_peak {
        let time = units::duration(process.peak_ns);
        return format!("this process when it had most of the device, after {time}");
    }
    let peak = match process.peak_bytes {
        peak if i128::from(peak) > process.bytes => {
            let parts = process
                .at_peak
                .iter()
                .filter(|part| part.bytes > 0)
                .take(PURPOSES_SHOWN);
            let parts: Vec<_> = parts
                .map(|part| format!("{} {}", units::bytes(part.bytes), purpose(part.purpose)))
                .collect();
            let parts = when(!parts.is_empty(), || format!(" ({})", parts.join(", ")));
            format!("; peak {}{parts}", units::bytes(peak))
        }
        _ => String::new(),
    };
    compared(process, device) + &peak
}

/// What a driver call takes memory for.
fn purpose(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Context => "contexts",
        Purpose::Limit => "limits",
        Purpose::Linear => "blocks",
        Purpose::Physical => "physical memory",
        Purpose::Pool => "pools",
        Purpose::Array => "arrays",
        Purpose::Load => "loads of code",
        Purpose::Launch => "launches",
        Purpose::GraphLaunch => "launches of graphs",
        Purpose::GraphExec => "executable graphs",
        Purpose::Stream => "streams",
        Purpose::GreenContext => "green contexts",
        Purpose::Host => "host memory",
        Purpose::Other => "other calls",
    }
}

fn compared(process: &ProcessSum, device: &DeviceLedger) -> String {
    let Some(difference) = process.difference else {
        return match device.driver {
            Some(_) => "this process; the driver does not know this process id".to_owned(),
            None => "this process".to_owned(),
        };
    };
    let more = balance(difference);
    let imported = process.imported;
    match difference {
        0 => "this process, as the driver counts it (difference 0 B)".to_owned(),
        1.. if imported.count > 0 && difference == i128::from(imported.bytes) => {
            format!("this process; the driver counts {more} more, for memory that its exporter has freed")
        }
        1.. if imported.count > 0 => {
            format!("this process; the driver counts {more} more, perhaps for memory that its exporter has freed")
        }
        1.. if process.lost_segments > 0 => {
            let lost = plural(process.lost_segments, "piece of memory was", "pieces of memory were");
            format!("this process; the driver counts {more} more, and {lost} not recorded")
        }
        1.. => format!("this process; the driver counts {more} more"),
        _ => format!("this process; the driver counts {} less", balance(-difference)),
    }
}

/// What no line explains.
pub fn rest(rest: i128, device: &DeviceLedger) -> &'static str {
    let knows_process = device.driver.is_some_and(|driver| driver.process_bytes.is_some());
    match (rest < 0, knows_process, device.process.is_some()) {
        (true, ..) => "unexplained: more memory is recorded than the driver reports",
        (false, true, _) if device.had_managed => "managed memory on this device, and unexplained",
        (false, true, _) => "unexplained",
        (false, false, true) => "unexplained, other processes included: the driver does not know this process id",
        (false, false, false) => {
            "unexplained, contexts and other processes included: the driver does not know this process id"
        }
    }
}

/// A line of host memory.
pub fn on_host(line: &HostLine) -> String {
    let size = units::bytes(line.tally.bytes);
    match line.what {
        HostLineKind::PinnedCache => format!(
            "{size} of it in PyTorch's pinned cache, in {}, rounded up to powers of two; the part in use is not recorded",
            counted(line.tally.count, "block")
        ),
        HostLineKind::DriverContexts => format!("{size} pinned by the driver for contexts, in no sum above"),
        HostLineKind::DriverOther => format!("{size} pinned by the driver in other calls, in no sum above"),
    }
}

/// How PyTorch's allocator works.
pub fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Caching => "caching allocator, every tensor recorded",
        Mode::Expandable => "caching allocator with expandable segments, every tensor recorded",
        Mode::NoTensorEvents => "caching allocator that reported no tensors; its segments are listed as a pool",
        Mode::Ordered => "cudaMallocAsync backend: every tensor is a CUDA allocation",
        Mode::Uncached => "caching off: every tensor is a CUDA allocation",
    }
}
