//! Addresses: a reserved range allocated in pieces; the piece freed last is allocated first.
//!
//! A real driver reuses addresses eagerly, and a leak profiler must get that right, so the reuse here is eager and
//! predictable: the next request of the same rounded size gets the address freed last.

use std::collections::HashMap;

pub struct Arena {
    next: u64,
    end: u64,
    unit: u64,
    free: HashMap<u64, Vec<u64>>,
    /// From this size on, the pages of freed pieces are returned to the kernel.
    backed: bool,
}

impl Arena {
    /// A range that can be read and written; pages use no memory until they are touched.
    pub fn backed(bytes: u64, unit: u64) -> Option<Arena> {
        Arena::at(map(bytes, libc::PROT_READ | libc::PROT_WRITE)?, bytes, unit, true)
    }

    /// A range that faults on every access: for handles, which no program may dereference.
    pub fn unbacked(bytes: u64, unit: u64) -> Option<Arena> {
        Arena::at(map(bytes, libc::PROT_NONE)?, bytes, unit, false)
    }

    /// A range below 4 GiB, for functions that know only 32-bit addresses.
    pub fn low(bytes: u64, unit: u64) -> Option<Arena> {
        Arena::at(map_low(bytes)?, bytes, unit, true)
    }

    fn at(start: u64, bytes: u64, unit: u64, backed: bool) -> Option<Arena> {
        Some(Arena {
            next: start.next_multiple_of(unit),
            end: start + bytes,
            unit,
            free: HashMap::new(),
            backed,
        })
    }

    /// The same from a multiple of `alignment` on.
    pub fn aligned(mut self, alignment: u64) -> Arena {
        self.next = self.next.next_multiple_of(alignment).min(self.end);
        self
    }

    pub fn rounded(&self, bytes: u64) -> Option<u64> {
        bytes.max(1).checked_next_multiple_of(self.unit)
    }

    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let bytes = self.rounded(bytes)?;
        if let Some(address) = self.free.get_mut(&bytes).and_then(Vec::pop) {
            return Some(address);
        }
        if bytes > self.end - self.next {
            self.join_free_pieces();
        }
        if bytes <= self.end - self.next {
            let address = self.next;
            self.next += bytes;
            return Some(address);
        }
        let (&size, _) = self
            .free
            .iter()
            .filter(|(size, pieces)| **size >= bytes && !pieces.is_empty())
            .min()?;
        let address = self.free.get_mut(&size)?.pop()?;
        if size > bytes {
            self.free.entry(size - bytes).or_default().push(address + bytes);
        }
        Some(address)
    }

    pub fn give_back(&mut self, address: u64, bytes: u64) {
        let Some(bytes) = self.rounded(bytes) else { return };
        if self.backed {
            drop_pages(address, bytes);
        }
        self.free.entry(bytes).or_default().push(address);
    }

    fn join_free_pieces(&mut self) {
        let mut pieces: Vec<(u64, u64)> = self
            .free
            .drain()
            .flat_map(|(size, at)| at.into_iter().map(move |at| (at, size)))
            .collect();
        pieces.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (at, size) in pieces {
            match joined.last_mut() {
                Some((start, length)) if *start + *length == at => *length += size,
                _ => joined.push((at, size)),
            }
        }
        for (at, size) in joined {
            if at + size == self.next {
                self.next = at;
            } else {
                self.free.entry(size).or_default().push(at);
            }
        }
    }
}

fn map(bytes: u64, protection: libc::c_int) -> Option<u64> {
    map_near(0, bytes, protection)
}

