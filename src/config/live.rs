//! What a reload can't change in a running process: the rows of the table that are not live.
use serde_json::Value;

use super::keys::{self, Kind};
use super::model::Config;

impl Config {
    /// The keys that differ in `new` and take a restart, in the table's order.
    pub fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        let (old, effective) = (self.effective(), new.effective());
        let at =
            |document: &Value, path: &str| path.split('.').try_fold(document.clone(), |v, part| v.get(part).cloned());
        let single = |kind: Kind| matches!(kind, Kind::Scalar(_) | Kind::List { of: Kind::Scalar(_), .. });
        // A secret is masked in what is effective.
        let token = |config: &Self| config.admin.as_ref().and_then(|admin| admin.token.clone());
        // `listen` as a whole, content of `client_ca` included: entries may come, go and change their places.
        keys::all()
            .iter()
            .filter(|key| !key.live && (single(key.kind) || key.path == "listen") && !key.path.contains("[]"))
            .filter(|key| match key.path {
                "listen" => self.listen != new.listen,
                "admin.token" => token(self) != token(new),
                path => at(&old, path) != at(&effective, path),
            })
            .map(|key| key.path)
            .collect()
    }

    /// Takes from `running` what a reload can't change, so that this is what will be in force.
    pub fn keep_fixed(&mut self, running: &Self) {
        self.listen.clone_from(&running.listen);
        self.admin.clone_from(&running.admin);
        self.limits.connections = running.limits.connections;
        self.limits.stored_responses = running.limits.stored_responses;
        self.logging.format = running.logging.format;
        let fixed = |path: &str| {
            keys::all().iter().any(|key| !key.live && path.split(['[']).next().is_some_and(|path| path == key.path))
        };
        self.sources.written.retain(|path, _| !fixed(path));
        let kept = running.sources.written.iter().filter(|(path, _)| fixed(path));
        self.sources.written.extend(kept.map(|(path, written)| (path.clone(), written.clone())));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::parse;

    fn config(text: &str) -> Config {
        let pools = "\npools: [{ model: m, replicas: [\"http://a\"] }]\n";
        parse(&format!("{text}{pools}"), "c.yaml", Path::new(""), &|_| None).unwrap()
    }

    /// Also a guard: whoever adds a key that takes a restart has to keep it in `keep_fixed`.
    #[test]
    fn every_key_that_takes_a_restart_is_named_and_kept() {
        let old = config("listen: 127.0.0.1:1\nadmin: { token: a }");
        for key in keys::all().iter().filter(|key| !key.live) {
            // Files would have to be there; `listen` is compared as a whole.
            if key.path.starts_with("listen[].tls") {
                continue;
            }
            let text = match key.path {
                "listen[].address" => "listen: 127.0.0.1:2\nadmin: { token: a }".to_owned(),
                "listen" => "listen: 127.0.0.1:2\nadmin: { token: a }".to_owned(),
                "admin" => "listen: 127.0.0.1:1\nadmin: off".to_owned(),
                "admin.listen" => "listen: 127.0.0.1:1\nadmin: { listen: 127.0.0.1:9, token: a }".to_owned(),
                "admin.token" => "listen: 127.0.0.1:1\nadmin: { token: b }".to_owned(),
                path if path.starts_with("listen[]") => {
                    let name = path.trim_start_matches("listen[].");
                    format!("listen: [{{ address: 127.0.0.1:1, {name}: {} }}]\nadmin: {{ token: a }}", key.example)
                }
                path => {
                    let (map, name) = path.split_once('.').unwrap();
                    format!("listen: 127.0.0.1:1\nadmin: {{ token: a }}\n{map}: {{ {name}: {} }}", key.example)
                }
            };
            let mut new = config(&text);
            let named = old.needs_restart(&new);
            let expected: &[&str] = match key.path {
                "admin" => &["admin.listen", "admin.token"],
                path if path.starts_with("listen") => &["listen"],
                _ => &[key.path],
            };
            assert_eq!(named, expected);
            new.keep_fixed(&old);
            assert_eq!(old.needs_restart(&new), <[&str; 0]>::default(), "{} is not kept", key.path);
            assert_eq!(new.effective(), old.effective());
        }
    }

    #[test]
    fn what_is_live_is_not_named() {
        let old = config("listen: 127.0.0.1:1");
        let new =
            config("listen: 127.0.0.1:1\ntimeouts: { idle: 1s }\nlimits: { body: 1MiB }\nlogging: { level: debug }");
        assert!(old.needs_restart(&new).is_empty());
    }
}
