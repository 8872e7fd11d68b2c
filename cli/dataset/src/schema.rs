//! The tables of a dataset: a struct is a row, a field is a column, and its comment is the column's meaning in docs/dataset.schema.md.
//!
//! Every table also has the column `job`, which is in the names of folders. Numbers are signed, because not every engine has
//! unsigned ones: sizes beyond 2^63 - 1 are stored as that.

use parquet_derive::ParquetRecordWriter;

/// The latest state of each process.
#[derive(ParquetRecordWriter)]
pub struct Process<'a> {
    /// the host of the process
    pub host: Option<&'a str>,
    /// the rank in the job
    pub rank: Option<i64>,
    /// identifies the process: a hash of host, process id and start
    pub process: &'a str,
    /// process id on its host
    pub pid: i64,
    /// the rank on its host
    pub local_rank: Option<i64>,
    /// number of ranks of the job
    pub world: Option<i64>,
    /// number of the node in the job
    pub node: Option<i64>,
    /// rank in the pipeline
    pub pipeline_stage: Option<i64>,
    /// rank among those that share tensors
    pub tensor_rank: Option<i64>,
    /// rank among those that share experts
    pub expert_rank: Option<i64>,
    /// rank among those that share a context
    pub context_rank: Option<i64>,
    /// rank among replicas
    pub data_rank: Option<i64>,
    /// what started the job: `torchrun`, `srun` …
    pub launcher: Option<&'a str>,
    /// the name that the user gave to the job
    pub job_name: Option<String>,
    /// executable and script: `python train.py`
    pub program: String,
    /// the command line, words separated by spaces
    pub command_line: String,
    /// `running`, `exited`, `ended` (without exit handlers) or `unknown`
    pub state: &'a str,
    /// the process has ended, so what it holds is leaked
    pub finished: bool,
    /// numbers of its devices, separated by commas
    pub devices: String,
    /// start of the recording, nanoseconds since 1970
    pub started_unix_ns: i64,
    /// the point in time: `now` (the process was running), `end` (its script ended), `exit`, `peak`, or what `--at` named
    pub point: &'a str,
    /// wall clock of this point, nanoseconds since 1970
    pub at_unix_ns: i64,
    /// bytes in use at this point, without pools
    pub held_bytes: i64,
    /// number of blocks of these
    pub held_count: i64,
    /// bytes that caching allocators hold
    pub pool_bytes: i64,
    /// number of blocks of these
    pub pool_count: i64,
    /// bytes: the sum of the exact peaks of its devices
    pub peak_bytes: i64,
    /// number of allocations that were not recorded
    pub lost_allocations: i64,
    /// the input, as it was named
    pub recording: String,
    /// the version of culeak that wrote the row
    pub written_by: &'a str,
}

/// The states of each process, one for each point in time.
#[derive(ParquetRecordWriter)]
pub struct Instant<'a> {
    /// the host of the process
    pub host: Option<&'a str>,
    /// the rank in the job
    pub rank: Option<i64>,
    /// identifies the process, as in `processes`
    pub process: &'a str,
    /// the point in time, as in `processes`
    pub point: &'a str,
    /// wall clock of this point, nanoseconds since 1970
    pub at_unix_ns: i64,
    /// nanoseconds since the recording began
    pub at_ns: i64,
    /// bytes in use, without pools
    pub held_bytes: i64,
    /// number of blocks of these
    pub held_count: i64,
    /// bytes that caching allocators hold
    pub pool_bytes: i64,
    /// number of blocks of these
    pub pool_count: i64,
    /// number of objects without an address; NULL: not known at this point
    pub object_count: Option<i64>,
    /// the last mark that the program had set
    pub mark: Option<String>,
}

/// What each process holds, one row for each call site, kind, category and device at each point in time.
#[derive(ParquetRecordWriter)]
pub struct SiteRow<'a> {
    /// the host of the process
    pub host: Option<&'a str>,
    /// the rank in the job
    pub rank: Option<i64>,
    /// identifies the process, as in `processes`
    pub process: &'a str,
    /// the point in time, as in `processes`
    pub point: &'a str,
    /// wall clock of this point, nanoseconds since 1970
    pub at_unix_ns: i64,
    /// fingerprint of the call site, as in `report --json`
    pub site: &'a str,
    /// the same without the line, so that edits elsewhere in the file do not change it
    pub loose_site: &'a str,
    /// a caching allocator holds the memory
    pub pool: bool,
    /// `held`, `cached` (which part is in use is not known), `claim` (holds no memory) or `object` (without an address: a count, and 0 bytes)
    pub level: &'a str,
    /// kind of memory or object, as for `--kind`
    pub kind: &'a str,
    /// category, as in `report --by category`; NULL: an object
    pub category: Option<&'a str>,
    /// CUDA's number of the device; NULL: host memory
    pub device: Option<i64>,
    /// bytes
    pub bytes: i64,
    /// number of blocks or objects
    pub count: i64,
    /// the function of the call site, or module and offset
    pub label: &'a str,
    /// source file
    pub file: Option<&'a str>,
    /// line in it
    pub line: Option<i64>,
    /// file name of the executable or library; of a Python line, empty
    pub module: Option<&'a str>,
    /// the CUDA library that requested the memory
    pub library: Option<&'a str>,
}

