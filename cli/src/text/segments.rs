//! Why memory is reserved and not used: for each allocator the parts, what pins it, and why a request failed.

use culeak::analysis::ledger::segments::{Idle, IdleReason, PinSite, Segments, Unfit, Unused};

use super::{parts, units};
use crate::document::{Cell, Document, Rows, Site, bold, counted, dim, things};
use crate::escape::Escaped;

/// Call sites below a row.
const SITES_SHOWN: usize = 2;
const OF_PRIVATE_POOLS: &str = " of private pools (CUDA graphs, MemPool)";

pub fn page(segments: &Segments) -> Document {
    let mut page = Document::default();
    for pool in &segments.pools {
        write_pool(pool, &mut page);
        page.blank();
    }
    page.field("process", parts::process(&segments.process));
    if let Some(point) = segments.point {
        page.field("at", point.to_string());
    }
    page.warnings(&segments.warnings);
    page
}

fn write_pool(pool: &Unused, page: &mut Document) {
    let unused = pool.pinned.bytes.saturating_add(pool.idle.bytes);
    page.line(
        bold(format!("GPU {}", pool.ordinal))
            + format!(
                "  {}: {} reserved, {} in live blocks: {} not used",
                Escaped(pool.owner),
                units::bytes(pool.reserved_bytes),
                units::bytes(pool.live_bytes),
                units::bytes(unused)
            ),
    );
    let private = pool.pinned_private;
    let ordinary = pool.pinned.bytes - private.bytes;
    let pinned = |count: u64, of: &str| format!("pinned in {}{of}, which live blocks keep", counted(count, "segment"));
    let pinned = [
        (ordinary, pinned(pool.pinned.count - private.count, ""), &[][..]),
        (private.bytes, pinned(private.count, OF_PRIVATE_POOLS), &[][..]),
    ];
    let idle_lines = pool
        .idle_by
        .iter()
        .map(|of| (of.tally.bytes, idle(of, pool), &of.sites[..]));
    let lines = pinned.into_iter().chain(idle_lines);
    let lines: Vec<(u64, String, &[PinSite])> = lines.filter(|of| of.0 > 0).collect();
    page.table(
        Rows::of(lines)
            .bare()
            .column("bytes", |line| Cell::Size(line.0))
            .column("why", |line| line.1.clone())
            .below(|line, below| sites(line.2, ("", "segment"), below)),
    );
    let largest = format!("largest free range {}", units::bytes(pool.largest_free_run));
    page.item(dim(match pool.rounding_bytes {
        Some(bytes) => {
            let at_most = if pool.rounding_is_known { "" } else { "at most " };
            format!(
                "{largest}; {at_most}{} of the live blocks is rounding",
                units::bytes(bytes)
            )
        }
        None => largest,
    }));
    if pool.unknown_pages.count > 0 {
        page.item(format!(
            "{} of expandable segments: their pages are not known, so pages without live blocks count as pinned",
            units::bytes(pool.unknown_pages.bytes)
        ));
    }
    if let Some(failed) = &pool.failed {
        write_failed(failed, pool, page);
    }
    if pool.pins.is_empty() {
        return;
    }
    let rows = Rows::of(&pool.pins)
        .column("pinned", |pin| Cell::Size(pin.free_bytes))
        .column("segments", |pin| Cell::Count(pin.segments))
        .short("segs")
        .column("by", |pin| things(pin.blocks.count, "block"))
        .column("of", |pin| Cell::Size(pin.blocks.bytes))
        .column("allocated at", |pin| {
            pin.sites.first().map_or_else(Site::default, |first| site(&first))
        })
        .below(|pin, below| {
            sites(pin.sites.get(1..).unwrap_or_default(), ("and ", "block"), below);
            if pin.is_private {
                below.indented(10, dim(format!("in segments{OF_PRIVATE_POOLS}")));
            }
        });
    page.table(rows);
    page.more(pool.pins_hidden, "row", "; --top 0 shows all");
}

/// Call sites with their blocks or segments, below a row.
fn sites(sites: &[PinSite], (before, noun): (&str, &str), below: &mut Document) {
    for site in sites.iter().take(SITES_SHOWN) {
        let place = parts::behind(site.place.as_deref());
        let (count, size) = (counted(site.tally.count, noun), units::bytes(site.tally.bytes));
        let label = parts::name(&site.label);
        below.indented(10, dim(format!("{before}{count} of {size}  {label}{place}")));
    }
    let hidden = sites.len().saturating_sub(SITES_SHOWN);
    below.more_at(10, hidden as u64, "call site", "");
}

