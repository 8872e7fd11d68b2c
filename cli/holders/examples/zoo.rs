use culeak_holders::source::live::Process;
use culeak_holders::{Block, Options};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let mut blocks: Vec<Block> = std::fs::read_to_string(&a[2]).unwrap().lines().map(|l| {
        let w: Vec<&str> = l.split_whitespace().collect();
        Block { address: w[0].parse().unwrap(), bytes: w[1].parse().unwrap(), time_ns: 0, of_torch: a.get(3).is_some() }
    }).collect();
    blocks.sort_by_key(|b| b.address);
    blocks.dedup_by_key(|b| b.address);
    let options = Options { concrete: if std::env::var_os("SHAPES").is_some() { vec![] } else { (0..blocks.len()).collect() }, ..Options::default() };
    let source = Process::new(a[1].parse().unwrap()).unwrap();
    match culeak_holders::search(&source, &blocks, &options) {
        Ok(h) => println!("{}", serde_json::to_string(&h).unwrap()),
        Err(e) => { eprintln!("{e}"); std::process::exit(1) }
    }
}
