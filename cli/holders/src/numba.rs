//! The live arrays' memory of numba, read from a process that was never recorded.
//!
//! ```text
//! sys.modules["numba.cuda.cudadrv.driver"].MemoryPointer, AutoFreePointer ─► their instances:
//!     size │ _owner: None, or of what this is a part │ context ─► device ─► id, both by weak proxies
//!     device_pointer: an object of ctypes or cuda.bindings, with a pointer to the address in itself
//! ```
//!
//! No list contains them, so all copied memory is searched for words that are the address of a class. Arrays that numba has put off
//! freeing have no such object.

use std::collections::HashMap;

use crate::copy::Image;
use crate::modules::Modules;
use crate::python::Python;
use crate::pytorch::LiveBlock;
use crate::source::Source;

const MODULE: &str = "numba.cuda.cudadrv.driver";
/// In the paths of its compiled modules.
const FOLDER: &str = "/numba";
const CLASSES: [&str; 2] = ["MemoryPointer", "AutoFreePointer"];
/// The address of a class, in an object.
const CLASS: u64 = 8;
/// The words of a pointer's object behind its count and class.
const POINTER: std::ops::Range<u64> = 16..96;

/// What a weak reference leads to, in its object.
const REFERENT: u64 = 16;

/// Reads it, by address. `None`: the process has not loaded numba's driver.
///
/// # Errors
/// Why it cannot be read, as a sentence.
pub fn live_blocks(source: &dyn Source) -> Result<Option<Vec<LiveBlock>>, String> {
    let regions = source
        .regions()
        .map_err(|error| format!("its memory map cannot be read ({error})"))?;
    if !regions.iter().any(|region| region.name.contains(FOLDER)) {
        return Ok(None);
    }
    let copy = Image::take(source, &[]).map_err(|error| error.to_string())?;
    let modules = Modules::find(&copy);
    let python = Python::find(&copy, &modules).map_err(|error| error.to_string())?;
    let Some(mut python) = python else { return Ok(None) };
    let classes = CLASSES.map(|class| python.attribute_of_module(&copy, MODULE, class));
    if classes.iter().all(Option::is_none) {
        return Ok(None);
    }
    let (mut blocks, mut others) = (Vec::new(), 0);
    for run in copy.runs() {
        for object in (run.start..run.end - CLASS).step_by(8) {
            let class = Some(copy.word(object + CLASS));
            if !classes.contains(&class) || !python.is_counted(copy.word(object)) {
                continue;
            }
            match block(&mut python, &copy, object) {
                Some(block) => blocks.extend(block),
                None => others += 1,
            }
        }
    }
    // A tuple of classes has such words, too.
    if others > blocks.len() + 8 {
        return Err("the objects of numba's memory are not understood (an unknown version)".to_owned());
    }
    blocks.sort_unstable();
    blocks.dedup_by_key(|block| block.address);
    Ok(Some(blocks))
}

/// The memory of an instance: none if it is a part of another's. `None`: it is no instance.
fn block(python: &mut Python, copy: &Image, object: u64) -> Option<Option<LiveBlock>> {
    let attributes: HashMap<String, u64> = python.values_by_name(copy, object).into_iter().collect();
    let number = |python: &Python, at: u64| u64::try_from(python.small_number(copy, at)?).ok();
    let bytes = number(python, *attributes.get("size")?)?;
    let owner = python.object(copy, *attributes.get("_owner")?)?;
    if python.type_name(owner) != "NoneType" {
        return Some(None);
    }
    let pointer = *attributes.get("device_pointer")?;
    let places = (POINTER.step_by(8)).map(|at| copy.word(pointer + at));
    let mut inside = places.filter(|place| (pointer + POINTER.start..pointer + POINTER.end).contains(place));
    let address = copy.word(inside.next()?);
    let mut behind = |object: u64| {
        let of = python.object(copy, object)?;
        let is_proxy = matches!(python.type_name(of), "ProxyType" | "weakproxy");
        let object = if is_proxy { copy.word(object + REFERENT) } else { object };
        Some(
            python
                .values_by_name(copy, object)
                .into_iter()
                .collect::<HashMap<String, u64>>(),
        )
    };
    let context = behind(*attributes.get("context")?)?;
    let device = behind(*context.get("device")?)?;
    let device = i8::try_from(number(python, *device.get("id")?)?).ok()?;
    (address != 0 && bytes > 0 && address.checked_add(bytes)? >> 47 == 0).then_some(Some(LiveBlock {
        address,
        bytes,
        requested: bytes,
        device,
        stream: 0,
    }))
}
