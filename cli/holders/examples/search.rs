//! Prints the class and the path of each block: `search PID FILE`.
//!
//! Lines of the file: address in hexadecimal, size in bytes, a label. The word `torch` in the label marks a block of
//! PyTorch's caching allocator. `PAUSE=1` stops the process for the copy. Instead of PID, `core:FILE` names a core file.

use std::error::Error;
use std::{env, fs};

use culeak_holders::source::Source;
use culeak_holders::source::core::Core;
use culeak_holders::source::live::Process;
use culeak_holders::{Block, Options, search};

fn main() -> Result<(), Box<dyn Error>> {
    let [pid, file] = &env::args().skip(1).collect::<Vec<_>>()[..] else {
        return Err("usage: search PID FILE".into());
    };
    let mut blocks = Vec::new();
    let mut labels = std::collections::HashMap::new();
    for line in fs::read_to_string(file)?.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [address, bytes, label @ ..] = &fields[..] else {
            continue;
        };
        let address = u64::from_str_radix(address.trim_start_matches("0x"), 16)?;
        labels.insert(address, label.join(" "));
        blocks.push(Block {
            address,
            bytes: bytes.parse()?,
            time_ns: 0,
            of_torch: label.contains(&"torch"),
            is_handle: false,
        });
    }
    blocks.sort_by_key(|block| block.address);
    let source: Box<dyn Source> = match pid.strip_prefix("core:") {
        Some(core) => Box::new(Core::open(core.as_ref())?),
        None => Box::new(Process::new(pid.parse()?)?),
    };
    let options = Options {
        pause: env::var_os("PAUSE").is_some(),
        ..Options::default()
    };
    let holders = search(&*source, &blocks, &options)?;
    for block in &holders.blocks {
        let path = &holders.paths[block.path];
        print!(
            "{:x} {:12} {:24} {}",
            block.address,
            format!("{:?}", path.class),
            labels[&block.address],
            path.origin
        );
        if !path.origin_type.is_empty() {
            print!(" ({})", path.origin_type);
        }
        for step in &path.steps {
            print!(" {} → {}", step.via, step.holder);
        }
        println!(
            "{}{}",
            if path.possibly { " (possibly)" } else { "" },
            path.note.as_deref().unwrap_or("")
        );
    }
    for retainer in &holders.retainers {
        println!(
            "{:10} bytes in {:4} blocks  {}",
            retainer.bytes, retainer.count, retainer.name
        );
    }
    println!("{:#?}", holders.search);
    Ok(())
}
