//! Tests of the wire format: what engines wrote, what each version would write, and what nobody should.
mod forms;
mod hostile;
mod keys;
mod recorded;

use proptest::test_runner::{Config as Cases, RngSeed};
use serde_json::{Value as Json, json};

use super::*;

fn cases(cases: u32) -> Cases {
    Cases { cases, rng_seed: RngSeed::Fixed(0x5eed), failure_persistence: None, ..Cases::default() }
}

/// MessagePack of a JSON value; a text `hex:...` becomes bytes.
fn pack(value: &Json) -> Vec<u8> {
    let mut out = Vec::new();
    pack_onto(&mut out, value);
    out
}

fn pack_onto(out: &mut Vec<u8>, value: &Json) {
    use rmp::encode;
    match value {
        Json::Null => encode::write_nil(out).unwrap(),
        Json::Bool(value) => encode::write_bool(out, *value).unwrap(),
        Json::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => drop(encode::write_uint(out, number).unwrap()),
            (None, Some(number)) => drop(encode::write_sint(out, number).unwrap()),
            (None, None) => encode::write_f64(out, number.as_f64().unwrap()).unwrap(),
        },
        Json::String(text) => match text.strip_prefix("hex:") {
            Some(hex) => encode::write_bin(out, &unhex(hex)).unwrap(),
            None => encode::write_str(out, text).unwrap(),
        },
        Json::Array(items) => {
            encode::write_array_len(out, items.len() as u32).unwrap();
            items.iter().for_each(|item| pack_onto(out, item));
        }
        Json::Object(fields) => {
            encode::write_map_len(out, fields.len() as u32).unwrap();
            for (key, value) in fields {
                encode::write_str(out, key).unwrap();
                pack_onto(out, value);
            }
        }
    }
}

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// What a batch with these events is read as.
fn read(events: &[Json]) -> Batch {
    decode(&pack(&json!([1_796_000_000.25, events, 0]))).expect("a batch")
}

/// The one event of a batch with this one.
fn one(event: Json) -> Event {
    let batch = read(&[event]);
    assert_eq!((batch.events.len(), &batch.skipped[..]), (1, &[][..]));
    batch.events.into_iter().next().unwrap()
}

fn stored(event: Json) -> Stored {
    match one(event) {
        Event::Stored(stored) => stored,
        other => panic!("{other:?}"),
    }
}

/// Why a batch's one event was left out.
fn skipped(event: Json) -> Skip {
    let batch = read(&[event]);
    assert_eq!((batch.events.len(), batch.skipped.len()), (0, 1));
    batch.skipped[0]
}
