//! `warmroute serve` without a file: the flags become the same tree that a file would, and go the same way.
use std::path::Path;

use super::error::{Errors, Place};
use super::model::Config;
use super::node::{Data, Entry, Node};

/// The flags of `warmroute serve`, as they were typed.
#[derive(Debug, Clone, Default)]
pub struct ServeArgs {
    /// `--listen`, one or more.
    pub listen: Vec<String>,
    /// `--model`; without it the one pool takes every request.
    pub model: Option<String>,
    /// `--replica`, one or more.
    pub replicas: Vec<String>,
    /// `--policy`.
    pub policy: Option<String>,
    /// `--tokenizer`, relative to the working directory.
    pub tokenizer: Option<String>,
    /// `--admin`.
    pub admin: Option<String>,
}

impl Config {
    /// The configuration that the flags of `warmroute serve` describe; errors name the flag.
    pub fn from_args(args: &ServeArgs) -> Result<Self, Errors> {
        let mut pool = vec![match &args.model {
            Some(model) => entry("--model", "model", Node::flag("--model", model)),
            None => entry("--model", "models", Node::flag("--model", "any")),
        }];
        pool.push(list("--replica", "replicas", &args.replicas));
        for (flag, key, value) in [("--policy", "policy", &args.policy), ("--tokenizer", "tokenizer", &args.tokenizer)]
        {
            pool.extend(value.as_ref().map(|value| entry(flag, key, Node::flag(flag, value))));
        }
        let pool = Node { place: Place::Flag("--model"), data: Data::Map(pool) };
        let pools = Node { place: Place::Flag("--model"), data: Data::List(vec![pool]) };
        let mut root = vec![list("--listen", "listen", &args.listen), entry("--model", "pools", pools)];
        root.extend(args.admin.as_ref().map(|value| entry("--admin", "admin", Node::flag("--admin", value))));
        let root = Node { place: Place::Flag("--listen"), data: Data::Map(root) };
        super::from_tree(&root, "", Path::new(""), &|_| None, Errors::new(""))
    }
}

fn entry(flag: &'static str, key: &str, node: Node) -> Entry {
    Entry { key: key.to_owned(), place: Place::Flag(flag), node }
}

fn list(flag: &'static str, key: &str, values: &[String]) -> Entry {
    let items = values.iter().map(|value| Node::flag(flag, value)).collect();
    entry(flag, key, Node { place: Place::Flag(flag), data: Data::List(items) })
}
