//! Tests of the order: single cases by name, and thousands of schedules of faults against a model engine.
mod cases;
mod engine;
mod faults;
mod mirror;

use super::*;
