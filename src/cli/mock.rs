//! `warmroute mock`.
use std::process::ExitCode;

/// Run a virtual engine behind a real OpenAI-style server.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs it.
pub fn run(_args: Args) -> ExitCode {
    eprintln!("not written yet");
    ExitCode::FAILURE
}
