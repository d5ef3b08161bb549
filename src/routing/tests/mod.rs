//! Tests of the routing room.
