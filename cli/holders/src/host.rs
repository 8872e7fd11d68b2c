//! Host memory: what the resident memory of the process is used for, and how much of it each holder keeps.
//!
//! ```text
//! smaps: mapping, resident bytes ─► pinned, then by the owner of its pages: Python's heap, an arena of malloc, a stack ─► other
//! chunk ─► its type: that of the object in it, of the object whose array it is, or of its virtual table ─► types
//!       └► the owner of its page ─► how much of Python's heap and of each arena is in use
//! ```
//!
//! No mapping counts for more than is resident of it: its pages were found at another time.
//!
//! A holder keeps what it dominates, as it does blocks of the GPU. Only memory whose size is known counts: chunks of glibc's malloc
//! and of CPython's allocator, and pinned blocks. A text or a number belongs to what refers to it if nothing else does. So the sums
//! are lower limits.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use culeak::analysis::words;
use culeak::proc::{self, Resident};
use culeak::snapshot::{Class, HostMemory, HostRow};

use crate::bits::Bits;
use crate::copy::{Image, PAGE};
use crate::findings::Findings;
use crate::graph::NodeKind;
use crate::native::kinds::Kind;
use crate::native::{Chunk, Heap, Native, Owner};
use crate::python::{Python, Sort};
use crate::walk::rules::object_in;
use crate::{Block, Map};

/// Types that are reported.
const MOST_TYPES: usize = 2000;
const OTHER_TYPES: &str = "(other types)";
/// What has not been looked at when the time was over.
const NOT_READ: &str = "(not read)";

/// What the resident memory is used for; `None` for a core file. `pinned`: pinned and managed memory, and
/// addresses of devices, in order.
pub fn usage(searched: &mut Findings, pinned: &[Range<u64>]) -> Option<HostMemory> {
    let copy = searched.copy;
    let mut found = HostMemory::default();
    let mut resident: BTreeMap<Owner, u64> = BTreeMap::new();
    for mapping in proc::resident(copy.source().pid()?).ok()? {
        let Resident {
            bytes, is_of_device, ..
        } = &mapping;
        let range = &mapping.mapping.range;
        found.resident_bytes += bytes;
        let mut left = *bytes;
        let mut take = |bytes: u64| {
            let taken = bytes.min(left);
            left -= taken;
            taken
        };
        let near = &pinned[pinned.partition_point(|block| block.end <= range.start)..];
        let common = |block: &Range<u64>| block.end.min(range.end).saturating_sub(block.start.max(range.start));
        found.pinned_bytes += take(near.iter().map(common).take_while(|bytes| *bytes > 0).sum());
        for (owner, bytes) in searched.native.owners(copy, range) {
            *resident.entry(owner).or_default() += take(bytes);
        }
        match mapping.mapping.file() {
            _ if *is_of_device => found.devices_bytes += left,
            Some(file) if file.starts_with("/dev") => found.devices_bytes += left,
            Some(_) => found.files_bytes += left,
            None => found.other_bytes += left,
        }
    }
    let (types, used) = types(searched);
    found.types = types;
    for (owner, bytes) in resident {
        let (in_use, count) = used.get(&owner).copied().unwrap_or_default();
        let (in_use, free) = (in_use.min(bytes), bytes.saturating_sub(in_use));
        let name = match owner {
            Owner::Stack => {
                found.stacks_bytes += bytes;
                continue;
            }
            Owner::Python => {
                (found.python_bytes, found.python_free_bytes) = (in_use, free);
                continue;
            }
            Owner::Arena(0) => "malloc: main arena".to_owned(),
            Owner::Arena(arena) => format!("malloc: arena {arena:#x}"),
            Owner::Mapped => "malloc: mappings of one chunk each".to_owned(),
        };
        found.malloc_bytes += in_use;
        found.malloc_free_bytes += free;
        let (bytes, free_bytes) = (in_use, free);
        found.arenas.push(HostRow {
            name,
            bytes,
            count,
            free_bytes,
        });
    }
    Some(found)
}

/// Bytes and number of the chunks in use of each owner.
type Used = BTreeMap<Owner, (u64, u64)>;

/// The chunks in use by type, the largest first. Those that were not read within the limits of time and size have none.
fn types(searched: &mut Findings) -> (Vec<HostRow>, Used) {
    let copy = searched.copy;
    let mut sums = Sums {
        copy,
        counted: Counted(Bits::new(copy.granules())),
        types: Map::default(),
        used: Used::new(),
    };
    let pieces = copy.pieces();
    // Arrays belong to their objects, so these come first.
    for are_objects in [true, false] {
        for (piece, kind) in pieces
            .iter()
            .flat_map(|piece| [(piece, Heap::Python), (piece, Heap::Glibc)])
        {
            for chunk in searched.native.chunks_in(copy, piece, kind) {
                match are_objects {
                    true => sums.object(searched, chunk),
                    false => {
                        let name = match searched.native.chunk(copy, chunk.start) {
                            None => "(the CUDA driver)".to_owned(),
                            Some(_) if searched.budget.stopped().is_some() => NOT_READ.to_owned(),
                            Some(_) => format!("(no type, up to {})", words::bytes(chunk.bytes.next_power_of_two())),
                        };
                        sums.add(&searched.native, chunk.start, &name, 1);
                    }
                }
            }
        }
    }
    let rows = sums.types.into_iter().map(|(name, (bytes, count))| HostRow {
        name,
        bytes,
        count,
        free_bytes: 0,
    });
    let mut rows: Vec<HostRow> = rows.collect();
    rows.sort_by(|a, b| (Reverse(a.bytes), &a.name).cmp(&(Reverse(b.bytes), &b.name)));
    (limited(rows, MOST_TYPES), sums.used)
}

