//! `warmroute serve`.
use std::process::ExitCode;

/// Run the router.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs it.
pub fn run(_args: Args) -> ExitCode {
    eprintln!("not written yet");
    ExitCode::FAILURE
}
