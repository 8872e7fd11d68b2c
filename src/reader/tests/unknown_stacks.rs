//! Reads that leave known stacks empty.

use std::collections::HashMap;

use super::*;

/// Five stacks, one of them cut off and two of gradients, the last of nothing, behind `before` other frames and modules, at another address in each process.
fn recorded(path: &Path, before: u64, line_table: &[u8]) -> Snapshot {
    let recording = record(path);
    recording.add_device(0, None, b"Fake H200");
    let thread = recording.add_thread(1, b"main\0\0\0\0\0\0\0\0\0\0\0\0");
    let module = |name: &'static str, nth: u64| {
        let bias = 0x6000_0000_0000 + (before << 32) + (nth << 24);
        let seen = ModuleSeen {
            path: name.as_bytes(),
            build_id: name.as_bytes(),
            bias,
            start: bias,
            end: bias + 0x9000,
        };
        recording.add_module(&seen)
    };
    let other = module("/lib/other.so", 1);
    for nth in 0..before {
        recording.frame(ROOT, other, 0x10 + nth).unwrap();
    }
    let (a, b) = (module("/lib/a.so", 2), module("/lib/b.so", 3));
    let seen = || CodeSeen {
        file: b"/home/me/train.py",
        function: b"step",
        first_line: 40,
        line_table: Some(line_table),
        minor: 12,
    };
    let code = recording.code(7, || Some(seen())).unwrap();
    let outer = recording.python_frame(ROOT, code, 2).unwrap();
    let inner = recording.frame(outer, a, 0x20).unwrap();
    let leaves = [
        recording.frame(inner, a, 0x30).unwrap(),
        recording.frame(inner, b, 0x30).unwrap(),
        recording.frame(CUT, a, 0x30).unwrap(),
        recording.gradient_frame(inner, NEAR | (u64::from(inner) + 1)).unwrap(),
        recording.gradient_frame(inner, (1 << 20) + 1).unwrap(),
    ];
    for (address, leaf) in (1..).zip(leaves) {
        assert!(recording.allocated(key(address), &entry(recording, address, leaf, thread)));
    }
    read(path).unwrap()
}

/// By key, the function and the number of the frames of each stack. Empty: the stack was left empty.
fn stacks(snapshot: &Snapshot, keys: &[u64]) -> HashMap<u64, usize> {
    assert_eq!(snapshot.stacks.len(), keys.len());
    let lengths = snapshot.stacks.iter().map(|stack| stack.frames.len());
    keys.iter().copied().zip(lengths).collect()
}

const TABLE: [u8; 4] = [0x80 | 13 << 3 | 1, 0, 0x80 | 13 << 3, 2];

#[test]
fn equal_stacks_of_different_processes_have_equal_keys() {
    let folder = Folder::new("unknown-stacks");
    let path = |name: &str| folder.0.join(name);
    let whole = recorded(&path("a.culeak"), 0, &TABLE);
    recorded(&path("b.culeak"), 5, &TABLE);
    let other_lines = [0x80 | 13 << 3 | 1, 0, 0x80 | 13 << 3, 4];
    recorded(&path("c.culeak"), 0, &other_lines);
    let none = |_: u64, _: bool| false;
    let read = |name: &str| read_unknown_stacks(&path(name), &none).unwrap();
    let (a, b, c) = (read("a.culeak"), read("b.culeak"), read("c.culeak"));
    assert_eq!((&a.0.stacks, &a.0.locations), (&whole.stacks, &whole.locations));
    let (of_a, of_b) = (stacks(&a.0, &a.1), stacks(&b.0, &b.1));
    assert_eq!(of_a.len(), 5);
    assert_eq!(of_a, of_b);
    // The same offsets in other code are other lines; the stack without Python is the same.
    let of_c = stacks(&c.0, &c.1);
    assert_eq!(of_c.keys().filter(|key| of_a.contains_key(key)).count(), 1);
}

#[test]
fn known_stacks_are_left_empty_and_nothing_else_changes() {
    let folder = Folder::new("known-stacks");
    let path = folder.0.join("a.culeak");
    let whole = recorded(&path, 0, &TABLE);
    let (all, keys) = read_unknown_stacks(&path, &|_, _| false).unwrap();
    assert_eq!(all.allocations.rows, whole.allocations.rows);
    let known = keys[1];
    let (part, same_keys) = read_unknown_stacks(&path, &|key, tensors| key == known && !tensors).unwrap();
    assert_eq!(same_keys, keys);
    assert_eq!(part.allocations.rows, whole.allocations.rows);
    let lengths: Vec<usize> = part.stacks.iter().map(|stack| stack.frames.len()).collect();
    let expected: Vec<usize> = whole.stacks.iter().map(|stack| stack.frames.len()).collect();
    assert_eq!(lengths, [expected[0], 0, expected[2], expected[3], expected[4]]);
}

#[test]
fn a_gradient_has_the_python_lines_of_the_forward_pass_if_there_are_any() {
    let folder = Folder::new("gradients");
    let snapshot = recorded(&folder.0.join("a.culeak"), 3, &TABLE);
    assert_eq!(snapshot.validate(), Ok(()));
    let lengths: Vec<usize> = snapshot.stacks.iter().map(|stack| stack.frames.len()).collect();
    assert_eq!(lengths, [3, 3, 1, 3, 2]);
    let location = &snapshot.locations[snapshot.stacks[3].frames[0]];
    assert!(location.is_gradient());
    let lines: Vec<_> = location
        .symbols
        .iter()
        .map(|symbol| (symbol.function.as_str(), symbol.line))
        .collect();
    assert_eq!(lines, [("gradient near step", Some(40))]);
}
