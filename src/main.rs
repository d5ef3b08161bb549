//! Arguments → command; exit codes.
#![deny(unsafe_code)]

mod allocator;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

fn main() -> ExitCode {
    warmroute::tokens::after_load(allocator::give_back);
    warmroute::cli::run(warmroute::cli::Cli::parse())
}
