//! The operator's listener: liveness, readiness, metrics, configuration, replicas, explanations; and what they change there.
//!
//! It runs on a thread and a runtime of its own, so that a busy data path never fails a probe. With a token, every path
//! but `/livez` and `/readyz` asks for it; without one, the configuration only allows a loopback address.
mod explain;
mod listener;
mod operate;
mod routes;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::config;
use crate::proxy::{Inherited, Proxy};

/// A running admin listener; dropped, it ends.
#[derive(Debug)]
pub struct Admin {
    /// Where it listens.
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Admin {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Binds (or takes the address from `inherited`) and serves. The port is shared where the clients' ports are.
///
/// # Errors
/// When the address can't be bound or the thread can't be started; the message names the address.
pub fn start(settings: &config::Admin, proxy: Arc<Proxy>, inherited: &mut Inherited) -> io::Result<Admin> {
    let name = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot listen on {} (admin): {error}", settings.listen))
    };
    let (listener, _) = inherited.listen(settings.listen, proxy.shares_ports()).map_err(name)?;
    let address = listener.local_addr().map_err(name)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let app = routes::routes(proxy, settings.token.clone());
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::Builder::new().name("admin".into()).spawn(move || {
        runtime.block_on(async move {
            let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
            tokio::select! {
                result = axum::serve(listener::Bounded::new(listener), app) => {
                    if let Err(error) = result {
                        tracing::error!(%error, "the admin listener ended");
                    }
                }
                _ = stopped => {}
            }
        });
    })?;
    Ok(Admin { address, stop: Some(stop), thread: Some(thread) })
}
