//! `perf record` of a process, switched on for some of its time only.
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command};

/// A recording; ended when dropped.
pub struct Profile {
    perf: Child,
    control: File,
    answers: File,
    _folder: tempfile::TempDir,
}

impl Profile {
    /// Starts to watch a process, off at first. By the clock, since virtual machines seldom have counters; callers are
    /// found by unwinding, since release builds keep no frame pointers.
    pub fn start(process: u32, into: &Path) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let [control, answers] = ["control", "answers"].map(|name| folder.path().join(name));
        if !Command::new("mkfifo").args([&control, &answers]).status()?.success() {
            return Err(io::Error::other("mkfifo failed"));
        }
        let perf = Command::new("perf")
            .args(["record", "-q", "-e", "cpu-clock", "-F", "2500", "--call-graph", "dwarf,12288", "-D", "-1"])
            .arg(format!("--control=fifo:{},{}", control.display(), answers.display()))
            .args(["-p", &process.to_string(), "-o"])
            .arg(into)
            .spawn()?;
        // Opened for both ways, a pipe waits for nobody.
        let open = |path| OpenOptions::new().read(true).write(true).open(path);
        Ok(Self { perf, control: open(control)?, answers: open(answers)?, _folder: folder })
    }

    /// `enable` or `disable`, and waits until it is so.
    pub fn say(&mut self, command: &str) -> io::Result<()> {
        self.control.write_all(format!("{command}\n").as_bytes())?;
        let mut answer = [0; 16];
        self.answers.read(&mut answer).map(drop)
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        // It writes its file when it is told to stop.
        let _ = self.control.write_all(b"stop\n");
        let _ = self.perf.wait();
    }
}
