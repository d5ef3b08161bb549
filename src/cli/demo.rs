//! `warmroute demo`.
use std::process::ExitCode;

/// Compare the policies on virtual replicas, through the real proxy.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs it.
pub fn run(_args: Args) -> ExitCode {
    eprintln!("not written yet");
    ExitCode::FAILURE
}
