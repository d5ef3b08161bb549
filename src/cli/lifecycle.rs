//! Beginning and end of a process: what the service manager is told (`sd_notify`), signals, and the order in which a
//! router leaves.
//!
//! Not ready → `timeouts.drain_delay`, still accepting → stop accepting, close what is idle → open requests end, within
//! `timeouts.drain`. A second signal ends it at once, at any point.
use std::io;
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::admin::Admin;
use crate::proxy::{Proxy, Running};

/// How long connections may take to end once they are cut.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on they don't end the process by themselves.
    pub fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The next one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Tells the service manager, if there is one, that connections are accepted.
pub fn ready() {
    tell(&[NotifyState::Ready, NotifyState::Status("serving")]);
}

/// Tells the service manager that a new configuration is being read; [`ready`] says that it is done.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager can't be told (NOTIFY_SOCKET)");
    }
}

/// Leaves in good order; what is open when this returns may be cut.
pub async fn end(proxy: &Arc<Proxy>, mut running: Running, admin: Option<Admin>, signals: &mut Signals) {
    let timeouts = proxy.snapshot().config.timeouts.clone();
    let (delay, limit) = (timeouts.drain_delay, timeouts.drain);
    proxy.leave();
    tell(&[NotifyState::Stopping, NotifyState::Status("draining")]);
    if !delay.is_zero() {
        tracing::info!(delay = %humantime::format_duration(delay), "leaving: not ready any more, still accepting");
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = signals.next() => return cut(proxy, &mut running, "a second signal").await,
        }
    }
    tracing::info!(limit = %humantime::format_duration(limit), "draining: open requests may end, no new ones are taken");
    // Where another process may have taken over, questions are for that one.
    let admin = admin.filter(|_| !proxy.shares_ports());
    proxy.drain();
    let why = tokio::select! {
        () = running.ended() => None,
        () = tokio::time::sleep(limit) => Some("timeouts.drain is over"),
        () = signals.next() => Some("a second signal"),
    };
    match why {
        None => tracing::info!("every request has ended"),
        Some(why) => cut(proxy, &mut running, why).await,
    }
    drop(admin);
}

/// Ends what is open: streams say why they end, and clients close.
async fn cut(proxy: &Proxy, running: &mut Running, why: &str) {
    tracing::warn!("{why}: what is open is cut");
    proxy.cut();
    let _ = tokio::time::timeout(LAST_WORDS, running.ended()).await;
}
