//! The binary as a child process: its output kept, its addresses learnt, its end assured.
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::{PATIENCE, wait_until};

/// The binary under test.
pub fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_warmroute")
}

/// A running `warmroute`, killed when dropped.
pub struct Process {
    name: String,
    child: Child,
    output: Arc<Output>,
}

#[derive(Default)]
struct Output {
    lines: Mutex<Vec<String>>,
    more: Condvar,
    /// Pipes that may still bring lines.
    open: AtomicUsize,
}

impl Process {
    /// Starts `warmroute ARGS` with extra environment. Both of its outputs are kept.
    pub fn start(args: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(binary());
        command.args(args).stdin(Stdio::null());
        Self::spawn(args.first().unwrap_or(&""), command, environment)
    }

    /// Starts `warmroute ARGS` with a listening socket passed as systemd passes it: descriptor 3, `LISTEN_FDS`.
    pub fn start_with_socket(args: &[&str], socket: &std::net::TcpListener) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\" 3<&0 0</dev/null", binary()]).args(args);
        command.stdin(std::os::fd::OwnedFd::from(socket.try_clone().expect("a socket can be duplicated")));
        Self::spawn(args.first().unwrap_or(&""), command, &[])
    }

    fn spawn(name: &str, mut command: Command, environment: &[(&str, &str)]) -> Self {
        let mut child = command
            .env_remove("RUST_LOG")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let output = Arc::new(Output::default());
        output.follow(child.stdout.take().expect("piped"));
        output.follow(child.stderr.take().expect("piped"));
        Self { name: name.to_string(), child, output }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Every line it has printed so far, on either output.
    pub fn output(&self) -> Vec<String> {
        self.output.lines.lock().unwrap().clone()
    }

    /// The first line that `pick` takes, waiting for it.
    pub fn line<T>(&mut self, what: &str, pick: impl Fn(&str) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        let mut lines = self.output.lines.lock().unwrap();
        loop {
            if let Some(found) = lines.iter().find_map(|line| pick(line)) {
                return found;
            }
            if self.output.open.load(Ordering::Acquire) == 0 || Instant::now() > end {
                let printed = lines.join("\n  ");
                drop(lines);
                panic!("{} printed no {what}; it printed:\n  {printed}", self.name);
            }
            lines = self.output.more.wait_timeout(lines, Duration::from_millis(50)).unwrap().0;
        }
    }

    /// Waits until it has printed such a line: what it did is seen before what it says.
    pub async fn says(&self, what: &str, is: impl Fn(&str) -> bool) {
        wait_until(what, PATIENCE, || async { self.output().iter().any(|line| is(line)) }).await;
    }

    /// Waits for its end, and until its last lines are read.
    pub fn wait(&mut self, deadline: Duration) -> ExitStatus {
        let end = Instant::now() + deadline;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                break status;
            }
            assert!(Instant::now() < end, "{} has not ended within {deadline:?}", self.name);
            thread::park_timeout(Duration::from_millis(5));
        };
        let end = Instant::now() + PATIENCE;
        let mut lines = self.output.lines.lock().unwrap();
        while self.output.open.load(Ordering::Acquire) > 0 && Instant::now() < end {
            lines = self.output.more.wait_timeout(lines, Duration::from_millis(50)).unwrap().0;
        }
        status
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal("-TERM");
    }

    /// Sends a signal: `-HUP`.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.pid().to_string()]).status().expect("kill runs");
        assert!(sent.success());
    }

    /// Ends it at once and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Processor time spent so far, by all its threads; to a hundredth of a second.
    pub fn cpu(&self) -> Duration {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("the process runs");
        let fields: Vec<&str> = text.rsplit_once(')').expect("a name").1.split_whitespace().collect();
        let ticks = |field: usize| fields[field].parse::<u64>().expect("a number");
        Duration::from_millis(10 * (ticks(11) + ticks(12)))
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> u64 {
        let mut text = String::new();
        File::open(format!("/proc/{}/status", self.pid()))
            .and_then(|mut file| file.read_to_string(&mut text))
            .expect("the process runs");
        let line = text.lines().find(|line| line.starts_with("VmRSS:")).expect("a running process has VmRSS");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number of KiB") * 1024
    }
}

impl Output {
    fn follow(self: &Arc<Self>, pipe: impl Read + Send + 'static) {
        let output = self.clone();
        output.open.fetch_add(1, Ordering::AcqRel);
        thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n') {
                let Ok(line) = line else { break };
                output.lines.lock().unwrap().push(String::from_utf8_lossy(&line).into_owned());
                output.more.notify_all();
            }
            // Under the lock, so that whoever sees no open pipe has seen every line.
            let _lines = output.lines.lock().unwrap();
            output.open.fetch_sub(1, Ordering::AcqRel);
            output.more.notify_all();
        });
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            let lines = self.output();
            let skipped = lines.len().saturating_sub(60);
            eprintln!("--- output of {} (last 60 lines) ---", self.name);
            for line in &lines[skipped..] {
                eprintln!("{line}");
            }
        }
    }
}

/// The address after `key` in a line: `… address=127.0.0.1:8080 …`, `… http://127.0.0.1:8080`.
pub fn address_after(line: &str, key: &str) -> Option<SocketAddr> {
    let rest = &line[line.find(key)? + key.len()..];
    let end = rest.find(|c: char| !(c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '[' | ']'))).unwrap_or(rest.len());
    rest[..end].parse().ok()
}
