//! Why a caching allocator holds memory that no live block uses.
//!
//! ```text
//! segments   |== 20 MiB ======|   |== 20 MiB ======|   |= 2 MiB =|     what the driver gives and takes back as a whole:
//! blocks      ##        ###                                  #         cudaMalloc's memory, or one mapping of an expandable segment
//! free       pinned by 2 blocks   idle                 pinned by 1
//! ```
//!
//! - *Pinned*: free memory in a segment with live blocks. The allocator cannot give it back, and a larger request does not fit
//!   into it. It counts for the call sites whose blocks keep the segment, together.
//! - *Idle*: a segment without live blocks. `empty_cache()` gives it back, and so does the allocator when the driver has no more.
//!
//! Rounding of single blocks is a part of the live bytes. Only its bound is known if the input lacks the sizes requested. Which pool a
//! segment is of (CUDA graphs and `MemPool` have private ones) PyTorch's own snapshots have; recordings have which segments were taken
//! while a graph was captured. These snapshots have no pages, but runs of pages, which begin with one; the same holds for processes
//! that were not recorded.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};
use serde::Serialize;

use super::caches::{Holder, Mapped, Range, Spread, join, pieces};
use crate::analysis::estimate::sampled_stacks;
use crate::analysis::framework::Block;
use crate::analysis::groups::Groups;
use crate::analysis::report::{ProcessLine, losses, process_line};
use crate::analysis::site::{CallStacks, Fingerprint};
use crate::analysis::whatif::settings::Settings;
use crate::analysis::whatif::{Stated, ignored_expandable};
use crate::kind::Kind;
use crate::point::Point;
use crate::snapshot::allocations::stack_of;
use crate::snapshot::{Allocation, Failed, Snapshot, Stream};
use crate::tally::Tally;

/// The value of [`Segments::format`].
pub const FORMAT: &str = "culeak-segments";
pub const VERSION: u32 = 2;

/// Segments of PyTorch for requests of up to 1 MiB have this size, and no others have.
const SMALL: u64 = 2 << 20;
const OUT_OF_MEMORY: i32 = 2;

/// What the caching allocators of a process hold and do not use.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Segments<'a> {
    pub format: &'static str,
    pub version: u32,
    pub process: ProcessLine<'a>,
    /// The point in time that this describes; `None`: the last one.
    pub point: Option<&'a Point>,
    /// Of each device and allocator.
    pub pools: Vec<Unused<'a>>,
    pub warnings: Vec<String>,
}

/// One caching allocator on one device: reserved = live + pinned + idle.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Unused<'a> {
    pub ordinal: i32,
    pub owner: &'a str,
    pub reserved_bytes: u64,
    pub live_bytes: u64,
    /// Free memory in segments that live blocks keep, and the number of these segments.
    pub pinned: Tally,
    /// The part of `pinned` that is in segments of private pools (CUDA graphs, `MemPool`).
    pub pinned_private: Tally,
    /// Segments without live blocks.
    pub idle: Tally,
    /// Expandable segments whose pages are not known, which count as one segment each.
    pub unknown_pages: Tally,
    /// The input has the pool of each segment.
    pub pools_are_known: bool,
    /// What the live blocks have beyond the sizes requested, at most; `None`: nothing is known of it.
    pub rounding_bytes: Option<u64>,
    /// The input has the sizes requested, so it is just that.
    pub rounding_is_known: bool,
    /// The longest range without a live block.
    pub largest_free_run: u64,
    /// What keeps segments, by the free memory in them, largest first.
    pub pins: Vec<Pin>,
    /// Rows of `pins` that are left out.
    pub pins_hidden: usize,
    pub idle_by: Vec<Idle>,
    /// The request that failed, if the input was taken because of it.
    pub failed: Option<Unfit>,
}

