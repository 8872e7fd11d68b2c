use super::*;

/// The names of the addresses 0x1000, 0x1008 … 0x1018.
fn named(read: impl FnOnce(&mut Names) -> io::Result<()>) -> Vec<Option<String>> {
    let addresses = (0x1000..0x1020).step_by(8);
    let mut names = Names::of(addresses.clone());
    read(&mut names).expect("read");
    addresses.map(|address| names.get(address).map(str::to_owned)).collect()
}

fn by_map(map: &str) -> Vec<Option<String>> {
    named(|names| names.read_map(map.as_bytes()))
}

#[test]
fn the_last_name_of_an_address_counts() {
    let map = "1000 10 void Main()\n0x1008 0x10 Lcom/App;::step\n1018 1 \n1018 8 py::step:/train.py\n";
    let names = by_map(map)
        .into_iter()
        .map(Option::unwrap_or_default)
        .collect::<Vec<_>>();
    assert_eq!(names, ["void Main()", "Lcom/App;::step", "Lcom/App;::step", ""]);
}

#[test]
fn lines_of_another_form_name_nothing() {
    let long = format!("1000 20 {}\n1000 8 short\n", "x".repeat(1 << 20));
    let names = by_map(&long);
    assert_eq!(names[0].as_deref(), Some("short"), "what is behind a long line is read");
    assert!(names[1].as_deref().is_some_and(|name| name.len() < 4096));
    let unfinished = "1000 20 Mai";
    for map in [
        unfinished,
        "",
        "\n",
        "x y z\n",
        "1000\n",
        "1000 20\n",
        "-1 20 a\n",
        "ffffffffffffffff ffffffffffffffff a\n",
        "11000000000000000 20 a\n",
    ] {
        assert_eq!(by_map(map), [const { None }; 4], "{map}");
    }
}

#[test]
fn a_map_with_most_code_at_the_same_addresses_is_refused() {
    let mut names = Names::of(0..1 << 20);
    let error = names
        .read_map("0 ffffffff a\n".repeat(1000).as_bytes())
        .expect_err("refused");
    assert!(error.to_string().contains("is damaged"), "{error}");
}

/// A dump of process 7 with one record of this kind and size.
pub fn dump(id: u32, bytes: u32) -> Vec<u8> {
    let words = [
        0x4a69_5444,
        1,
        40,
        62,
        0,
        7,
        0,
        0,
        0,
        0,
        id,
        bytes,
        0,
        0,
        7,
        7,
        0,
        0,
        0x1000,
        0,
        16,
        0,
        1,
        0,
    ];
    let words = words.iter().flat_map(|word: &u32| word.to_le_bytes());
    words.chain(*b"julia_step_7\0....").collect()
}

#[test]
fn records_of_code_in_a_dump_are_names() {
    let whole = dump(0, 16 + 40 + 13 + 4);
    let unknown = dump(9, 16 + 40 + 13 + 4);
    let twice = [&unknown[..], &whole[40..], &unknown[40..50]].concat();
    for dump in [&whole, &twice, &whole[..whole.len() - 4].to_vec()] {
        let names = named(|names| names.read_dump(&dump[..], 7));
        let step = Some("julia_step_7".to_owned());
        assert_eq!(names, [step.clone(), step, None, None]);
    }
}

#[test]
fn dumps_of_other_processes_and_damaged_ones_are_refused() {
    let read = |dump: &[u8], pid| Names::of(0..9).read_dump(dump, pid).map_err(|error| error.to_string());
    let whole = dump(0, 16 + 40 + 13 + 4);
    assert_eq!(read(&whole, 8), Err("is no dump of this process".to_owned()));
    assert_eq!(read(&[b'x'; 100], 7), Err("is no dump of this process".to_owned()));
    assert_eq!(read(&dump(0, 15), 7), Err("is damaged".to_owned()));
    for end in 0..whole.len() {
        assert_eq!(read(&whole[..end], 7), Ok(()), "{end}");
    }
}

#[test]
fn what_a_process_wrote_after_a_suspend_is_its_own() {
    const MINUTE: u64 = 60_000_000_000;
    // It ran for two minutes; the machine slept for ten in between, which its recording does not know.
    let wrote = 1000 * MINUTE + 12 * MINUTE;
    assert!(wrote <= last_written(1000 * MINUTE, 2 * MINUTE, 10 * MINUTE));
    assert!(wrote > last_written(1000 * MINUTE, 2 * MINUTE, 0));
}
