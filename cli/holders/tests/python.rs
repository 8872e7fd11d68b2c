//! Objects are read from outside as Python's collector sees them from inside.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use culeak_holders::copy::Copy;
use culeak_holders::graph::EdgeKind;
use culeak_holders::modules::Modules;
use culeak_holders::python::{Count, Python, Reference, Sort};
use culeak_holders::source::live::Process;

#[path = "../../../shim/cpython/tests/support/mod.rs"]
mod interpreters;

use interpreters::interpreters;

/// A program that has written its first line and waits for its standard input to close.
struct Waiting {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Waiting {
    fn start(python: &Path, script: &str) -> Waiting {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(script);
        let mut command = Command::new(python);
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("Python starts");
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

fn read<'a>(copy: &Copy<'a>) -> Python {
    let modules = Modules::find(copy);
    Python::find(copy, &modules)
        .unwrap()
        .expect("an interpreter is in the process")
}

/// Objects whose references change while the program prints them.
const MOVING: [&str; 3] = ["TextIOWrapper", "BufferedWriter", "frame"];

#[test]
fn references_are_those_that_the_collector_sees() {
    let mut failed = false;
    for python in interpreters() {
        let mut program = Waiting::start(&python.command, "referents.py");
        let rows = rows(&mut program);
        let process = program.process();
        let copy = Copy::take(&process, &[]).unwrap();
        let mut reader = read(&copy);
        assert_eq!(reader.version(), python.version);
        let mut wrong: HashMap<String, (usize, String)> = HashMap::new();
        let mut compared = 0;
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
            let mut left: HashMap<u64, Vec<Reference>> = HashMap::new();
            for reference in found {
                left.entry(reference.target).or_default().push(reference);
            }
            for referent in &row.referents {
                let of = reader.object(&copy, *referent);
                match left.get_mut(referent).and_then(Vec::pop) {
                    Some(_) => {}
                    // Texts, numbers and the like are nobody's holders.
                    None if of.is_some_and(|of| reader.is_leaf(of)) => {}
                    None => {
                        let name = of.map_or("?".to_owned(), |of| reader.name(&copy, *referent, of));
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
                let is_counted =
                    extra.edge.kind() == EdgeKind::Class || [".__subclasses__", ".__slots__"].contains(&&*label);
                if !is_counted && !reader.is_leaf(of) {
                    let name = reader.name(&copy, extra.target, of);
                    complain(format!("has an extra {:?} {label}: {name}", extra.sort));
                }
            }
        }
        println!("{}: {compared} objects", python.version);
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
