//! `warmroute explain`: where a request would go, and why; nothing is sent to an engine.
//!
//! `ask` gets the answer from the running router's admin listener, `offline` as much of it as a configuration alone can
//! tell, and `report` puts either into words.
mod ask;
mod offline;
mod report;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::config::{self, Config};
use report::Explanation;

/// Say where a request would go, and why.
///
/// The running router is asked on its admin listener (POST /explain): it decides on its own prompts, loads and sessions,
/// sends nothing to an engine and remembers nothing. --offline asks nobody: the prompt is cut into tokens and blocks as
/// the configuration says, and what replicas hold stays unknown. Exit code 1: no router runs there, or it can't explain
/// this request.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    warmroute explain --config router.yaml --body request.json\n  \
    warmroute explain --config router.yaml --body request.json --header 'x-session-id: 8f14e45f' --format json\n  \
    warmroute explain --config router.yaml --body - --path /v1/messages --admin http://10.0.0.5:9090\n\n\
    What the columns mean, and what to change: docs/prefix-awareness.md.")]
pub struct Args {
    /// The configuration the router runs with: where its admin listener is, and its token
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// File with the request's body, as a client would send it; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    body: PathBuf,
    /// The request's path
    #[arg(long, value_name = "PATH", default_value = "/v1/chat/completions")]
    path: String,
    /// A header of the request, `name: value`; repeat for more
    #[arg(long, value_name = "HEADER", value_parser = header)]
    header: Vec<(HeaderName, HeaderValue)>,
    /// The admin listener, in place of the configuration's `admin.listen`
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// Ask no router: tokens and blocks by the configuration alone
    #[arg(long, conflicts_with = "admin")]
    offline: bool,
    /// A table for people, or the answer as JSON
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

/// The request that is explained.
struct Request {
    path: String,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// Longest wait for the router's answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs it.
pub fn run(args: Args) -> ExitCode {
    match explain(args) {
        Ok(text) => super::print(&text),
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn explain(args: Args) -> Result<String, String> {
    let config = config::load(&args.config, &|name| std::env::var(name).ok()).map_err(|errors| errors.to_string())?;
    let body = read(&args.body, config.limits.body)?;
    let mut headers = HeaderMap::new();
    for (name, value) in args.header {
        headers.append(name, value);
    }
    let request = Request { path: args.path, headers, body };
    let answer = if args.offline {
        serde_json::to_value(offline::explain(&config, &request)?).map_err(|error| error.to_string())?
    } else {
        let admin = address(&config, args.admin.as_deref(), &args.config)?;
        let token = config.admin.as_ref().and_then(|admin| admin.token.as_ref());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let asked = ask::ask(admin, token, request);
        runtime.map_err(|error| format!("cannot start: {error}"))?.block_on(asked)?
    };
    match args.format {
        Format::Json => {
            serde_json::to_string_pretty(&answer).map(|text| text + "\n").map_err(|error| error.to_string())
        }
        Format::Table => serde_json::from_value::<Explanation>(answer).map(|answer| answer.table()).map_err(|error| {
            format!("the router explains in a form that this version does not know: {error}; try `--format json`")
        }),
    }
}

/// Where the router is asked.
fn address(config: &Config, given: Option<&str>, file: &Path) -> Result<config::ReplicaUrl, String> {
    if let Some(given) = given {
        let url = if given.contains("://") { given.to_owned() } else { format!("http://{given}") };
        return config::ReplicaUrl::parse(&url).map_err(|problem| format!("--admin: the URL {problem}"));
    }
    let Some(admin) = &config.admin else {
        return Err(format!(
            "{}: `admin: off`, so there is nobody to ask; give --admin URL, or --offline",
            file.display()
        ));
    };
    let mut address = admin.listen;
    if address.port() == 0 {
        let remedy = "give the one it logs at start: --admin URL";
        return Err(format!("{}: the system chooses the admin listener's port; {remedy}", file.display()));
    }
    // One that listens everywhere listens here.
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            std::net::SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    config::ReplicaUrl::parse(&format!("http://{address}"))
}

/// The body, no larger than the router would take.
fn read(path: &Path, most: usize) -> Result<Vec<u8>, String> {
    let most = most as u64;
    let mut body = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(most + 1).read_to_end(&mut body)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut body))
    };
    match read {
        Err(error) => Err(format!("{}: cannot be read: {error}", path.display())),
        Ok(length) if length as u64 > most => {
            Err(format!("{}: is larger than limits.body: the router would answer 413", path.display()))
        }
        Ok(_) => Ok(body),
    }
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("a header is written `name: value`")?;
    let name = name.trim().parse().map_err(|_| "this is no header's name")?;
    let value = value.trim().parse().map_err(|_| "this is no header's value")?;
    Ok((name, value))
}
