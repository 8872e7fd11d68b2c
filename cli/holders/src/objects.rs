//! The live blocks of CuPy, numba and RMM, each of which an object of Python has, read from a process that was never recorded.
//!
//! ```text
//! sys.modules["rmm.pylibrmm.device_buffer"].DeviceBuffer ─► its instances: { count, class, virtual functions, buffer, … }
//!     buffer: { address, bytes in use, alignment (from 26.06 on), bytes, stream, resource, device }
//! sys.modules["cupy.cuda.memory"].PooledMemory, … ─► their instances: { count, class, address (0: given back), bytes, device, … }
//! sys.modules["numba.cuda.cudadrv.driver"].MemoryPointer, … ─► their instances:
//!     size │ is_managed: numba frees it │ context ─► device ─► id, both by weak proxies
//!     device_pointer: an object of ctypes or cuda.bindings, with a pointer to the address in itself
//! ```
//!
//! No list contains them, so all copied memory is searched for words that are the address of a class. Memory of no pool of CuPy has an
//! object of class `Memory`. Arrays that numba has put off freeing have no object. RMM's buffers that only C++ has are in no
//! object of Python. Where their device lies depends on the version of RMM.

use crate::budget::{Budget, Deadline, UNFINISHED};
use crate::copy::Image;
use crate::modules::Modules;
use crate::python::Python;
use crate::pytorch::LiveBlock;
use crate::source::{Source, regions_of};
use crate::{Map, Set};

/// A library of Python that allocates memory.
#[derive(Debug)]
pub struct Library {
    pub name: &'static str,
    /// What gives out its blocks.
    pub allocator: &'static str,
    /// In the paths of its files.
    path: &'static str,
    module: &'static str,
    classes: &'static [&'static str],
    read: Read,
}

/// Address, bytes and device for objects, each with its class. 0 bytes: no memory of its own. `None`: an
/// object is not understood.
type Read = fn(&mut Python, &Image, &[(&str, u64)], &mut Budget) -> Vec<Option<[u64; 3]>>;

const LIBRARIES: [Library; 4] = [
    of_rmm("/rmm/pylibrmm/device_buffer.", "rmm.pylibrmm.device_buffer"),
    // Before 24.12.
    of_rmm("/rmm/_lib/device_buffer.", "rmm._lib.device_buffer"),
    Library {
        name: "CuPy",
        allocator: "MemoryPool",
        path: "/cupy/cuda/memory.",
        module: "cupy.cuda.memory",
        // Memory of CuPy's own pools, of the driver's pools, and of no pool; and a part of what a pool has, which leads to such memory.
        classes: &["PooledMemory", "MemoryAsync", "Memory", "_Chunk"],
        read: of_cupy,
    },
    Library {
        name: "numba",
        allocator: "cuMemAlloc",
        path: "/numba",
        module: "numba.cuda.cudadrv.driver",
        classes: &["MemoryPointer", "AutoFreePointer", "ManagedMemory"],
        read: of_numba,
    },
];

const fn of_rmm(path: &'static str, module: &'static str) -> Library {
    Library {
        name: "RMM",
        allocator: "device_memory_resource",
        path,
        module,
        classes: &["DeviceBuffer"],
        read: buffers,
    }
}

/// What was found of a library.
#[derive(Debug)]
pub struct LibraryBlocks {
    pub library: &'static Library,
    /// By address.
    pub blocks: Vec<LiveBlock>,
    /// All objects that the library has for memory, those without any included.
    pub objects: usize,
    /// Those that are not understood and whose memory is left out: half of them at most.
    pub others: usize,
}

/// The bytes behind the head of an object that may lead to others.
const OBJECT_BYTES: u64 = 80;
/// CuPy's pools give out whole units of these bytes.
const UNIT: u64 = 512;
const MOST_DEVICES: u64 = 64;
/// CPython's allocators align objects, and the headers before them, to these bytes.
const ALIGNMENT: u64 = 16;
/// The bytes of the head of each object in free-threaded builds.
const FREE_THREADED: u64 = 32;

