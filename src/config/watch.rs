//! Waiting for a file to change.
//!
//! The folder is watched, not the file: editors and tools rename a new file over the old one, and Kubernetes swaps a
//! symbolic link beside it. A burst of events counts once. What is not seen that way (a link to a file elsewhere, a
//! network file system) is found by looking now and then; who waits compares contents.
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use notify::{Event, EventKind, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

/// A hash of a file's content; `None` when it can't be read. More than a configuration may hold is not looked at.
pub fn fingerprint(file: &Path) -> Option<u64> {
    let mut content = Vec::new();
    std::fs::File::open(file).ok()?.take(super::MAX_FILE + 1).read_to_end(&mut content).ok()?;
    Some(xxhash_rust::xxh3::xxh3_64(&content))
}

/// How long a burst of events may last before it is acted on.
const SETTLE: Duration = Duration::from_millis(50);

/// Watches the folder of one file.
#[derive(Debug)]
pub struct Watch {
    changed: Arc<Notify>,
    // Dropped, it watches no more. `None`: only the looks now and then are left.
    _watcher: Option<notify::RecommendedWatcher>,
}

impl Watch {
    /// Watches from now on. Where that is not possible, the log says so, and [`Self::changed`] returns for its `look`
    /// alone.
    pub fn new(file: &Path) -> Self {
        let folder = match file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let changed = Arc::new(Notify::new());
        let notify = changed.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // Reading is an access, and this process reads.
            if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
                notify.notify_one();
            }
        })
        .and_then(|mut watcher| watcher.watch(folder, RecursiveMode::NonRecursive).map(|()| watcher));
        let watcher = watcher
            .inspect_err(|error| tracing::warn!(file = %file.display(), %error, "changes are found by looking only"))
            .ok();
        Self { changed, _watcher: watcher }
    }

    /// Returns when something in the folder has changed, or `look` has passed.
    pub async fn changed(&self, look: Duration) {
        tokio::select! {
            () = self.changed.notified() => tokio::time::sleep(SETTLE).await,
            () = tokio::time::sleep(look) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far longer than any event takes; a look would be too late for the test.
    const NEVER: Duration = Duration::from_secs(3600);
    const PATIENCE: Duration = Duration::from_secs(10);

    async fn seen(watch: &Watch) {
        tokio::time::timeout(PATIENCE, watch.changed(NEVER)).await.expect("the change is seen");
    }

    #[tokio::test]
    async fn a_write_a_rename_and_a_swapped_link_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("c.yaml"), "1").unwrap();
        let watch = Watch::new(&at("c.yaml"));
        std::fs::write(at("c.yaml"), "2").unwrap();
        seen(&watch).await;

        std::fs::write(at("new"), "3").unwrap();
        std::fs::rename(at("new"), at("c.yaml")).unwrap();
        seen(&watch).await;

        // As Kubernetes lays a config map out: c.yaml → ..data/c.yaml, ..data → the version.
        let map = tempfile::tempdir().unwrap();
        let at = |name: &str| map.path().join(name);
        for version in ["1", "2"] {
            std::fs::create_dir(at(version)).unwrap();
            std::fs::write(at(version).join("c.yaml"), version).unwrap();
        }
        std::os::unix::fs::symlink("1", at("..data")).unwrap();
        std::os::unix::fs::symlink("..data/c.yaml", at("c.yaml")).unwrap();
        let watch = Watch::new(&at("c.yaml"));
        std::os::unix::fs::symlink("2", at("..tmp")).unwrap();
        std::fs::rename(at("..tmp"), at("..data")).unwrap();
        seen(&watch).await;
        assert_eq!(std::fs::read_to_string(at("c.yaml")).unwrap(), "2");
    }

    #[tokio::test]
    async fn reading_is_no_change() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.yaml");
        std::fs::write(&file, "1").unwrap();
        let watch = Watch::new(&file);
        for _ in 0..10 {
            std::fs::read(&file).unwrap();
        }
        // The events of one watch are in order: when the write has come, all the reads have.
        std::fs::write(&file, "2").unwrap();
        seen(&watch).await;
        let more = tokio::time::timeout(Duration::from_millis(100), watch.changed(NEVER)).await;
        assert!(more.is_err(), "reading was taken for a change");
    }
}
