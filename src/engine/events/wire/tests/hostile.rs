//! What nobody should send: a bad event costs itself, a bad payload itself, and neither more.
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn block(change: impl FnOnce(&mut Json)) -> Json {
    let mut event = json!({"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": null, "token_ids": [1, 2, 3, 4],
        "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null});
    change(&mut event);
    event
}

#[test]
fn a_bad_event_is_left_out_with_its_reason() {
    let set = |name: &str, value: Json| block(|event| event[name] = value);
    for (event, reason) in [
        (set("block_hashes", json!([])), Reason::Hashes),
        (set("block_hashes", json!(7)), Reason::Hashes),
        (set("block_hashes", json!([1, "x"])), Reason::Hashes),
        (set("block_hashes", json!(["hex:0102"])), Reason::Hashes),
        (set("parent_block_hash", json!(1.5)), Reason::Hashes),
        (set("token_ids", json!([1, 2, 3])), Reason::NotDense),
        (set("token_ids", json!([1, 2, 3, -4])), Reason::Tokens),
        (set("token_ids", json!([1, 2, 3, 1_u64 << 32])), Reason::Tokens),
        (set("token_ids", json!([[1, 2], [2, 3], [3, 4], [4, 5]])), Reason::TokenPairs),
        (set("token_ids", json!(null)), Reason::Tokens),
        (set("block_size", json!(0)), Reason::BlockSize),
        (set("block_size", json!(null)), Reason::BlockSize),
        (set("block_size", json!(u32::MAX)), Reason::NotDense),
        (set("medium", json!(3)), Reason::Field),
        (set("group_idx", json!("0")), Reason::Field),
        (set("type", json!("BlockPinned")), Reason::UnknownEvent),
        (set("type", json!(["BlockStored"])), Reason::NoEvent),
        (json!(["BlockMoved", 1]), Reason::UnknownEvent),
        (json!([]), Reason::NoEvent),
        (json!({}), Reason::NoEvent),
        (json!("BlockStored"), Reason::NoEvent),
        (json!(null), Reason::NoEvent),
    ] {
        let batch = read(&[block(|_| {}), event.clone(), json!(["AllBlocksCleared"])]);
        assert_eq!(batch.skipped.iter().map(|skip| skip.reason).collect::<Vec<_>>(), [reason], "{event}");
        assert_eq!(batch.events.len(), 2, "{event}");
        assert_eq!(batch.rank, Some(0));
    }
}

#[test]
fn a_lost_removal_is_told() {
    assert!(skipped(json!(["BlockRemoved", [1, null]])).removal);
    assert!(!skipped(json!(["BlockMoved", [1]])).removal, "what is new adds to what there was");
    assert!(!skipped(json!(["BlockStored", [1, null]])).removal);
}

#[test]
fn a_payload_that_is_no_batch_is_an_error() {
    for payload in [json!(null), json!({}), json!([1.0]), json!(["1", []]), json!([1.0, null]), json!([1.0, {}])] {
        assert_eq!(decode(&pack(&payload)), Err(Malformed), "{payload}");
    }
    let whole = pack(&json!([1.0, [block(|_| {})], 0]));
    for length in 0..whole.len() {
        assert_eq!(decode(&whole[..length]), Err(Malformed), "cut at {length}");
    }
}

#[test]
fn a_length_is_only_a_claim() {
    // Arrays, maps, texts, bytes and extensions of 4 GiB that are not there.
    for marker in [0xdd, 0xdf, 0xdb, 0xc6, 0xc9] {
        let claim = [&[0x92, 0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0][..], &[marker, 255, 255, 255, 255]].concat();
        assert_eq!(decode(&claim), Err(Malformed));
        let mut inside = pack(&json!([1.0, []]));
        inside.pop();
        inside.extend([0x91, 0x92, 0xac]);
        inside.extend(b"BlockRemoved");
        inside.extend([marker, 255, 255, 255, 255, 1]);
        assert_eq!(decode(&inside), Err(Malformed));
    }
    let mut reader = Reader::new(&[0xdd, 255, 255, 255, 255, 1, 2]);
    assert!(matches!(reader.value(), Ok(Value::Array(0xffff_ffff))));
    assert_eq!(reader.room(0xffff_ffff), 2);
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| [vec![0x91; depth], vec![0xc0]].concat();
    assert!(Reader::new(&nested(16)).skip().is_ok());
    assert!(Reader::new(&nested(17)).skip().is_err());
    assert!(Reader::new(&vec![0x91; 1 << 20]).skip().is_err());
}

fn seeds() -> Vec<Vec<u8>> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kv-events");
    let runs = std::fs::read_dir(folder).unwrap().map(|run| run.unwrap().path()).filter(|path| path.is_dir());
    let files = runs.flat_map(|run| std::fs::read_dir(run).unwrap().map(|file| file.unwrap().path()));
    let mut files: Vec<_> = files.filter(|file| file.to_str().unwrap().ends_with(".payload.bin")).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// What can be said of any batch: nothing is longer than the bytes that it came from, and blocks are dense.
fn check(payload: &[u8]) {
    let Ok(batch) = decode(payload) else { return };
    assert!(batch.events.len() + batch.skipped.len() <= payload.len());
    for event in &batch.events {
        match event {
            Event::Stored(stored) => {
                let wanted = stored.hashes.len() * stored.block_size as usize;
                assert!(!stored.hashes.is_empty() && stored.tokens.len() == wanted && wanted <= payload.len());
                assert!(stored.extras.is_empty() || stored.extras.len() == stored.hashes.len());
            }
            Event::Removed(removed) => assert!(!removed.hashes.is_empty() && removed.hashes.len() <= payload.len()),
            Event::Cleared => {}
        }
    }
}

proptest! {
    #![proptest_config(cases(4_000))]

    #[test]
    fn any_bytes_are_survived(bytes in vec(any::<u8>(), 0..200)) {
        check(&bytes);
        check(&[&[0x92, 0xcb, 0x41, 0xda, 0xc3, 0x31, 0xba, 0, 0xf6, 0x81, 0x91][..], &bytes].concat());
    }

    #[test]
    fn damaged_recordings_are_survived(
        which in any::<prop::sample::Index>(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in of_rarely(),
    ) {
        let seeds = seeds();
        let mut payload = which.get(&seeds).clone();
        for (at, byte) in &damage {
            let at = at.index(payload.len());
            payload[at] = *byte;
        }
        if let Some(cut) = cut {
            payload.truncate(cut.index(payload.len()));
        }
        check(&payload);
    }
}

fn of_rarely() -> impl Strategy<Value = Option<prop::sample::Index>> {
    prop::option::weighted(0.2, any::<prop::sample::Index>())
}
