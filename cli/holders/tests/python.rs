//! Objects are read from outside as Python's collector sees them from inside.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use culeak_holders::copy::Image;
use culeak_holders::graph::{EdgeKind, PythonRoot, ThreadPart};
use culeak_holders::modules::Modules;
use culeak_holders::python::{IMMORTAL, Python, Reference, Rooted, Sort};
use culeak_holders::source::live::Process;

#[path = "../../../shim/cpython/tests/support/mod.rs"]
mod interpreters;

#[path = "python/hostile.rs"]
mod hostile;
#[path = "python/offsets.rs"]
mod offsets;

use interpreters::recorded as interpreters;

/// A program that has written its first line and waits for its standard input to close.
struct Waiting {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Waiting {
    fn start(python: &Path, script: &str) -> Waiting {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(script);
        Waiting::spawn(Command::new(python).arg(script))
    }

    fn spawn(command: &mut Command) -> Waiting {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let output = BufReader::new(child.stdout.take().unwrap());
        Waiting { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the program ended early");
        line.trim_end().to_owned()
    }

    fn process(&self) -> Process {
        Process::new(self.child.id()).unwrap()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.output.read_to_end(&mut Vec::new());
        let _ = self.child.wait();
    }
}

/// What the collector sees of an object.
struct Row {
    address: u64,
    type_name: String,
    referents: Vec<u64>,
}

fn rows(program: &mut Waiting) -> Vec<Row> {
    let count: usize = program.line().parse().unwrap();
    let row = |line: String| {
        let mut words = line.split(' ').filter(|word| !word.is_empty());
        Row {
            address: words.next().unwrap().parse().unwrap(),
            type_name: words.next().unwrap().to_owned(),
            referents: words.map(|word| word.parse().unwrap()).collect(),
        }
    };
    (0..count).map(|_| row(program.line())).collect()
}

fn read<'a>(copy: &Image<'a>) -> Python {
    let modules = Modules::find(copy);
    Python::find(copy, &modules)
        .unwrap()
        .expect("an interpreter is in the process")
}

/// The dictionaries that belong to an object.
fn instance_dictionaries(reader: &mut Python, copy: &Image, rows: &[Row]) -> HashSet<u64> {
    let mut found = Vec::new();
    for row in rows {
        if let Some(of) = reader.object(copy, row.address) {
            reader.references(copy, row.address, of, &mut found);
        }
    }
    found.retain(|reference| reference.edge.kind() == EdgeKind::Dictionary);
    found.into_iter().map(|reference| reference.target).collect()
}

/// References that C code keeps in memory of its own, where the collector finds them with the help of that code.
const ELSEWHERE: [(&str, &str); 7] = [
    ("Element", ""),
    ("Pickler", ""),
    ("PyCapsule", "class "),
    ("PyCPointerType", "class "),
    ("_lru_cache_wrapper", ""),
    ("module", ""),
    ("tee", ""),
];

/// Objects whose references change while the program prints them.
const MOVING: [&str; 3] = ["TextIOWrapper", "BufferedWriter", "frame"];

#[test]
fn references_are_those_that_the_collector_sees() {
    let mut failed = false;
    for python in interpreters() {
        let mut program = Waiting::start(&python.command, "referents.py");
        let rows = rows(&mut program);
        let process = program.process();
        let copy = Image::take(&process, &[]).unwrap();
        let mut reader = read(&copy);
        assert_eq!(reader.version(), python.version);
        let mut wrong: HashMap<String, (usize, String)> = HashMap::new();
        let (mut compared, mut words) = (0, 0);
        let by_address: HashMap<u64, &Row> = rows.iter().map(|row| (row.address, row)).collect();
        let shared = instance_dictionaries(&mut reader, &copy, &rows);
        for row in &rows {
            let mut complain = |what: String| {
                let entry = wrong
                    .entry(format!("{} {}", row.type_name, what.split(':').next().unwrap()))
                    .or_default();
                entry.0 += 1;
                entry.1 = what;
            };
            let Some(of) = reader.object(&copy, row.address) else {
                complain("is not recognized".to_owned());
                continue;
            };
            if MOVING.contains(&reader.type_name(of)) {
                continue;
            }
            compared += 1;
            let mut found = Vec::new();
            reader.references(&copy, row.address, of, &mut found);
            let mut referents = row.referents.clone();
            // From 3.13 on an object and its dictionary share the attributes, and which of them has them for the collector
            // differs between versions.
            let dictionary = found
                .iter()
                .find(|reference| reference.edge.kind() == EdgeKind::Dictionary);
            let dictionary = dictionary
                .map(|reference| reference.target)
                .filter(|_| python.minor >= 13);
            if let Some(row) = dictionary.and_then(|dictionary| by_address.get(&dictionary)) {
                let of = reader.object(&copy, row.address).unwrap();
                reader.references(&copy, row.address, of, &mut found);
                referents.extend(&row.referents);
                referents.retain(|&referent| referent != row.address);
                found.retain(|reference| reference.target != row.address);
            } else if shared.contains(&row.address) {
                continue;
            }
            let mut left: HashMap<u64, Vec<Reference>> = HashMap::new();
            // The surest ones are taken first.
            found.sort_by_key(|reference| reference.sort != Sort::Word);
            for reference in found {
                left.entry(reference.target).or_default().push(reference);
            }
            for referent in &referents {
                let of = reader.object(&copy, *referent);
                match left.get_mut(referent).and_then(Vec::pop) {
                    Some(_) => {}
                    // Texts, numbers and the like hold nothing.
                    None if of.is_some_and(|of| reader.is_leaf(of)) => {}
                    None => {
                        let name = of.map_or("?".to_owned(), |of| reader.name(&copy, *referent, of));
                        let is_elsewhere =
                            |(of, name_of): &(&str, &str)| *of == row.type_name && name.starts_with(name_of);
                        if ELSEWHERE.iter().any(is_elsewhere) {
                            continue;
                        }
                        complain(format!("lacks: {name}"));
                    }
                }
            }
            for extra in left.into_values().flatten() {
                let Some(of) = reader.object(&copy, extra.target) else {
                    if extra.sort != Sort::Word {
                        let label = reader.label(&copy, row.address, false, extra.edge);
                        complain(format!("leads nowhere: {} {:#x}", label.concrete, extra.target));
                    }
                    continue;
                };
                let label = reader.label(&copy, row.address, false, extra.edge).concrete;
                // Counted, but of no interest to the collector.
                let is_counted = extra.edge.kind() == EdgeKind::Class
                    || [".__subclasses__", ".__slots__", ".f_code"].contains(&&*label)
                    || extra.edge.kind() == EdgeKind::Dictionary && python.minor == 13;
                if !is_counted && !reader.is_leaf(of) {
                    if extra.sort == Sort::Word {
                        words += 1;
                        let name = reader.name(&copy, extra.target, of);
                        println!("  {} {label}: {name}", row.type_name);
                        continue;
                    }
                    let name = reader.name(&copy, extra.target, of);
                    complain(format!("has an extra {:?} {label}: {name}", extra.sort));
                }
            }
        }
        println!(
            "{}: {compared} objects, {words} words that the collector does not follow",
            python.version
        );
        assert!(words < 60, "{words}");
        let mut wrong: Vec<_> = wrong.into_iter().collect();
        wrong.sort();
        for (what, (times, example)) in &wrong {
            println!("  {times} x {what}: {example}");
        }
        failed |= !wrong.is_empty();
        assert!(compared > 10_000, "{compared}");
    }
    assert!(!failed, "references differ, see above");
}

/// References found to each object, from the roots and from everything that they lead to.
#[derive(Default)]
struct Explanation {
    /// Counted references.
    sure: u64,
    words: u64,
}

fn search(reader: &mut Python, copy: &Image, tracked: &[u64]) -> HashMap<u64, Explanation> {
    let mut found: HashMap<u64, Explanation> = HashMap::new();
    let mut frames = Vec::new();
    let mut queue: Vec<u64> = tracked.to_vec();
    let mut see = |target: u64, sort: Sort, queue: &mut Vec<u64>| {
        let seen = found.entry(target).or_default();
        let count = match sort {
            Sort::Named | Sort::Context => &mut seen.sure,
            // Memory that a library allocated may look like an object; what the collector tracks is in the queue anyway.
            Sort::Word | Sort::Possible => return seen.words += 1,
        };
        *count += 1;
        if *count == 1 {
            queue.push(target);
        }
    };
    reader.roots(copy, &mut |_, rooted| match rooted.is_frame {
        true => frames.push(rooted.target),
        false => see(rooted.target, rooted.sort, &mut queue),
    });
    let mut references = Vec::new();
    for frame in frames {
        reader.frame_references(copy, frame, &mut references);
    }
    // Running frames borrow from each other from 3.14 on.
    for reference in &mut references {
        reference.sort = Sort::Possible;
    }
    let mut seen: HashSet<u64> = HashSet::new();
    loop {
        for reference in references.drain(..) {
            if reader.object(copy, reference.target).is_some() {
                see(reference.target, reference.sort, &mut queue);
            }
        }
        let Some(next) = queue.pop() else { break };
        if let Some(of) = reader
            .object(copy, next)
            .filter(|of| !reader.is_leaf(*of))
            .filter(|_| seen.insert(next))
        {
            reader.references(copy, next, of, &mut references);
        }
    }
    found
}

#[test]
fn no_object_has_more_references_than_its_count() {
    let mut failed = false;
    for python in interpreters() {
        let mut program = Waiting::start(&python.command, "referents.py");
        let rows = rows(&mut program);
        let process = program.process();
        let copy = Image::take(&process, &[]).unwrap();
        let mut reader = read(&copy);
        let mut tracked = Vec::new();
        reader.tracked(&copy, &mut |address| tracked.push(address));
        assert!(
            tracked.len() >= rows.len(),
            "the collector's lists have {} objects",
            tracked.len()
        );
        let found = search(&mut reader, &copy, &tracked);
        let (mut more, mut fewer): (HashMap<String, u64>, HashMap<String, u64>) = Default::default();
        for address in &tracked {
            let of = reader.object(&copy, *address).unwrap();
            let count = reader.count(&copy, *address);
            if count == IMMORTAL {
                continue;
            }
            let Explanation { sure, words } = found.get(address).unwrap_or(&Explanation { sure: 0, words: 0 });
            if *sure > count {
                *more
                    .entry(format!("{} {sure} > {count}", reader.name(&copy, *address, of)))
                    .or_default() += 1;
            }
            if sure + words < count {
                *fewer.entry(reader.type_name(of).to_owned()).or_default() += 1;
            }
        }
        println!("{}: {} tracked, fewer {fewer:?}", python.version, tracked.len());
        if !more.is_empty() {
            println!("  more: {more:?}");
        }
        failed |= !more.is_empty() || fewer.values().sum::<u64>() > tracked.len() as u64 * 3 / 100;
    }
    assert!(!failed, "counts differ, see above");
}

#[test]
fn references_and_objects_have_the_names_that_the_program_gives_them() {
    for python in interpreters() {
        let version = &python.version;
        let mut program = Waiting::start(&python.command, "labels.py");
        let count: usize = program.line().parse().unwrap();
        let lines: Vec<String> = (0..count).map(|_| program.line()).collect();
        let process = program.process();
        let copy = Image::take(&process, &[]).unwrap();
        let mut reader = read(&copy);
        let mut roots = Vec::new();
        reader.roots(&copy, &mut |root, rooted| roots.push((root.clone(), rooted)));
        let mut frames = Vec::new();
        for (root, rooted) in &roots {
            if let PythonRoot::Thread { thread, main, part } = root
                && *part == ThreadPart::Frame
            {
                let name = match rooted.is_frame {
                    true => reader.frame_name(&copy, rooted.target),
                    false => {
                        let of = reader.object(&copy, rooted.target).unwrap();
                        reader.name(&copy, rooted.target, of)
                    }
                };
                assert_eq!(*main, *thread == u64::from(program.child.id()), "{version}: {root:?}");
                frames.push((*thread, name, *rooted));
            }
        }
        for line in lines {
            let (what, rest) = line.split_once(' ').unwrap();
            let (first, text) = rest.split_once(' ').unwrap_or((rest, ""));
            let first: u64 = first.parse().unwrap();
            match what {
                "label" => {
                    let (target, text) = text.split_once(' ').unwrap();
                    let (concrete, shape) = text.split_once('\t').unwrap();
                    let target: u64 = target.parse().unwrap();
                    let of = reader.object(&copy, first).expect(&line);
                    let mut found = Vec::new();
                    reader.references(&copy, first, of, &mut found);
                    found.retain(|reference| reference.target == target);
                    let edges: Vec<_> = found
                        .iter()
                        .map(|found| reader.label(&copy, first, false, found.edge))
                        .collect();
                    let labels: Vec<_> = edges.iter().map(|label| (&*label.concrete, &*label.shape)).collect();
                    assert!(labels.contains(&(concrete, shape)), "{version}: {line}: {labels:?}");
                    let is_hidden = concrete == ".__dict__";
                    assert!(edges.iter().all(|label| label.hidden == is_hidden), "{version}: {line}");
                }
                "name" => {
                    let of = reader.object(&copy, first).expect(&line);
                    assert_eq!(reader.name(&copy, first, of), text, "{version}");
                }
                "frame" => {
                    let found = frames.iter().find(|(_, name, _)| name == text);
                    let thread = found.unwrap_or_else(|| panic!("{version}: {line}: {frames:?}")).0;
                    assert_eq!(thread, first, "{version}: {line}");
                }
                "root" => {
                    // From 3.14 on callbacks are in tuples in a list.
                    let mut found: Vec<u64> = roots.iter().map(|(_, rooted)| rooted.target).collect();
                    for _ in 0..2 {
                        let mut references = Vec::new();
                        for target in &found {
                            if let Some(of) = reader.object(&copy, *target) {
                                reader.references(&copy, *target, of, &mut references);
                            }
                        }
                        references.retain(|reference| reference.edge.kind() == EdgeKind::Item);
                        found.extend(references.iter().map(|reference| reference.target));
                    }
                    let kinds: Vec<_> = roots.iter().map(|(root, _)| root).collect();
                    assert!(found.contains(&first), "{version}: {line} {text}: {kinds:?}");
                }
                "variable" => {
                    let is_local = |rooted: &Rooted, reader: &mut Python| {
                        let mut found = Vec::new();
                        if rooted.is_frame {
                            reader.frame_references(&copy, rooted.target, &mut found);
                        } else if let Some(of) = reader.object(&copy, rooted.target) {
                            reader.references(&copy, rooted.target, of, &mut found);
                        }
                        let at = found
                            .iter()
                            .find(|found| found.target == first && found.edge.kind() == EdgeKind::Local);
                        at.is_some_and(|at| {
                            let label = reader.label(&copy, rooted.target, rooted.is_frame, at.edge);
                            label.concrete == format!("local {text}")
                        })
                    };
                    assert!(
                        frames.iter().any(|(.., rooted)| is_local(rooted, &mut reader)),
                        "{version}: {line}"
                    );
                }
                _ => assert_eq!(what, "local"),
            }
        }
    }
}
