//! `policy:` and `shadow:`: what each policy is set by, and what it has no use for.
use super::{Across, Read as _, or};
use crate::config::check::Item;
use crate::config::model::*;
use crate::config::prefix;
use crate::config::scalar::Value;

/// The settings of policies, and whose they are.
const SETTINGS: &[(&str, &[&str])] = &[
    ("header", &["header_hash"]),
    ("fallback", &["session_sticky", "header_hash", "cache_aware"]),
    ("max_load_ratio", &["session_sticky", "header_hash", "cache_aware"]),
    ("min_load_gap", &["session_sticky", "header_hash", "cache_aware"]),
    ("affinity", &["cache_aware"]),
    ("min_match_tokens", &["cache_aware"]),
    ("load", &["cache_aware"]),
    ("min_queue_gap", &["cache_aware"]),
    ("request_cost", &["least_cost"]),
];

impl Across<'_> {
    /// A request has one header hash, so two policies that look at one must look at the same.
    pub(super) fn one_header(&mut self, pool: &Item, policy: &Policy, shadow: &Policy) {
        if let (Policy::HeaderHash { header: a, .. }, Policy::HeaderHash { header: b, .. }) = (policy, shadow)
            && a != b
        {
            let at = pool.get("shadow").and_then(|item| item.get("header")).unwrap_or(pool);
            let problem = format!("the policy hashes `{a}`, its shadow `{b}`");
            self.push(at, problem, "hash the same header in both, or choose another policy for one of them");
        }
    }

    /// A policy; the inner `None` is one that is switched off.
    pub(super) fn policy(&mut self, item: &Item) -> Option<Option<Policy>> {
        let kind = &item.get("type")?.value;
        if matches!(kind, Value::Off) {
            return Some(None);
        }
        let kind = <&'static str>::read(kind)?;
        self.only_its_settings(item, kind);
        let d = Affinity::default();
        let affinity = Affinity {
            fallback: or(Some(item), "fallback", d.fallback),
            max_load_ratio: or(Some(item), "max_load_ratio", d.max_load_ratio),
            min_load_gap: or(Some(item), "min_load_gap", d.min_load_gap),
        };
        match kind {
            "session_sticky" => Some(Some(Policy::SessionSticky(affinity))),
            "header_hash" => {
                let header = or(Some(item), "header", None);
                let path = format!("{}.header", item.path);
                if header.is_none() && !self.errors.iter().any(|e| e.path == path) {
                    let remedy = "write `policy: { type: header_hash, header: x-user-id }`";
                    self.push(item, "`header_hash` needs the `header` that it hashes", remedy);
                }
                Some(Some(Policy::HeaderHash { header: header?, affinity }))
            }
            "cache_aware" => Some(Some(Policy::CacheAware(self.cache_aware(item)))),
            "least_cost" => Some(Some(Policy::LeastCost(prefix::least_cost(item)))),
            load => LoadPolicy::named(load).map(|load| Some(Policy::from(load))),
        }
    }

    fn only_its_settings(&mut self, policy: &Item, kind: &str) {
        for (name, users) in SETTINGS.iter().filter(|(_, users)| !users.contains(&kind)) {
            let Some(setting) = policy.get(name) else { continue };
            let users: Vec<_> = users.iter().map(|user| format!("`{user}`")).collect();
            let users = match users.as_slice() {
                [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
                _ => users.concat(),
            };
            let problem = format!("`{kind}` does not use `{name}`; {users} would");
            self.push(setting, problem, "remove it, or choose another policy");
        }
    }

    fn cache_aware(&mut self, item: &Item) -> CacheAware {
        let settings = prefix::cache_aware(item);
        for name in ["max_load_ratio", "min_load_gap", "min_queue_gap"] {
            let Some(setting) = item.get(name) else { continue };
            if settings.affinity == Stay::Prefer {
                let problem = format!("`affinity: prefer` stays with a prefix whatever the load, and has no `{name}`");
                self.push(setting, problem, "remove it, or write `affinity: balanced`");
                continue;
            }
            let in_time = name == "min_queue_gap";
            if name != "max_load_ratio" && in_time != (settings.load == LoadUnit::QueuedSeconds) {
                let (unit, counted) = (settings.load.as_str(), if in_time { "in time" } else { "in requests" });
                let problem = format!("the load is counted as `{unit}`, and this gap is {counted}");
                let remedy = match in_time {
                    true => "write `min_load_gap`, or `load: queued_seconds` beside it",
                    false => "write `min_queue_gap: 2s` in its place, or another `load`",
                };
                self.push(setting, problem, remedy);
            }
        }
        settings
    }
}
