//! Bytes that engines sent, against another library's reading of them.
use std::path::{Path, PathBuf};

use super::*;

/// An independent, slow reading of `index.jsonl`.
fn expected(event: &Json) -> Event {
    const STORED: [&str; 10] = [
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
    ];
    let event = match event {
        Json::Array(items) => {
            let names =
                if items[0] == "BlockRemoved" { vec!["block_hashes", "medium", "group_idx"] } else { STORED.into() };
            let named = names.iter().map(ToString::to_string).zip(items[1..].iter().cloned());
            Json::Object([("type".to_owned(), items[0].clone())].into_iter().chain(named).collect())
        }
        map => map.clone(),
    };
    let hash = |value: &Json| match value {
        Json::String(hex) => u64::from_str_radix(&hex[hex.len() - 16..], 16).unwrap(),
        Json::Number(number) => number.as_u64().unwrap_or_else(|| number.as_i64().unwrap() as u64),
        other => panic!("{other}"),
    };
    let hashes = || event["block_hashes"].as_array().unwrap().iter().map(hash).collect();
    let group = event["group_idx"].as_u64().map(|group| group as u32);
    assert!(event["medium"] == "GPU" || event["type"] == "AllBlocksCleared");
    match event["type"].as_str().unwrap() {
        "AllBlocksCleared" => Event::Cleared,
        "BlockRemoved" => Event::Removed(Removed { hashes: hashes(), tier: Tier::Device, group }),
        "BlockStored" => Event::Stored(Stored {
            hashes: hashes(),
            parent: (!event["parent_block_hash"].is_null()).then(|| hash(&event["parent_block_hash"])),
            tokens: event["token_ids"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect(),
            block_size: event["block_size"].as_u64().unwrap() as u32,
            tier: Tier::Device,
            group,
            kind: event["kv_cache_spec_kind"].as_str().map(|kind| {
                assert_eq!(kind, "full_attention");
                Kind::Full
            }),
            adapter: None,
            salt: event["cache_salt"].as_str().or(event["extra_keys"][0][0].as_str()).map(str::to_owned),
            extras: Vec::new(),
        }),
        other => panic!("{other}"),
    }
}

/// Reads all messages of a folder of runs; returns how many there were.
fn check(folder: &Path) -> usize {
    let mut messages = 0;
    for run in std::fs::read_dir(folder).unwrap().map(|run| run.unwrap().path()).filter(|path| path.is_dir()) {
        for line in std::fs::read_to_string(run.join("index.jsonl")).unwrap().lines() {
            let message: Json = serde_json::from_str(line).unwrap();
            let Some(number) = message["i"].as_u64() else { continue };
            let frame = |name| std::fs::read(run.join(format!("msg{number:03}.{name}.bin"))).unwrap();
            let frames = ["topic", "seq", "payload"].map(frame);
            let (sequence, payload) = live(&frames).unwrap();
            assert_eq!(Some(sequence), message["seq"].as_u64());
            let batch = decode(payload).unwrap();
            let context = || format!("{} message {number}", run.display());
            let [at, events, rank] = &message["batch"].as_array().unwrap()[..] else { panic!() };
            // serde_json may read a decimal one step off.
            assert!((batch.at - at.as_f64().unwrap()).abs() < 1e-6);
            assert_eq!(batch.rank, Some(rank.as_u64().unwrap() as u32));
            assert_eq!(batch.skipped, [], "{}", context());
            let events: Vec<_> = events.as_array().unwrap().iter().map(expected).collect();
            assert_eq!(batch.events, events, "{}", context());
            messages += 1;
        }
    }
    messages
}

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kv-events")
}

#[test]
fn recorded_messages_are_read_as_another_library_reads_them() {
    assert_eq!(check(&fixtures()), 22);
    let shared = std::env::var_os("WARMROUTE_SHARED").map(PathBuf::from);
    let shared = shared.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared"));
    let all = shared.join("fixtures/kv-events");
    if all.is_dir() {
        assert!(check(&all) > 80);
    } else {
        println!("skipped: no recordings at ../shared/fixtures/kv-events (or $WARMROUTE_SHARED/fixtures/kv-events)");
    }
}

#[test]
fn replies_to_a_replay_have_two_shapes() {
    for (run, frames, last) in
        [("vllm-0.22.1-array-encoding", 3, 10), ("vllm-0.32.0", 4, 10), ("sglang-0.5.23-page16", 4, 11)]
    {
        let replay = fixtures().join(run).join("replay");
        let read = |reply: u32| -> Vec<Vec<u8>> {
            (0..frames).map(|frame| std::fs::read(replay.join(format!("r{reply:03}.f{frame}.bin"))).unwrap()).collect()
        };
        let first = read(0);
        let Some(Reply::Batch(5, payload)) = reply(&first) else { panic!("{run}: {:?}", reply(&first)) };
        assert!(decode(payload).is_ok_and(|batch| batch.skipped.is_empty()));
        assert_eq!(reply(&read(last)), Some(Reply::End), "{run}");
    }
    assert_eq!(reply(&[&b""[..], &[0; 8], b""]), Some(Reply::End), "no payload ends as well");
    assert_eq!(reply(&[&b""[..], &[0; 7], b"x"]), None);
    assert_eq!(reply(&[&b"x"[..]]), None);
    assert_eq!(live::<&[u8]>(&[]), None);
    assert_eq!(request(258), [vec![], vec![0, 0, 0, 0, 0, 0, 1, 2]]);
}
