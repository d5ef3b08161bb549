//! `warmroute check`.
use std::process::ExitCode;

/// Check a configuration file.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs it.
pub fn run(_args: Args) -> ExitCode {
    eprintln!("not written yet");
    ExitCode::FAILURE
}
