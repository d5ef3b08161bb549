//! `warmroute schema`.
use std::process::ExitCode;

/// Print the JSON schema of the configuration.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs it.
pub fn run(_args: Args) -> ExitCode {
    eprintln!("not written yet");
    ExitCode::FAILURE
}
