//! Tests of the virtual engine.
