//! What is in force, and how it changes: by a new configuration, or by what discovery finds.
//!
//! Every change builds the next fleet from the one before and swaps one snapshot; a request keeps the one it arrived
//! under. A configuration that is not valid as a whole changes nothing. Changes are made one after the other.
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::{Proxy, Snapshot};
use crate::config::{self, Config, Discover, Errors};
use crate::engine::{self, events::Listeners};
use crate::fleet::{Encoders, Fleet, Found, Leaving, Pool, discovery};
use crate::telemetry;

/// A file whose changes were not seen is looked at so often.
const LOOK: Duration = Duration::from_secs(10);
/// So often indexes are swept when nothing else does it, in so many steps at most.
const SWEEP: Duration = Duration::from_secs(1);
const SWEEPS: usize = 4096;
/// Most errors of one file that are logged.
const MOST_LOGGED: usize = 20;

/// Why a reload came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// A signal or a request: the file is read in any case.
    Asked,
    /// Something changed in its folder, or it was time to look: the file is read if its content differs.
    Looked,
}

/// What a reload came to.
#[derive(Debug)]
pub enum Reload {
    /// The new configuration is in force, but for these keys, which take a restart.
    Took(Vec<&'static str>),
    /// The file is as it was.
    Unchanged,
    /// The file is not valid; the configuration before stays in force.
    Refused(Errors),
    /// The process was started from flags.
    NoFile,
}

/// What changes are made of. Locked for a change as a whole, never by requests.
#[derive(Debug)]
pub(super) struct Changes {
    desired: Mutex<Desired>,
    leaving: Mutex<Leaving>,
    file: OnceLock<PathBuf>,
    /// Content last read, whether it was taken or not.
    read: Mutex<Option<u64>>,
    runtime: OnceLock<Handle>,
}

#[derive(Debug)]
struct Desired {
    config: Arc<Config>,
    encoders: Encoders,
    found: Found,
    watching: HashMap<Arc<str>, (Discover, AbortHandle)>,
    conflicts: Vec<String>,
    listeners: Listeners,
}

impl Changes {
    pub(super) fn new(config: Arc<Config>, encoders: Encoders) -> Self {
        let (found, watching) = (Found::new(), HashMap::new());
        Self {
            desired: Mutex::new(Desired {
                config,
                encoders,
                found,
                watching,
                conflicts: Vec::new(),
                listeners: Listeners::default(),
            }),
            leaving: Mutex::default(),
            file: OnceLock::new(),
            read: Mutex::new(None),
            runtime: OnceLock::new(),
        }
    }
}

impl Proxy {
    /// Names the file that the configuration came from; [`super::start`] then follows its changes.
    pub fn set_config_file(&self, path: &Path) {
        *self.changes.read.lock() = config::fingerprint(path);
        let _ = self.changes.file.set(path.to_owned());
    }

    /// Reads the configuration's file, and the tokenizers that it needs, and puts it in force, if all of it is valid.
    /// Blocks while it reads.
    pub fn reload(self: &Arc<Self>, trigger: Trigger) -> Reload {
        let Some(path) = self.changes.file.get() else {
            tracing::warn!("nothing to reload: the process was started from flags");
            return Reload::NoFile;
        };
        let mut read = self.changes.read.lock();
        let content = config::fingerprint(path);
        if trigger == Trigger::Looked && *read == content {
            return Reload::Unchanged;
        }
        *read = content;
        let file = path.display();
        let loaded = config::load(path, &|name| std::env::var(name).ok()).and_then(|config| {
            // A change waits for the one before, so these are what this one follows.
            let before = self.changes.desired.lock().encoders.clone();
            before.next(&config).map(|encoders| (config, encoders))
        });
        match loaded {
            Ok((config, encoders)) => {
                let restart = self.apply(config, encoders);
                self.metrics.reload_took();
                self.metrics.reloads.with_label_values(&["ok"]).inc();
                tracing::info!(%file, "configuration reloaded");
                if !restart.is_empty() {
                    let keys = restart.join(", ");
                    tracing::warn!(%file, keys, "these keys have changed and take a restart; their old values hold");
                }
                Reload::Took(restart)
            }
            Err(errors) => {
                self.metrics.reload_ok.set(0);
                self.metrics.reloads.with_label_values(&["failed"]).inc();
                tracing::error!(%file, errors = errors.len(), "configuration refused; the one before stays in force");
                for error in errors.iter().take(MOST_LOGGED) {
                    let at = errors.place_of(error);
                    tracing::error!(at, key = error.path, problem = error.problem, remedy = error.remedy, "refused");
                }
                Reload::Refused(errors)
            }
        }
    }