/// Readable and writable memory below 4 GiB. Only x86-64 has MAP_32BIT, so this asks for one address after the other.
fn map_low(bytes: u64) -> Option<u64> {
    let step = 256 << 20;
    let candidates = (1..16).map(|n| n * step).filter(|start| start + bytes <= 1 << 32);
    candidates.into_iter().find_map(|start| {
        let address = map_near(start, bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        if address + bytes <= 1 << 32 {
            return Some(address);
        }
        unreserve(address, bytes);
        None
    })
}

/// A new mapping, at `hint` if that range is free; the kernel chooses the place for the hint 0.
fn map_near(hint: u64, bytes: u64, protection: libc::c_int) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED, a new anonymous mapping touches no existing memory.
    let address = unsafe { libc::mmap(hint as *mut libc::c_void, bytes as usize, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return None;
    }
    leave_out_of_core_files(address as u64, bytes);
    Some(address as u64)
}

/// A core file has no memory of devices, and the address space of a fake one would fill the disk.
fn leave_out_of_core_files(address: u64, bytes: u64) {
    // SAFETY: callers pass a mapping of their own; its contents do not change.
    unsafe { libc::madvise(address as *mut libc::c_void, bytes as usize, libc::MADV_DONTDUMP) };
}

fn drop_pages(address: u64, bytes: u64) {
    // SAFETY: sysconf has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let start = address.next_multiple_of(page);
    let end = (address + bytes) & !(page - 1);
    if start < end {
        // SAFETY: the pages lie wholly inside a piece of our own mapping that was just freed.
        unsafe { libc::madvise(start as *mut libc::c_void, (end - start) as usize, libc::MADV_DONTNEED) };
    }
}

/// A reserved address range outside any arena (cuMemAddressReserve).
pub fn reserve(bytes: u64) -> Option<u64> {
    map(bytes, libc::PROT_NONE)
}

/// Makes part of a reserved range accessible, with its contents.
pub fn open_pages(address: u64, bytes: u64) -> bool {
    // SAFETY: callers pass whole pages inside a range from `reserve`, which nothing but mapped CUDA memory uses.
    unsafe {
        libc::mprotect(
            address as *mut libc::c_void,
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
        ) == 0
    }
}

/// Clears part of a reserved range and makes it fault again.
pub fn close_pages(address: u64, bytes: u64) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: callers pass whole pages inside a range from `reserve`, which nothing but mapped CUDA memory uses.
    unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            bytes as usize,
            libc::PROT_NONE,
            flags,
            -1,
            0,
        )
    };
    leave_out_of_core_files(address, bytes);
}

pub fn unreserve(address: u64, bytes: u64) {
    // SAFETY: the range came from `reserve` with this size and nothing is mapped into it any more.
    unsafe { libc::munmap(address as *mut libc::c_void, bytes as usize) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_files_contain_no_device_memory() {
        const BYTES: u64 = 16 << 20;
        // The flags of the mapping that contains an address.
        let flags = |address: u64| {
            let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let contains = |line: &str| {
                let range = line.split(' ').next().and_then(|range| range.split_once('-'));
                let [start, end] = range.map(|(start, end)| [start, end].map(|text| u64::from_str_radix(text, 16)))?;
                Some((start.ok()?..end.ok()?).contains(&address))
            };
            let mut lines = maps.lines().skip_while(|line| contains(line) != Some(true));
            lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap().to_owned()
        };
        let memory = map(BYTES, libc::PROT_READ | libc::PROT_WRITE).unwrap();
        assert!(flags(memory).contains(" dd"), "{}", flags(memory));
        let reserved = reserve(BYTES).unwrap();
        close_pages(reserved, BYTES / 2);
        assert!(open_pages(reserved, BYTES));
        for address in [reserved, reserved + BYTES - 1] {
            assert!(flags(address).contains(" dd"), "{}", flags(address));
        }
        for address in [memory, reserved] {
            unreserve(address, BYTES);
        }
    }

    #[test]
    fn the_address_freed_last_is_allocated_first() {
        let mut arena = Arena::unbacked(1 << 20, 512).unwrap();
        let (a, b) = (arena.take(1000).unwrap(), arena.take(1000).unwrap());
        assert_eq!(b - a, 1024);
        arena.give_back(a, 1000);
        arena.give_back(b, 1000);
        assert_eq!((arena.take(900), arena.take(1024)), (Some(b), Some(a)));
    }

    #[test]
    fn freed_pieces_are_joined_into_one_large_range() {
        let mut arena = Arena::unbacked(1 << 16, 512).unwrap();
        let pieces: Vec<u64> = std::iter::from_fn(|| arena.take(512)).collect();
        assert_eq!(pieces.len(), 128);
        for &piece in &pieces[..64] {
            arena.give_back(piece, 512);
        }
        assert_eq!(arena.take(64 * 512), Some(pieces[0]));
        assert_eq!(arena.take(1), None);
    }

    #[test]
    fn impossible_sizes_are_rejected() {
        let mut arena = Arena::unbacked(1 << 16, 512).unwrap();
        assert_eq!(arena.take(u64::MAX), None);
        assert_eq!(arena.take(u64::MAX - 1000), None);
    }
}
