//! A list in a file, read again when it changes.
use std::path::PathBuf;
use std::time::Duration;

use super::List;
use crate::config::{self, PoolDefaults, Watch};

/// The file, and what waits for its changes.
pub(super) struct File {
    path: PathBuf,
    defaults: PoolDefaults,
    watch: Watch,
}

impl File {
    pub fn new(path: PathBuf, defaults: PoolDefaults) -> Self {
        Self { watch: Watch::new(&path), path, defaults }
    }

    pub async fn look(&mut self) -> Result<List, String> {
        let (path, defaults) = (self.path.clone(), self.defaults.clone());
        let env = |name: &str| std::env::var(name).ok();
        let read = tokio::task::spawn_blocking(move || config::load_replicas(&path, &defaults, &env));
        match read.await {
            Ok(Ok(replicas)) => Ok(List { replicas, holds: None }),
            Ok(Err(errors)) => Err(errors.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    pub async fn changed(&self, look: Duration) {
        self.watch.changed(look).await;
    }
}
