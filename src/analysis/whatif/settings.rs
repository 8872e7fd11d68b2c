//! The settings of PyTorch's caching allocator that change what it reserves, as `PYTORCH_CUDA_ALLOC_CONF` states them.

use super::model::{OWN_SEGMENT, PAGE, SMALL, SMALLEST};
use super::version::{SPLITS_FROM_A_SEGMENT, Version};

const MIB: u64 = 1 << 20;
/// Keys that do not change how much is reserved.
const WITHOUT_EFFECT: [&str; 10] = [
    "pinned_free_catch_all",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_hip_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "throw_on_cudamalloc_oom",
    "graph_capture_record_stream_reuse",
];

/// A call that sets others sets these to their defaults.
const RESET: [&str; 3] = [SPLIT, "roundup_power2_divisions", COLLECT];
pub const SPLIT: &str = "max_split_size_mb";
pub const ROUNDING: &str = "max_non_split_rounding_mb";
pub const LARGE_SEGMENT: &str = "large_segment_size_mb";
pub const COLLECT: &str = "garbage_collection_threshold";
/// It limits the memory of the process, as `torch.cuda.set_per_process_memory_fraction` does.
const FRACTION: &str = "per_process_memory_fraction";

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub expandable: bool,
    /// Blocks of this size are not split; `u64::MAX`: all are.
    pub max_split: u64,
    /// How much larger than its request a block may be that is not split.
    pub max_rounding: u64,
    /// Of each power of two, to which sizes are rounded up; 0 and 1: none.
    pub divisions: u64,
    /// Part of the memory that the process may use; 0: off. It takes effect only if the process limits its memory.
    pub collect_above: f64,
    pub limits_memory: bool,
    /// Segments for requests of 1 to 10 MiB, and pages of expandable ones, in bytes (`kLargeBuffer`).
    pub large_segment: u64,
    /// Of equal free blocks, the one whose record was made first is used first, and not the one with the lowest address. The text
    /// does not state it.
    pub oldest_record_first: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            expandable: false,
            max_split: u64::MAX,
            max_rounding: 20 * MIB,
            divisions: 0,
            collect_above: 0.0,
            limits_memory: false,
            large_segment: 20 * MIB,
            oldest_record_first: false,
        }
    }
}

impl Settings {
    /// # Errors
    /// The reason why such an allocator is not modelled, or what is wrong with the text for that version of PyTorch.
    pub fn parse(text: &str, version: Version) -> Result<Settings, String> {
        let mut settings = Settings::default();
        let (mut max_split, mut max_rounding) = (None, None);
        for (key, value) in pairs(text)? {
            if !version.knows(key) {
                return Err(format!("PyTorch {version} does not know {key}"));
            }
            let wrong = |expected: &str| format!("{key}:{value}: expected {expected}");
            let number = || value.parse::<u64>().map_err(|_| wrong("a number"));
            let part = |is_right: fn(f64) -> bool| {
                let part = value.parse().ok().filter(|&part| is_right(part));
                part.ok_or_else(|| wrong("a part of 1"))
            };
            match key {
                "expandable_segments" if ["True", "False"].contains(&value) => settings.expandable = value == "True",
                "expandable_segments" => return Err(wrong("True or False")),
                SPLIT => max_split = Some(number()?),
                ROUNDING => max_rounding = Some(number()?),
                LARGE_SEGMENT => settings.large_segment = number()?.saturating_mul(MIB),
                "roundup_power2_divisions" => {
                    let power = value.parse().ok().filter(|n: &u64| n.is_power_of_two());
                    settings.divisions = power.ok_or_else(|| wrong("one power of two; others are not modelled"))?;
                }
                COLLECT => settings.collect_above = part(|part| part > 0.0 && part < 1.0)?,
                FRACTION => settings.limits_memory = part(|part| (0.0..=1.0).contains(&part)).map(|_| true)?,
                "backend" if value == "native" => {}
                "backend" => return Err(format!("backend:{value} is another allocator, which is not modelled")),
                _ if WITHOUT_EFFECT.contains(&key) => {}
                _ => return Err(format!("{key} is not known")),
            }
        }
        if settings.large_segment <= OWN_SEGMENT {
            return Err("large_segment_size_mb: PyTorch takes only 11 and more".to_owned());
        }
        let least = settings.large_segment / MIB + u64::from(version < SPLITS_FROM_A_SEGMENT);
        let bytes = |mib: Option<u64>, otherwise: u64| match mib {
            Some(mib) if mib < least => Err(format!(
                "{mib} MiB is too little: PyTorch {version} takes only {least} and more"
            )),
            mib => Ok(mib.map_or(otherwise, |mib| mib.saturating_mul(MIB))),
        };
        settings.max_split = bytes(max_split, u64::MAX)?;
        settings.max_rounding = bytes(max_rounding, settings.large_segment)?;
        Ok(settings)
    }

