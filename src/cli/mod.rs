//! The command line: one file a command, each a `clap` arguments struct and a `run` that returns the exit code.
pub mod check;
pub mod demo;
pub mod explain;
mod lifecycle;
mod live;
pub mod mock;
pub mod schema;
pub mod serve;
pub mod simulate;

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// An LLM-aware router: sends each request to the replica where its prefix is already warm.
#[derive(Debug, Parser)]
#[command(name = "warmroute", version, about, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    Check(check::Args),
    Explain(explain::Args),
    Schema(schema::Args),
    Mock(mock::Args),
    Demo(demo::Args),
    Simulate(simulate::Args),
}

/// Runs the command that was asked for.
pub fn run(cli: Cli) -> ExitCode {
    match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Check(args) => check::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Schema(args) => schema::run(args),
        Command::Mock(args) => mock::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Simulate(args) => simulate::run(args),
    }
}

/// Writes `text` to standard output. A reader that has seen enough (`| head`) is no failure.
fn print(text: &str) -> ExitCode {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            eprintln!("standard output: {e}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