/// Segments that are kept by blocks of the same call sites.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Pin {
    /// Most bytes first.
    pub sites: Vec<PinSite>,
    /// The blocks that keep the segments, with their bytes in these.
    pub blocks: Tally,
    pub segments: u64,
    /// The free memory in the segments. Freeing the blocks gives this and the bytes of the blocks back, that of private pools only
    /// when the pool is not in use.
    pub free_bytes: u64,
    /// The segments are known to be of private pools: of CUDA graphs, or a `MemPool`.
    pub is_private: bool,
}

/// A call site with blocks in a segment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PinSite {
    pub label: String,
    pub place: Option<String>,
    pub fingerprint: Fingerprint,
    #[serde(flatten)]
    pub tally: Tally,
}

/// Why segments without live blocks were not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum IdleReason {
    /// A later request that fits got new memory, so the segment is of another stream or of a private pool.
    OtherPool,
    /// It is of a private pool: of a CUDA graph, or a `MemPool`.
    PrivatePool,
    /// Only requests of up to 1 MiB use it.
    Small,
    /// It is too small for a later request that got new memory, or too large to be split for it (`max_split_size_mb`).
    Size,
    /// No later request needed new memory, or which ones did is not known.
    Cached,
}

/// Segments without live blocks.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Idle {
    pub why: IdleReason,
    #[serde(flatten)]
    pub tally: Tally,
    /// The call sites that requested the segments, most bytes first.
    pub sites: Vec<PinSite>,
}

/// Why a request failed although memory was free.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Unfit {
    pub requested_bytes: u64,
    /// The stream of the request is known. If not, the segments of other streams are among those that could serve it.
    pub stream_is_known: bool,
    /// Segments that may serve it.
    pub segments: u64,
    /// The sizes of the requests that these serve are known.
    pub sizes_are_known: bool,
    /// Segments that cannot serve it: of another stream, of a private pool, or of requests of other sizes.
    pub unusable: Tally,
    /// Free memory in the others, and the longest free range there.
    pub free_bytes: u64,
    pub largest_free_run: u64,
    /// Blocks of `max_split_size_mb` are left whole, or whether they are is not known.
    pub may_be_unsplit: bool,
    /// The blocks with the fewest bytes whose free would make a free range of that size. `None`: no segment is large enough.
    pub in_the_way: Option<Vec<PinSite>>,
}

/// Blocks in one segment or between two points of it.
type BySite = BTreeMap<Fingerprint, (Option<usize>, Tally)>;

struct Builder<'s, 'a> {
    snapshot: &'a Snapshot,
    stacks: &'s CallStacks<'a>,
    blocks: &'s [Block],
    /// Segments by address, and whether they are of private pools.
    private: HashMap<u64, bool>,
    /// Segments by address, and the streams whose requests they serve, where these are known.
    streams: HashMap<u64, Stream>,
    /// Those of PyTorch's allocator, if they are understood.
    settings: Option<Settings>,
}

impl<'a> Segments<'a> {
    /// `top`: the most rows of each allocator. `not_used`: what the event log says of the segment at this address, if it is idle.
    pub fn of(
        snapshot: &'a Snapshot,
        stacks: &CallStacks<'a>,
        groups: &Groups<'a>,
        top: Option<usize>,
        not_used: impl Fn(u64) -> Option<IdleReason>,
    ) -> Segments<'a> {
        let pieces = pieces(snapshot, stacks, groups, &mut Mapped::default());
        let only = (snapshot.devices.len() == 1).then_some(0);
        let (mut private, mut streams) = (HashMap::default(), HashMap::default());
        for row in segments(snapshot) {
            private.extend(row.call.pool.map(|pool| (row.address, pool != 0)));
            streams.extend(row.call.stream.map(|stream| (row.address, stream)));
        }
        let builder = Builder {
            snapshot,
            stacks,
            blocks: &groups.blocks.blocks,
            private,
            streams,
            settings: Stated::of(snapshot).settings.ok(),
        };
        let spread = Spread::of(snapshot, stacks, groups);
        let mut pools: BTreeMap<(usize, &str), Vec<Range>> = BTreeMap::new();
        for mut range in pieces {
            let Holder::Pool(owner) = range.holder else { continue };
            let blocks = builder.within(&range);
            let of_blocks = blocks
                .first()
                .and_then(|block| groups.blocks.calls[block.call as usize].device);
            range.device = range.device.or(of_blocks).or(only);
            let is_known = |device: &usize| groups.watched.contains(owner) && !spread.is_scattered(*device, owner);
            if let Some(device) = range.device.filter(is_known) {
                pools.entry((device, owner)).or_default().push(range);
            }
        }
        let pools = pools.into_iter().map(|((device, owner), ranges)| Unused {
            failed: builder.failed(device, owner, &ranges),
            ..builder.unused((device, owner), ranges, top, &not_used)
        });
        let sampled = snapshot.sampling.map(|sampling| {
            let stacks = sampled_stacks("of this recording", sampling);
            format!("{stacks}, so blocks without a stack are those of no call site here")
        });
        Segments {
            warnings: losses(snapshot).into_iter().chain(sampled).collect(),
            format: FORMAT,
            version: VERSION,
            process: process_line(snapshot),
            point: snapshot.taken.point.as_ref(),
            pools: pools.collect(),
        }
    }
}