    /// What the driver is asked for if no free block serves a request of so many bytes (`get_allocation_size`).
    pub fn segment_for(&self, size: u64) -> u64 {
        match size {
            _ if size <= SMALL => PAGE,
            _ if size < OWN_SEGMENT => self.large_segment,
            _ => size.next_multiple_of(PAGE),
        }
    }

    /// Whether a free block serves a request of fewer bytes: large ones are not split, and waste no more than the rounding.
    pub fn accepts(&self, size: u64, free: u64) -> bool {
        match size < self.max_split {
            true => free < self.max_split,
            false => free < size.saturating_add(self.max_rounding),
        }
    }

    /// As `DeviceCachingAllocator::round_size`.
    pub fn round(&self, bytes: u64) -> u64 {
        if bytes < SMALLEST {
            return SMALLEST;
        }
        let divisions = self.divisions;
        if divisions <= 1 || bytes <= SMALLEST * divisions {
            return bytes.div_ceil(SMALLEST) * SMALLEST;
        }
        if bytes.is_power_of_two() {
            return bytes;
        }
        let floor = 1 << bytes.ilog2();
        match floor >> divisions.ilog2() {
            0 => floor * 2,
            step => bytes.div_ceil(step) * step,
        }
    }
}

pub fn expandable_text(is_on: bool) -> &'static str {
    if is_on {
        "expandable_segments:True"
    } else {
        "expandable_segments:False"
    }
}

/// Of these settings, those that do not change how much a request reserves, in the same form.
pub fn without_effect(text: &str) -> String {
    only(text, |key| WITHOUT_EFFECT.contains(&key) || key == FRACTION)
}

/// The settings in effect after the program has set some in its code (`parseArgs`).
pub fn set_later(before: &str, text: &str) -> String {
    if pairs(before).is_err() {
        // Which of those stay in effect is not known: this is not understood either.
        return format!("{text},{before}");
    }
    let set = pairs(text).unwrap_or_default();
    let kept = only(before, |key| !RESET.contains(&key) && set.iter().all(|of| of.0 != key));
    if kept.is_empty() {
        text.to_owned()
    } else {
        format!("{kept},{text}")
    }
}

/// The settings with these keys, in the same form.
pub fn only(text: &str, is_kept: impl Fn(&str) -> bool) -> String {
    let kept = pairs(text).unwrap_or_default().into_iter().filter(|of| is_kept(of.0));
    let kept: Vec<String> = kept.map(|(key, value)| format!("{key}:{value}")).collect();
    kept.join(",")
}

