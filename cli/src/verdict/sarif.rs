//! SARIF 2.1.0, the format of code scanning services: one run, one result per finding.
//!
//! Written as plain JSON, because it uses a small part of the format; a test validates it against the published schema.

use culeak::analysis::check::{self, Verdict};
use culeak::analysis::job::identity;
use culeak::analysis::site::Frame;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::{Finding, KINDS, Kind, SourceRoot, findings, summary};
use crate::escape::Escaped;

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// A log that is serialized result by result, because all stacks as values may not fit in memory.
#[derive(Serialize)]
pub struct Log<'v> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    version: &'static str,
    runs: [Run<'v>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Run<'v> {
    tool: Value,
    column_kind: &'static str,
    invocations: Value,
    results: Results<'v>,
}

struct Results<'v> {
    verdicts: &'v [(&'v str, Verdict<'v>)],
    root: &'v SourceRoot,
}

impl Serialize for Results<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_seq(self.verdicts.iter().flat_map(|(source, verdict)| {
            let findings = findings(verdict).into_iter();
            findings.map(|finding| result(source, verdict, &finding, self.root))
        }))
    }
}

pub fn log<'v>(verdicts: &'v [(&'v str, Verdict<'v>)], root: &'v SourceRoot) -> Log<'v> {
    let notes = verdicts.iter().map(|(source, verdict)| {
        let text = format!("{source}: {}", summary(verdict));
        json!({"message": {"text": Escaped(&text).to_string()}, "level": "note"})
    });
    let is_judged = verdicts
        .iter()
        .all(|(_, verdict)| verdict.outcome != check::Outcome::NoVerdict);
    Log {
        schema: SCHEMA,
        version: "2.1.0",
        runs: [Run {
            tool: json!({"driver": {
                "name": "culeak",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": KINDS.map(|(_, id, description)| json!({
                    "id": id,
                    "shortDescription": {"text": description},
                    "defaultConfiguration": {"level": "error"},
                })),
            }}),
            column_kind: "unicodeCodePoints",
            invocations: json!([{
                "executionSuccessful": is_judged,
                "toolExecutionNotifications": notes.collect::<Vec<_>>(),
            }]),
            results: Results { verdicts, root },
        }],
    }
}

fn result(source: &str, verdict: &Verdict, finding: &Finding, root: &SourceRoot) -> Value {
    let rule = KINDS.iter().position(|(kind, ..)| *kind == finding.kind);
    let mut result = json!({
        "ruleId": finding.kind.id(),
        "ruleIndex": rule,
        "level": "error",
        "message": {"text": finding.title},
        "properties": {"input": Escaped(source).to_string()},
    });
    if let Some(rank) = identity::rank_of(verdict.process.ranks) {
        result["properties"]["rank"] = json!(rank);
    }
    if let Some((file, frame)) = finding.line_in(root) {
        result["locations"] = json!([{"physicalLocation": physical(&file, frame)}]);
    }
    if let Some(stack) = finding.stack {
        result["partialFingerprints"] = json!({"culeakSite/v2": stack.loose_site_fingerprint.to_string()});
    }
    if let Some(stack) = finding.stack {
        let text = if finding.kind == Kind::Objects {
            "created by"
        } else {
            "allocated by"
        };
        let frames = stack.shown().map(|frame| json!({"location": location(frame, root)}));
        let frames: Vec<Value> = frames.collect();
        result["stacks"] = json!([{"message": {"text": text}, "frames": frames}]);
    }
    result
}

fn location(frame: &Frame, root: &SourceRoot) -> Value {
    let mut location = json!({"message": {"text": Escaped(&frame.name()).to_string()}});
    if let Some(file) = frame.file {
        location["physicalLocation"] = match root.relative(file) {
            Some(file) => physical(&file, frame),
            None => json!({"artifactLocation": {"uri": uri(file)}, "region": region(frame)}),
        };
    }
    location
}

fn physical(file: &str, frame: &Frame) -> Value {
    json!({
        "artifactLocation": {"uri": uri(file), "uriBaseId": "%SRCROOT%"},
        "region": region(frame),
    })
}

/// Line numbers start at 1; a frame without a line points at the start of the file.
fn region(frame: &Frame) -> Value {
    json!({"startLine": frame.line.unwrap_or(1).max(1)})
}

/// A path as a URI reference, percent-encoded.
fn uri(path: &str) -> String {
    let mut uri = String::with_capacity(path.len() + 8);
    if path.starts_with('/') {
        uri.push_str("file://");
    }
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => uri.push(byte.into()),
            other => uri.push_str(&format!("%{other:02X}")),
        }
    }
    uri
}