/// The segments in PyTorch's own snapshots, which have pool and stream, and those in recordings, of which some have a pool.
fn segments<'a>(snapshot: &'a Snapshot) -> impl Iterator<Item = Allocation<'a>> {
    let is_segment = |kind| match snapshot.taken.is_by_pytorch() {
        true => kind != Kind::Tensor,
        false => kind == Kind::Device,
    };
    snapshot.allocations.iter().filter(move |row| is_segment(row.kind))
}

/// The most bytes of a block of PyTorch's that were not requested.
fn most_rounding(settings: &Settings, bytes: u64) -> u64 {
    const LARGE: u64 = SMALL / 2;
    let (least, rest) = match bytes {
        _ if bytes <= LARGE => (1, 0),
        _ if settings.expandable => (LARGE + 1, 0),
        _ if bytes >= settings.max_split => (LARGE + 1, settings.max_rounding),
        _ => (LARGE + 1, LARGE),
    };
    let rounded = if settings.divisions > 1 {
        bytes / settings.divisions
    } else {
        0
    };
    rest.saturating_add(rounded.max(511)).min(bytes.saturating_sub(least))
}

impl<'a> Builder<'_, 'a> {
    /// The parts of a range that can be given back, and whether these are known.
    fn pages(&self, range: &Range<'a>) -> (Vec<Range<'a>>, bool) {
        let bytes = range.end - range.start;
        let has_runs = range.mapped && self.snapshot.taken.covers_allocators_only();
        let Some(block) = self.within(range).first().filter(|_| has_runs) else {
            return (vec![range.clone()], true);
        };
        let large = self.settings.as_ref().map_or(0, |settings| settings.large_segment);
        let page = if block.bytes <= SMALL / 2 { SMALL } else { large };
        if large == 0 || !bytes.is_multiple_of(page) {
            return (vec![range.clone()], false);
        }
        let starts = (range.start..range.end).step_by(page as usize);
        let page = |start| {
            let mut of_range = range.clone();
            (of_range.start, of_range.end) = (start, start + page);
            of_range
        };
        (starts.map(page).collect(), true)
    }

    /// The blocks that lie in a range, in part or as a whole, by address.
    fn within(&self, range: &Range) -> &[Block] {
        let end = self.blocks.partition_point(|block| block.address < range.end);
        let mut first = self.blocks.partition_point(|block| block.address < range.start);
        // One that began in an earlier mapping.
        let before = first.checked_sub(1).map(|before| &self.blocks[before]);
        if range.mapped && before.is_some_and(|block| block.address.saturating_add(block.bytes) > range.start) {
            first -= 1;
        }
        let first_with_bytes = self.blocks[first..end].iter().position(|block| block.bytes > 0);
        &self.blocks[first_with_bytes.map_or(end, |skipped| first + skipped)..end]
    }

    fn unused(
        &self,
        (device, owner): (usize, &'a str),
        mut ranges: Vec<Range<'a>>,
        top: Option<usize>,
        not_used: impl Fn(u64) -> Option<IdleReason>,
    ) -> Unused<'a> {
        // With the blocks that reach beyond a range, of which each counts once; then segments, and free bytes.
        type Pinned = (BySite, HashSet<u32>, u64, u64);
        let mut pins: HashMap<(bool, Vec<Fingerprint>), Pinned> = HashMap::default();
        let mut idle = BTreeMap::<IdleReason, (Tally, BySite)>::new();
        let (mut reserved_bytes, mut live_bytes) = (0u64, 0u64);
        let (mut pinned, mut pinned_private) = (Tally::default(), Tally::default());
        let (mut unknown_pages, mut pages) = (Tally::default(), Vec::with_capacity(ranges.len()));
        for range in &ranges {
            let is_private =
                self.private.get(&range.start) == Some(&true) || not_used(range.start) == Some(IdleReason::PrivatePool);
            let (of_range, is_known) = self.pages(range);
            pages.extend(of_range.into_iter().map(|page| (page, is_private)));
            if !is_known {
                unknown_pages.add(range.end - range.start);
            }
        }
        for (range, is_private) in &pages {
            let bytes = range.end - range.start;
            reserved_bytes = reserved_bytes.saturating_add(bytes);
            let blocks = self.within(range);
            let (by_site, live) = self.by_site(range, blocks);
            if live == 0 {
                let why = match not_used(range.start) {
                    _ if *is_private => IdleReason::PrivatePool,
                    Some(why) => why,
                    None if owner == "PyTorch" && bytes == SMALL => IdleReason::Small,
                    None => IdleReason::Cached,
                };
                let (of_reason, sites) = idle.entry(why).or_default();
                of_reason.add(bytes);
                if range.stack.is_some() {
                    let site = self.stacks.get(range.stack).site_fingerprint;
                    sites
                        .entry(site)
                        .or_insert((range.stack, Tally::default()))
                        .1
                        .add(bytes);
                }
                continue;
            }
            live_bytes += live;
            if live == bytes {
                continue;
            }
            pinned.add(bytes - live);
            if *is_private {
                pinned_private.add(bytes - live);
            }
            let key = (*is_private, by_site.keys().copied().collect());
            let (sites, reaching, segments, free) = pins.entry(key).or_default();
            for (site, (stack, tally)) in by_site {
                sites.entry(site).or_insert((stack, Tally::default())).1.join(tally);
            }
            let again = blocks.first().filter(|block| reaching.contains(&block.row));
            if let Some((_, tally)) = again.and_then(|block| sites.get_mut(&self.site(block).1)) {
                tally.count -= 1;
            }
            let last = blocks
                .last()
                .filter(|block| block.address.saturating_add(block.bytes) > range.end);
            reaching.extend(last.map(|block| block.row));
            (*segments, *free) = (*segments + 1, *free + (bytes - live));
        }
        let mut pins: Vec<Pin> = pins
            .into_iter()
            .map(|((is_private, _), (sites, _, segments, free_bytes))| Pin {
                blocks: Tally::total(sites.values().map(|(_, tally)| *tally)),
                sites: self.named(sites),
                segments,
                free_bytes,
                is_private,
            })
            .collect();
        let rank = |pin: &Pin| {
            (
                std::cmp::Reverse(pin.free_bytes),
                pin.sites.first().map(|site| site.fingerprint),
                pin.is_private,
            )
        };
        pins.sort_by_key(rank);
        let shown = top.unwrap_or(pins.len()).min(pins.len());
        let pins_hidden = pins.len() - shown;
        pins.truncate(shown);
        let idle_row = |(why, (tally, sites))| Idle {
            why,
            tally,
            sites: self.named(sites),
        };
        join(&mut ranges, self.snapshot);
        let runs = ranges.iter().map(|range| self.largest_run(range));
        Unused {
            ordinal: self.snapshot.devices[device].ordinal,
            owner,
            reserved_bytes,
            live_bytes,
            pinned,
            pinned_private,
            idle: Tally::total(idle.values().map(|(tally, _)| *tally)),
            unknown_pages,
            pools_are_known: self.snapshot.taken.is_by_pytorch() && !self.private.is_empty(),
            rounding_bytes: self.rounding(device, owner),
            rounding_is_known: self.snapshot.taken.covers_allocators_only(),
            largest_free_run: runs.max().unwrap_or(0),
            pins,
            pins_hidden,
            idle_by: idle.into_iter().map(idle_row).collect(),
            failed: None,
        }
    }

    /// The blocks in a range by call site, and their bytes in it. Overlapping bytes count once.
    fn by_site(&self, range: &Range, blocks: &[Block]) -> (BySite, u64) {
        let (mut by_site, mut live, mut reached) = (BySite::new(), 0, range.start);
        for block in blocks {
            let end = block.address.saturating_add(block.bytes).min(range.end);
            let bytes = end.saturating_sub(block.address.max(reached));
            reached = reached.max(end);
            live += bytes;
            let (stack, site) = self.site(block);
            by_site.entry(site).or_insert((stack, Tally::default())).1.add(bytes);
        }
        (by_site, live)
    }

    /// The stack and the call site of a block.
    fn site(&self, block: &Block) -> (Option<usize>, Fingerprint) {
        let stack = stack_of(self.snapshot.allocations.rows[block.row as usize].stack);
        (stack, self.stacks.get(stack).site_fingerprint)
    }

    fn named(&self, by_site: BySite) -> Vec<PinSite> {
        let mut sites: Vec<PinSite> = by_site
            .into_iter()
            .map(|(fingerprint, (stack, tally))| {
                let (label, place) = self.stacks.get(stack).site_names();
                PinSite {
                    label,
                    place,
                    fingerprint,
                    tally,
                }
            })
            .collect();
        sites.sort_by_key(|site| (std::cmp::Reverse(site.tally.bytes), site.fingerprint));
        sites
    }

    fn largest_run(&self, range: &Range) -> u64 {
        let (mut largest, mut reached) = (0, range.start);
        for block in self.within(range) {
            largest = largest.max(block.address.saturating_sub(reached));
            reached = reached.max(block.address.saturating_add(block.bytes));
        }
        largest.max(range.end.saturating_sub(reached))
    }

    /// Recordings have the sizes of blocks alone, which bound it; the snapshots of PyTorch have those requested too.
    fn rounding(&self, device: usize, owner: &str) -> Option<u64> {
        let is_known = self.snapshot.taken.covers_allocators_only();
        let mut settings = self.settings.clone();
        if let Some(settings) = &mut settings {
            settings.expandable &= ignored_expandable(self.snapshot).is_none();
        }
        if owner != "PyTorch" || !is_known && settings.is_none() {
            return None;
        }
        let rows = self.snapshot.allocations.iter();
        let blocks = rows.filter(|row| row.kind == Kind::Tensor && row.device == Some(device));
        let rounding = |bytes: u64, requested: u64| match &settings {
            Some(settings) if !is_known => most_rounding(settings, bytes),
            _ => bytes.saturating_sub(requested),
        };
        Some(blocks.fold(0, |sum: u64, row| {
            sum.saturating_add(rounding(row.bytes, row.requested))
        }))
    }

    /// What was in the way of the request for which the input was taken.
    fn failed(&self, device: usize, owner: &str, ranges: &[Range<'a>]) -> Option<Unfit> {
        let (snapshot, automatic) = (self.snapshot, self.snapshot.taken.automatic.as_ref());
        let of_pytorch = || {
            let is_last = snapshot.taken.is_by_pytorch();
            snapshot
                .failed
                .iter()
                .filter(|_| is_last)
                .max_by_key(|failed| failed.last_ns)
        };
        let failed = automatic.and_then(|automatic| snapshot.failed.get(automatic.failed?));
        // A call of the program itself was no request to an allocator.
        let is_of_owner = |kind: Kind| match owner {
            "PyTorch" => kind == Kind::Tensor || snapshot.taken.is_by_pytorch(),
            _ => matches!(kind, Kind::Buffer | Kind::Block),
        };
        let is_here = |failed: &&Failed| {
            failed.device == Some(device) && failed.error == OUT_OF_MEMORY && is_of_owner(failed.kind)
        };
        let failed = failed.or_else(of_pytorch).filter(is_here)?;
        let bytes = failed.bytes;
        let mut ranges = ranges.to_vec();
        join(&mut ranges, snapshot);
        let (ranges, unusable): (Vec<Range>, Vec<Range>) = ranges
            .into_iter()
            .partition(|range| self.may_serve(owner, range, failed));
        let fewest = ranges
            .iter()
            .filter_map(|range| self.in_the_way(range, bytes))
            .min_by_key(|found| found.0);
        let size = |range: &Range| range.end - range.start;
        let free = |range: &Range| size(range) - self.by_site(range, self.within(range)).1;
        Some(Unfit {
            requested_bytes: bytes,
            stream_is_known: failed.stream.is_some(),
            segments: ranges.len() as u64,
            sizes_are_known: ranges.iter().all(|range| self.is_small(owner, range).is_some()),
            unusable: Tally::total(unusable.iter().map(|range| Tally::new(size(range), 1))),
            free_bytes: ranges.iter().map(free).fold(0, u64::saturating_add),
            largest_free_run: ranges.iter().map(|range| self.largest_run(range)).max().unwrap_or(0),
            may_be_unsplit: self
                .settings
                .as_ref()
                .is_none_or(|settings| settings.max_split < u64::MAX),
            in_the_way: fewest.map(|(_, sites)| self.named(sites)),
        })
    }

    /// Whether the segment can serve the request, as far as stream, pool and size class are known.
    fn may_serve(&self, owner: &str, range: &Range, request: &Failed) -> bool {
        let is_of_size = self
            .is_small(owner, range)
            .is_none_or(|small| small == (request.bytes <= SMALL / 2));
        let stream = self.streams.get(&range.start);
        let is_of_stream = stream.is_none_or(|&stream| request.stream.is_none_or(|of| of == stream));
        self.private.get(&range.start) != Some(&true) && is_of_size && is_of_stream
    }

    /// Whether a segment serves PyTorch's small requests; `None`: that is not known, or it is another allocator's.
    fn is_small(&self, owner: &str, range: &Range) -> Option<bool> {
        match range.mapped {
            _ if owner != "PyTorch" => None,
            // In an expandable segment, the blocks show which requests it serves.
            true => self.within(range).first().map(|block| block.bytes <= SMALL / 2),
            false => Some(range.end - range.start == SMALL),
        }
    }

    /// The blocks with the fewest bytes of which a range must be free to have room for a request.
    fn in_the_way(&self, range: &Range, bytes: u64) -> Option<(u64, BySite)> {
        let blocks = self.within(range);
        let start = |nth: usize| blocks.get(nth).map_or(range.end, |block| block.address);
        let end = |nth: usize| blocks[nth].address.saturating_add(blocks[nth].bytes);
        let mut best: Option<(u64, usize, usize)> = None;
        let (mut last, mut live) = (0, 0u64);
        // Blocks `first..last` are freed; what is free then goes from the block before to the block after.
        for first in 0..=blocks.len() {
            let from = first.checked_sub(1).map_or(range.start, end);
            while start(last) < from.saturating_add(bytes) && last < blocks.len() {
                live += blocks[last].bytes;
                last += 1;
            }
            if start(last) < from.saturating_add(bytes) {
                break;
            }
            if best.as_ref().is_none_or(|&(fewest, ..)| live < fewest) {
                best = Some((live, first, last));
            }
            live -= blocks
                .get(first)
                .filter(|_| first < last)
                .map_or(0, |block| block.bytes);
            last = last.max(first + 1);
        }
        let (live, first, last) = best?;
        Some((live, self.by_site(range, &blocks[first..last.min(blocks.len())]).0))
    }
}
