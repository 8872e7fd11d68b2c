//! The views: those of the tables, which each engine declares in its own way, and the queries, whose text both engines run.

use crate::schema::{Keep, Table, Type, tables};

/// The queries, as views in the order in which they use one another.
pub const QUERIES: &str = include_str!("../sql/queries.sql");
/// Begins the comment above each view.
const VIEW: &str = "-- view: ";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    DuckDb,
    Spark,
}

/// A view of the queries, and what it shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    pub name: &'static str,
    /// The first sentence of the comment above it.
    pub purpose: String,
}

/// All views of the queries.
pub fn views() -> Vec<View> {
    let parts = QUERIES.split(VIEW).skip(1);
    let view = |part: &'static str| {
        let (name, rest) = part.split_once('\n')?;
        let comment: Vec<&str> = rest.lines().map_while(|line| line.strip_prefix("-- ")).collect();
        let comment = comment.join(" ");
        let end = comment.find(". ").map_or(comment.len(), |end| end + 1);
        let purpose = comment[..end].to_owned();
        Some(View { name, purpose })
    };
    parts.filter_map(view).collect()
}

/// Everything that a session needs to query the dataset in this folder, which is an absolute path or a URL.
pub fn session(folder: &str, partition: &[String], engine: Engine) -> String {
    let mut out = String::new();
    for table in tables() {
        out += &match engine {
            Engine::DuckDb => duckdb(table, folder, partition),
            Engine::Spark => spark(table, folder),
        };
    }
    out.push('\n');
    out + QUERIES
}

fn duckdb(table: &Table, folder: &str, partition: &[String]) -> String {
    let names: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
    let partitions = crate::folder::partitions(table.keep, partition);
    let of = |name: &str| table.column(name).map_or(Type::Text, |at| table.columns[at].of);
    let types: Vec<String> = partitions
        .iter()
        .map(|name| format!("'{name}': {}", of(name).sql("VARCHAR")))
        .collect();
    let hive = match types.is_empty() {
        true => "hive_partitioning = false".to_owned(),
        false => format!("hive_partitioning = true, hive_types = {{{}}}", types.join(", ")),
    };
    let depth = "*/".repeat(partitions.len());
    format!(
        "CREATE OR REPLACE TEMPORARY VIEW {} AS\nSELECT {}{}\nFROM read_parquet({}, {hive});\n",
        table.name,
        if table.keep == Keep::Forever { "DISTINCT " } else { "" },
        names.join(", "),
        quoted(&format!("{}/{}/{depth}*.parquet", pattern(folder), table.name)),
    )
}

/// A path in which no character is a wildcard.
fn pattern(folder: &str) -> String {
    let mut out = String::new();
    for c in folder.chars() {
        match c {
            '*' | '?' | '[' => {
                out.push('[');
                out.push(c);
                out.push(']');
            }
            c => out.push(c),
        }
    }
    out
}

fn spark(table: &Table, folder: &str) -> String {
    let columns: Vec<String> = table
        .columns
        .iter()
        .map(|column| format!("{} {}", column.name, column.of.sql("STRING")))
        .collect();
    // First as a pattern, then as a text.
    let special = |c: char| "*?[]{}\\".contains(c);
    let parts = folder
        .chars()
        .flat_map(|c| special(c).then_some('\\').into_iter().chain([c]));
    let path: String = parts.collect();
    let path = format!("{path}/{}", table.name)
        .replace('\\', "\\\\")
        .replace('\'', "\\'");
    let columns = columns.join(", ");
    let view = |name: &str| {
        format!("CREATE OR REPLACE TEMPORARY VIEW {name} ({columns})\nUSING parquet OPTIONS (path '{path}');\n")
    };
    match table.keep {
        Keep::Forever => {
            let files = format!("{}_files", table.name);
            let each_once = format!(
                "CREATE OR REPLACE TEMPORARY VIEW {} AS\nSELECT DISTINCT * FROM {files};\n",
                table.name
            );
            view(&files) + &each_once
        }
        _ => view(table.name),
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_view_is_named_above_it_and_uses_earlier_ones() {
        let names: Vec<&str> = views().iter().map(|view| view.name).collect();
        assert_eq!(names.len(), QUERIES.matches("CREATE OR REPLACE").count());
        assert!(views().iter().all(|view| view.purpose.ends_with('.')), "{:?}", views());
        for (nth, part) in QUERIES.split(VIEW).skip(1).enumerate() {
            assert!(part.contains(&format!("VIEW {} AS", names[nth])), "{}", names[nth]);
            for later in &names[nth + 1..] {
                assert!(
                    !part.contains(&format!("FROM {later}")) && !part.contains(&format!("JOIN {later}")),
                    "{later}"
                );
            }
        }
    }

    #[test]
    fn paths_are_quoted() {
        let partition = ["job".to_owned()];
        let duckdb = session("/a'b*", &partition, Engine::DuckDb);
        assert!(
            duckdb.contains("'/a''b[*]/sites/*/*.parquet', hive_partitioning = true, hive_types = {'job': VARCHAR}")
        );
        assert!(session("/a'b*", &partition, Engine::Spark).contains(r"OPTIONS (path '/a\'b\\*/sites')"));
    }
}
