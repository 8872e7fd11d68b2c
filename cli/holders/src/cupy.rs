//! The live blocks of CuPy's memory pools, read from a process that was never recorded.
//!
//! ```text
//! sys.modules["cupy.cuda.memory"].PooledMemory ─► its instances: { count, class, address of the memory, bytes, device, … }
//! ```
//!
//! Each block that a pool gave out has such an object, which no list contains; so all copied memory is searched for words that are the
//! address of the class. A block that was given back has no address.

use crate::copy::Copy;
use crate::modules::Modules;
use crate::python::Python;
use crate::pytorch::LiveBlock;
use crate::source::Source;

const MODULE: &str = "cupy.cuda.memory";
/// In the path of the module's file.
const FILE: &str = "/cupy/cuda/memory.";
/// Memory of CuPy's own pools, and of the driver's pools.
const CLASSES: [&str; 2] = ["PooledMemory", "MemoryAsync"];
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
    let copy = Copy::take(source, &[]).map_err(|error| error.to_string())?;
    let modules = Modules::find(&copy);
    let python = Python::find(&copy, &modules).map_err(|error| error.to_string())?;
    let mut python = python.ok_or("it has loaded CuPy and no Python")?;
    let classes = CLASSES.map(|class| python.attribute_of_module(&copy, MODULE, class));
    if classes[0].is_none() {
        return Err(format!("CuPy in it has no {MODULE}.{}", CLASSES[0]));
    }
    let (mut blocks, mut others) = (Vec::new(), 0);
    for run in copy.runs() {
        let places = (run.start + CLASS..run.end).step_by(8);
        for place in places.filter(|place| classes.contains(&Some(copy.word(*place)))) {
            let object = place - CLASS;
            let (address, bytes) = (copy.word(object + ADDRESS), copy.word(object + BYTES));
            if !python.is_counted(copy.word(object)) || address == 0 || bytes == 0 {
                continue;
            }
            let device = copy.half(object + DEVICE);
            let is_whole = address % UNIT == 0 && (bytes % UNIT == 0 || copy.word(place) != classes[0].unwrap_or(0));
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
    }
    if others > blocks.len() + 8 {
        return Err("the objects of CuPy's pools are not understood (an unknown version)".to_owned());
    }
    blocks.sort_unstable();
    blocks.dedup_by_key(|block| block.address);
    Ok(Some(blocks))
}
