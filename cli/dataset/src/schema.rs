//! The tables of a dataset: each column once, with its type and meaning.
//!
//! Files, the views of each engine and the documentation follow from these lists; a test compares `docs/dataset.md` with them.
//! Numbers are signed, because not every engine has unsigned ones: sizes beyond 2^63 - 1 are stored as that.

use crate::VERSION;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Number,
    Text,
    Flag,
}

impl Type {
    /// The name in SQL, which engines share.
    pub fn sql(self, text: &'static str) -> &'static str {
        match self {
            Type::Number => "BIGINT",
            Type::Text => text,
            Type::Flag => "BOOLEAN",
        }
    }
}

#[derive(Debug)]
pub struct Column {
    pub name: &'static str,
    pub of: Type,
    pub meaning: &'static str,
}

/// Which rows of a table belong together, so that a later export replaces them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The latest state of each process.
    Latest,
    /// One state of each process for each point in time.
    EachPoint,
    /// Rows that never change. Files may repeat them; views have each once.
    Forever,
}

#[derive(Debug)]
pub struct Table {
    pub name: &'static str,
    pub keep: Keep,
    pub columns: &'static [Column],
    /// Rows of a file are sorted by these.
    pub order: &'static [&'static str],
}

impl Table {
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }
}

/// The columns that folders may be named after, outermost first.
pub const PARTITIONS: [&str; 3] = ["job", "host", "rank"];

const fn number(name: &'static str, meaning: &'static str) -> Column {
    Column {
        name,
        of: Type::Number,
        meaning,
    }
}

const fn text(name: &'static str, meaning: &'static str) -> Column {
    Column {
        name,
        of: Type::Text,
        meaning,
    }
}

const fn flag(name: &'static str, meaning: &'static str) -> Column {
    Column {
        name,
        of: Type::Flag,
        meaning,
    }
}

const JOB: Column = text(
    "job",
    "the job: `--job`, else the id that the scheduler or launcher gave, else `unnamed`",
);
const HOST: Column = text("host", "the host that the process ran on");
const RANK: Column = number("rank", "the rank in the job");
const PROCESS: Column = text(
    "process",
    "identifies the process: a hash of host, process id and start",
);
const POINT: Column = text(
    "point",
    "the point in time: `now` (the process was running), `end` (its script ended), `exit`, `peak`, or what `--at` named",
);
const AT: Column = number("at_unix_ns", "wall clock of this point, nanoseconds since 1970");
const SITE: Column = text("site", "fingerprint of the call site, as in `report --json`");
const LOOSE: Column = text(
    "loose_site",
    "the same without the line, so that edits elsewhere in the file do not change it",
);
const LABEL: Column = text("label", "the function of the call site, or module and offset");
const FILE: Column = text("file", "source file");
const LINE: Column = number("line", "line in it");
const MODULE: Column = text(
    "module",
    "file name of the executable or library; of a Python line, empty",
);
const LIBRARY: Column = text("library", "the CUDA library that requested the memory");
const KIND: Column = text("kind", "kind of memory or object, as for `--kind`");
const CATEGORY: Column = text("category", "category, as in `report --by category`");
const DEVICE: Column = number("device", "CUDA's number of the device; NULL: host memory");

pub static PROCESSES: Table = Table {
    name: "processes",
    keep: Keep::Latest,
    columns: &[
        JOB,
        HOST,
        RANK,
        PROCESS,
        number("pid", "process id on its host"),
        number("local_rank", "the rank on its host"),
        number("world", "number of ranks of the job"),
        number("node", "number of the node in the job"),
        number("pipeline_stage", "rank in the pipeline"),
        number("tensor_rank", "rank among those that share tensors"),
        number("expert_rank", "rank among those that share experts"),
        number("context_rank", "rank among those that share a context"),
        number("data_rank", "rank among replicas"),
        text("launcher", "what started the job: `torchrun`, `srun` …"),
        text("job_name", "the name that the user gave to the job"),
        text("program", "executable and script: `python train.py`"),
        text("command_line", "the command line, words separated by spaces"),
        text(
            "state",
            "`running`, `exited`, `ended` (without exit handlers) or `unknown`",
        ),
        flag("finished", "the process has ended, so what it holds is leaked"),
        text("devices", "numbers of its devices, separated by commas"),
        number("started_unix_ns", "start of the recording, nanoseconds since 1970"),
        POINT,
        AT,
        number("held_bytes", "bytes in use at this point, without pools"),
        number("held_count", "number of blocks of these"),
        number("pool_bytes", "bytes that caching allocators hold"),
        number("pool_count", "number of blocks of these"),
        number("peak_bytes", "bytes: the sum of the exact peaks of its devices"),
        number("lost_allocations", "number of allocations that were not recorded"),
        text("recording", "the input, as it was named"),
        text("written_by", "the version of culeak that wrote the row"),
    ],
    order: &["job", "host", "rank", "process"],
};

