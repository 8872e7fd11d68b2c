//! How rows are shown: the same options in every command that has rows.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use culeak::analysis::report::By;
use culeak::table;

use super::one_of;

/// How rows are grouped, ordered and shown.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "View")]
pub struct View {
    /// Group rows by this property [default: site; in a diff: stack]
    #[arg(long, value_parser = one_of(By::ALL.iter().map(|by| by.name()), By::from_name))]
    pub by: Option<By>,
    /// Sort rows by this property; age: oldest first; temporary, lifetime: with --view churn [default: bytes; --view churn: count]
    #[arg(long, value_parser = ["bytes", "count", "age", "temporary", "lifetime"])]
    pub sort: Option<String>,
    /// What is shown of the memory; stacks, ledger, objects and losses: repeatable, shown in this order, above the rows
    #[arg(long, value_name = "VIEW", value_parser = ShapeParser)]
    pub view: Vec<Shape>,
    /// Show whole stacks: also frames inside the CUDA runtime and below main, and each frame of a library
    #[arg(long)]
    pub full_stacks: bool,
    /// In a flame graph: one frame for each line of a function, not for each function
    #[arg(long)]
    pub lines: bool,
}

/// The values of `--view`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Shape {
    #[default]
    Table,
    /// Each row with its stack.
    Stacks,
    /// Call stacks as a tree with main at its root; `--top` and `--min-bytes` limit its branches.
    Tree,
    /// What each phase held, allocated and left behind; with a name, each phase of this name.
    Phases(Option<String>),
    /// Temporary allocations, lifetimes and reuse.
    Churn,
    /// Why caching allocators hold memory that no live block uses.
    Segments,
    /// The table, and objects without an address.
    Objects,
    /// The table, and all counts of losses.
    Losses,
    /// What holds each byte of the devices, and all sums.
    Ledger,
}

/// Names of shapes, and what they are.
const SHAPES: [(&str, Shape, &str); 9] = table! {
    "table", Shape::Table, "rows, largest first";
    "stacks", Shape::Stacks, "rows with their stacks; report: also their kinds, devices, streams and threads";
    "tree", Shape::Tree, "call stacks as a tree with main at its root; --top and --min-bytes limit its branches";
    "phases", Shape::Phases(None),
        "report: what each phase (NVTX range, culeak_phase_begin) held, allocated and left behind; phases:NAME: each of this name";
    "churn", Shape::Churn, "report: which call sites allocate often, for a short time, or the same again; needs run --timeline";
    "segments", Shape::Segments, "report: why memory is reserved and not used: pinned by live blocks, and by which lines, or idle";
    "objects", Shape::Objects, "report: also objects without an address, by call site: streams, events, modules, graphs …";
    "losses", Shape::Losses, "report: also all counts of losses, including zeros";
    "ledger", Shape::Ledger, "what holds each byte of the devices: categories, caches, libraries, code, contexts, graphs; report: and all sums";
};

#[derive(Clone)]
struct ShapeParser;

impl TypedValueParser for ShapeParser {
    type Value = Shape;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<Shape, clap::Error> {
        let text = StringValueParser::new().parse_ref(command, argument, value)?;
        if let Some(name) = text.strip_prefix("phases:") {
            return Ok(Shape::Phases(Some(name.to_owned())));
        }
        let names = PossibleValuesParser::new(SHAPES.map(|(name, ..)| name));
        let name = names.parse_ref(command, argument, value)?;
        let shape = SHAPES.into_iter().find(|(known, ..)| *known == name);
        Ok(shape.map(|(_, shape, _)| shape).unwrap_or_default())
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let values = SHAPES
            .iter()
            .map(|(name, _, help)| PossibleValue::new(*name).help(*help));
        Some(Box::new(values))
    }
}

impl View {
    pub fn shape(&self) -> &Shape {
        self.view.first().unwrap_or(&Shape::Table)
    }
}