fn site(site: &&PinSite) -> Site {
    Site::at(&site.label, site.place.as_deref(), "")
}

fn idle(idle: &Idle, pool: &Unused) -> String {
    let segments = counted(idle.tally.count, "segment");
    let why = match idle.why {
        IdleReason::OtherPool => {
            "a later request fits and got new memory, so they are of another stream or of a private pool (CUDA graphs, MemPool), or a block \
             in them still waited for another stream"
        }
        IdleReason::PrivatePool => {
            "of private pools (CUDA graphs, MemPool), which torch.cuda.empty_cache() does not give back while the pools are in use"
        }
        IdleReason::Small => "of the small pool, which only requests of up to 1 MiB use",
        IdleReason::Size => "too small for later requests, or too large to be split for them (max_split_size_mb)",
        IdleReason::Cached => "without live blocks, kept for later requests",
    };
    let remedy = match (&pool.failed, idle.why) {
        _ if pool.owner != "PyTorch" || idle.why == IdleReason::PrivatePool => "",
        (Some(_), _) => "; before a request fails, PyTorch gives back what it can",
        (None, IdleReason::Small | IdleReason::Size | IdleReason::Cached) => {
            "; torch.cuda.empty_cache() gives them back"
        }
        _ => "",
    };
    let unless = match (&pool.failed, remedy, pool.pools_are_known) {
        (_, "", _) | (_, _, true) => "",
        (Some(_), ..) => "; possibly they are of private pools in use",
        (None, ..) => ", unless they are of private pools in use",
    };
    format!("idle in {segments} {why}{remedy}{unless}")
}

fn write_failed(failed: &Unfit, pool: &Unused, page: &mut Document) {
    let is_pytorch = pool.owner == "PyTorch";
    let other_stream = (!failed.stream_is_known).then_some("of another stream");
    let other_pool = (is_pytorch && !pool.pools_are_known).then_some("of a private pool");
    let usable = match is_pytorch {
        true => "segments that may serve it",
        false => "segments",
    };
    let found = match (units::bytes(failed.free_bytes), units::bytes(failed.largest_free_run)) {
        _ if failed.free_bytes == 0 => format!("nothing was free in {usable}"),
        (free, largest) => {
            format!("the largest free range in {usable} was {largest}, although {free} was free in them")
        }
    };
    let requested = units::bytes(failed.requested_bytes);
    page.line(bold(format!(
        "the request of {requested} failed: the driver had no more, and {found}"
    )));
    if failed.unusable.count > 0 {
        let (count, bytes) = (
            counted(failed.unusable.count, "segment"),
            units::bytes(failed.unusable.bytes),
        );
        page.item(format!(
            "not among them: {count} of {bytes} of other streams, of requests of other sizes, or of private pools, of which the request \
             is taken not to be"
        ));
    }
    if failed.segments == 0 {
        page.item("no segment may serve it");
        return;
    }
    // Those of XLA and TensorFlow serve all streams.
    if !failed.stream_is_known && !matches!(pool.owner, "XLA" | "TensorFlow") {
        page.item("the stream of the request is not known, so segments of other streams may be among them");
    }
    let Some(sites) = &failed.in_the_way else {
        page.item(format!(
            "none of the {usable} is large enough for it, even without its blocks: segments must be given back and joined, as expandable \
             segments are"
        ));
        return;
    };
    if sites.is_empty() {
        let unsplit =
            (is_pytorch && failed.may_be_unsplit).then_some("too large to be split for it (max_split_size_mb)");
        let sizes = (!failed.sizes_are_known).then_some("of requests of other sizes");
        let waits = is_pytorch
            .then_some("of blocks that still waited for another stream, or that were freed after the request failed");
        let why: Vec<&str> = [other_stream, other_pool, sizes, unsplit, waits]
            .into_iter()
            .flatten()
            .collect();
        page.item(format!(
            "a free range has room for it: the range is {}",
            why.join(", or ")
        ));
        return;
    }
    let rows = Rows::of(sites)
        .column("in the way", |site| Cell::Size(site.tally.bytes))
        .column("blocks", |site| things(site.tally.count, "block"))
        .column("allocated at", site);
    page.table(rows);
}