pub static POINTS: Table = Table {
    name: "points",
    keep: Keep::EachPoint,
    columns: &[
        JOB,
        HOST,
        RANK,
        PROCESS,
        POINT,
        AT,
        number("at_ns", "nanoseconds since the recording began"),
        number("held_bytes", "bytes in use, without pools"),
        number("held_count", "number of blocks of these"),
        number("pool_bytes", "bytes that caching allocators hold"),
        number("pool_count", "number of blocks of these"),
        number(
            "object_count",
            "number of objects without an address; NULL: not known at this point",
        ),
        text("mark", "the last mark that the program had set"),
    ],
    order: &["job", "process", "at_unix_ns", "point"],
};

pub static SITES: Table = Table {
    name: "sites",
    keep: Keep::EachPoint,
    columns: &[
        JOB,
        HOST,
        RANK,
        PROCESS,
        POINT,
        AT,
        SITE,
        LOOSE,
        flag("pool", "a caching allocator holds the memory"),
        text(
            "level",
            "`held`, `cached` (which part is in use is not known) or `claim` (holds no memory)",
        ),
        KIND,
        CATEGORY,
        DEVICE,
        number("bytes", "bytes"),
        number("count", "number of blocks"),
        LABEL,
        FILE,
        LINE,
        MODULE,
        LIBRARY,
    ],
    order: &["job", "site", "pool", "at_unix_ns", "rank", "process"],
};

pub static STACKS: Table = Table {
    name: "stacks",
    keep: Keep::Forever,
    columns: &[
        JOB,
        text("stack", "fingerprint of the stack"),
        SITE,
        LOOSE,
        LABEL,
        FILE,
        LINE,
        MODULE,
        LIBRARY,
        text("allocator", "the owner of the caching allocator on the stack"),
        flag("truncated", "the outermost frames are missing"),
        text("frames", "the frames, outermost first, separated by `;`"),
    ],
    order: &["job", "stack"],
};

pub static BLOCKS: Table = Table {
    name: "blocks",
    keep: Keep::Latest,
    columns: &[
        JOB,
        HOST,
        RANK,
        PROCESS,
        number("address", "address, or handle"),
        number("bytes", "bytes that the record holds"),
        number("requested", "bytes that the call requested"),
        KIND,
        text(
            "level",
            "as in `sites`; also `behind`: other rows are blocks in this memory",
        ),
        text("api", "the function that the program called"),
        text("domain", "the framework's allocator"),
        CATEGORY,
        DEVICE,
        number(
            "allocated_unix_ns",
            "wall clock of the allocation, nanoseconds since 1970",
        ),
        SITE,
        text("stack", "fingerprint of the stack, see `stacks`"),
        number(
            "sample_bytes",
            "mean distance in bytes of sampled stacks by which it was chosen; NULL: each block has its stack",
        ),
    ],
    order: &["job", "site", "rank", "process", "address"],
};

pub static OBJECTS: Table = Table {
    name: "objects",
    keep: Keep::EachPoint,
    columns: &[
        JOB,
        HOST,
        RANK,
        PROCESS,
        POINT,
        AT,
        KIND,
        SITE,
        LOOSE,
        number("count", "number of objects"),
        LABEL,
        FILE,
        LINE,
        MODULE,
        LIBRARY,
    ],
    order: &["job", "site", "kind", "at_unix_ns", "rank", "process"],
};

pub fn tables() -> [&'static Table; 6] {
    [&PROCESSES, &POINTS, &SITES, &STACKS, &BLOCKS, &OBJECTS]
}

pub fn table(name: &str) -> Option<&'static Table> {
    tables().into_iter().find(|table| table.name == name)
}

/// The tables as Markdown, for the documentation.
pub fn markdown() -> String {
    let mut out = format!("Version {VERSION}.\n");
    for table in tables() {
        out += &format!("\n### {}\n\n| column | type | meaning |\n|---|---|---|\n", table.name);
        for column in table.columns {
            out += &format!("| {} | {} | {} |\n", column.name, column.of.sql("TEXT"), column.meaning);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_can_be_sorted_and_replaced() {
        for table in tables() {
            assert!(
                table.order.iter().all(|name| table.column(name).is_some()),
                "{}",
                table.name
            );
            let keys: &[&str] = match table.keep {
                Keep::Latest => &["process"],
                Keep::EachPoint => &["process", "point", "at_unix_ns"],
                Keep::Forever => &["stack"],
            };
            assert!(keys.iter().all(|name| table.column(name).is_some()), "{}", table.name);
        }
    }

    /// `CULEAK_BLESS=1` rewrites the page.
    #[test]
    fn the_page_lists_every_column() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/dataset.md");
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
