//! Rounding after random allocations and frees.

use std::collections::BTreeMap;

use super::*;

/// The driver's suballocation, as measured: blocks up to 1 MiB share pages, larger ones have pages of their own.
struct Allocator {
    live: BTreeMap<u64, u64>,
    /// Free units of 512 bytes of each shared page.
    shared: Vec<(u64, Vec<bool>)>,
    own: BTreeMap<u64, u64>,
    next: u64,
}

impl Allocator {
    fn allocate(&mut self, bytes: u64) -> u64 {
        let pages = bytes.div_ceil(2 * MIB);
        let fresh = |next: &mut u64| {
            let address = *next;
            *next += 64 * MIB;
            address
        };
        let address = if bytes > MIB {
            let address = fresh(&mut self.next);
            self.own.insert(address, pages * 2 * MIB);
            address
        } else {
            let units = bytes.div_ceil(512) as usize;
            let fits = |page: &(u64, Vec<bool>)| {
                let mut run = 0;
                page.1.iter().position(|used| {
                    run = if *used { 0 } else { run + 1 };
                    run == units
                })
            };
            let found = self
                .shared
                .iter()
                .enumerate()
                .find_map(|(nth, page)| Some((nth, fits(page)?)));
            let (nth, last) = found.unwrap_or_else(|| {
                let address = fresh(&mut self.next);
                self.shared.push((address, vec![false; 4096]));
                (self.shared.len() - 1, units - 1)
            });
            let first = last + 1 - units;
            self.shared[nth].1[first..=last].fill(true);
            self.shared[nth].0 + first as u64 * 512
        };
        self.live.insert(address, bytes);
        address
    }

    fn free(&mut self, address: u64) {
        let Some(bytes) = self.live.remove(&address) else {
            return;
        };
        if self.own.remove(&address).is_none() {
            let page = address / (2 * MIB) * 2 * MIB;
            let nth = self.shared.iter().position(|(at, _)| *at == page).expect("a page");
            let first = ((address - page) / 512) as usize;
            self.shared[nth].1[first..first + bytes.div_ceil(512) as usize].fill(false);
            if !self.shared[nth].1.contains(&true) {
                self.shared.swap_remove(nth);
            }
        }
    }
}

#[test]
fn after_24_000_random_allocations_and_frees_the_rounding_is_exact() {
    let mut allocator = Allocator {
        live: BTreeMap::new(),
        shared: Vec::new(),
        own: BTreeMap::new(),
        next: 0x7f00_0000_0000,
    };
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut addresses = Vec::new();
    for _ in 0..24_000 {
        if addresses.len() > 300 || !addresses.is_empty() && next(2) == 0 {
            let nth = next(addresses.len() as u64) as usize;
            allocator.free(addresses.swap_remove(nth));
        } else {
            let most = if next(8) == 0 { 8 * MIB } else { 600 * KIB };
            addresses.push(allocator.allocate(1 + next(most)));
        }
    }
    let mut sample = Sample::new();
    let stack = sample.stack(&[RUNTIME, MAIN]);
    for (&address, &bytes) in &allocator.live {
        sample.holds(Kind::Device, "cudaMalloc", bytes, 1, stack);
        sample.0.allocations.change_last(|row, _| row.address = address);
    }
    let own: Vec<u64> = allocator.own.values().copied().collect();
    sample.takes("cuMemAlloc_v2", &[RUNTIME, MAIN], &own);
    sample.takes(
        "cuMemAllocPitch_v2",
        &[RUNTIME, MAIN],
        &vec![2 * MIB; allocator.shared.len()],
    );
    let asked: u64 = allocator.live.values().sum();
    let taken = own.iter().sum::<u64>() + 2 * MIB * allocator.shared.len() as u64;
    ledger(&sample, |device| {
        let [program, rounding] = &device.lines[..] else {
            panic!("{:?}", device.lines)
        };
        assert_eq!((program.what, program.bytes), (LineKind::Program, i128::from(asked)));
        assert_eq!(
            (rounding.what, rounding.bytes),
            (LineKind::Rounding, i128::from(taken - asked))
        );
        let kept: u64 = rounding.parts.iter().map(|part| part.bytes).sum();
        assert_eq!(
            i128::from(kept),
            rounding.bytes,
            "each free byte has a block that keeps it"
        );
        assert_eq!(device.process.as_ref().expect("recorded").bytes, i128::from(taken));
    });
}
