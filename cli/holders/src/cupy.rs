//! The live blocks of CuPy's memory pools, read from a process that was never recorded.
//!
//! ```text
//! sys.modules["cupy.cuda.memory"].PooledMemory ─► its instances: { count, class, address of the memory, bytes, device, … }
//! ```
//!
//! Each block that a pool gave out has such an object, and memory of no pool has one of class `Memory`. No list contains them, so all copied
//! memory is searched for words that are the address of the class. A block that was given back has no address.

use std::collections::HashSet;

use crate::copy::Image;
use crate::modules::Modules;
use crate::python::Python;
use crate::pytorch::LiveBlock;
use crate::source::Source;

const MODULE: &str = "cupy.cuda.memory";
/// In the path of the module's file.
const FILE: &str = "/cupy/cuda/memory.";
/// Memory of CuPy's own pools, of the driver's pools, and of no pool; and a part of what a pool has, which leads to such memory.
const CLASSES: [&str; 4] = ["PooledMemory", "MemoryAsync", "Memory", "_Chunk"];
const POOLED: usize = 0;
const UNPOOLED: usize = 2;
const CHUNK: usize = 3;
/// The words of a chunk.
const CHUNK_BYTES: u64 = 96;
/// In an object, behind its count and its class.
const ADDRESS: u64 = 16;
const BYTES: u64 = 24;
const DEVICE: u64 = 32;
/// The address of a class, in an object.
const CLASS: u64 = 8;
const MOST_DEVICES: u32 = 64;
/// Pools give out whole units of these bytes.
const UNIT: u64 = 512;

/// Reads them, by address. `None`: the process has not loaded CuPy.
///
/// # Errors
/// Why they cannot be read, as a sentence.
pub fn live_blocks(source: &dyn Source) -> Result<Option<Vec<LiveBlock>>, String> {
    let regions = source
        .regions()
        .map_err(|error| format!("its memory map cannot be read ({error})"))?;
    if !regions.iter().any(|region| region.name.contains(FILE)) {
        return Ok(None);
    }
    let copy = Image::take(source, &[]).map_err(|error| error.to_string())?;
    let modules = Modules::find(&copy);
    let python = Python::find(&copy, &modules).map_err(|error| error.to_string())?;
    let mut python = python.ok_or("it has loaded CuPy and no Python")?;
    let classes = CLASSES.map(|class| python.attribute_of_module(&copy, MODULE, class));
    if classes[POOLED].is_none() {
        return Err(format!("CuPy in it has no {MODULE}.{}", CLASSES[POOLED]));
    }
    let (mut objects, mut of_pools) = (Vec::new(), HashSet::new());
    for run in copy.runs() {
        for object in (run.start..run.end - CLASS).step_by(8) {
            let class = Some(copy.word(object + CLASS));
            let Some(class) = classes.iter().position(|of| *of == class) else {
                continue;
            };
            if class == CHUNK {
                of_pools.extend((object..object + CHUNK_BYTES).step_by(8).map(|place| copy.word(place)));
            } else if python.is_counted(copy.word(object)) {
                objects.push((class, object));
            }
        }
    }
    objects.retain(|(class, object)| *class != UNPOOLED || !of_pools.contains(object));
    let (mut blocks, mut others) = (Vec::new(), 0);
    for (class, object) in objects {
        let (address, bytes) = (copy.word(object + ADDRESS), copy.word(object + BYTES));
        let device = copy.half(object + DEVICE);
        if address == 0 || bytes == 0 {
            continue;
        }
        let is_whole = address % UNIT == 0 && (bytes % UNIT == 0 || class != POOLED);
        let is_memory = is_whole && address.checked_add(bytes).is_some_and(|end| end >> 47 == 0);
        // A tuple of classes has such words, too.
        if !is_memory || device >= MOST_DEVICES {
            others += 1;
            continue;
        }
        blocks.push(LiveBlock {
            address,
            bytes,
            requested: bytes,
            device: device as i8,
            stream: 0,
        });
    }
    if others > blocks.len() + 8 {
        return Err("the objects of CuPy's pools are not understood (an unknown version)".to_owned());
    }
    blocks.sort_unstable();
    blocks.dedup_by_key(|block| block.address);
    Ok(Some(blocks))
}
