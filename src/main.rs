//! Arguments → command; exit codes.
#![deny(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    warmroute::tokens::after_load(give_back);
    warmroute::cli::run(warmroute::cli::Cli::parse())
}

/// Gives memory that is free back to the system. mimalloc does so by itself only where much is freed again later, and
/// reading a tokenizer takes five times what it leaves.
fn give_back() {
    // SAFETY: it takes no pointer, and may be called at any time by any thread (mimalloc.h, 3.3).
    #[expect(unsafe_code, reason = "the one call into the allocator; the crate has no safe one")]
    unsafe {
        libmimalloc_sys::mi_collect(true);
    }
}