/// `key:value` and `key:[a:1,b:2]`, separated by commas.
fn pairs(text: &str) -> Result<Vec<(&str, &str)>, String> {
    let (mut pairs, mut rest) = (Vec::new(), text.trim());
    while !rest.is_empty() {
        let (key, value) = rest
            .split_once(':')
            .ok_or_else(|| format!("{rest}: expected KEY:VALUE"))?;
        let end = match value.trim_start().starts_with('[') {
            true => value.find(']').map(|end| end + 1),
            false => value.find(','),
        };
        let (value, after) = value.split_at(end.unwrap_or(value.len()));
        pairs.push((key.trim(), value.trim()));
        rest = after.trim_start().trim_start_matches(',').trim_start();
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::whatif::version::{NEWEST, OLDEST};

    #[test]
    fn what_is_set_after_settings_that_are_not_understood_is_not_understood() {
        let later = set_later("(too long)", "max_split_size_mb:64");
        assert!(Settings::parse(&later, NEWEST).is_err(), "{later}");
        let again = set_later(&later, "expandable_segments:True");
        assert!(Settings::parse(&again, NEWEST).is_err(), "{again}");
    }

    #[test]
    fn settings_are_read_as_pytorch_reads_them() {
        let read = Settings::parse(
            "expandable_segments:True, max_split_size_mb:128,garbage_collection_threshold:0.8",
            NEWEST,
        );
        let expected = Settings {
            expandable: true,
            max_split: 128 * MIB,
            collect_above: 0.8,
            ..Settings::default()
        };
        assert_eq!(read, Ok(expected));
        for wrong in [
            "expandable_segments",
            "expandable_segments:yes",
            "backend:cudaMallocAsync",
            "no_such_key:1",
            "roundup_power2_divisions:[256:1,>:8]",
            "roundup_power2_divisions:0",
            "max_split_size_mb:19",
            "garbage_collection_threshold:0",
            "per_process_memory_fraction:1.5",
            "large_segment_size_mb:10",
            "max_split_size_mb:32,large_segment_size_mb:64",
        ] {
            assert!(Settings::parse(wrong, NEWEST).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_version_refuses_what_it_does_not_know() {
        let known = |text: &str, minor: &str| {
            let (version, _) = Version::nearest(minor).expect("a version");
            Settings::parse(text, version).is_ok()
        };
        // As the libraries of each version answer.
        for (text, before, since) in [
            ("max_split_size_mb:20", "2.9", "2.10"),
            ("max_non_split_rounding_mb:20", "2.9", "2.10"),
            ("graph_capture_record_stream_reuse:True", "2.8", "2.9"),
            ("per_process_memory_fraction:0.5", "2.9", "2.10"),
            ("large_segment_size_mb:64", "2.10", "2.11"),
            ("throw_on_cudamalloc_oom:True", "2.11", "2.12"),
        ] {
            assert_eq!((known(text, before), known(text, since)), (false, true), "{text}");
        }
        assert!(Settings::parse("max_split_size_mb:21", OLDEST).is_ok());
    }

    #[test]
    fn the_size_of_large_segments_is_also_how_much_a_block_may_be_too_large() {
        let settings = Settings::parse("max_split_size_mb:100,large_segment_size_mb:64", NEWEST).expect("settings");
        assert_eq!(
            [2, 9, 12, 63].map(|mib| settings.segment_for(mib * MIB) / MIB),
            [64, 64, 12, 64]
        );
        assert!(settings.accepts(120 * MIB, 150 * MIB));
        let usual = Settings::parse("max_split_size_mb:100", NEWEST).expect("settings");
        assert!(!usual.accepts(120 * MIB, 150 * MIB));
    }

    #[test]
    fn settings_of_other_things_are_kept() {
        let text = "max_split_size_mb:512, pinned_use_background_threads:True,release_lock_on_cudamalloc:True";
        let kept = "pinned_use_background_threads:True,release_lock_on_cudamalloc:True";
        assert_eq!(
            (without_effect(text), without_effect("")),
            (kept.to_owned(), String::new())
        );
    }

    #[test]
    fn sizes_are_rounded_to_512_bytes_or_to_a_division_of_a_power_of_two() {
        let plain = Settings::default();
        assert_eq!(
            [1, 512, 513, 1200 << 10].map(|bytes| plain.round(bytes)),
            [512, 512, 1024, 1200 << 10]
        );
        // PyTorch's documentation: 1200 with 4 divisions becomes 1280.
        let four = Settings::parse("roundup_power2_divisions:4", NEWEST).expect("a number");
        assert_eq!(four.round(1200 * MIB), 1280 * MIB);
        assert_eq!((four.round(2048), four.round(1024 * MIB)), (2048, 1024 * MIB));
    }
}