/// The first rows; the others are one row.
fn limited(mut rows: Vec<HostRow>, most: usize) -> Vec<HostRow> {
    let others = rows.split_off(rows.len().min(most));
    rows.extend((!others.is_empty()).then(|| HostRow {
        name: OTHER_TYPES.to_owned(),
        bytes: others.iter().map(|row| row.bytes).sum(),
        count: others.iter().map(|row| row.count).sum(),
        free_bytes: 0,
    }));
    rows
}

/// The chunks that were counted, by granule.
struct Counted(Bits);

impl Counted {
    /// The chunk around a place, and how much of it is resident; `None` if it was counted, or its size is not known.
    fn add(&mut self, copy: &Image, native: &Native, place: u64) -> Option<(Chunk, u64)> {
        let chunk = native
            .around(copy, place.max(PAGE))
            .filter(|chunk| chunk.heap != Heap::Unknown)?;
        let is_new = copy.granule(chunk.start).is_some_and(|granule| self.0.set(granule));
        is_new.then(|| (chunk, native.resident(&chunk)))
    }
}

struct Sums<'c, 's> {
    copy: &'c Image<'s>,
    counted: Counted,
    types: Map<String, (u64, u64)>,
    used: Used,
}

impl Sums<'_, '_> {
    /// Adds the chunk around a place, unless it was counted.
    fn add(&mut self, native: &Native, place: u64, name: &str, count: u64) {
        let Some((chunk, bytes)) = self.counted.add(self.copy, native, place) else {
            return;
        };
        let Some(owner) = native.owner(self.copy, chunk.start) else {
            return;
        };
        let used = self.used.entry(owner).or_default();
        *used = (used.0 + bytes, used.1 + 1);
        let of = self.types.entry(name.to_owned()).or_default();
        *of = (of.0 + bytes, of.1 + count);
    }

    /// Adds a chunk that contains an object of Python or C++ with the chunks that are the object's, within the limits.
    fn object(&mut self, searched: &mut Findings, chunk: Chunk) {
        if !searched.budget.spend(1) {
            return;
        }
        let (copy, native) = (self.copy, &mut searched.native);
        let mut places = Vec::new();
        let (name, words): (String, Vec<u64>) = if let Some(python) = &mut searched.python
            && let Some(address) = object_in(copy, python, chunk)
            && let Some(of) = python.object(copy, address)
        {
            places.extend(python.arrays(copy, address, of).into_iter().map(|array| array.start));
            places.extend(buffer(copy, native, python, address));
            (
                python.type_name(of).to_owned(),
                python.words_of(copy, address, of).collect(),
            )
        } else if let Some(class) = native.class(copy, chunk.start) {
            (class.to_owned(), data(copy, native, chunk.start))
        } else {
            return;
        };
        // What many objects share is paid for by each of them.
        if !searched.budget.spend((words.len() + places.len()) as u64) {
            return;
        }
        places.extend((words.into_iter()).filter(|word| is_untyped(copy, native, searched.python.as_mut(), *word)));
        self.add(native, chunk.start, &name, 1);
        places.into_iter().for_each(|place| self.add(native, place, &name, 0));
    }
}

/// Whether a chunk begins here in which no object is.
fn is_untyped(copy: &Image, native: &mut Native, python: Option<&mut Python>, place: u64) -> bool {
    let chunk = native.around(copy, place);
    chunk
        .filter(|chunk| chunk.start == place && place >= PAGE)
        .is_some_and(|chunk| {
            python.is_none_or(|python| object_in(copy, python, chunk).is_none()) && native.class(copy, place).is_none()
        })
}

/// The words of a storage of PyTorch, one of which leads to the data of a tensor of the CPU.
fn data(copy: &Image, native: &mut Native, place: u64) -> Vec<u64> {
    let is_storage = native.kind(copy, place) == Kind::Storage;
    let words = 0..if is_storage { FIRST_WORDS } else { 0 };
    words.map(|word| copy.word(place + word * 8)).collect()
}

