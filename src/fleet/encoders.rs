//! Tokenizers of pools, loaded before the pools are built: it takes seconds, and one that can't be loaded must leave
//! everything as it is.
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::config::{Config, Errors, Models, Pool};
use crate::tokens::Encoder;

/// The files of a tokenizer's folder that an encoder is made of.
const FILES: [&str; 4] = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json"];

/// The encoder of each pool that has a use for prompts, by the pool's name.
#[derive(Debug, Default, Clone)]
pub struct Encoders(HashMap<Arc<str>, Loaded>);

#[derive(Debug, Clone)]
struct Loaded {
    from: From,
    encoder: Arc<Encoder>,
}

/// What an encoder is made of: one made of the same is the same.
#[derive(Debug, Clone, PartialEq)]
struct From {
    model: Arc<str>,
    tokenizer: Option<Tokenizer>,
}

#[derive(Debug, Clone, PartialEq)]
struct Tokenizer {
    folder: PathBuf,
    cache_bytes: usize,
    budget: Duration,
    /// Length and time of change of each of [`FILES`], where it exists.
    files: [Option<(u64, Option<SystemTime>)>; FILES.len()],
}

impl From {
    fn new(pool: &Pool) -> Self {
        let tokenizer = pool.tokenizer.as_ref().map(|folder| Tokenizer {
            folder: folder.clone(),
            cache_bytes: pool.tokens_bytes,
            budget: pool.tokens_budget,
            files: FILES.map(|file| look(&folder.join(file))),
        });
        Self { model: model(pool), tokenizer }
    }
}

fn look(file: &Path) -> Option<(u64, Option<SystemTime>)> {
    let data = std::fs::metadata(file).ok()?;
    Some((data.len(), data.modified().ok()))
}

/// The name that goes into every root. A pool that takes any model has none of its own: what a request asks for goes
/// where an adapter's name would.
fn model(pool: &Pool) -> Arc<str> {
    match &pool.models {
        Models::Any => "".into(),
        Models::Named { model, .. } => model.clone(),
    }
}

impl Encoders {
    /// Loads what `config` needs. Takes up to seconds.
    ///
    /// # Errors
    /// For each tokenizer that can't be used: where it is named, file and cause.
    pub fn load(config: &Config) -> Result<Self, Errors> {
        Self::default().next(config)
    }

    /// What follows under another configuration. An encoder stays, with what it has cached, while model, folder, settings
    /// and the folder's files are the same.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn next(&self, config: &Config) -> Result<Self, Errors> {
        let mut next = HashMap::new();
        let mut failed = Vec::new();
        for (index, pool) in config.pools.iter().enumerate().filter(|(_, pool)| pool.uses_prompts()) {
            let from = From::new(pool);
            let same = self.0.get(&pool.name).filter(|loaded| loaded.from == from);
            let encoder = match (same, &from.tokenizer) {
                (Some(loaded), _) => loaded.encoder.clone(),
                (None, None) => Arc::new(Encoder::text(&from.model)),
                (None, Some(Tokenizer { folder, cache_bytes, budget, .. })) => {
                    match Encoder::load(&from.model, folder, *cache_bytes, *budget) {
                        Ok(encoder) => Arc::new(encoder),
                        Err(error) => {
                            failed.push((format!("pools[{index}].tokenizer"), error.to_string()));
                            continue;
                        }
                    }
                }
            };
            next.insert(pool.name.clone(), Loaded { from, encoder });
        }
        if failed.is_empty() {
            return Ok(Self(next));
        }
        let remedy = "give the folder of the model as its makers publish it, or leave the key out to cut text instead";
        Err(config.refuse(failed, remedy))
    }

    /// A pool's encoder; one that cuts text where none was loaded.
    pub(super) fn of(&self, pool: &Pool) -> Arc<Encoder> {
        match self.0.get(&pool.name) {
            Some(loaded) => loaded.encoder.clone(),
            None => Arc::new(Encoder::text(&model(pool))),
        }
    }
}