/// Call stacks. A file is written once for each set of stacks, so files may repeat a stack; views have it once.
#[derive(ParquetRecordWriter)]
pub struct StackRow<'a> {
    /// fingerprint of the stack
    pub stack: &'a str,
    /// fingerprint of the call site, as in `sites`
    pub site: &'a str,
    /// the owner of the caching allocator on the stack
    pub allocator: Option<&'a str>,
    /// the outermost frames are missing
    pub truncated: bool,
    /// the frames, outermost first, separated by `;`
    pub frames: Option<String>,
}

/// The blocks of each process at its latest point.
#[derive(ParquetRecordWriter)]
pub struct Block<'a> {
    /// the host of the process
    pub host: Option<&'a str>,
    /// the rank in the job
    pub rank: Option<i64>,
    /// identifies the process, as in `processes`
    pub process: &'a str,
    /// address, or handle
    pub address: i64,
    /// bytes that the record holds
    pub bytes: i64,
    /// bytes that the call requested
    pub requested: i64,
    /// kind of memory or object, as for `--kind`
    pub kind: &'a str,
    /// as in `sites`; also `behind`: other rows are blocks in this memory
    pub level: &'a str,
    /// the function that the program called
    pub api: &'a str,
    /// the framework's allocator
    pub domain: Option<&'a str>,
    /// category, as in `report --by category`
    pub category: &'a str,
    /// CUDA's number of the device; NULL: host memory
    pub device: Option<i64>,
    /// wall clock of the allocation, nanoseconds since 1970
    pub allocated_unix_ns: i64,
    /// fingerprint of the call site, as in `report --json`
    pub site: &'a str,
    /// fingerprint of the stack, see `stacks`
    pub stack: &'a str,
    /// mean distance in bytes of sampled stacks by which it was chosen; NULL: each block has its stack
    pub sample_bytes: Option<i64>,
}

#[cfg(test)]
mod tests {
    use parquet::basic::Type;
    use parquet::record::RecordWriter;
    use parquet::schema::types::TypePtr;

    use super::*;
    use crate::VERSION;

    /// The columns that say which process and point a row is of. The page explains them once, in the table of processes.
    const KEYS: [&str; 5] = ["host", "rank", "process", "point", "at_unix_ns"];

    /// The tables as Markdown: names and types from the schema, meanings from the comments above.
    fn markdown() -> String {
        let empty = |schema: Result<TypePtr, _>| schema.expect("a schema");
        let tables = [
            ("processes", empty((&[] as &[Process]).schema())),
            ("points", empty((&[] as &[Instant]).schema())),
            ("sites", empty((&[] as &[SiteRow]).schema())),
            ("stacks", empty((&[] as &[StackRow]).schema())),
            ("blocks", empty((&[] as &[Block]).schema())),
        ];
        let mut out = format!("Version {VERSION}.\n");
        let parts = include_str!("schema.rs")
            .split("#[derive(ParquetRecordWriter)]\n")
            .skip(1);
        for ((name, schema), part) in tables.iter().zip(parts) {
            let columns = schema.get_fields();
            let is_key = |column: &&TypePtr| *name != "processes" && KEYS.contains(&column.name());
            let keys: Vec<_> = columns.iter().filter(is_key).map(|column| column.name()).collect();
            out += &format!("\n## {name}\n\n| column | type | meaning |\n|---|---|---|\n");
            match &keys[..] {
                [] if *name == "processes" => out += "| job | TEXT | the job, as for `--job` |\n",
                _ => {
                    out += &format!(
                        "| {} | | as in `processes` |\n",
                        [&["job"], &keys[..]].concat().join(", ")
                    )
                }
            }
            let meanings = part.lines().filter_map(|line| line.strip_prefix("    /// "));
            for (column, meaning) in columns.iter().zip(meanings).filter(|(column, _)| !is_key(column)) {
                let of = match column.get_physical_type() {
                    Type::INT64 => "BIGINT",
                    Type::BOOLEAN => "BOOLEAN",
                    _ => "TEXT",
                };
                out += &format!("| {} | {of} | {meaning} |\n", column.name());
            }
        }
        out
    }

    /// `CULEAK_BLESS=1` rewrites the page.
    #[test]
    fn the_page_lists_every_column() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/dataset.schema.md");
        let page = std::fs::read_to_string(path).expect("the page");
        let (begin, end) = ("<!-- tables -->\n", "<!-- end of tables -->");
        let (before, rest) = page.split_once(begin).expect("where the tables begin");
        let (listed, after) = rest.split_once(end).expect("where they end");
        if std::env::var_os("CULEAK_BLESS").is_some() {
            std::fs::write(path, format!("{before}{begin}{}{end}{after}", markdown())).expect("written");
        } else {
            assert_eq!(listed, markdown());
        }
    }
}
