//! The rules for categories, from files and the built-in list.

use std::path::PathBuf;

use clap::Args;
use culeak::analysis::categories::Categories;

use super::read_rules;
use super::rules::protect;
use crate::errors::Failure;

/// Which rules decide the category of an allocation.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Rules")]
pub struct CategoryArgs {
    /// Try the rules for categories in this file before the built-in ones (culeak help categories); repeatable
    #[arg(long, value_name = "FILE")]
    pub categories: Vec<PathBuf>,
    /// Apply only the rules in the files of --categories
    #[arg(long, requires = "categories")]
    pub no_builtin_categories: bool,
}

impl CategoryArgs {
    /// The rules, in the order in which they are tried.
    ///
    /// # Errors
    /// A file cannot be read, or a line is not a rule; the message names the file, line and column.
    pub fn read(&self) -> Result<Categories, Failure> {
        let mut categories = Categories::none();
        for path in &self.categories {
            let shown = path.display().to_string();
            protect(path);
            let text = read_rules(path).map_err(|error| {
                format!(
                    "{shown}: the rules for categories cannot be read: {error}; name another file with --categories"
                )
            })?;
            categories
                .add(&text, &shown)
                .map_err(|error| format!("{error}; `culeak help categories` prints valid rules"))?;
        }
        if !self.no_builtin_categories {
            categories.add_built_in();
        }
        Ok(categories)
    }
}
