//! `warmroute check`.
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::live::Live;
use crate::config::{self, Config};
use crate::fleet::Encoders;

/// Check a configuration file, and say everything that is wrong with it.
///
/// Exit code 0: `serve` would start with this file. Exit code 1: each error is written to standard error with its line
/// and column, the key's path, and what to write instead. Replicas are not contacted (but with --live), and no port is
/// opened; files that the configuration names (secrets, tokenizers) are read.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warmroute check warmroute.yaml\n  ENGINE_KEY=… warmroute check --print-effective \
                        warmroute.yaml\n  warmroute check new.yaml --against warmroute.yaml\n  warmroute check --live warmroute.yaml\n\nEvery key is described in docs/configuration.md; `warmroute schema` prints a \
                        JSON schema for editors."
)]
pub struct Args {
    /// The YAML file to check. `${VARIABLES}` are filled in from the environment, as `serve` would.
    #[arg(required_unless_present = "config")]
    file: Option<PathBuf>,
    /// The same, as `serve` takes it.
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    config: Option<PathBuf>,
    /// The file that a process runs with: say what a reload from it to FILE could not change.
    #[arg(long, value_name = "OLD", conflicts_with = "print_effective")]
    against: Option<PathBuf>,
    /// Print the configuration as it would hold: every default filled in, every secret as `***`.
    #[arg(long)]
    print_effective: bool,
    #[command(flatten)]
    live: Live,
}

/// Runs it.
pub fn run(args: Args) -> ExitCode {
    let load = |path: &Path| config::load(path, &|name| std::env::var(name).ok());
    let old = match args.against.as_deref().map(load).transpose() {
        Ok(old) => old,
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::FAILURE;
        }
    };
    // clap has seen that there is one.
    let Some(file) = args.file.or(args.config) else { return ExitCode::from(2) };
    // A tokenizer is no better than what can be loaded of it.
    match load(&file).and_then(|config| Encoders::load(&config).map(|encoders| (config, encoders))) {
        Ok((config, _)) if args.print_effective => super::print(&config.effective_yaml()),
        Ok((config, encoders)) if args.live.wanted() => args.live.run(&config, &encoders),
        Ok((config, _)) => {
            let reload = old.map_or(String::new(), |old| against(&old, &config));
            super::print(&format!("{}: {}\n{reload}", file.display(), summary(&config)))
        }
        Err(errors) => {
            let plural = if errors.len() == 1 { "error" } else { "errors" };
            eprintln!("{errors}\n{}: {} {plural}", file.display(), errors.len());
            ExitCode::FAILURE
        }
    }
}

/// One line: what a reload would leave as it is.
fn against(old: &Config, new: &Config) -> String {
    match old.needs_restart(new).as_slice() {
        [] => "a reload puts all of it in force\n".into(),
        keys => format!("a reload leaves these keys as they are; they take a restart: {}\n", keys.join(", ")),
    }
}

/// One line: what would be started.
fn summary(config: &Config) -> String {
    let mut ids: Vec<_> = config.pools.iter().flat_map(|pool| &pool.replicas).map(|replica| &replica.id).collect();
    ids.sort();
    ids.dedup();
    let listen: Vec<_> = config.listen.iter().map(ToString::to_string).collect();
    let admin = config.admin.as_ref().map_or("off".into(), |admin| admin.listen.to_string());
    let count = |n: usize, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
    format!(
        "valid: {}, {}{}; clients on {}; admin {admin}",
        count(config.pools.len(), "pool"),
        count(ids.len(), "replica"),
        if config.pools.iter().any(|pool| pool.discover.is_some()) { " and what discovery finds" } else { "" },
        listen.join(", "),
    )
}
