//! What `culeak why` says would be freed with a holder is what is freed with it: random objects of Python, whose holders are dropped one
//! by one, with a new answer after each. The programs come from `victims/holders/removal.py`.

use std::collections::BTreeSet;
use std::env;

use serde_json::{Value, json};

use crate::interpreters::{Python, recorded};
use crate::support::holders::start;
use crate::support::random::Random;
use crate::support::{program, sources};
use crate::why_running;

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or(0)
}

/// The count and the bytes of a row.
fn claim(row: &Value) -> (u64, u64) {
    (number(row, "count"), number(row, "bytes"))
}

/// Drops the holders of one program until it holds nothing. Returns the number of comparisons.
fn drop_all(python: &Python, seed: u64) -> usize {
    let script = sources().join("victims/holders/removal.py");
    let mut victim = start(&program(&python.command).arg("-B").arg(script).arg(seed.to_string()));
    let (pid, random) = (victim.pid.to_string(), Random::new(seed));
    // `3 × keep[*]` need not be all elements, so it does not say what to drop.
    let mut unclear: BTreeSet<String> = BTreeSet::new();
    let mut compared = 0;
    loop {
        let why = why_running::json(&["why", &pid, "--json", "--top", "0"]);
        let said = format!("Python {}, seed {seed}, after {compared} removals", python.version);
        let of_known = why["classes"].as_array().expect("classes").iter().map(|of| {
            assert!(
                ["held", "cycle"].contains(&of["class"].as_str().unwrap_or("")),
                "{said}: {of}"
            );
            number(of, "bytes")
        });
        assert_eq!(of_known.sum::<u64>(), number(&why["total"], "bytes"), "{said}");
        assert_eq!(number(&why["possibly"], "bytes"), 0, "{said}: {why}");
        assert_eq!(number(&why["unretained"], "bytes"), 0, "{said}: {why}");
        let name = |row: &Value| row["name"].as_str().expect("a name").to_owned();
        let rows = why["retainers"].as_array().expect("holders").iter();
        let rows: Vec<&Value> = rows.filter(|row| !unclear.contains(&name(row))).collect();
        // Each removal ends with a collection, so these are first.
        let cycles = rows.iter().find(|row| row["name"] == "uncollected cycles");
        let Some(&row) = cycles.or_else(|| rows.get(random.below(rows.len()))) else {
            assert_eq!(claim(&why["total"]), (0, 0), "{said}: {why}");
            break;
        };
        let mut names = vec![row["name"].clone()];
        names.extend(row["also"].as_array().into_iter().flatten().cloned());
        let unnamed = number(row, "also_unnamed");
        let is_shared = names.len() > 1 || unnamed > 0;
        let is_alone = is_shared && (unnamed > 0 || random.one_in(2));
        names.truncate(if is_alone { 1 } else { names.len() });
        let mut question = vec![json!("drop")];
        match cycles {
            Some(_) => question = vec![json!("collect")],
            None => question.extend(names),
        }
        let question = Value::from(question);
        let answer = victim.ask(&question);
        if answer.is_null() {
            unclear.insert(name(row));
            continue;
        }
        let freed: (u64, u64) = serde_json::from_value(answer.clone())
            .unwrap_or_else(|_| panic!("{said}: {question} is no way to it: {answer}"));
        match claim(row) {
            _ if is_alone => assert_eq!(freed, (0, 0), "{said}: {question} alone frees nothing"),
            // A name may be that of a reference to something on the way, which may hold more.
            (count, bytes) if is_shared => {
                assert!(
                    freed.0 >= count && freed.1 >= bytes,
                    "{said}: {freed:?} by {question}: {row}"
                );
            }
            claim => assert_eq!(freed, claim, "{said}: {question}"),
        }
        compared += 1;
    }
    victim.quit();
    compared
}

#[test]
fn dropping_a_holder_frees_what_is_said() {
    for python in recorded() {
        let compared = drop_all(python, 21);
        assert!(compared >= 8, "{compared}");
    }
}

#[test]
#[ignore = "needs minutes"]
fn dropping_any_of_a_thousand_holders_frees_what_is_said() {
    let first: u64 = env::var("ORDER_SEED").map_or(1, |seed| seed.parse().expect("a seed"));
    let mut compared = 0;
    for (nth, seed) in (first..).enumerate() {
        compared += drop_all(&recorded()[nth % recorded().len()], seed);
        if compared >= 1000 {
            break;
        }
    }
}
