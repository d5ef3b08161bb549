//! Tests over sockets, in process.
