//! Compressed request bodies: decoded within bounds, or passed untouched, as configured.
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use crate::support::*;

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

pub fn compressed(encoding: &str, body: Vec<u8>) -> Request {
    Request::new("POST", "/v1/chat/completions")
        .header("content-type", "application/json")
        .header("content-encoding", encoding)
        .body(body)
}

/// One byte a block, 128 KiB each: 1 GiB of zeros in 32 KiB (RFC 8878, section 3.1.1.2.2: RLE blocks).
fn zstd_bomb(blocks: usize) -> Vec<u8> {
    // A descriptor without content size, a window of 128 KiB.
    zstd_zeros(&[0x00, 0x38], blocks)
}

/// The same under any frame header.
fn zstd_zeros(header: &[u8], blocks: usize) -> Vec<u8> {
    let mut out = vec![0x28, 0xB5, 0x2F, 0xFD];
    out.extend_from_slice(header);
    for block in 0..blocks {
        let header = ((128_u32 << 10) << 3) | (1 << 1) | u32::from(block + 1 == blocks);
        out.extend_from_slice(&header.to_le_bytes()[..3]);
        out.push(0);
    }
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn gzip_and_zstd_are_decoded() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let plain = sized_chat(200_000, false).body;
    let bodies = [("gzip", gzip(&plain)), ("x-gzip", gzip(&plain)), ("zstd", zstd(&plain)), ("GZIP", gzip(&plain))];
    for (turn, (encoding, body)) in bodies.into_iter().enumerate() {
        let answer = proxy.exchange(&compressed(encoding, body)).await;
        assert_eq!(answer.status(), 200, "{encoding}: {}", answer.text());
        let seen = upstream.seen("/v1/chat/completions");
        assert!(seen[turn].body == plain, "{encoding}");
        assert_eq!(seen[turn].head.get("content-encoding"), None, "{encoding}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pass_leaves_the_bytes_alone() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let pool = Pool::model("m").at(upstream.address()).with("request_encoding: pass");
    let proxy = Proxy::start(&Config::new(pool)).await;
    let body = gzip(&chat(false, 1).body);
    let answer = proxy.exchange(&compressed("gzip", body.clone())).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let seen = upstream.only("/v1/chat/completions").await;
    assert_eq!(seen.body, body);
    assert_eq!(seen.head.get("content-encoding"), Some("gzip"));
}

#[tokio::test(flavor = "multi_thread")]
async fn bombs_are_413_and_cost_no_memory() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 200);
    let before = proxy.process.resident();
    // Over the limit by a little, and 1 GiB.
    let zeros = gzip(&vec![0; 68 << 20]);
    for (what, request) in [
        ("gzip", compressed("gzip", zeros)),
        ("zstd", compressed("zstd", zstd_bomb(8_192))),
        ("a small one, by its ratio", compressed("gzip", gzip(&vec![b' '; 8 << 20]))),
    ] {
        let answer = proxy.exchange(&request).await;
        assert_eq!(answer.status(), 413, "{what}: {}", answer.text());
    }
    let grown = proxy.process.resident().saturating_sub(before);
    // One body of 64 MiB at a time, on threads whose freed memory the allocator gives back a moment later.
    assert!(grown < 3 * (64 << 20), "the bombs cost {grown} bytes");
    assert_eq!(upstream.seen("/v1/chat/completions").len(), 1, "none reached the engine");
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wide_window_costs_no_memory() {
    // The decoder yields nothing before a window is full: what a client says of it must not be what we hold.
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 200);
    let before = proxy.process.resident();
    // 128 MiB: as a window, and as a content size in one segment. 4 KiB decode to as much.
    for header in [&[0x00, 0x88][..], &[0xA0, 0, 0, 0, 8]] {
        let answer = proxy.exchange(&compressed("zstd", zstd_zeros(header, 1_023))).await;
        assert_eq!(answer.status(), 413, "{header:?}: {}", answer.text());
    }
    let grown = proxy.process.resident().saturating_sub(before);
    assert!(grown < 30 << 20, "4 KiB cost {grown} bytes");
    // A wide window alone is no fault, nor is a frame to be skipped.
    let plain = chat(false, 1).body;
    let mut frame = vec![0x50, 0x2A, 0x4D, 0x18, 2, 0, 0, 0, b'n', b'o', 0x28, 0xB5, 0x2F, 0xFD, 0x00, 0xA8];
    frame.extend_from_slice(&((plain.len() as u32) << 3 | 1).to_le_bytes()[..3]);
    frame.extend_from_slice(&plain);
    let answer = proxy.exchange(&compressed("zstd", frame)).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert_eq!(upstream.seen("/v1/chat/completions").last().unwrap().body, plain);
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_and_unknown_encodings_are_the_clients_errors() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let plain = chat(false, 1).body;
    let mut cut = gzip(&plain);
    cut.truncate(cut.len() - 9);
    for (encoding, body, status) in [
        ("gzip", cut, 400),
        ("gzip", b"not gzip".to_vec(), 400),
        ("zstd", b"not zstd".to_vec(), 400),
        ("br", plain, 415),
    ] {
        let answer = proxy.exchange(&compressed(encoding, body)).await;
        assert_eq!(answer.status(), status, "{encoding}: {}", answer.text());
        assert!(answer.json()["error"]["message"].is_string());
    }
    assert!(upstream.seen("/v1/chat/completions").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn identity_is_no_encoding() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    assert_eq!(proxy.exchange(&compressed("identity", chat(false, 1).body)).await.status(), 200);
}
