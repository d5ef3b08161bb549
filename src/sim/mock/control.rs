//! `POST /__control`: faults on request. A JSON object; each field sets one fault and leaves the others as they are.
//!
//! `status` (with `count`, `retry_after`): answer so for the next `count` requests (default 1) · `delay_ms`: before the
//! head · `first_token_delay_ms`: after the head of a stream, before a whole answer · `inter_token_ms`: between a
//! stream's tokens · `cut_after_bytes` (with `count`): break the connection after so many body bytes · `hang`: take
//! requests, never answer · `close_idle_after_ms`: close connections idle for so long · `reset_on_reuse` (with
//! `count`): reset a used connection upon its next request · `die`: end the process · `health_status`: of `/health` ·
//! `restart`: the engine loses cache and requests, and
//! its process is a new one · `sleep`: its metrics say that it sleeps · `clear`: no faults, applied before the other fields. 0 or false
//! takes a fault back.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::watch;

use super::sse::Pace;

/// The body of `POST /__control`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Command {
    clear: bool,
    status: Option<u16>,
    count: Option<u64>,
    retry_after: Option<u64>,
    delay_ms: Option<u64>,
    first_token_delay_ms: Option<u64>,
    inter_token_ms: Option<u64>,
    cut_after_bytes: Option<usize>,
    hang: Option<bool>,
    close_idle_after_ms: Option<u64>,
    reset_on_reuse: Option<bool>,
    pub die: bool,
    health_status: Option<u16>,
    pub restart: bool,
    sleep: Option<bool>,
}

#[derive(Debug, Default)]
struct Active {
    status: Option<(u16, Option<u64>)>,
    status_left: u64,
    delay: Duration,
    pace: Pace,
    cut_after: usize,
    cuts_left: u64,
    hang: bool,
    resets_left: u64,
    health: Option<u16>,
    asleep: bool,
}

/// What is to go wrong with one request.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub reset: bool,
    pub hang: bool,
    pub delay: Duration,
    /// Status and `Retry-After`.
    pub status: Option<(u16, Option<u64>)>,
    pub pace: Pace,
    pub cut: Option<usize>,
}

/// The faults in force.
#[derive(Debug)]
pub(super) struct Faults {
    /// False as long as nothing was ever asked for: the way of a benchmark.
    any: AtomicBool,
    active: Mutex<Active>,
    close_idle: watch::Sender<Option<Duration>>,
}

impl Faults {
    pub(super) fn new() -> Self {
        let close_idle = watch::Sender::new(None);
        Self { any: AtomicBool::new(false), active: Mutex::new(Active::default()), close_idle }
    }

    /// Follows `close_idle_after_ms`.
    pub(super) fn close_idle(&self) -> watch::Receiver<Option<Duration>> {
        self.close_idle.subscribe()
    }

    /// The status of `/health`.
    pub(super) fn health(&self) -> u16 {
        self.active.lock().health.unwrap_or(200)
    }

    /// Whether its metrics say that it sleeps.
    pub(super) fn asleep(&self) -> bool {
        self.active.lock().asleep
    }

    /// Puts a command into force; `Err` says what is wrong with it.
    pub(super) fn apply(&self, command: &Command) -> Result<(), String> {
        for (field, status) in [("status", command.status), ("health_status", command.health_status)] {
            if let Some(status) = status.filter(|status| *status != 0 && !(200..600).contains(status)) {
                return Err(format!(
                    "{field}: {status} is no final HTTP status; write 200 to 599, or 0 to take it back"
                ));
            }
        }
        let mut active = self.active.lock();
        if command.clear {
            *active = Active::default();
            self.close_idle.send_replace(None);
        }
        let count = command.count.unwrap_or(1);
        if let Some(status) = command.status {
            active.status = Some((status, command.retry_after)).filter(|_| status != 0);
            active.status_left = count;
        }
        let millis = |field: &mut Duration, value: Option<u64>| {
            if let Some(value) = value {
                *field = Duration::from_millis(value);
            }
        };
        millis(&mut active.delay, command.delay_ms);
        millis(&mut active.pace.first, command.first_token_delay_ms);
        millis(&mut active.pace.between, command.inter_token_ms);
        if let Some(bytes) = command.cut_after_bytes {
            (active.cut_after, active.cuts_left) = (bytes, count);
        }
        if let Some(hang) = command.hang {
            active.hang = hang;
        }
        if let Some(reset) = command.reset_on_reuse {
            active.resets_left = if reset { count } else { 0 };
        }
        if let Some(status) = command.health_status {
            active.health = Some(status).filter(|status| *status != 0);
        }
        if let Some(asleep) = command.sleep {
            active.asleep = asleep;
        }
        if let Some(after) = command.close_idle_after_ms {
            self.close_idle.send_replace(Some(Duration::from_millis(after)).filter(|after| !after.is_zero()));
        }
        self.any.store(true, Relaxed);
        Ok(())
    }

    /// What is to go wrong with the next request; counted faults are used up.
    pub(super) fn plan(&self, reused: bool) -> Plan {
        if !self.any.load(Relaxed) {
            return Plan::default();
        }
        let mut active = self.active.lock();
        if reused && active.resets_left > 0 {
            active.resets_left -= 1;
            return Plan { reset: true, ..Plan::default() };
        }
        if active.hang {
            return Plan { hang: true, ..Plan::default() };
        }
        let mut plan = Plan { delay: active.delay, pace: active.pace, ..Plan::default() };
        if active.status_left > 0 {
            active.status_left -= 1;
            plan.status = active.status;
        }
        if plan.status.is_none() && active.cuts_left > 0 {
            active.cuts_left -= 1;
            plan.cut = Some(active.cut_after);
        }
        plan
    }
}
