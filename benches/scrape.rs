//! What asking engines for their load costs: `warmroute serve` in front of 100 of them, asked once a second, with no
//! requests; its CPU time beside that of the same without. `cargo bench --bench scrape [-- REPLICAS [SECONDS]]`.
//!
//! The engines are this program: each answers `/metrics` with a page like vLLM's, 68 KiB. Exits with 1 over 2 % of a core.
use std::fmt::Write as _;
use std::io::{self, BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// A page of vLLM 0.32 has so many bytes.
const PAGE: usize = 68 * 1024;
/// The share of a core that may be spent.
const MOST: f64 = 0.02;

/// The recorded lines, and histograms until it is as long as the whole page was.
fn page() -> String {
    let mut page = String::new();
    let recorded = include_str!("../tests/fixtures/engine/vllm-0.32.0.metrics");
    let (buckets, lines): (Vec<&str>, Vec<&str>) = recorded.lines().partition(|line| line.contains("_bucket"));
    while page.len() < PAGE {
        buckets.iter().for_each(|line| page = std::mem::take(&mut page) + line + "\n");
    }
    page + &lines.join("\n") + "\n"
}

/// One engine; counts the pages that it gave.
async fn engine(listener: TcpListener, answer: Arc<[u8]>, pages: Arc<AtomicU64>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let (answer, pages) = (answer.clone(), pages.clone());
        tokio::spawn(async move {
            let mut head = Vec::new();
            while stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {
                if !head.ends_with(b"\r\n\r\n") {
                    continue;
                }
                let metrics = head.starts_with(b"GET /metrics ");
                pages.fetch_add(metrics.into(), Ordering::Relaxed);
                let bytes = if metrics { &answer[..] } else { b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n" };
                if stream.write_all(bytes).await.is_err() {
                    return;
                }
                head.clear();
            }
        });
    }
}

struct Router(Child);

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Router {
    fn start(engines: &[SocketAddr], metrics: &str) -> io::Result<Self> {
        let mut yaml = format!(
            "listen: 127.0.0.1:0\nadmin: off\npools:\n  - model: m\n    engine_metrics: {metrics}\n    replicas:\n"
        );
        for address in engines {
            let _ = writeln!(yaml, "      - http://{address}");
        }
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("router.yaml");
        std::fs::write(&file, yaml)?;
        // Another build than the one beside it, where WARMROUTE names it.
        let router = std::env::var_os("WARMROUTE").unwrap_or_else(|| env!("CARGO_BIN_EXE_warmroute").into());
        let mut child = Command::new(router)
            .args(["serve".as_ref(), "--config".as_ref(), file.as_os_str()])
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?).lines();
        let router = Self(child);
        if !lines.by_ref().map_while(Result::ok).any(|line| line.contains("listening")) {
            return Err(io::Error::other("the router did not start"));
        }
        // What it says later must not fill the pipe.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Ok(router)
    }

    /// CPU time of its threads so far (`schedstat`, which counts nanoseconds).
    fn cpu(&self) -> io::Result<Duration> {
        let mut nanos = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.0.id()))? {
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            nanos += text.split(' ').next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(nanos))
    }
}

/// The share of a core that the router takes, and how many pages it read meanwhile.
async fn share(engines: &[SocketAddr], metrics: &str, seconds: u64, pages: &AtomicU64) -> io::Result<(f64, u64)> {
    let router = Router::start(engines, metrics)?;
    // Its start is no part of it.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (before, read, began) = (router.cpu()?, pages.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let share = (router.cpu()? - before).as_secs_f64() / began.elapsed().as_secs_f64();
    Ok((share, pages.load(Ordering::Relaxed) - read))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<ExitCode> {
    let mut args = std::env::args().skip(1).filter_map(|arg| arg.parse().ok());
    let (replicas, seconds) = (args.next().unwrap_or(100), args.next().unwrap_or(20));
    let page = page();
    let answer: Arc<[u8]> =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{page}", page.len()).into_bytes().into();
    let (pages, mut engines) = (Arc::new(AtomicU64::new(0)), Vec::new());
    for _ in 0..replicas {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        engines.push(listener.local_addr()?);
        tokio::spawn(engine(listener, answer.clone(), pages.clone()));
    }
    println!("{replicas} engines, pages of {} bytes, {seconds} s each", page.len());
    let (with, read) = share(&engines, "1s", seconds, &pages).await?;
    let (without, none) = share(&engines, "off", seconds, &pages).await?;
    println!("asked once a second: {:.2} % of a core, {read} pages", with * 100.0);
    println!("not asked:           {:.2} % of a core, {none} pages", without * 100.0);
    println!("so the questions take {:.2} % of a core; {:.0} % are allowed", (with - without) * 100.0, MOST * 100.0);
    Ok(if with - without <= MOST { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
