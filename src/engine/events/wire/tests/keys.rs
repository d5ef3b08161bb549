//! Salts, adapters and media: what besides tokens makes a block another one.
use super::*;

/// Blocks of one token each, as vLLM 0.32.0 writes them.
fn map(parent: Json, adapter: Json, keys: Json) -> Json {
    let blocks = keys.as_array().map_or(1, Vec::len);
    json!({"type": "BlockStored", "block_hashes": vec![7; blocks], "parent_block_hash": parent, "token_ids": vec![1; blocks],
        "block_size": 1, "lora_id": null, "medium": "GPU", "lora_name": adapter, "extra_keys": keys, "group_idx": 0,
        "kv_cache_spec_kind": "full_attention"})
}

/// As vLLM 0.17.0 does, without group.
fn array(keys: Json) -> Json {
    let blocks = keys.as_array().map_or(1, Vec::len);
    json!(["BlockStored", vec![7; blocks], null, vec![1; blocks], 1, null, "GPU", null, keys])
}

fn read_keys(event: Json) -> (Option<String>, Vec<Option<u64>>) {
    let stored = stored(event);
    (stored.salt, stored.extras)
}

#[test]
fn a_salt_is_told_from_the_rest() {
    let tenant = Some("tenant-a".to_owned());
    assert_eq!(read_keys(map(json!(null), json!(null), json!([["tenant-a"], null]))), (tenant.clone(), vec![]));
    assert_eq!(
        read_keys(map(json!(null), json!(null), json!([[["cache_salt", "tenant-a"]], null]))),
        (tenant.clone(), vec![])
    );
    assert_eq!(read_keys(array(json!([["tenant-a"], null]))), (tenant.clone(), vec![]));
    // A salt may look like a digest where media are pairs.
    let digest = "0123456789abcdef".repeat(4);
    assert_eq!(read_keys(map(json!(null), json!(null), json!([[digest]]))).0, Some(digest.clone()));
    // Where they are bare, it is a medium.
    let (salt, extras) = read_keys(array(json!([[digest, "tenant-a"], [digest]])));
    assert_eq!(salt, tenant);
    assert_eq!(extras[0], extras[1], "the salt is no part of it");
    assert!(extras[0].is_some());
    // Only a prompt's first block has one.
    assert!(
        matches!(read_keys(map(json!(1), json!(null), json!([["tenant-a"]]))), (None, extras) if extras[0].is_some())
    );
    // With everything at once, and as SGLang has it.
    let (salt, extras) =
        read_keys(map(json!(null), json!("sql"), json!([["sql", ["cat", 3], "tenant-a", "hex:00ff"]])));
    assert!(salt == tenant && extras[0].is_some());
    let mut sglang = map(json!(7), json!(null), json!(null));
    sglang["cache_salt"] = json!("tenant-a");
    assert_eq!(read_keys(sglang), (tenant, vec![]));
}

#[test]
fn an_adapter_in_the_keys_is_no_medium() {
    for keys in [json!([["sql"], ["sql"]]), json!([[["lora", "sql", "/adapters/sql"]], null])] {
        let stored = stored(map(json!(null), json!("sql"), keys));
        assert_eq!((stored.adapter, stored.salt, stored.extras), (Some(Adapter::Name("sql".to_owned())), None, vec![]));
    }
    assert_eq!(stored(map(json!(null), json!("sql"), json!([["sql", "tenant"]]))).salt.as_deref(), Some("tenant"));
    let by_number = json!(["BlockStored", [7], null, [1], 1, 12]);
    assert_eq!(stored(by_number).adapter, Some(Adapter::Id(12)));
}

#[test]
fn media_count_with_their_place() {
    let extras = |keys: Json| read_keys(map(json!(null), json!(null), keys)).1;
    let cat = extras(json!([null, [["cat", 3]], [["cat", -1]]]));
    assert!(cat[0].is_none() && cat[1].is_some() && cat[2].is_some() && cat[1] != cat[2]);
    assert_eq!(extras(json!([[["mm", "cat", 3]]]))[0], cat[1], "tagged or not");
    assert_ne!(extras(json!([[["dog", 3]]]))[0], cat[1]);
    assert_ne!(extras(json!([[["cat", 3], ["cat", 9]]]))[0], cat[1]);
    // A medium may be named like a tag.
    let (salt, extras) = read_keys(map(json!(null), json!(null), json!([[["cache_salt", 3], ["lora", 2]]])));
    assert!(salt.is_none() && extras[0].is_some());
    let embeddings = |digest: &str| read_keys(map(json!(null), json!(null), json!([[digest]]))).1[0];
    assert_ne!(embeddings("hex:00"), embeddings("hex:01"));
    assert_eq!(
        read_keys(map(json!(null), json!(null), json!([[["prompt_embeds", "hex:00"]]]))).1[0],
        embeddings("hex:00")
    );
}

#[test]
fn keys_that_are_not_understood_leave_the_event_out() {
    for keys in [json!([[1.5]]), json!([[[1, 2]]]), json!([[["a", "b", "c", "d"]]]), json!(["tenant"]), json!("tenant")]
    {
        assert_eq!(skipped(map(json!(null), json!(null), keys.clone())).reason, Reason::ExtraKeys, "{keys}");
    }
    let mut short = map(json!(null), json!(null), json!([null, null]));
    short["extra_keys"] = json!([["cat", 3]]);
    assert_eq!(skipped(short).reason, Reason::ExtraKeys, "which block it is of isn't known");
}