/// The bytes of host memory of each node that has some, by number; the blocks follow the nodes. `of_host`: the blocks that are
/// host memory.
pub(crate) fn weights(searched: &mut Findings, blocks: &[Block], of_host: &[usize]) -> Vec<(u32, u64)> {
    let (copy, native, graph, budget) = (
        searched.copy,
        &mut searched.native,
        &searched.graph,
        &mut searched.budget,
    );
    let mut counted = Counted(Bits::new(copy.granules()));
    let mut weights = Vec::new();
    let mut references = Vec::new();
    // Arrays belong to their objects, so these come first.
    'nodes: for kind in [NodeKind::Python, NodeKind::Native] {
        for node in graph.nodes().filter(|node| graph.kind(*node) == kind) {
            // The references of the object before, too.
            if !budget.spend(1 + references.drain(..).len() as u64) {
                break 'nodes;
            }
            let address = graph.address(node);
            let mut places = vec![address];
            match searched.python.as_mut().filter(|_| kind == NodeKind::Python) {
                Some(python) => {
                    let Some(of) = python.object(copy, address) else {
                        continue;
                    };
                    places.extend(python.arrays(copy, address, of).into_iter().map(|array| array.start));
                    python.references(copy, address, of, &mut references);
                    for target in references.iter().filter(|reference| reference.sort != Sort::Word) {
                        let is_leaf = python.object(copy, target.target).is_some_and(|of| python.is_leaf(of));
                        if is_leaf && python.count(copy, target.target) == 1 {
                            places.push(target.target);
                            places.extend(buffer(copy, native, python, target.target));
                        }
                    }
                }
                None => places.extend(data(copy, native, address)),
            }
            let chunks = places.into_iter().filter_map(|place| counted.add(copy, native, place));
            let bytes: u64 = chunks.map(|(_, bytes)| bytes).sum();
            if bytes > 0 {
                weights.push((node.0, bytes));
            }
        }
    }
    // Registered memory may be a chunk that an object has.
    let is_held = |block: &&usize| searched.found[**block].class != Class::Lost;
    for &block in of_host.iter().filter(is_held) {
        let Block { address, bytes, .. } = blocks[block];
        let is_chunk = (native.around(copy, address)).is_some_and(|chunk| chunk.heap != Heap::Unknown);
        let bytes = match is_chunk {
            true => counted.add(copy, native, address).map_or(0, |(_, bytes)| bytes),
            false => bytes,
        };
        weights.push(((graph.len() + block) as u32, bytes));
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;
    use crate::Options;
    use crate::process_tests::Victim;

    const LISTS: &str = "#!/usr/bin/env python3
import signal
class Page: pass
kept = [[Page(), bytearray(2000)] for _ in range(2000)]
print('ready', flush=True)
signal.pause()
";

    #[test]
    fn types_that_were_not_read_in_time_are_one_row_and_all_bytes_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("lists.py");
        std::fs::write(&program, LISTS).expect("written");
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("set");
        let victim = Victim::start(&program);
        let searched = |limit| {
            let options = Options {
                limit,
                host: true,
                ..Options::default()
            };
            let search = crate::search(&victim.process(), &[], &options)
                .expect("searched")
                .search;
            (search.host.expect("host memory"), search.limits)
        };
        let bytes = |host: &HostMemory, name: &str| {
            let mut rows = host.types.iter().filter(|row| row.name == name);
            rows.next().map_or(0, |row| row.bytes)
        };
        let is_limit = |limit: &String| limit.starts_with("the types and holders of host memory: not all");
        let (whole, limits) = searched(Duration::MAX);
        assert!(
            bytes(&whole, "bytearray") > 4_000_000 && bytes(&whole, NOT_READ) == 0,
            "{:?}",
            whole.types
        );
        assert!(!limits.iter().any(is_limit), "{limits:?}");
        let (cut, limits) = searched(Duration::ZERO);
        assert!(
            bytes(&cut, "bytearray") == 0 && bytes(&cut, NOT_READ) > 4_000_000,
            "{:?}",
            cut.types
        );
        assert!(limits.iter().any(is_limit), "{limits:?}");
        // The program may still have been on its way to its pause at the first look.
        let is_near = |one: u64, other: u64| one.abs_diff(other) < 1 << 16;
        assert!(is_near(cut.malloc_bytes, whole.malloc_bytes), "{cut:?} {whole:?}");
        assert!(is_near(cut.python_bytes, whole.python_bytes), "{cut:?} {whole:?}");
    }

    #[test]
    fn types_beyond_the_most_are_one_row() {
        let row = |nth: u64| HostRow {
            name: format!("type {nth}"),
            bytes: 100 - nth,
            count: 2,
            free_bytes: 0,
        };
        let rows = limited((0..5).map(row).collect(), 3);
        let others = rows.last().expect("a row");
        assert_eq!((rows.len(), &*others.name), (4, OTHER_TYPES));
        assert_eq!((others.bytes, others.count), (97 + 96, 4));
        assert_eq!(limited((0..3).map(row).collect(), 3).len(), 3);
    }
}
