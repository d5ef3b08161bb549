//! `header_hash`: rendezvous hashing on one header's value; nothing is remembered.
use crate::routing::Request;

/// What is hashed.
pub(super) fn key(request: &Request<'_>) -> Option<u128> {
    request.header.map(u128::from)
}
