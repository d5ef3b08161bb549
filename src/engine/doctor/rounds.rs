//! The same, once for each life of a replica, into the log: what is found at the start, and what has changed since.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;

use super::{Examined, Settings, examine};
use crate::fleet::{Pool, Replica};

/// Time between two looks for who is to be examined.
const PAUSE: Duration = Duration::from_secs(2);
/// As many are asked at once.
const AT_ONCE: usize = 8;
/// Longest time for each answer.
const WITHIN: Duration = Duration::from_secs(5);

/// Each replica as one of each of its pools; `None` ends the rounds.
pub type Rounds = Option<Vec<(Arc<Pool>, Arc<Replica>)>>;

type Name = (Arc<str>, Arc<str>);

/// What was seen of a replica, and in which life.
#[derive(Debug, Default)]
struct Seen {
    life: (u64, u32),
    told: Examined,
}

/// Examines whoever answers and was not examined in this life of it, for as long as there is somebody to look after.
/// Replicas whose engines are not to be asked (`engine_metrics: off`) are left alone.
pub async fn rounds(members: impl Fn() -> Rounds + Send) {
    let mut seen: HashMap<Name, Seen> = HashMap::new();
    loop {
        let Some(mut members) = members() else { return };
        members.retain(|(_, replica)| replica.engine_metrics().interval.is_some());
        let name = |pool: &Pool, replica: &Replica| (pool.name().clone(), replica.id().clone());
        seen.retain(|known, _| members.iter().any(|(pool, replica)| name(pool, replica) == *known));
        members.retain(|(pool, replica)| {
            let life = (replica.life(), replica.restarts());
            replica.confirmed() && seen.get(&name(pool, replica)).is_none_or(|seen| seen.life != life)
        });
        for few in members.chunks(AT_ONCE) {
            let ask = async |(pool, replica): &(Arc<Pool>, Arc<Replica>)| {
                let life = (replica.life(), replica.restarts());
                (name(pool, replica), life, examine(replica, pool, Settings { within: WITHIN, generate: false }).await)
            };
            for (name, life, told) in join_all(few.iter().map(ask)).await {
                let before = seen.entry(name.clone()).or_default();
                // Also of one that has no list of models: it is not asked again and again.
                before.life = life;
                if told.unreachable.is_none() {
                    tell(&name, &before.told, &told);
                    before.told = told;
                }
            }
        }
        sleep(PAUSE).await;
    }
}

/// A line for what it is, and one for each thing that is missing, where that is another than before.
fn tell((pool, replica): &Name, before: &Examined, now: &Examined) {
    if before == now {
        return;
    }
    let Examined { engine, version, prefix_caching, block_size, cache_tokens, event_sources, same_template, .. } = now;
    let (engine, version) = (engine.unwrap_or("unknown"), version.as_deref());
    tracing::info!(%pool, %replica, engine, version, prefix_caching, block_size, cache_tokens, event_sources, same_template, "examined");
    for finding in now.findings.iter().filter(|finding| !before.findings.contains(finding)) {
        let (missing, costs, set) = (&finding.missing, finding.costs, &finding.set);
        if finding.fatal {
            tracing::warn!(%pool, %replica, missing, costs, set, "found");
        } else {
            tracing::info!(%pool, %replica, missing, costs, set, "found");
        }
    }
}
