//! `/proc/PID/maps`.

use crate::source::Region;

/// The mappings, by address. The kernel writes the file in pieces, so a mapping that changes meanwhile may occur twice; its
/// first part counts.
pub fn parsed(text: &[u8]) -> Vec<Region> {
    let mut regions: Vec<Region> = Vec::new();
    for line in text.split(|&byte| byte == b'\n') {
        let Some(mut region) = region(&String::from_utf8_lossy(line)) else {
            continue;
        };
        if let Some(last) = regions.last() {
            let missing = last.range.end.saturating_sub(region.range.start);
            region.range.start += missing;
            region.offset += missing;
        }
        if region.range.start < region.range.end {
            regions.push(region);
        }
    }
    regions
}

fn region(line: &str) -> Option<Region> {
    // 7f6d18400000-7f6d18428000 r--p 00000000 fe:00 1585   /usr/lib/libc.so.6
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let flags = fields.next()?.as_bytes();
    let offset = fields.next()?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let allows = |place: usize, flag| flags.get(place) == Some(&flag);
    Some(Region {
        range: hex(start)?..hex(end)?,
        readable: allows(0, b'r'),
        writable: allows(1, b'w'),
        executable: allows(2, b'x'),
        shared: allows(3, b's'),
        offset: hex(offset)?,
        name: fields.nth(2).unwrap_or_default().trim_start().replace("\\012", "\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_becomes_a_region() {
        let text = b"7f00-8000 rw-s 00001000 fe:00 15                         /a b/c\\012d (deleted)\n\
                     8000-9000 ---p 00000000 00:00 0 \n\
                     9000-a000 r-xp 00000000 00:00 0                          [vdso]\n";
        let regions = parsed(text);
        assert_eq!(regions.len(), 3);
        assert_eq!(regions[0].range, 0x7f00..0x8000);
        assert_eq!(regions[0].name, "/a b/c\nd (deleted)");
        assert!(regions[0].readable && regions[0].writable && regions[0].shared && !regions[0].executable);
        assert_eq!(regions[0].offset, 0x1000);
        assert!(!regions[1].readable && !regions[1].shared && regions[1].name.is_empty());
        assert_eq!(regions[2].name, "[vdso]");
    }

    #[test]
    fn a_mapping_that_was_written_twice_counts_once() {
        let text = b"1000-4000 rw-p 0 0:0 0\n1000-4000 rw-p 0 0:0 0\n2000-6000 rw-p 10 0:0 0 /x\n\nnonsense\n";
        let ranges: Vec<_> = parsed(text)
            .into_iter()
            .map(|region| (region.range, region.offset))
            .collect();
        assert_eq!(ranges, [(0x1000..0x4000, 0), (0x4000..0x6000, 0x2010)]);
    }
}
