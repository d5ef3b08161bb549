//! `study_hash`: md5 of the key in decimal, as an integer (big-endian), modulo the number of replicas.
use super::md5::md5;
use super::{Chooser, Holdings, Placed};
use crate::routing::Reason;
use crate::sim::call::Call;
use crate::sim::engine::VirtualTime;

#[derive(Debug)]
pub(super) struct StudyHash {
    pub replicas: usize,
}

/// The replica that a key hashes to.
pub(super) fn replica_of(key: u64, replicas: usize) -> usize {
    let digest = u128::from_be_bytes(md5(key.to_string().as_bytes()));
    (digest % replicas.max(1) as u128) as usize
}

impl Chooser for StudyHash {
    fn choose(&mut self, call: &Call, _: &[u64], _: &dyn Holdings, _: VirtualTime) -> Result<Placed, String> {
        Ok(Placed::plain(replica_of(call.key, self.replicas), Reason::Hashed))
    }
}
