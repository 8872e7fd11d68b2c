//! The settings of PyTorch's caching allocator that change what it reserves, as `PYTORCH_CUDA_ALLOC_CONF` states them.

const MIB: u64 = 1 << 20;
/// Keys that do not change how much is reserved.
const WITHOUT_EFFECT: [&str; 9] = [
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

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub expandable: bool,
    /// Blocks of this size are not split; `u64::MAX`: all are.
    pub max_split: u64,
    /// How much larger than its request a block may be that is not split.
    pub max_rounding: u64,
    /// Of each power of two, to which sizes are rounded up; 0 and 1: none.
    pub divisions: u64,
    /// Part of the memory that the process may use; 0: off.
    pub collect_above: f64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            expandable: false,
            max_split: u64::MAX,
            max_rounding: 20 * MIB,
            divisions: 0,
            collect_above: 0.0,
        }
    }
}

impl Settings {
    /// # Errors
    /// The reason why such an allocator is not modelled, or what is wrong with the text.
    pub fn parse(text: &str) -> Result<Settings, String> {
        let mut settings = Settings::default();
        for (key, value) in pairs(text)? {
            let number = |value: &str| {
                value
                    .parse::<u64>()
                    .map_err(|_| format!("{key}:{value}: expected a number"))
            };
            // 20 since `c10/core/AllocatorConfig.cpp` reads the settings, as in 2.11; `CUDAAllocatorConfig.cpp` before it: more.
            let from_20 = |mib: u64| match mib {
                0..20 => Err(format!("{key}:{value}: PyTorch takes only 20 and more")),
                _ => Ok(mib.saturating_mul(MIB)),
            };
            match key {
                "expandable_segments" => {
                    settings.expandable = match value {
                        "True" => true,
                        "False" => false,
                        _ => return Err(format!("{key}:{value}: expected True or False")),
                    }
                }
                "max_split_size_mb" => settings.max_split = from_20(number(value)?)?,
                "max_non_split_rounding_mb" => settings.max_rounding = from_20(number(value)?)?,
                "roundup_power2_divisions" => {
                    let power = value.parse().ok().filter(|n: &u64| n.is_power_of_two());
                    settings.divisions = power
                        .ok_or_else(|| format!("{key}:{value}: only one power of two for all sizes is modelled"))?;
                }
                "garbage_collection_threshold" => {
                    let part = value.parse().ok().filter(|part| *part > 0.0 && *part < 1.0);
                    settings.collect_above = part.ok_or_else(|| format!("{key}:{value}: expected a part of 1"))?;
                }
                "backend" if value == "native" => {}
                "backend" => return Err(format!("backend:{value} is another allocator, which is not modelled")),
                _ if WITHOUT_EFFECT.contains(&key) => {}
                _ => return Err(format!("{key} is not known")),
            }
        }
        Ok(settings)
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
        const SMALLEST: u64 = 512;
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

/// Of these settings, those that do not change how much is reserved, in the same form.
pub fn without_effect(text: &str) -> String {
    let kept = pairs(text).unwrap_or_default().into_iter();
    let kept = kept.filter(|(key, _)| WITHOUT_EFFECT.contains(key));
    kept.map(|(key, value)| format!("{key}:{value}"))
        .collect::<Vec<_>>()
        .join(",")
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

    #[test]
    fn settings_are_read_as_pytorch_reads_them() {
        let read = Settings::parse("expandable_segments:True, max_split_size_mb:128,garbage_collection_threshold:0.8");
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
            "per_process_memory_fraction:0.5",
        ] {
            assert!(Settings::parse(wrong).is_err(), "{wrong}");
        }
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
        let four = Settings::parse("roundup_power2_divisions:4").expect("a number");
        assert_eq!(four.round(1200 * MIB), 1280 * MIB);
        assert_eq!((four.round(2048), four.round(1024 * MIB)), (2048, 1024 * MIB));
    }
}
