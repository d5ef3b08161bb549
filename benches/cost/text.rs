//! Requests as bytes, made of this repository's own code and prose.
use std::path::Path;

use fastrand::Rng;
use serde_json::{Value, json};

/// Lines to draw from, about half code and half prose.
pub struct Corpus(Vec<String>);

impl Corpus {
    /// Reads `src/**/*.rs` and `docs/*.md`.
    pub fn read() -> std::io::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut folders = vec![root.join("src"), root.join("docs")];
        let mut lines = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "md") {
                    let text = std::fs::read_to_string(path)?;
                    lines.extend(text.lines().filter(|line| line.len() > 8).map(|line| format!("{line}\n")));
                }
            }
        }
        lines.sort();
        Ok(Self(lines))
    }

    /// So many bytes of lines.
    pub fn text(&self, rng: &mut Rng, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 200);
        while text.len() < bytes {
            text.push_str(&self.0[rng.usize(..self.0.len())]);
        }
        let end = (0..=bytes).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text
    }
}

/// A message.
pub fn message(role: &str, content: String) -> Value {
    json!({"role": role, "content": content})
}

/// A whole HTTP request for the next answer of a chat.
pub fn request(messages: &[Value]) -> Vec<u8> {
    let body = json!({"model": super::MODEL, "messages": messages, "max_tokens": 64}).to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n";
    format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}
