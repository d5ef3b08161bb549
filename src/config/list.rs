//! The file that `discover: { file: … }` names: a list in the form of `replicas:`, checked by the same rows of the table.
use std::path::Path;

use super::check::Check;
use super::error::{Error, Errors, Place};
use super::model::{PoolDefaults, Replica};
use super::scalar::Value;
use super::{keys, node, resolve};

/// Reads and checks a list of replicas. `[]` is a list of none; a file without content is an error, because it is what a
/// writer leaves for a moment who does not rename.
/// Replicas take from `defaults` what they don't say themselves.
pub fn load_replicas(
    path: &Path,
    defaults: &PoolDefaults,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Replica>, Errors> {
    let (text, name) = super::read(path, "a list of replicas")?;
    parse_replicas(&text, &name, path.parent().unwrap_or(Path::new("")), defaults, env)
}

pub(super) fn parse_replicas(
    text: &str,
    file_name: &str,
    base_dir: &Path,
    defaults: &PoolDefaults,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Replica>, Errors> {
    let mut errors = Errors::new(file_name);
    let root = match node::read(text) {
        Ok(Some(root)) if !root.is_null() => root,
        Ok(_) => {
            let remedy = "write one `- http://host:port` a line; `[]` when there are no replicas";
            errors.push(Error::new(Place::Text { line: 1, column: 1 }, "", "the file is empty", remedy));
            return Err(errors);
        }
        Err(error) => {
            errors.push(error);
            return Err(errors.finish(text, &[]));
        }
    };
    let mut check = Check::new(env, base_dir, &mut errors);
    let item = keys::find("pools[]", "replicas").and_then(|key| check.list_file(key, &root));
    let secret_lines = std::mem::take(&mut check.secret_lines);
    let replicas = match item.as_ref().map(|item| &item.value) {
        Some(Value::List(items)) => resolve::replica_list(items, defaults, &mut errors),
        _ => Vec::new(),
    };
    if errors.is_empty() { Ok(replicas) } else { Err(errors.finish(text, &secret_lines)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Result<Vec<Replica>, String> {
        list_in(&PoolDefaults::default(), text)
    }

    fn list_in(defaults: &PoolDefaults, text: &str) -> Result<Vec<Replica>, String> {
        parse_replicas(text, "list.yaml", Path::new(""), defaults, &|_| None).map_err(|errors| errors.to_string())
    }

    #[test]
    fn the_pools_tls_holds_for_https_replicas_of_a_list() {
        let tls = crate::config::PoolTls { ca: None, server_name: Some("engine.internal".into()) };
        let defaults = PoolDefaults { tls, ..PoolDefaults::default() };
        let replicas = list_in(
            &defaults,
            "- https://a:1\n- { url: \"https://b:1\", tls: { server_name: b.internal } }\n- http://c:1\n",
        )
        .unwrap();
        let names: Vec<_> = replicas.iter().map(|r| r.tls.as_ref().map(|tls| &*tls.server_name)).collect();
        assert_eq!(names, [Some("engine.internal"), Some("b.internal"), None]);
    }

    #[test]
    fn yaml_and_json_lists_read_alike() {
        let yaml = list("- http://a:1\n- { url: \"http://b:2/x\", weight: 3, incarnation: 7 }\n").unwrap();
        let json = list(r#"["http://a:1", {"url": "http://b:2/x", "weight": 3, "incarnation": 7}]"#).unwrap();
        assert_eq!(yaml, json);
        assert_eq!((&*yaml[0].id, &*yaml[1].id, yaml[1].weight, yaml[1].incarnation), ("a:1", "b:2/x", 3, 7));
        assert_eq!(list("[]").unwrap(), []);
    }

    #[test]
    fn what_is_no_list_is_refused_with_its_place() {
        assert!(list("").unwrap_err().contains("the file is empty"));
        assert!(list("http://a:1\n").unwrap_err().starts_with("list.yaml:1:1: this is not a list"));
        let twice = list("- http://a:1\n- { url: \"http://b:1\", weigth: 2 }\n").unwrap_err();
        assert!(twice.starts_with("list.yaml:2:24: [1].weigth: unknown key; did you mean `weight`?"), "{twice}");
        assert!(list("- http://a:1\n- http://a:1\n").unwrap_err().contains("already stands in this"));
    }
}