    /// Puts a valid configuration in force, with the encoders that it needs; returns the keys that differ and take a restart.
    pub fn apply(self: &Arc<Self>, mut config: Config, encoders: Encoders) -> Vec<&'static str> {
        let mut desired = self.changes.desired.lock();
        let restart = desired.config.needs_restart(&config);
        config.keep_fixed(&desired.config);
        if config.logging.level != desired.config.logging.level
            && let Err(error) = telemetry::set_log_filter(&config.logging.level)
        {
            tracing::warn!(error, "logging.level stays as it is");
        }
        desired.config = Arc::new(config);
        desired.encoders = encoders;
        self.swap(&mut desired);
        restart
    }

    /// Takes a list that discovery found for a pool, unless the pool has another source by now.
    fn found(self: &Arc<Self>, pool: &Arc<str>, discover: &Discover, replicas: Vec<config::Replica>) {
        let mut desired = self.changes.desired.lock();
        let current = desired.config.pools.iter().find(|each| each.name == *pool);
        if current.and_then(|pool| pool.discover.as_ref()) == Some(discover) {
            desired.found.insert(pool.clone(), replicas);
            self.swap(&mut desired);
        }
    }

    fn swap(self: &Arc<Self>, desired: &mut Desired) {
        let config = desired.config.clone();
        let discovers = |name: &Arc<str>| config.pools.iter().any(|pool| pool.name == *name && pool.discover.is_some());
        desired.found.retain(|name, _| discovers(name));
        let old = self.snapshot();
        let fleet = old.fleet.next(&config, &desired.found, &desired.encoders, &self.metrics);
        for conflict in fleet.conflicts().iter().filter(|conflict| !desired.conflicts.contains(conflict)) {
            tracing::warn!("{conflict}");
        }
        desired.conflicts = fleet.conflicts().to_vec();
        let new = Arc::new(Snapshot { config, fleet });
        if let Some(runtime) = self.changes.runtime.get() {
            new.fleet.start_probes(runtime);
            self.follow_engines(&new.fleet, runtime);
            self.watch(desired, runtime);
        }
        self.snapshot.store(new.clone());
        self.listen(desired, &new.fleet);
        let left = self.changes.leaving.lock().follow(&old.fleet, &new.fleet);
        tell(&old.fleet, &new.fleet, &left);
    }

    /// Listens to the replicas of a fleet that publish KV events.
    fn listen(&self, desired: &mut Desired, fleet: &Fleet) {
        if let Some(runtime) = self.changes.runtime.get() {
            desired.listeners.follow(fleet, &self.metrics, self.clock(), runtime);
        }
    }

