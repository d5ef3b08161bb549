//! What each version writes.
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use super::*;

/// Fields that a version's arrays have at most, beside the name; `None`: maps.
const VERSIONS: [(&str, Option<usize>); 7] = [
    ("vLLM 0.9.0, SGLang 0.4.9", Some(5)),
    ("vLLM 0.10.2, SGLang 0.5.9", Some(6)),
    ("vLLM 0.14.0", Some(7)),
    ("vLLM 0.17.0", Some(8)),
    ("vLLM 0.20.0", Some(9)),
    ("vLLM 0.22.0", Some(10)),
    ("vLLM 0.24.0, SGLang 0.5.20", None),
];

#[derive(Debug, Clone, Copy)]
enum Hash {
    Signed,
    Unsigned,
    Bytes,
}

fn hash(form: Hash, hash: u64) -> Json {
    match form {
        Hash::Signed => json!(hash as i64),
        Hash::Unsigned => json!(hash),
        Hash::Bytes => json!(format!("hex:{}{hash:016x}", "ab".repeat(24))),
    }
}

fn medium(tier: Tier) -> Json {
    match tier {
        Tier::Device => json!("GPU"),
        Tier::Cpu => json!("CPU"),
        Tier::Disk => json!("STORAGE"),
    }
}

fn kind(kind: Kind) -> Json {
    match kind {
        Kind::Full => json!("full_attention"),
        Kind::Mla => json!("mla_attention"),
        Kind::SinkFull => json!("sink_full_attention"),
        Kind::Other => json!("mamba"),
    }
}

/// An event as a version writes it, and what of it arrives.
fn write(event: &Event, fields: Option<usize>, form: Hash) -> (Json, Event) {
    let has = |at: usize| fields.is_none_or(|fields| fields >= at);
    let hashes = |hashes: &[u64]| Json::Array(hashes.iter().map(|&one| hash(form, one)).collect());
    let (name, named, arrives) = match event {
        Event::Cleared => ("AllBlocksCleared", vec![], Event::Cleared),
        Event::Removed(removed) => {
            let named = vec![
                ("block_hashes", hashes(&removed.hashes), true),
                ("medium", medium(removed.tier), has(6)),
                ("group_idx", json!(removed.group), has(9)),
            ];
            let tier = if has(6) { removed.tier } else { Tier::Device };
            let group = removed.group.filter(|_| has(9));
            ("BlockRemoved", named, Event::Removed(Removed { hashes: removed.hashes.clone(), tier, group }))
        }
        Event::Stored(stored) => {
            let (id, label) = match &stored.adapter {
                None => (None, None),
                Some(Adapter::Id(id)) => (Some(*id), None),
                Some(Adapter::Name(name)) => (Some(1), Some(name.clone())),
            };
            let first = stored.parent.is_none();
            let mut keys: Vec<_> =
                stored.hashes.iter().map(|_| label.iter().map(|name| json!(name)).collect::<Vec<_>>()).collect();
            if first {
                keys[0].extend(stored.salt.iter().map(|salt| json!(salt)));
            }
            let named = vec![
                ("block_hashes", hashes(&stored.hashes), true),
                ("parent_block_hash", json!(stored.parent.map(|parent| hash(form, parent))), true),
                ("token_ids", json!(stored.tokens), true),
                ("block_size", json!(stored.block_size), true),
                ("lora_id", json!(id), true),
                ("medium", medium(stored.tier), has(6)),
                ("lora_name", json!(label), has(7)),
                ("extra_keys", json!(keys), has(8)),
                ("group_idx", json!(stored.group), has(9)),
                ("kv_cache_spec_kind", json!(stored.kind.map(kind)), has(10)),
            ];
            let arrives = Stored {
                tier: if has(6) { stored.tier } else { Tier::Device },
                adapter: if has(7) { stored.adapter.clone() } else { id.map(Adapter::Id) },
                salt: stored.salt.clone().filter(|_| first && has(8)),
                group: stored.group.filter(|_| has(9)),
                kind: stored.kind.filter(|_| has(10)),
                ..stored.clone()
            };
            ("BlockStored", named, Event::Stored(arrives))
        }
    };
    let named = named.into_iter().filter(|(_, _, has)| *has);
    let json = if fields.is_some() {
        // Only trailing fields may be left out.
        let mut items: Vec<_> = named.map(|(_, value, _)| value).collect();
        let required = if name == "BlockStored" { 5 } else { 1 };
        while items.len() > required && items.last().is_some_and(Json::is_null) {
            items.pop();
        }
        Json::Array([json!(name)].into_iter().chain(items).collect())
    } else {
        let named = named.filter(|(name, value, _)| !value.is_null() || *name == "parent_block_hash");
        let mut map: serde_json::Map<_, _> = named.map(|(name, value, _)| (name.to_owned(), value)).collect();
        map.insert("session_id".to_owned(), json!({"what": ["ever"]}));
        map.insert("type".to_owned(), json!(name));
        Json::Object(map)
    };
    (json, arrives)
}

