//! The groups of options in the help of `run` and `check`, whose options are many.

use clap::Arg;
use culeak::table;

/// Headings, and the ids of the options below them. Others are below `Options`.
const GROUPS: [(&str, &str); 5] = table! {
    "Selection",
        "at since kind judge_pools allow_losses no_builtin_suppressions same_as_last not_above tolerance only no_follow_children";
    "Output",
        "json verdict_file source_root update_baseline gen_suppressions print_suppressions no_report report_file html top force";
    "Names", "debug_dir no_symbol_cache";
    "Recording", "output timeline record snapshot why";
    "Advanced", "no_pool depth sample stack_rate why_limit why_search_limit require_recording";
};

/// Puts an argument below its heading.
pub fn sort(arg: Arg) -> Arg {
    let is_of = |ids: &str| ids.split(' ').any(|id| id == arg.get_id().as_str());
    let group = GROUPS.iter().find(|(_, ids)| is_of(ids));
    arg.help_heading(group.map(|(heading, _)| *heading))
}
