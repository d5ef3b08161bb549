//! The router as a process: its addresses, CPU time and memory.
use std::fmt::Write as _;
use std::io::{self, BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::traffic;

/// A running router; killed when dropped.
pub struct Router {
    child: Child,
    pub address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Router {
    /// Starts `binary serve` with one pool, whose further keys are `pool` (YAML lines), and waits until it passes on.
    pub async fn start(binary: &Path, pool: &str, replicas: &[SocketAddr], probe: &[u8]) -> io::Result<Self> {
        let mut yaml = format!(
            "listen: 127.0.0.1:0\nadmin: off\npools:\n  - model: {}\n    engine_metrics: off\n{pool}    replicas:\n",
            super::MODEL
        );
        for (at, address) in replicas.iter().enumerate() {
            let _ = writeln!(yaml, "      - {{ id: replica-{at}, url: \"http://{address}\" }}");
        }
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("router.yaml");
        std::fs::write(&file, yaml)?;
        let mut child = Command::new(binary)
            .args(["serve".as_ref(), "--config".as_ref(), file.as_os_str()])
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?).lines();
        let mut said = String::new();
        let address = loop {
            let Some(line) = lines.next().transpose()? else {
                return Err(io::Error::other(format!("the router did not start:\n{said}")));
            };
            if let Some(address) = address_in(&line) {
                break address;
            }
            said = said + &line + "\n";
        };
        // What it says later must not fill the pipe.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let router = Self { child, address, _folder: folder };
        for _ in 0..300 {
            if traffic::once(address, probe).await.unwrap_or(false) {
                return Ok(router);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(io::Error::other("the router passes nothing on"))
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// CPU time, user and system, of its threads so far (`schedstat`, which counts nanoseconds).
    pub fn cpu(&self) -> io::Result<Duration> {
        let mut nanos = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            nanos += text.split(' ').next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Resident bytes.
    pub fn resident(&self) -> io::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other("no VmRSS"))
    }
}

/// Where the proxy listens, in its line `… listening … role=proxy address=…`.
fn address_in(line: &str) -> Option<SocketAddr> {
    let line = line.replace('"', "").replace("address:", "address=");
    if !line.contains("listening") || !line.contains("proxy") {
        return None;
    }
    let rest = line.split("address=").nth(1)?;
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':')).unwrap_or(rest.len());
    rest[..end].parse().ok()
}