    /// Starts and ends what looks for replicas, as the configuration has it.
    fn watch(self: &Arc<Self>, desired: &mut Desired, runtime: &Handle) {
        let wanted: HashMap<&Arc<str>, &Discover> = (desired.config.pools.iter())
            .filter_map(|pool| pool.discover.as_ref().map(|discover| (&pool.name, discover)))
            .collect();
        desired.watching.retain(|name, (discover, task)| {
            let stays = wanted.get(name) == Some(&&*discover);
            if !stays {
                task.abort();
                self.metrics.undiscovered(name);
            }
            stays
        });
        for (name, discover) in wanted {
            if !desired.watching.contains_key(name) {
                let (weak, pool, of) = (Arc::downgrade(self), name.clone(), discover.clone());
                let found = move |replicas| {
                    if let Some(proxy) = weak.upgrade() {
                        proxy.found(&pool, &of, replicas);
                    }
                };
                let look = discovery::watch(name.clone(), discover.clone(), self.metrics.clone(), found);
                desired.watching.insert(name.clone(), (discover.clone(), runtime.spawn(look).abort_handle()));
            }
        }
    }

    /// Starts probes, discovery, and following the configuration's file, on the runtime of the caller.
    pub(super) fn start_background(self: &Arc<Self>) -> Option<AbortHandle> {
        let runtime = self.changes.runtime.get_or_init(Handle::current);
        let mut desired = self.changes.desired.lock();
        let snapshot = self.snapshot();
        snapshot.fleet.start_probes(runtime);
        self.follow_engines(&snapshot.fleet, runtime);
        self.watch(&mut desired, runtime);
        self.listen(&mut desired, &self.snapshot().fleet);
        let weak = Arc::downgrade(self);
        runtime.spawn(sweep(weak));
        let weak = Arc::downgrade(self);
        let members = move || {
            let snapshot = weak.upgrade().filter(|proxy| !proxy.draining())?.snapshot();
            let of = |pool: &Arc<Pool>| -> Vec<_> {
                pool.replicas().iter().map(|replica| (pool.clone(), replica.clone())).collect()
            };
            Some(snapshot.fleet.pools().iter().flat_map(of).collect())
        };
        runtime.spawn(engine::doctor::rounds(members));
        let path = self.changes.file.get()?.clone();
        let weak = Arc::downgrade(self);
        let follow = async move {
            let watch = config::Watch::new(&path);
            loop {
                // The first look is at once: the file may have changed before it was watched.
                let Some(proxy) = weak.upgrade() else { return };
                let _ = tokio::task::spawn_blocking(move || proxy.reload(Trigger::Looked)).await;
                watch.changed(LOOK).await;
            }
        };
        Some(runtime.spawn(follow).abort_handle())
    }

    /// Has each replica's engine asked for what it says of itself.
    fn follow_engines(&self, fleet: &Fleet, runtime: &Handle) {
        for replica in fleet.replicas() {
            replica.follow_engine(|| runtime.spawn(engine::follow(replica.clone(), self.clock)).abort_handle());
        }
    }

    /// Ends probes, discovery, and listening.
    pub(super) fn stop_background(&self) {
        let mut desired = self.changes.desired.lock();
        desired.listeners.end();
        desired.watching.drain().for_each(|(_, (_, task))| task.abort());
        self.snapshot().fleet.stop_probes();
    }

    /// Brings the metric series of what left up to date.
    pub(super) fn settle_metrics(&self, fleet: &Fleet) {
        self.changes.leaving.lock().settle(fleet, &self.metrics);
    }
}

/// Frees what replicas that left take up in indexes, also when no requests come.
async fn sweep(proxy: Weak<Proxy>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(proxy) = proxy.upgrade() else { return };
        let snapshot = proxy.snapshot();
        for pool in snapshot.fleet.pools() {
            for _ in 0..SWEEPS {
                if !pool.sweep() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
    }
}

fn tell(old: &Fleet, new: &Fleet, left: &[Arc<str>]) {
    for id in left {
        let replaced = new.replica(id).is_some();
        tracing::info!(replica = %id, replaced, "replica left; its open requests may end");
    }
    for replica in new.replicas() {
        if !old.replica(replica.id()).is_some_and(|same| Arc::ptr_eq(same, replica)) {
            tracing::info!(replica = %replica.id(), url = %replica.url(), "replica joined");
        }
    }
}
