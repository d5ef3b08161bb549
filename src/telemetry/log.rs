//! The program's own log: to stderr, in the form and at the level that the configuration asks for.
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

/// Installs the process-wide log. A second call has no effect (tests and `demo` run several proxies in one process).
///
/// # Errors
/// When `filter` is not in tracing's filter syntax: the reason, for people.
pub fn init(filter: &str, json: bool) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|error| error.to_string())?;
    let builder = fmt::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // An earlier subscriber stays: the log is set up once a process.
    let _ = if json {
        builder.json().flatten_event(true).try_init()
    } else {
        builder.with_ansi(std::io::stderr().is_terminal()).try_init()
    };
    Ok(())
}