/// Reads them of each library that the process has loaded, or says as a sentence why they cannot be read.
pub fn live_blocks(source: &dyn Source, deadline: Deadline) -> Vec<Result<LibraryBlocks, String>> {
    let all = || {
        let regions = regions_of(source)?;
        let is_loaded = |library: &&Library| regions.iter().any(|region| region.name.contains(library.path));
        let loaded: Vec<&Library> = LIBRARIES.iter().filter(is_loaded).collect();
        if loaded.is_empty() {
            return Ok(Vec::new());
        }
        let copy = Image::take(source, &[]).map_err(|error| error.to_string())?;
        let python = Python::find(&copy, &Modules::find(&copy)).map_err(|error| error.to_string())?;
        let Some(mut python) = python else {
            return Ok(Vec::new());
        };
        let of_library = |library| found(library, &mut python, &copy, deadline).transpose();
        Ok(loaded.into_iter().filter_map(of_library).collect())
    };
    all().unwrap_or_else(|why| vec![Err(why)])
}

/// `None`: the process has not loaded the module.
fn found(
    library: &'static Library,
    python: &mut Python,
    copy: &Image,
    deadline: Deadline,
) -> Result<Option<LibraryBlocks>, String> {
    let class_of = |class: &&'static str| Some((python.attribute_of_module(copy, library.module, class)?, *class));
    let classes: Vec<(u64, &str)> = library.classes.iter().filter_map(class_of).collect();
    if classes.is_empty() {
        return Ok(None);
    }
    let head = python.head();
    let mut objects = Vec::new();
    for run in copy.runs() {
        for object in (run.start.next_multiple_of(ALIGNMENT)..run.end.saturating_sub(head)).step_by(ALIGNMENT as usize)
        {
            let word = copy.word(object + head - 8);
            let class = classes.iter().find(|(class, _)| *class == word);
            let class = class.filter(|_| python.is_counted(copy, object) && !is_in_object(python, copy, object));
            objects.extend(class.map(|(_, name)| (*name, object)));
        }
    }
    let mut budget = Budget::new(copy, deadline);
    let (mut blocks, mut understood, mut others) = (Vec::new(), 0, 0);
    for memory in (library.read)(python, copy, &objects, &mut budget) {
        match memory {
            Some([0, ..] | [_, 0, _]) => understood += 1,
            Some([address, bytes, device])
                if device < MOST_DEVICES && address.checked_add(bytes).is_some_and(|end| end >> 47 == 0) =>
            {
                understood += 1;
                blocks.push(LiveBlock::of(address, bytes, bytes, device as i8));
            }
            _ => others += 1,
        }
    }
    let why = match budget.stopped() {
        Some(_) => UNFINISHED,
        None if others > understood => "they are not understood (an unknown version)",
        None => "",
    };
    if !why.is_empty() {
        return Err(format!("the objects of {}'s memory: {why}", library.name));
    }
    blocks.sort_unstable();
    blocks.dedup_by_key(|block| block.address);
    Ok(Some(LibraryBlocks {
        library,
        blocks,
        objects: understood + others,
        others,
    }))
}

/// Whether these words follow the head of another object: the size and the first item of a tuple of classes, a number that equals the
/// address of one. The size is where the count would be, which is behind the first word in free-threaded builds.
fn is_in_object(python: &mut Python, copy: &Image, object: u64) -> bool {
    let before = if python.head() == FREE_THREADED { 24 } else { 16 };
    let other = object.wrapping_sub(before);
    python.object(copy, other).is_some() && python.is_counted(copy, other)
}