fn event() -> impl Strategy<Value = Event> {
    let tier = || prop_oneof![Just(Tier::Device), Just(Tier::Cpu), Just(Tier::Disk)];
    let kinds = prop_oneof![Just(Kind::Full), Just(Kind::Mla), Just(Kind::SinkFull), Just(Kind::Other)];
    let adapter = prop_oneof!["[a-z]{1,8}".prop_map(Adapter::Name), (0..99_i64).prop_map(Adapter::Id)];
    let removed = (vec(any::<u64>(), 1..5), tier(), of(0..4_u32))
        .prop_map(|(hashes, tier, group)| Event::Removed(Removed { hashes, tier, group }));
    let content = (vec(any::<u64>(), 1..5), of(any::<u64>()), 1..9_u32, any::<u32>());
    let labels = (tier(), of(0..4_u32), of(kinds), of(adapter), of("[A-Z]{1,80}"));
    let stored =
        (content, labels).prop_map(|((hashes, parent, block_size, token), (tier, group, kind, adapter, salt))| {
            let tokens = (0..hashes.len() as u32 * block_size).map(|at| token.wrapping_add(at)).collect();
            let extras = Vec::new();
            Event::Stored(Stored { hashes, parent, tokens, block_size, tier, group, kind, adapter, salt, extras })
        });
    prop_oneof![4 => stored, 2 => removed, 1 => Just(Event::Cleared)]
}

proptest! {
    #![proptest_config(cases(2_000))]

    #[test]
    fn what_a_version_writes_is_read_again(events in vec(event(), 0..6), form in 0..3_usize, version in 0..VERSIONS.len()) {
        let form = [Hash::Signed, Hash::Unsigned, Hash::Bytes][form];
        let (name, fields) = VERSIONS[version];
        let (written, arrives): (Vec<_>, Vec<_>) = events.iter().map(|event| write(event, fields, form)).unzip();
        let batch = read(&written);
        prop_assert_eq!(&batch.skipped, &[], "{}", name);
        prop_assert_eq!(batch.events, arrives, "{}", name);
    }
}

#[test]
fn the_first_versions_batch_has_no_rank() {
    let batch = decode(&pack(&json!([1.5, [["AllBlocksCleared"]]]))).unwrap();
    assert_eq!(batch, Batch { at: 1.5, rank: None, events: vec![Event::Cleared], skipped: vec![] });
    let later = decode(&pack(&json!([2, [], null, {"new": [1]}]))).unwrap();
    assert_eq!((later.at, later.rank), (2.0, None));
}

#[test]
fn media_are_tiers() {
    for (medium, tier) in [
        (json!(null), Tier::Device),
        (json!("GPU"), Tier::Device),
        (json!("CPU"), Tier::Cpu),
        (json!("CPU_PINNED"), Tier::Cpu),
        (json!("FS"), Tier::Disk),
        (json!("STORAGE"), Tier::Disk),
        (json!("OBJ"), Tier::Disk),
        (json!("EXTERNAL"), Tier::Disk),
        (json!("TAPE"), Tier::Disk),
    ] {
        let event = json!({"type": "BlockRemoved", "block_hashes": [1], "medium": medium});
        assert_eq!(one(event), Event::Removed(Removed { hashes: vec![1], tier, group: None }));
    }
    let remote = json!({"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU", "locality": "REMOTE"});
    assert!(matches!(one(remote), Event::Removed(Removed { tier: Tier::Disk, .. })));
}

/// vLLM's CPU offloading without `self_describing_kv_events`.
#[test]
fn offloaded_blocks_are_named_only() {
    let event = json!({"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": null, "token_ids": [],
        "block_size": 0, "lora_id": null, "medium": "CPU", "lora_name": null});
    let stored = stored(event);
    assert!(stored.tokens.is_empty() && stored.block_size == 0 && stored.tier == Tier::Cpu);
    assert_eq!(stored.hashes, [1, 2]);
}

/// SGLang 0.4.9 to 0.5.4: no chain, so equal pages have one name.
#[test]
fn hashes_of_a_page_alone_are_left_out() {
    let page: Vec<u32> = (1..=16).collect();
    let event = json!(["BlockStored", [1_038_132_129_680_416_093_u64], null, page, 16, null]);
    assert_eq!(skipped(event), Skip { removal: false, reason: Reason::Unchained });
    assert_eq!(stored(json!(["BlockStored", [7], null, page, 16, null])).tokens, page);
}
