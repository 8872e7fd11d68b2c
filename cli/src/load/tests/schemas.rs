//! `docs/why.schema.json`, `docs/holders.schema.json`, `docs/job.schema.json` and `docs/job-diff.schema.json` describe what is written.

use culeak::analysis::filter::Filter;
use culeak::analysis::job::diff::diff;
use culeak::analysis::why::{Options, Why};
use culeak::snapshot::{Class, Snapshot};
use serde_json::{Value, json};

use crate::load::many::{self, How};
use crate::load::{NameArgs, Place, sidecar};
use crate::text::sample::{held, leaky, modelled};

const SNAPSHOT: &str = include_str!("../../../../docs/snapshot.schema.json");
const WHY: &str = include_str!("../../../../docs/why.schema.json");
const JOB: &str = include_str!("../../../../docs/job.schema.json");
const JOB_DIFF: &str = include_str!("../../../../docs/job-diff.schema.json");
const HOLDERS: &str = include_str!("../../../../docs/holders.schema.json");

/// A validator that refuses fields that the schema does not describe.
fn strict(schema: &str) -> jsonschema::Validator {
    let mut schema: Value = serde_json::from_str(schema).expect("JSON");
    close(&mut schema);
    jsonschema::validator_for(&schema).expect("the schema is valid")
}

/// The schema of holders. Its references to the snapshot's schema lead to a copy of that.
fn of_holders() -> jsonschema::Validator {
    let mut schema: Value = serde_json::from_str(&HOLDERS.replace("snapshot.schema.json#/", "#/")).expect("JSON");
    let mut snapshot: Value = serde_json::from_str(SNAPSHOT).expect("JSON");
    schema["$defs"] = snapshot["$defs"].take();
    strict(&schema.to_string())
}

/// Adds that objects have no other fields.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("type") == Some(&json!("object")) && fields.contains_key("properties") {
                fields.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
            fields.values_mut().for_each(close);
        }
        Value::Array(values) => values.iter_mut().for_each(close),
        _ => {}
    }
}

