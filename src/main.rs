//! Arguments → command; exit codes.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    warmroute::cli::run(warmroute::cli::Cli::parse())
}