fn of_cupy(python: &mut Python, copy: &Image, objects: &[(&str, u64)], _: &mut Budget) -> Vec<Option<[u64; 3]>> {
    let head = python.head();
    let chunks = objects.iter().filter(|(class, _)| *class == "_Chunk");
    let of_pools: Set<u64> = chunks
        .flat_map(|(_, chunk)| (*chunk..*chunk + head + OBJECT_BYTES).step_by(8))
        .map(|place| copy.word(place))
        .collect();
    let is_given_out = |(class, object): &&(&str, u64)| {
        *class != "_Chunk" && !(class.ends_with("Memory") && *class != "PooledMemory" && of_pools.contains(object))
    };
    let memory = |(class, object): &(&str, u64)| {
        let (address, bytes) = (copy.word(object + head), copy.word(object + head + 8));
        let is_whole = address % UNIT == 0 && (bytes % UNIT == 0 || *class != "PooledMemory");
        is_whole.then(|| [address, bytes, copy.half(object + head + 16).into()])
    };
    objects.iter().filter(is_given_out).map(memory).collect()
}

/// Where the device is in RMM's buffers without an alignment. `None`: versions before 23.12 do not store it.
fn place_of_device(python: &mut Python, copy: &Image) -> Option<u64> {
    let version = python.attribute_of_module(copy, "rmm", "__version__")?;
    let version = python.text(copy, version, 16)?;
    let mut parts = version.split('.').map(str::parse::<u32>);
    // Since 26.02 the buffer owns its resource; before, it refers to one.
    match (parts.next()?.ok()?, parts.next()?.ok()?) {
        (year, month) if (year, month) >= (26, 2) => Some(0x50),
        (year, month) if (year, month) >= (23, 12) => Some(0x30),
        _ => None,
    }
}

fn buffers(python: &mut Python, copy: &Image, objects: &[(&str, u64)], _: &mut Budget) -> Vec<Option<[u64; 3]>> {
    /// More than a buffer has, and less than the address of a stream.
    const MOST: u64 = 1 << 40;
    let head = python.head();
    let without_alignment = place_of_device(python, copy);
    let memory = |(_, object): &(&str, u64)| {
        let buffer = copy.word(object + head + 8);
        if buffer == 0 {
            return Some([0; 3]);
        }
        let [address, used, third, fourth] = [0, 8, 16, 24].map(|field| copy.word(buffer.wrapping_add(field)));
        let has_alignment = third.is_power_of_two() && third <= 4096 && (used..MOST).contains(&fourth);
        let (bytes, device) = match has_alignment {
            true => (fourth, Some(0x60)),
            false => (third, without_alignment),
        };
        let device = device.map_or(0, |place| copy.half(buffer.wrapping_add(place)).into());
        (copy.has(buffer) && (used..MOST).contains(&bytes)).then_some([address, bytes, device])
    };
    objects.iter().map(memory).collect()
}

fn of_numba(python: &mut Python, copy: &Image, objects: &[(&str, u64)], budget: &mut Budget) -> Vec<Option<[u64; 3]>> {
    let head = python.head();
    let mut memory = |object: u64| {
        let mut attributes = |python: &mut Python, object: u64| {
            let of = python.object(copy, object)?;
            let is_proxy = matches!(python.type_name(of), "ProxyType" | "weakproxy");
            let object = if is_proxy { copy.word(object + head) } else { object };
            // Objects may share a large dictionary.
            let values = budget.spend(1).then(|| python.values_by_name(copy, object))?;
            (budget.spend(values.len() as u64)).then(|| values.into_iter().collect::<Map<String, u64>>())
        };
        let own = attributes(python, object)?;
        let bytes = python.natural_number(copy, *own.get("size")?)?;
        // Parts of arrays, and memory of other processes and modules, are not.
        let is_managed = python.natural_number(copy, *own.get("is_managed")?)? == 1;
        if bytes == 0 || !is_managed {
            return Some([0; 3]);
        }
        let pointer = *own.get("device_pointer")?;
        let words = pointer + head..pointer + head + OBJECT_BYTES;
        let mut inside = words.clone().step_by(8).map(|at| copy.word(at));
        let address = copy.word(inside.find(|place| words.contains(place))?);
        let context = attributes(python, *own.get("context")?)?;
        let device = attributes(python, *context.get("device")?)?;
        Some([address, bytes, python.natural_number(copy, *device.get("id")?)?])
    };
    objects.iter().map(|(_, object)| memory(*object)).collect()
}
