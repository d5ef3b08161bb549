//! `warmroute schema`.
use std::process::ExitCode;

use crate::config;

/// Print the JSON schema of the configuration.
///
/// Editors check and complete the file with it. Save it beside your file and begin the file with the line
/// `# yaml-language-server: $schema=./warmroute.schema.json`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  warmroute schema > warmroute.schema.json")]
pub struct Args {
    /// Print the reference (docs/configuration.md) instead.
    #[arg(long)]
    markdown: bool,
}

/// Runs it.
pub fn run(args: Args) -> ExitCode {
    super::print(&if args.markdown { config::markdown() } else { format!("{:#}\n", config::schema()) })
}
