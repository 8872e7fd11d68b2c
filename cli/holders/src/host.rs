//! Host memory: what the resident memory of the process is used for, and how much of it each holder keeps.
//!
//! A holder keeps what it dominates, as it does blocks of the GPU. Only memory whose size is known counts: chunks of glibc's malloc
//! and of CPython's allocator. A text or a number belongs to what refers to it if nothing else does. So the sums are lower limits.

use culeak::proc;
use culeak::snapshot::HostMemory;

use crate::bits::Bits;
use crate::copy::{Image, PAGE};
use crate::findings::Findings;
use crate::graph::NodeKind;
use crate::native::kinds::Kind;
use crate::native::{Heap, Native, pages};
use crate::python::{Count, Python, Sort};

/// What the resident memory is used for; `None` for a core file.
pub fn usage(copy: &Image, native: &Native) -> Option<HostMemory> {
    let pid = copy.source().pid()?;
    // A mapping of a stack may contain other memory.
    let mut found = HostMemory {
        stacks_bytes: native.stack_bytes(),
        ..HostMemory::default()
    };
    for (mapping, resident) in proc::resident(pid).ok()? {
        found.resident_bytes += resident;
        match mapping.file() {
            Some(file) if file.starts_with("/dev") => found.devices_bytes += resident,
            Some(_) => found.files_bytes += resident,
            None => {}
        }
    }
    for (of, used, free) in [
        (pages::Kind::Pool, &mut found.python_bytes, &mut found.python_free_bytes),
        (
            pages::Kind::Glibc,
            &mut found.malloc_bytes,
            &mut found.malloc_free_bytes,
        ),
    ] {
        let (all, in_use) = native.bytes_in_use(copy, of);
        (*used, *free) = (in_use, all - in_use);
    }
    let known = found.named().iter().map(|(_, bytes)| bytes).sum();
    found.other_bytes = found.resident_bytes.saturating_sub(known);
    Some(found)
}

/// The bytes of host memory of each node that has some, by number.
pub(crate) fn weights(searched: &mut Findings) -> Vec<(u32, u64)> {
    let (copy, native, graph) = (searched.copy, &mut searched.native, &searched.graph);
    let mut counted = Bits::new(copy.granules());
    let mut weights = Vec::new();
    let mut references = Vec::new();
    // Arrays belong to their objects, so these come first.
    for kind in [NodeKind::Python, NodeKind::Native] {
        for node in graph.nodes().filter(|node| graph.kind(*node) == kind) {
            let address = graph.address(node);
            let mut places = vec![address];
            match searched.python.as_mut().filter(|_| kind == NodeKind::Python) {
                Some(python) => {
                    let Some(of) = python.object(copy, address) else {
                        continue;
                    };
                    places.extend(python.arrays(copy, address, of).into_iter().map(|array| array.start));
                    references.clear();
                    python.references(copy, address, of, &mut references);
                    for target in references.iter().filter(|reference| reference.sort != Sort::Word) {
                        let is_leaf = python.object(copy, target.target).is_some_and(|of| python.is_leaf(of));
                        if is_leaf && python.count(copy, target.target) == Count::Exactly(1) {
                            places.push(target.target);
                            places.extend(buffer(copy, native, python, target.target));
                        }
                    }
                }
                // The data of a tensor of the CPU.
                None if native.kind(copy, address) == Kind::Storage => {
                    places.extend((0..FIRST_WORDS).map(|word| copy.word(address + word * 8)));
                }
                None => {}
            }
            let of_place = |place: u64| {
                let chunk = native.around(copy, place).filter(|chunk| chunk.heap != Heap::Window)?;
                let is_new = copy.granule(chunk.start).is_some_and(|granule| counted.set(granule));
                is_new.then_some(native.resident(&chunk))
            };
            let bytes: u64 = places
                .into_iter()
                .filter(|place| *place >= PAGE)
                .filter_map(of_place)
                .sum();
            if bytes > 0 {
                weights.push((node.0, bytes));
            }
        }
    }
    weights
}

/// The memory that a `bytearray` or `array.array` has beside itself; what texts and numbers contain is no address.
fn buffer(copy: &Image, native: &Native, python: &mut Python, object: u64) -> Option<u64> {
    const FIELDS: u64 = 4;
    let of = python.object(copy, object)?;
    let has_one = ["bytearray", "array"].contains(&python.type_name(of));
    let words = (3..3 + FIELDS).map(|word| copy.word(object + word * 8));
    let is_chunk = |place: &u64| native.around(copy, *place).is_some_and(|chunk| chunk.start == *place);
    words.filter(|_| has_one).find(is_chunk)
}

/// Of a `c10::StorageImpl`: up to and including its pointer to the data.
const FIRST_WORDS: u64 = crate::walk::FIRST_BYTES / 8;
