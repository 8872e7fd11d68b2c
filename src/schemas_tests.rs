//! The schemas of what `--json` prints are those of the types, and their descriptions are the comments of fields.
//!
//! `CULEAK_BLESS=1 cargo test -p culeak --lib schemas` writes them, and the table of docs/formats.md.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::analysis::categories::Category;
use crate::analysis::filter::Location;
use crate::analysis::site::Fingerprint;
use crate::analysis::suppressions::Pattern;
use crate::analysis::{baseline, check, diff, job, ledger, phases, report, stats, trend, whatif, why};
use crate::point::Point;
use crate::snapshot::{self, Allocations, Call};

macro_rules! texts {
    ($($type:ty: $what:literal;)*) => { $(
        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "description": $what })
            }
        }
    )* };
}

texts! {
    Category: "A category.";
    Fingerprint: "16 hexadecimal digits.";
    Location: "`GPU 0` or `host`.";
    Pattern: "A pattern, as the user wrote it.";
    Point: "A point in time, as in `--at`.";
}

impl JsonSchema for Allocations {
    fn schema_name() -> Cow<'static, str> {
        "Allocations".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let calls = generator.subschema_for::<Vec<Call>>();
        json_schema!({
            "description": "Memory as rows of numbers, which name their columns.",
            "type": "object",
            "required": ["calls", "columns", "rows"],
            "properties": {
                "calls": calls,
                "columns": {
                    "description": "`stack` and `call` are indices. The last one, `count`, is present if rows are sums over several blocks; then address and time are 0.",
                    "type": "array",
                    "items": { "type": "string" },
                },
                "rows": {
                    "description": "A row may lack `requested`, which then equals `bytes`. The stack is null if it is unknown.",
                    "type": "array",
                    "items": { "type": "array", "items": { "type": ["integer", "null"] } },
                },
            },
        })
    }
}

/// What writes a document, its name, its version, and its schema.
struct Document {
    command: &'static str,
    format: &'static str,
    version: u32,
    schema: Value,
}

/// The schema of what culeak writes.
fn document<T: JsonSchema>(command: &'static str, format: &'static str, version: u32) -> Document {
    let written = SchemaSettings::draft2020_12().for_serialize();
    with_settings::<T>(written, command, format, version)
}

fn with_settings<T: JsonSchema>(
    settings: SchemaSettings,
    command: &'static str,
    format: &'static str,
    version: u32,
) -> Document {
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    describe(&mut schema);
    schema["title"] = json!(format!("{format}, version {version}"));
    schema["properties"]["format"] = json!({ "const": format });
    schema["properties"]["version"] = json!({ "const": version });
    Document {
        command,
        format,
        version,
        schema,
    }
}

fn documents() -> Vec<Document> {
    // Other programs may write snapshots: the schema is of what culeak reads.
    let read = SchemaSettings::draft2020_12().for_deserialize();
    vec![
        with_settings::<snapshot::Snapshot>(read, "snapshot", snapshot::FORMAT, snapshot::VERSION),
        document::<report::Report>("report --json", report::FORMAT, report::VERSION),
        document::<job::JobReport>("report --json` of several inputs", job::FORMAT, job::VERSION),
        document::<phases::Phases>("report --view phases --json", phases::FORMAT, phases::VERSION),
        document::<ledger::segments::Segments>(
            "report --view segments --json",
            ledger::segments::FORMAT,
            ledger::segments::VERSION,
        ),
        document::<whatif::WhatIf>("whatif --json", whatif::FORMAT, whatif::VERSION),
        document::<diff::Diff>("diff --json", diff::FORMAT, diff::VERSION),
        document::<ledger::LedgerDiff>(
            "diff --view ledger --json",
            ledger::change::FORMAT,
            ledger::change::VERSION,
        ),
        document::<job::diff::JobDiff>("diff --json` of jobs", job::diff::FORMAT, job::diff::VERSION),
        document::<trend::Trend>("trend --json", trend::FORMAT, trend::VERSION),
        document::<job::trend::JobTrend>("trend --json` of a job", job::trend::FORMAT, job::trend::VERSION),
        document::<stats::Stats>("report --view churn --json", stats::FORMAT, stats::VERSION),
        document::<why::Why>("why --json", why::FORMAT, why::VERSION),
        document::<job::why::JobWhy>("why --json` of a job", job::why::FORMAT, job::why::VERSION),
        document::<check::Verdict>("check --json", check::FORMAT, check::VERSION),
        document::<baseline::Baseline>("check --update-baseline", baseline::FORMAT, baseline::VERSION),
    ]
}

/// Comments as plain text: without the links of rustdoc.
fn describe(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(text)) = fields.get_mut("description") {
                let lines = text
                    .lines()
                    .filter(|line| !(line.starts_with('[') && line.contains("]: ")));
                let lines: Vec<&str> = lines.collect();
                *text = lines.join("\n").replace("[`", "`").replace("`]", "`").trim().to_owned();
            }
            fields.values_mut().for_each(describe);
        }
        Value::Array(values) => values.iter_mut().for_each(describe),
        _ => {}
    }
}

fn docs(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(file)
}

/// Compares a file of the documentation with its text; writes it if asked to.
fn expect(file: &str, text: &str) {
    let path = docs(file);
    if std::env::var_os("CULEAK_BLESS").is_some() {
        fs::write(&path, text).expect("written");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "docs/{file} is not made from the types: CULEAK_BLESS=1 cargo test -p culeak --lib schemas"
    );
}

#[test]
fn schemas_are_made_from_the_types() {
    for document in documents() {
        let name = document.format.trim_start_matches("culeak-");
        let text = serde_json::to_string_pretty(&document.schema).expect("JSON") + "\n";
        expect(&format!("{name}.schema.json"), &text);
    }
}

#[test]
fn the_table_of_documents_has_each_schema() {
    const BEGIN: &str = "| command | `format` | version | schema |\n|---|---|---|---|\n";
    let page = fs::read_to_string(docs("formats.md")).expect("a page");
    let (before, rest) = page.split_once(BEGIN).expect("the table");
    let after = &rest[rest.find("\n\n").expect("the end of the table")..];
    let row = |document: &Document| {
        let Document {
            command,
            format,
            version,
            ..
        } = document;
        let file = format!("{}.schema.json", format.trim_start_matches("culeak-"));
        let command = if command.contains('`') {
            format!("`culeak {command}")
        } else {
            format!("`culeak {command}`")
        };
        format!("| {command} | `{format}` | {version} | [{file}]({file}) |")
    };
    let rows: Vec<String> = documents().iter().map(row).collect();
    expect("formats.md", &format!("{before}{BEGIN}{}{after}", rows.join("\n")));
}
