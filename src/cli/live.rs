//! `warmroute check --live`: asks each replica what it is set up for.
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;

use crate::config::Config;
use crate::engine::doctor::{Examined, Settings, examine};
use crate::fleet::{Encoders, Fleet};
use crate::telemetry::Metrics;

/// How `--live` asks, and how it answers.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Live {
    /// Also ask each replica what it is set up for: engine, cache, what its answers report, chat template; and say what is
    /// missing. Exit code 1 when one can't be reached, or serves another model.
    #[arg(long)]
    live: bool,
    /// With --live: print JSON, one object for each replica of each pool.
    #[arg(long, requires = "live")]
    json: bool,
    /// With --live: have vLLM generate one token twice, since nothing else tells whether its usage says what was cached.
    #[arg(long, requires = "live")]
    generate: bool,
    /// With --live: longest time for each answer.
    #[arg(long, requires = "live", value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

impl Live {
    /// Whether replicas are to be asked.
    pub fn wanted(self) -> bool {
        self.live
    }

    /// Asks all replicas at once.
    pub fn run(self, config: &Config, encoders: &Encoders) -> ExitCode {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime.and_then(|runtime| runtime.block_on(self.examine(config, encoders))) {
            Ok((text, fails)) => {
                let printed = super::print(&text);
                if fails { ExitCode::FAILURE } else { printed }
            }
            Err(error) => {
                eprintln!("cannot ask: {error}");
                ExitCode::FAILURE
            }
        }
    }

    async fn examine(self, config: &Config, encoders: &Encoders) -> io::Result<(String, bool)> {
        let metrics = Metrics::new().map_err(io::Error::other)?;
        let fleet = Fleet::new(config, encoders, &metrics);
        let settings = Settings { within: self.timeout, generate: self.generate };
        let members = fleet.pools().iter().flat_map(|pool| pool.replicas().iter().map(move |replica| (pool, replica)));
        let asked =
            join_all(members.map(async |(pool, replica)| (pool, replica, examine(replica, pool, settings).await)));
        let (mut text, mut rows, mut fails) = (String::new(), Vec::new(), false);
        for (pool, replica, examined) in asked.await {
            fails |= examined.fails();
            let (name, id, url) = (pool.name(), replica.id(), replica.url().to_string());
            if self.json {
                rows.push(json!({ "pool": &**name, "replica": &**id, "url": url, "told": examined }));
            } else {
                text += &format!("pool {name}, replica {id} ({url})\n{}", describe(&examined));
            }
        }
        for pool in config.pools.iter().filter(|pool| pool.discover.is_some() && !self.json) {
            text += &format!("pool {}: replicas that discovery finds are not asked\n", pool.name);
        }
        if self.json {
            text = format!("{:#}\n", json!(rows));
        }
        Ok((text, fails))
    }
}

fn describe(examined: &Examined) -> String {
    if let Some(cause) = &examined.unreachable {
        return format!("  can't be asked: {cause}\n");
    }
    let known = |known: Option<bool>, yes: &str, no: &str| match known {
        Some(true) => yes.to_owned(),
        Some(false) => no.to_owned(),
        None => "unknown".to_owned(),
    };
    let number = |number: Option<u64>| number.map_or("unknown".to_owned(), |number| format!("{number} tokens"));
    let events = match examined.event_sources {
        None => "unknown".to_owned(),
        Some(0) => "off".to_owned(),
        Some(sources) => format!("{sources} publisher{}", if sources == 1 { "" } else { "s" }),
    };
    let engine = format!("{} {}", examined.engine.unwrap_or("unknown"), examined.version.as_deref().unwrap_or(""));
    let mut text = String::new();
    for (name, value) in [
        ("engine", engine.trim().to_owned()),
        ("models", examined.models.join(", ")),
        ("prefix caching", known(examined.prefix_caching, "on", "off")),
        ("block", number(examined.block_size.map(u64::from))),
        ("cache", number(examined.cache_tokens)),
        ("metrics", known(Some(examined.metrics), "yes", "no")),
        ("cached_tokens", known(examined.cached_tokens, "reported", "not reported")),
        ("KV events", events),
        ("chat template", known(examined.same_template, "as ours", "another than ours")),
    ] {
        text += &format!("  {name:<15} {value}\n");
    }
    for finding in &examined.findings {
        text += &format!("  missing: {}\n    costs: {}\n    set:   {}\n", finding.missing, finding.costs, finding.set);
    }
    text
}
