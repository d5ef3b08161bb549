//! The program's own log: to stderr, in the form and at the level that the configuration asks for.
use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

/// The filter of the log that this process installed.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Installs the process-wide log. A second call has no effect (tests and `demo` run several proxies in one process).
///
/// # Errors
/// When `filter` is not in tracing's filter syntax: the reason, for people.
pub fn init(filter: &str, json: bool) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|error| error.to_string())?;
    let (filter, handle) = reload::Layer::new(filter);
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false);
    let lines = if json {
        lines.json().flatten_event(true).boxed()
    } else {
        lines.with_ansi(std::io::stderr().is_terminal()).boxed()
    };
    // An earlier subscriber stays: the log is set up once a process.
    if tracing_subscriber::registry().with(filter).with(lines).try_init().is_ok() {
        let _ = FILTER.set(handle);
    }
    Ok(())
}

/// Changes the level, or filter, of the log from now on.
///
/// # Errors
/// When `filter` is not in tracing's filter syntax, or this process has not installed its log: the reason, for people.
pub fn set_filter(filter: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|error| error.to_string())?;
    let handle = FILTER.get().ok_or("the log was set up by someone else")?;
    handle.reload(filter).map_err(|error| error.to_string())
}
