//! `culeak sql`: the views that make a dataset answer questions, as text for DuckDB and Spark.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use culeak_dataset::{marker, sql};

use crate::errors::Failure;
use crate::options::dataset;
use crate::output::{self, Overwrite};

/// Print SQL that answers questions about a dataset, for DuckDB or Spark
#[derive(Debug, Args)]
#[command(after_help = "\
Without a dataset it prints the queries alone, which use the tables of `culeak help datasets`.

Examples:
  culeak sql dataset > views.sql && duckdb -init views.sql
  culeak sql dataset --engine spark > views.sql && spark-sql -i views.sql
  culeak sql --list")]
pub struct SqlArgs {
    /// Folder of a dataset, or its URL as the engine reads it
    #[arg(value_name = "DATASET")]
    pub dataset: Option<String>,
    /// The engine that runs the text. Only the views of the tables differ
    #[arg(long, value_enum, default_value = "duckdb")]
    pub engine: EngineName,
    /// For a URL: the columns that folders are named after
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',', default_value = "job")]
    pub partition: Vec<String>,
    /// List the views and what they show
    #[arg(long, conflicts_with = "dataset")]
    pub list: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    Duckdb,
    Spark,
}

/// # Errors
/// The folder is no dataset.
pub fn execute(args: &SqlArgs) -> Result<ExitCode, Failure> {
    let out = match &args.dataset {
        None if args.list => {
            let views = sql::views();
            let lines = views
                .iter()
                .map(|view| format!("{:<16}  {}\n", view.name, view.purpose));
            lines.collect()
        }
        None => sql::QUERIES.to_owned(),
        Some(folder) => {
            let engine = match args.engine {
                EngineName::Duckdb => sql::Engine::DuckDb,
                EngineName::Spark => sql::Engine::Spark,
            };
            if folder.contains("://") {
                let partition = dataset::partition(&args.partition)?;
                sql::session(folder.trim_end_matches('/'), &partition, engine)
            } else {
                let path = dataset::absolute(folder.as_ref());
                let partition = marker::partition_of(&path).map_err(|problem| {
                    Failure::new(format!(
                        "{}: not a dataset ({}); make one with `culeak export --format parquet --partition job -o DIR`",
                        folder, problem.reason
                    ))
                })?;
                let shown = path.to_str().ok_or_else(|| {
                    Failure::new(format!(
                        "{folder}: its path is not UTF-8, which SQL is; move the dataset"
                    ))
                })?;
                sql::session(shown, &partition, engine)
            }
        }
    };
    output::create(Path::new("-"), Overwrite::default(), |to| to.write_all(out.as_bytes()))?;
    Ok(ExitCode::SUCCESS)
}