fn problems(validator: &jsonschema::Validator, json: &Value) -> Vec<String> {
    let errors = validator.iter_errors(json);
    errors
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

fn why(snapshot: &Snapshot, options: &Options) -> Value {
    let why = Why::of(snapshot, options).expect("an answer");
    serde_json::to_value(&why).expect("JSON")
}

/// Holders with every field.
fn full() -> Snapshot {
    let mut snapshot = modelled();
    let holders = snapshot.holders.as_mut().expect("searched");
    let search = &mut holders.search;
    (search.paused_ns, search.torn, search.changed) = (1, 1, 1);
    (search.point, search.limits) = (Some(culeak::point::Point::End), vec!["a reason".to_owned()]);
    for path in &mut holders.paths {
        (path.possibly, path.interior, path.note) = (true, true, Some("gc is disabled".to_owned()));
    }
    for retainer in &mut holders.retainers {
        (retainer.also, retainer.also_unnamed) = (vec!["another".to_owned()], 1);
    }
    let first = holders.blocks[0].address;
    holders.change(|block| block.address == first);
    snapshot
}

#[test]
fn answers_from_the_least_to_the_most_are_in_the_schema() {
    let schema = strict(WHY);
    let address = full().holders.expect("searched").blocks[1].address;
    let options = [
        Options::default(),
        Options {
            top: Some(1),
            rows: Some(1),
            min_bytes: 1 << 20,
            ..Options::default()
        },
        Options {
            selector: Some(format!("{address:#x}").parse().expect("a selector")),
            ..Options::default()
        },
        Options {
            class: Some(Class::Lost),
            ..Options::default()
        },
        Options {
            filter: Filter {
                kinds: vec![culeak::kind::Kind::Tensor],
                since: Some("epoch 1".to_owned()),
                ..Filter::default()
            },
            ..Options::default()
        },
    ];
    for (nth, options) in options.iter().enumerate() {
        for snapshot in [held(), full()] {
            let json = why(&snapshot, options);
            assert_eq!(problems(&schema, &json), Vec::<String>::new(), "{nth}");
            assert_eq!(json["block"].is_null(), nth != 2);
            assert_eq!(json["filter"].is_null(), nth != 4);
        }
    }
}

#[test]
fn every_class_is_in_the_schema_and_other_fields_are_not() {
    let schema = strict(WHY);
    for &class in Class::ALL {
        let mut snapshot = held();
        snapshot.holders.as_mut().expect("searched").paths[0].class = class;
        let json = why(&snapshot, &Options::default());
        assert_eq!(problems(&schema, &json), Vec::<String>::new(), "{class:?}");
    }
    let mut json = why(&held(), &Options::default());
    json["origins"][0]["holders"][0]["other"] = json!(1);
    json["search"]["other"] = json!(1);
    assert_eq!(problems(&schema, &json).len(), 2, "the validator is strict");
}

#[test]
fn the_file_beside_a_recording_is_in_its_schema() {
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().join("app.culeak");
    for snapshot in [held(), full()] {
        let holders = snapshot.holders.clone().expect("searched");
        sidecar::write(&recording, &snapshot, holders).expect("written");
        let text = std::fs::read(recording.with_extension("culeak-why")).expect("readable");
        let json = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(problems(&of_holders(), &json), Vec::<String>::new());
    }
}

#[test]
fn the_report_and_the_changes_of_a_job_are_in_their_schemas() {
    let folder = tempfile::tempdir().expect("a folder");
    let names = NameArgs {
        no_symbol_cache: true,
        ..NameArgs::default()
    };
    let how = How {
        names: &names,
        at: None,
        report: culeak::analysis::report::Options::default(),
    };
    let mut places = vec![Place::File(folder.path().join("missing.json"))];
    for rank in 0..5_u32 {
        let mut snapshot = leaky();
        snapshot.process.pid = 100 + rank;
        snapshot.process.ranks.insert("RANK".to_owned(), rank.to_string());
        snapshot.process.command_line = vec!["python".to_owned(), "train.py".to_owned()];
        snapshot.process.executable = "/usr/bin/python3".to_owned();
        if rank == 3 {
            snapshot.allocations.truncate(1);
        }
        let path = folder.path().join(format!("{rank}.json"));
        std::fs::write(&path, serde_json::to_vec(&snapshot).expect("JSON")).expect("written");
        places.push(Place::File(path));
    }
    let options = culeak::analysis::job::Options::default();
    let sites = culeak::analysis::job::sites::Sites::default();
    // The last process is on one side alone.
    let (before, sites) = many::side(&places[..places.len() - 1], &how, sites);
    let (mut after, sites) = many::side(&places, &how, sites);
    for sums in &mut after.processes[2..3] {
        sums.sites.iter_mut().for_each(|sum| sum.tally.bytes += 30 << 20);
        sums.row.held.bytes += 30 << 20;
    }
    let changed = diff(before, after, &sites, &options);
    let json = serde_json::to_value(&changed).expect("JSON");
    assert_eq!(problems(&strict(JOB_DIFF), &json), Vec::<String>::new());
    let is_full = |list: &str| json[list].as_array().is_some_and(|list| !list.is_empty());
    assert!(
        ["pairs", "only_after", "stands_out", "sites"].into_iter().all(is_full),
        "{json:#}"
    );
    assert_eq!(json["sites"][0]["stands_out"]["processes"][0]["rank"], 2);
    let job = many::job(&places, &how, &options);
    let json = serde_json::to_value(&job).expect("JSON");
    assert_eq!(problems(&strict(JOB), &json), Vec::<String>::new());
    let is_full = |list: &str| json[list].as_array().is_some_and(|list| !list.is_empty());
    assert!(
        ["processes", "sites", "stands_out", "unreadable"]
            .into_iter()
            .all(is_full),
        "{json:#}"
    );
    assert_eq!(json["stands_out"][0]["processes"][0]["rank"], 3);
    assert_eq!(
        json["unreadable"][0]["reason"],
        "no such file or process; `culeak snapshot --list` shows what is running"
    );
}
