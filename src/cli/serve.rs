//! `warmroute serve`: runs the router until it is told to end.
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::lifecycle::{self, Signals};
use crate::config::{self, Config, LogFormat, ServeArgs};
use crate::fleet::Encoders;
use crate::proxy::{self, Inherited, Proxy, Running, Trigger};
use crate::{admin, telemetry};

/// There are two ways to start, and this was neither.
const HOW: &str = "error: what to serve is not said. Either name a file:
  warmroute serve --config router.yaml
or, for one model, give an address and its replicas:
  warmroute serve --listen 127.0.0.1:8080 --model qwen3-8b --replica http://10.0.0.11:8000
For more, try `warmroute serve --help`.";

/// Run the router.
///
/// Either from a file (--config), or for one model from flags alone (--listen, --model, --replica …). It listens at
/// once and logs where; /readyz on the admin listener tells when a replica has answered. SIGTERM and SIGINT make it
/// unready, then stop accepting and let open requests end; a second one ends at once. The file is read again when it
/// changes, and on SIGHUP; one that is not valid changes nothing. Listening sockets may be passed by systemd (LISTEN_FDS),
/// which is told of readiness (NOTIFY_SOCKET).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    warmroute serve --config router.yaml\n  \
    warmroute serve --listen 127.0.0.1:8080 --model qwen3-8b \\\n    \
    --replica http://10.0.0.11:8000 --replica http://10.0.0.12:8000 --policy session_sticky")]
pub struct Args {
    /// Configuration file; see `warmroute check` and docs/configuration.md
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "model", "replica", "policy", "tokenizer", "admin"])]
    config: Option<PathBuf>,
    /// Address clients connect to
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Model the replicas serve, as clients ask for it; left out: every request, whatever its model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// A replica, http://host:port[/base]; repeat for more
    #[arg(long, value_name = "URL")]
    replica: Vec<String>,
    /// round_robin, random, least_load, power_of_two, session_sticky, cache_aware or least_cost [default: power_of_two]
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Folder with the model's tokenizer.json and chat template, for cache_aware and least_cost
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<String>,
    /// Address of the admin listener, or `off` [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
}

/// Runs it.
pub fn run(args: Args) -> ExitCode {
    if args.config.is_none() && (args.listen.is_none() || args.replica.is_empty()) {
        eprintln!("{HOW}");
        // As for any other fault of the command line.
        return ExitCode::from(2);
    }
    let config = match &args.config {
        Some(path) => config::load(path, &|name| std::env::var(name).ok()),
        None => Config::from_args(&ServeArgs {
            listen: args.listen.into_iter().collect(),
            model: args.model,
            replicas: args.replica,
            policy: args.policy,
            tokenizer: args.tokenizer,
            admin: args.admin,
        }),
    };
    small_pages();
    let loaded = config.and_then(|config| Encoders::load(&config).map(|encoders| (config, encoders)));
    let (config, encoders) = match loaded {
        Ok(loaded) => loaded,
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = telemetry::init_log(&config.logging.level, config.logging.format == LogFormat::Json) {
        eprintln!("logging.level: {error}");
        return ExitCode::FAILURE;
    }
    // Before there are threads: it reads and clears environment variables.
    let inherited = Inherited::from_env();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(serve(config, encoders, args.config.as_deref(), inherited));
    // What is open even now is dropped; the access log tells of it, too.
    runtime.shutdown_timeout(Duration::from_millis(100));
    match ended {
        Ok(proxy) => {
            proxy.flush_access_log();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cannot start: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(
    config: Config,
    encoders: Encoders,
    file: Option<&Path>,
    mut inherited: Inherited,
) -> std::io::Result<Arc<Proxy>> {
    // Each open request takes two sockets; the soft limit is often far below what the system allows.
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    // Before anything listens: whoever sees that it does may send a signal, and the system's default is to die.
    let mut signals = Signals::new()?;
    let proxy = Proxy::new(config, encoders, Some(Box::new(std::io::stdout())))?;
    if let Some(file) = file {
        proxy.set_config_file(file);
    }
    let mut hangup = signal(SignalKind::hangup())?;
    let admin = match &proxy.snapshot().config.admin {
        Some(settings) => Some(admin::start(settings, proxy.clone(), &mut inherited)?),
        None => None,
    };
    let running = proxy::start(proxy.clone(), &mut inherited)?;
    announce(&proxy, &running);
    if let Some(admin) = &admin {
        tracing::info!(role = "admin", address = %admin.address, "listening");
    }

    for address in inherited.rest() {
        tracing::warn!(%address, "a passed socket is unused: no `listen` names its address");
    }
    drop(inherited);

    lifecycle::ready();
    loop {
        tokio::select! {
            () = signals.next() => break,
            _ = hangup.recv() => {
                let proxy = proxy.clone();
                drop(tokio::task::spawn_blocking(move || {
                    lifecycle::reloading();
                    proxy.reload(Trigger::Asked);
                    lifecycle::ready();
                }));
            }
        }
    }
    lifecycle::end(&proxy, running, admin, &mut signals).await;
    Ok(proxy)
}

fn announce(proxy: &Arc<Proxy>, running: &Running) {
    let snapshot = proxy.snapshot();
    for pool in snapshot.fleet.pools() {
        let replicas: Vec<&str> = pool.replicas().iter().map(|replica| &**replica.id()).collect();
        tracing::info!(pool = %pool.name(), replicas = replicas.join(","), policy = pool.settings().policy.as_str(), "serving");
    }
    let timeouts = &snapshot.config.timeouts;
    let off = |timer: Option<Duration>| timer.map_or("none".to_owned(), |t| humantime::format_duration(t).to_string());
    tracing::info!(
        connect = %humantime::format_duration(timeouts.connect),
        head = %humantime::format_duration(timeouts.head),
        first_byte = off(timeouts.first_byte),
        idle = %humantime::format_duration(timeouts.idle),
        upstream_idle = %humantime::format_duration(timeouts.upstream_idle),
        "timers in force; there is no total timeout"
    );
    for address in &running.addresses {
        tracing::info!(role = "proxy", address = %address, "listening");
    }
}

/// Keeps the process from huge pages: with them, one that has little to do is twice as large, and what they save was not
/// to be seen among other differences (docs/performance.md).
fn small_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "huge pages stay as they are");
    }
}
